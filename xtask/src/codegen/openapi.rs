//! Reads the structs of `k8s-openapi`: one file, one definition.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use syn::{Fields, GenericArgument, Item, PathArguments, Type as SynType};

/// Structs without fields, which k8s-openapi holds as any JSON.
const FIELDLESS: [&str; 3] = [".CustomResourceSubresourceStatus", ".StorageVersionSpec", ".BasicSchedulingPolicy"];

/// A definition by its OpenAPI name, e.g. `io.k8s.api.core.v1.PodSpec`.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) name: String,
    /// The Rust path below the version module, which field types refer to.
    pub(crate) path: String,
    pub(crate) doc: String,
    pub(crate) fields: Vec<Field>,
    /// Server-side apply owns the whole or nothing of it.
    pub(crate) atomic: bool,
    /// What is said of its list: of the whole, of the items, of the metadata.
    pub(crate) list_doc: Option<[String; 3]>,
    /// A value of its own form, without fields: a time, a quantity, any JSON.
    pub(crate) scalar: bool,
    /// Group, version and kind, where this is a kind of its own.
    pub(crate) kind: Option<(String, String, String)>,
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) rust_name: String,
    pub(crate) doc: String,
    pub(crate) required: bool,
    pub(crate) shape: Shape,
    pub(crate) tag: u32,
    /// The tags of the messages this field is inlined from, outermost first, a byte each; 0 where it is the type's own.
    pub(crate) outer: u32,
    pub(crate) markers: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Scalar(&'static str),
    Object(String),
    List(Box<Shape>),
    Map(Box<Shape>),
}

pub(crate) fn read(root: &Path) -> Result<Vec<Definition>> {
    let mut found = Vec::new();
    visit(root, root, &mut found)?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn visit(root: &Path, folder: &Path, found: &mut Vec<Definition>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            visit(root, &path, found)?;
        } else if folder != root && path.extension().is_some_and(|e| e == "rs") && !path.ends_with("mod.rs") {
            found.extend(definition(root, &path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(())
}

fn definition(root: &Path, file: &Path) -> Result<Option<Definition>> {
    let text = std::fs::read_to_string(file)?;
    let Some(name) = text.lines().next().and_then(|l| l.strip_prefix("// Generated from definition ")) else {
        return Ok(None);
    };
    let json_names = json_names(&text);
    let mut definition: Option<Definition> = None;
    for item in syn::parse_file(&text)?.items {
        match item {
            Item::Struct(item) if definition.is_none() => {
                let module = file.parent().context("file has a folder")?.strip_prefix(root)?;
                let module = module.display().to_string().replace('/', "::");
                let mut fields = Vec::new();
                let named = match &item.fields {
                    Fields::Named(named) => named.named.iter().collect(),
                    _ => Vec::new(),
                };
                let scalar =
                    !matches!(item.fields, Fields::Named(_)) && !FIELDLESS.iter().any(|known| name.ends_with(known));
                for field in named {
                    let rust_name = field.ident.as_ref().context("named field")?.to_string();
                    let rust_name = rust_name.trim_start_matches("r#").to_owned();
                    let (required, shape) = shape_of(&field.ty)?;
                    let name = json_names.get(&rust_name).with_context(|| format!("no JSON name for {rust_name}"))?;
                    let (doc, markers) = (doc_of(&field.attrs), BTreeMap::new());
                    fields.push(Field {
                        name: name.clone(),
                        rust_name,
                        doc,
                        required,
                        shape,
                        tag: 0,
                        outer: 0,
                        markers,
                    });
                }
                let path = format!("{module}::{}", item.ident);
                definition = Some(Definition {
                    name: name.to_owned(),
                    path,
                    doc: doc_of(&item.attrs),
                    fields,
                    atomic: false,
                    list_doc: None,
                    scalar,
                    kind: None,
                });
            }
            // A value that takes several forms in JSON.
            Item::Enum(item) if definition.is_none() => {
                definition = Some(Definition {
                    name: name.to_owned(),
                    path: format!("::{}", item.ident),
                    doc: doc_of(&item.attrs),
                    fields: Vec::new(),
                    atomic: false,
                    list_doc: None,
                    scalar: true,
                    kind: None,
                });
            }
            Item::Impl(item) => {
                let is_resource = item.trait_.as_ref().is_some_and(|(_, path, _)| {
                    path.segments.last().is_some_and(|segment| segment.ident == "Resource")
                });
                if let (true, Some(definition)) = (is_resource, definition.as_mut()) {
                    let constant = |wanted: &str| constant(&item, wanted);
                    definition.kind = constant("GROUP")
                        .zip(constant("VERSION"))
                        .zip(constant("KIND"))
                        .map(|((group, version), kind)| (group, version, kind));
                }
            }
            _ => (),
        }
    }
    Ok(definition.map(with_type_meta))
}

/// Kinds carry `apiVersion` and `kind` on the wire though k8s-openapi leaves them out of the struct.
fn with_type_meta(mut definition: Definition) -> Definition {
    if definition.kind.is_some() {
        // k8s-openapi requires metadata of every kind, upstream's schemas of few.
        definition.fields.iter_mut().filter(|field| field.name == "metadata").for_each(|field| field.required = false);
        let docs = [
            (
                "apiVersion",
                "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources",
            ),
            (
                "kind",
                "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds",
            ),
        ];
        for (index, (name, doc)) in docs.into_iter().enumerate() {
            let (name, doc) = (name.to_owned(), doc.to_owned());
            let shape = Shape::Scalar("String");
            let markers = BTreeMap::new();
            let field = Field { rust_name: name.clone(), name, doc, required: false, shape, tag: 0, outer: 0, markers };
            definition.fields.insert(index, field);
        }
    }
    definition
}

fn constant(item: &syn::ItemImpl, wanted: &str) -> Option<String> {
    item.items.iter().find_map(|item| match item {
        syn::ImplItem::Const(c) if c.ident == wanted => match &c.expr {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(value), .. }) => Some(value.value()),
            _ => None,
        },
        _ => None,
    })
}

/// The deserializer names each field: `"clusterIP" => Field::Key_cluster_ip`.
fn json_names(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix('"')?.split_once("\" => Field::Key_"))
        .map(|(json, rust)| (rust.trim_end_matches(',').to_owned(), json.to_owned()))
        .collect()
}

pub(super) fn doc_of(attributes: &[syn::Attribute]) -> String {
    let lines = attributes.iter().filter(|a| a.path().is_ident("doc")).filter_map(|a| match &a.meta {
        syn::Meta::NameValue(syn::MetaNameValue {
            value: syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }),
            ..
        }) => Some(text.value()),
        _ => None,
    });
    let doc: Vec<String> = lines.map(|l| l.strip_prefix(' ').unwrap_or(&l).to_owned()).collect();
    doc.join("\n").replace("\\[", "[").replace("\\]", "]").replace("\\<", "<").replace("\\>", ">").replace("\\\\", "\\")
}

fn shape_of(ty: &SynType) -> Result<(bool, Shape)> {
    let (name, argument) = path_of(ty)?;
    match (name.as_str(), argument) {
        ("Option", Some(inner)) => Ok((false, shape_of(inner)?.1)),
        _ => Ok((true, plain_shape(ty)?)),
    }
}

fn plain_shape(ty: &SynType) -> Result<Shape> {
    let (name, argument) = path_of(ty)?;
    let last = name.rsplit("::").next().unwrap_or_default();
    Ok(match (last, argument) {
        ("Vec", Some(inner)) => Shape::List(Box::new(plain_shape(inner)?)),
        ("BTreeMap", Some(inner)) => Shape::Map(Box::new(plain_shape(inner)?)),
        ("Box", Some(inner)) => plain_shape(inner)?,
        ("String", _) => Shape::Scalar("String"),
        ("bool", _) => Shape::Scalar("Bool"),
        ("i32", _) => Shape::Scalar("Int32"),
        ("i64", _) => Shape::Scalar("Int64"),
        ("f64", _) => Shape::Scalar("Double"),
        ("ByteString", _) => Shape::Scalar("Bytes"),
        ("Quantity", _) => Shape::Scalar("Quantity"),
        ("Time", _) => Shape::Scalar("Time"),
        ("MicroTime", _) => Shape::Scalar("MicroTime"),
        ("IntOrString", _) => Shape::Scalar("IntOrString"),
        ("RawExtension" | "JSON" | "FieldsV1" | "Value", _) => Shape::Scalar("Any"),
        ("JSONSchemaPropsOrBool", _) => Shape::Scalar("SchemaOr(super::SchemaOr::Bool)"),
        ("JSONSchemaPropsOrArray", _) => Shape::Scalar("SchemaOr(super::SchemaOr::Array)"),
        ("JSONSchemaPropsOrStringArray", _) => Shape::Scalar("SchemaOr(super::SchemaOr::Strings)"),
        _ => Shape::Object(name.trim_start_matches("crate::").to_owned()),
    })
}

/// A type's path, and its last generic argument.
fn path_of(ty: &SynType) -> Result<(String, Option<&SynType>)> {
    let SynType::Path(path) = ty else { anyhow::bail!("unexpected type {ty:?}") };
    let name: Vec<String> = path.path.segments.iter().map(|s| s.ident.to_string()).collect();
    let argument = match path.path.segments.last().map(|s| &s.arguments) {
        Some(PathArguments::AngleBracketed(list)) => list.args.iter().rev().find_map(|a| match a {
            GenericArgument::Type(ty) => Some(ty),
            _ => None,
        }),
        _ => None,
    };
    Ok((name.join("::"), argument))
}

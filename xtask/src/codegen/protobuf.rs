//! Reads protobuf tags and `+markers` out of `k8s-pb`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::openapi::Definition;

/// What the published crates lack: `TYPE FIELD tag=… outer=… MARKER=…`.
static MISSING: &str = include_str!("missing.txt");

type Fields = BTreeMap<String, Known>;

/// A message of k8s-pb.
#[derive(Default)]
struct Message {
    doc: String,
    fields: Fields,
    atomic: bool,
}

/// What k8s-pb says of a field.
struct Known {
    tag: u32,
    doc: String,
    markers: BTreeMap<String, Vec<String>>,
    /// The message it holds, if it holds one.
    message: Option<String>,
}

/// Adds what k8s-pb knows to each definition. A type or field it lacks keeps tag 0: it has no protobuf form.
pub(crate) fn annotate(definitions: &mut [Definition], root: &Path) -> Result<()> {
    read(definitions, root)?;
    complete(definitions)
}

/// Adds what is written down beside this file.
fn complete(definitions: &mut [Definition]) -> Result<()> {
    for line in MISSING.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let (type_name, field) = words.next().zip(words.next()).with_context(|| line.to_owned())?;
        let definition = definitions.iter_mut().find(|d| d.name == type_name).with_context(|| line.to_owned())?;
        let field = definition.fields.iter_mut().find(|f| f.name == field).with_context(|| line.to_owned())?;
        for word in words {
            match word.split_once('=').with_context(|| line.to_owned())? {
                ("tag", tag) => field.tag = tag.parse()?,
                ("required", value) => field.required = value.parse()?,
                ("outer", path) => {
                    field.outer =
                        path.split('.').try_fold(0, |outer, tag| tag.parse::<u32>().map(|t| outer << 8 | t))?;
                }
                (marker, value) => field.markers.entry(marker.to_owned()).or_default().push(value.to_owned()),
            }
        }
    }
    Ok(())
}

fn read(definitions: &mut [Definition], root: &Path) -> Result<()> {
    let mut files: BTreeMap<String, BTreeMap<String, Message>> = BTreeMap::new();
    for definition in definitions {
        let (module, name) = definition.path.rsplit_once("::").context("type in a module")?;
        if !files.contains_key(module) {
            let path = root.join(module.replace("::", "/")).join("mod.rs");
            let structs = if path.exists() { structs(&std::fs::read_to_string(path)?)? } else { BTreeMap::new() };
            files.insert(module.to_owned(), structs);
        }
        let Some(message) = files.get(module).and_then(|structs| structs.get(&fold(name))) else { continue };
        definition.atomic = message.atomic;
        let list = files.get(module).and_then(|structs| structs.get(&format!("{}list", fold(name))));
        definition.list_doc = list.map(|list| {
            let of = |field: &str| list.fields.get(field).map(|field| field.doc.clone()).unwrap_or_default();
            [list.doc.clone(), of("items"), of("metadata")]
        });
        let known = &message.fields;
        // What Go inlines into JSON is a message of its own in protobuf: `Volume.volumeSource`, `Probe.handler`.
        let own: Vec<String> = definition.fields.iter().map(|field| fold(&field.rust_name)).collect();
        let inlined: Vec<(u32, &Fields)> = known
            .iter()
            .filter(|(name, _)| !own.contains(name))
            .filter_map(|(_, field)| Some((field.tag, &files.get(module)?.get(field.message.as_ref()?)?.fields)))
            .collect();
        for field in &mut definition.fields {
            let name = fold(&field.rust_name);
            let nested = || inlined.iter().find_map(|(outer, fields)| Some((*outer, fields.get(&name)?)));
            if let Some((outer, found)) = known.get(&name).map(|found| (0, found)).or_else(nested) {
                (field.tag, field.outer, field.markers) = (found.tag, outer, found.markers.clone());
            }
        }
    }
    Ok(())
}

/// prost and k8s-openapi differ in how they case acronyms, so names are compared without case and underscores.
fn fold(name: &str) -> String {
    name.trim_start_matches("r#").trim_end_matches('_').replace('_', "").to_lowercase()
}

fn structs(text: &str) -> Result<BTreeMap<String, Message>> {
    let mut all = BTreeMap::new();
    for item in syn::parse_file(text)?.items {
        let syn::Item::Struct(item) = item else { continue };
        let mut fields = Fields::new();
        for field in &item.fields {
            let Some(ident) = &field.ident else { continue };
            let known = Known {
                tag: tag(&field.attrs),
                doc: doc(&field.attrs),
                markers: markers(&field.attrs),
                message: message(&field.ty),
            };
            fields.insert(fold(&ident.to_string()), known);
        }
        let atomic = markers(&item.attrs).get("structType").is_some_and(|values| values.iter().any(|v| v == "atomic"));
        all.insert(fold(&item.ident.to_string()), Message { doc: doc(&item.attrs), fields, atomic });
    }
    Ok(all)
}

/// `Option<VolumeSource>` holds a `VolumeSource`.
fn message(ty: &syn::Type) -> Option<String> {
    let syn::Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    match &last.arguments {
        syn::PathArguments::AngleBracketed(list) => list.args.iter().find_map(|argument| match argument {
            syn::GenericArgument::Type(inner) => message(inner),
            _ => None,
        }),
        _ => Some(fold(&last.ident.to_string())),
    }
}

/// The words of a comment as OpenAPI shows them: without markers, a paragraph on one line.
fn doc(attributes: &[syn::Attribute]) -> String {
    let text = super::openapi::doc_of(attributes);
    let mut out = String::new();
    for line in text.lines().map(str::trim_end).filter(|line| !line.trim_start().starts_with('+')) {
        match line {
            "" => out = out.trim_end().to_owned() + "\n\n",
            line => {
                out.push_str(line);
                out.push(' ');
            }
        }
    }
    // prost marks addresses.
    out.trim().replace("<http", "http").replace(['>', '<'], "")
}

fn tag(attributes: &[syn::Attribute]) -> u32 {
    let text = attributes.iter().find_map(|a| match &a.meta {
        syn::Meta::List(list) if a.path().is_ident("prost") => Some(list.tokens.to_string()),
        _ => None,
    });
    let after = text.as_deref().and_then(|t| t.rsplit_once("tag = \"")).map_or("", |(_, rest)| rest);
    after.trim_end_matches('"').parse().unwrap_or(0)
}

/// `+name=value` lines of a comment; a name may occur more than once (`+listMapKey`).
fn markers(attributes: &[syn::Attribute]) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("doc")) {
        let syn::Meta::NameValue(syn::MetaNameValue {
            value: syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }),
            ..
        }) = &attribute.meta
        else {
            continue;
        };
        if let Some((name, value)) = text.value().trim().strip_prefix('+').and_then(|m| m.split_once('=')) {
            found.entry(name.to_owned()).or_default().push(value.to_owned());
        }
    }
    found
}

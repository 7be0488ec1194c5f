//! The paths of a group's resources, with the parameters that clients look for before they use them.

use api::resources::Subresource;
use serde_json::{Map, Value, json};

use super::path_of;
use super::schemas::{META, reference};
use crate::registry::Served;

const OBJECTS: [&str; 3] = ["application/json", "application/vnd.kubernetes.protobuf", "application/yaml"];
const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

pub(super) fn add(served: &Served, paths: &mut Map<String, Value>) {
    let root = format!("/{}", path_of(served));
    let scope = if served.info.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{root}{scope}/{}", served.info.plural);
    let one = format!("{collection}/{{name}}");
    let all = [
        ("list", "get", &collection),
        ("create", "post", &collection),
        ("deletecollection", "delete", &collection),
        ("get", "get", &one),
        ("update", "put", &one),
        ("patch", "patch", &one),
        ("delete", "delete", &one),
    ];
    for (verb, method, path) in all {
        if served.info.verbs.iter().any(|known| known == verb) {
            insert(paths, path, served, method, operation(served, verb, &name_of(served, &served.info.kind), ""));
        }
    }
    if served.info.namespaced && served.info.verbs.iter().any(|verb| verb == "list") {
        let everywhere = format!("{root}/{}", served.info.plural);
        let list = operation(served, "list", &name_of(served, &served.info.kind), "ForAllNamespaces");
        paths.insert(everywhere, json!({"get": list, "parameters": []}));
    }
    for subresource in &served.info.subresources {
        let Some(schema) = subresource_type(served, subresource) else {
            continue; // Streams have options, not objects.
        };
        let path = format!("{one}/{}", subresource.name);
        for (verb, method) in [("get", "get"), ("update", "put"), ("patch", "patch"), ("create", "post")] {
            if subresource.verbs.iter().any(|known| known == verb) {
                let suffix = capitalized(&subresource.name);
                insert(paths, &path, served, method, operation(served, verb, &schema, &suffix));
            }
        }
    }
}

/// The name that a kind of this group and version has among the schemas.
fn name_of(served: &Served, kind: &str) -> String {
    match served.custom() {
        Some(custom) => custom.definition.type_name(&served.info.version, kind),
        None if kind == served.info.kind => served.schema.name.to_string(),
        None => format!("{}List", served.schema.name),
    }
}

fn subresource_type(served: &Served, subresource: &Subresource) -> Option<String> {
    let is_own = served.custom().is_some() && subresource.group_version.is_none();
    if is_own {
        return Some(name_of(served, &served.info.kind));
    }
    super::type_of(served, subresource).map(|schema| schema.name.to_string())
}

fn insert(paths: &mut Map<String, Value>, path: &str, served: &Served, method: &str, operation: Value) {
    let entry = paths.entry(path.to_owned()).or_insert_with(|| {
        let in_path = |name: &str| {
            let schema = json!({"type": "string", "uniqueItems": true});
            json!({"name": name, "in": "path", "required": true, "schema": schema})
        };
        let mut parameters = Vec::new();
        if path.contains("{name}") {
            let mut name = in_path("name");
            if let Some(map) = name.as_object_mut() {
                map.insert("description".into(), format!("name of the {}", served.info.kind).into());
            }
            parameters.push(name);
        }
        if served.info.namespaced {
            parameters.push(in_path("namespace"));
        }
        json!({"parameters": parameters})
    });
    if let Some(map) = entry.as_object_mut() {
        map.insert(method.to_owned(), operation);
    }
}

/// What an operation is for, in upstream's words.
fn described(verb: &str, kind: &str, suffix: &str) -> String {
    let part = match suffix {
        "" | "ForAllNamespaces" => String::new(),
        part => format!("{} of ", part.to_ascii_lowercase()),
    };
    match verb {
        "list" => format!("list or watch objects of kind {kind}"),
        "create" if part.is_empty() => format!("create a {kind}"),
        "create" => format!("create {part}a {kind}"),
        "get" => format!("read {part}the specified {kind}"),
        "update" => format!("replace {part}the specified {kind}"),
        "patch" => format!("partially update {part}the specified {kind}"),
        "delete" => format!("delete a {kind}"),
        _ => format!("delete collection of {kind}"),
    }
}

fn uncapitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_ascii_lowercase().to_string() + letters.as_str())
}

fn operation(served: &Served, verb: &str, type_name: &str, suffix: &str) -> Value {
    let (action, word) = match verb {
        "create" => ("post", "create"),
        "update" => ("put", "replace"),
        "get" => ("get", "read"),
        "deletecollection" => ("deletecollection", "delete"),
        other => (other, other),
    };
    let answer = match verb {
        "list" => name_of(served, &served.list_kind),
        "delete" | "deletecollection" => format!("{META}.Status"),
        _ => type_name.to_owned(),
    };
    let content = |types: &[&str], name: &str| -> Value {
        types.iter().map(|media| ((*media).to_owned(), json!({"schema": reference(name)}))).collect()
    };
    let response = |text: &str| json!({"description": text, "content": content(&OBJECTS, &answer)});
    let mut responses = json!({"200": response("OK"), "401": {"description": "Unauthorized"}});
    if let (true, Some(map)) = (matches!(verb, "create" | "update" | "patch"), responses.as_object_mut()) {
        map.insert("201".into(), response("Created"));
    }
    if let (true, Some(map)) = (matches!(verb, "create" | "delete"), responses.as_object_mut()) {
        map.insert("202".into(), response("Accepted"));
    }
    let scope = if served.info.namespaced && suffix != "ForAllNamespaces" { "Namespaced" } else { "" };
    let (group, version, kind) = (&served.info.group, &served.info.version, &served.info.kind);
    let words: Vec<String> = match group.trim_end_matches(".k8s.io") {
        "" => vec!["Core".to_owned()],
        _ if served.custom().is_some() => group.split('.').take(1).map(capitalized).collect(),
        own => own.split('.').map(capitalized).collect(),
    };
    let group_word = words.concat();
    let many = if verb == "deletecollection" { "Collection" } else { "" };
    let id = format!("{word}{group_word}{}{many}{scope}{kind}{suffix}", capitalized(version));
    let tag = match served.custom() {
        Some(_) => path_of(served).trim_start_matches("apis/").replace(['/', '.'], "_"),
        None => format!("{}_{version}", uncapitalized(&group_word)),
    };
    let mut value = json!({
        "operationId": id, "tags": [tag], "description": described(verb, kind, suffix),
        "parameters": parameters(verb), "responses": responses, "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
    });
    let body = match verb {
        "create" | "update" => Some((content(&["*/*"], type_name), true)),
        "patch" => Some((content(&PATCHES, &format!("{META}.Patch")), true)),
        "delete" | "deletecollection" => Some((content(&["*/*"], &format!("{META}.DeleteOptions")), false)),
        _ => None,
    };
    if let (Some((content, required)), Some(map)) = (body, value.as_object_mut()) {
        let mut body = json!({"content": content});
        if let (true, Some(body)) = (required, body.as_object_mut()) {
            body.insert("required".into(), true.into());
        }
        map.insert("requestBody".into(), body);
    }
    value
}

fn parameters(verb: &str) -> Vec<Value> {
    let query = |(name, kind): (&str, &str)| json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}});
    let write = [("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
    let select = [
        ("allowWatchBookmarks", "boolean"),
        ("continue", "string"),
        ("fieldSelector", "string"),
        ("labelSelector", "string"),
        ("limit", "integer"),
        ("resourceVersion", "string"),
        ("resourceVersionMatch", "string"),
        ("sendInitialEvents", "boolean"),
        ("timeoutSeconds", "integer"),
        ("watch", "boolean"),
    ];
    let delete = [("dryRun", "string"), ("gracePeriodSeconds", "integer"), ("propagationPolicy", "string")];
    let mut names = vec![("pretty", "string")];
    match verb {
        "create" | "update" => names.extend(write),
        "patch" => names.extend(write.into_iter().chain([("force", "boolean")])),
        "list" => names.extend(select),
        "delete" => names.extend(delete),
        "deletecollection" => {
            names.extend(
                delete
                    .into_iter()
                    .chain(select.into_iter().filter(|(name, _)| !matches!(*name, "allowWatchBookmarks" | "watch"))),
            );
        }
        _ => (),
    }
    names.into_iter().map(query).collect()
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

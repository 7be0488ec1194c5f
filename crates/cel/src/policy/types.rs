//! The types that the expressions of a policy see beside the object: the request, its namespace, variables, patches.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Type, Types};

pub(super) const REQUEST: &str = "kubernetes.AdmissionRequest";
pub(super) const NAMESPACE: &str = "kubernetes.Namespace";
pub const VARIABLES: &str = "kubernetes.variables";
const KIND: &str = "kubernetes.GroupVersionKind";
const RESOURCE: &str = "kubernetes.GroupVersionResource";
const USER: &str = "kubernetes.UserInfo";
const OBJECTS: [&str; 9] = [
    REQUEST,
    NAMESPACE,
    KIND,
    RESOURCE,
    USER,
    "kubernetes.NamespaceMetadata",
    "kubernetes.NamespaceSpec",
    "kubernetes.NamespaceStatus",
    "kubernetes.NamespaceCondition",
];
pub(super) const OBJECT: &str = "Object";
pub(super) const JSON_PATCH: &str = "JSONPatch";

pub(super) struct PolicyTypes {
    pub(super) variables: BTreeMap<String, Type>,
    /// Expressions that make patches may build objects.
    pub(super) patches: bool,
    /// The types of the objects, where they are checked.
    pub(super) more: Option<Arc<dyn Types>>,
}

impl PolicyTypes {
    fn is_built(&self, name: &str) -> bool {
        self.patches && (name == OBJECT || name.starts_with("Object."))
    }
}

impl Types for PolicyTypes {
    fn has(&self, name: &str) -> bool {
        OBJECTS.contains(&name)
            || name == VARIABLES
            || (self.patches && name == JSON_PATCH)
            || self.is_built(name)
            || self.more.as_ref().is_some_and(|more| more.has(name))
    }

    fn field(&self, name: &str, field: &str) -> Option<Type> {
        if name == VARIABLES {
            return self.variables.get(field).cloned();
        }
        if self.is_built(name) {
            return Some(Type::Dyn);
        }
        known(name, field).or_else(|| self.more.as_ref()?.field(name, field))
    }
}

fn known(name: &str, field: &str) -> Option<Type> {
    let strings = || Type::list(Type::String);
    let labels = || Type::map(Type::String, Type::String);
    Some(match (name, field) {
        (REQUEST, "kind" | "requestKind") => Type::object(KIND),
        (REQUEST, "resource" | "requestResource") => Type::object(RESOURCE),
        (REQUEST, "subResource" | "requestSubResource" | "name" | "namespace" | "operation") => Type::String,
        (REQUEST, "userInfo") => Type::object(USER),
        (REQUEST, "dryRun") => Type::Bool,
        (REQUEST, "options") => Type::Dyn,
        (KIND, "group" | "version" | "kind") => Type::String,
        (RESOURCE, "group" | "version" | "resource") => Type::String,
        (USER, "username" | "uid") => Type::String,
        (USER, "groups") => strings(),
        (USER, "extra") => Type::map(Type::String, strings()),
        (NAMESPACE, "metadata") => Type::object("kubernetes.NamespaceMetadata"),
        (NAMESPACE, "spec") => Type::object("kubernetes.NamespaceSpec"),
        (NAMESPACE, "status") => Type::object("kubernetes.NamespaceStatus"),
        ("kubernetes.NamespaceSpec", "finalizers") => strings(),
        ("kubernetes.NamespaceStatus", "conditions") => Type::list(Type::object("kubernetes.NamespaceCondition")),
        ("kubernetes.NamespaceStatus", "phase") => Type::String,
        ("kubernetes.NamespaceCondition", "status" | "type" | "message" | "reason") => Type::String,
        ("kubernetes.NamespaceCondition", "lastTransitionTime") => Type::Timestamp,
        ("kubernetes.NamespaceMetadata", "labels" | "annotations") => labels(),
        ("kubernetes.NamespaceMetadata", "creationTimestamp" | "deletionTimestamp") => Type::Timestamp,
        ("kubernetes.NamespaceMetadata", "deletionGracePeriodSeconds" | "generation") => Type::Int,
        ("kubernetes.NamespaceMetadata", "finalizers") => strings(),
        ("kubernetes.NamespaceMetadata", "name" | "generateName" | "namespace" | "UID" | "resourceVersion") => {
            Type::String
        }
        (JSON_PATCH, "op" | "path" | "from") => Type::String,
        (JSON_PATCH, "value") => Type::Dyn,
        _ => return None,
    })
}

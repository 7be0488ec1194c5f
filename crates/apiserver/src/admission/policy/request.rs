//! What expressions see of a request, and of whom they may ask about permissions.

use std::cell::RefCell;
use std::collections::HashMap;

use api::selector::FieldSelector;
use api::{Object, ObjectExt as _, UserInfo};
use cel::authorizer::{Authorizer, Check, Decision};
use serde_json::{Value, json};

use crate::admission::{Attributes, Operation, rules};
use crate::auth::{self, Access};
use crate::handlers::DeleteOptions;
use crate::registry::Served;
use crate::server::ApiServer;

/// Every round asks at least one new question, and an expression cannot afford many.
const MOST_ROUNDS: usize = 64;

/// The `request` variable. `seen_as` is the resource whose version the object is seen in.
pub(crate) fn request(attributes: &Attributes<'_>, seen_as: &Served) -> Value {
    let kind = |served: &Served| {
        let (group, version, kind) = attributes.kind(served);
        json!({"group": group, "version": version, "kind": kind})
    };
    let resource = |served: &Served| json!({"group": served.info.group, "version": served.info.version, "resource": served.info.plural});
    let own = attributes.served;
    let mut request = json!({
        "kind": kind(seen_as), "resource": resource(seen_as), "requestKind": kind(own), "requestResource": resource(own),
        "operation": attributes.operation.as_str(), "dryRun": attributes.dry_run, "options": options(attributes),
    });
    let namespace = if rules::is_namespace(own) { attributes.name } else { attributes.namespace };
    let texts = [
        ("subResource", attributes.subresource),
        ("requestSubResource", attributes.subresource),
        ("name", attributes.name),
        ("namespace", namespace),
    ];
    if let Some(request) = request.as_object_mut() {
        for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            request.insert(name.to_owned(), text.into());
        }
        let user = attributes.context.map(|context| user(&context.user)).unwrap_or_else(|| json!({}));
        request.insert("userInfo".into(), user);
    }
    request
}

fn user(user: &UserInfo) -> Value {
    let mut fields = Object::new();
    for (name, text) in [("username", &user.name), ("uid", &user.uid)] {
        if !text.is_empty() {
            fields.insert(name.to_owned(), text.as_str().into());
        }
    }
    if !user.groups.is_empty() {
        fields.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        fields.insert("extra".into(), json!(user.extra));
    }
    Value::Object(fields)
}

fn options(attributes: &Attributes<'_>) -> Value {
    let kind = match attributes.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
        Operation::Connect => return Value::Null,
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    if let (Some(context), Some(options)) = (attributes.context, options.as_object_mut()) {
        for name in ["fieldManager", "fieldValidation"] {
            if let Some(value) = context.query.get(name).filter(|_| attributes.operation != Operation::Delete) {
                options.insert(name.to_owned(), value.into());
            }
        }
        if attributes.dry_run {
            options.insert("dryRun".into(), json!(["All"]));
        }
        options.extend(attributes.delete_options.into_iter().flat_map(DeleteOptions::told));
    }
    options
}

/// The `namespaceObject` variable: what of a namespace is nobody's secret.
pub(crate) fn namespace(namespace: &Object) -> Value {
    const SHOWN: [&str; 12] = [
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "finalizers",
    ];
    let mut shown = Object::new();
    let metadata = namespace.get("metadata").and_then(Value::as_object);
    let metadata: Object = metadata
        .into_iter()
        .flatten()
        .filter(|(name, _)| SHOWN.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    shown.insert("metadata".into(), metadata.into());
    for part in ["spec", "status"] {
        if let Some(value) = namespace.at(&[part]) {
            shown.insert(part.to_owned(), value.clone());
        }
    }
    Value::Object(shown)
}

/// The question `authorizer.requestResource` starts from.
pub(crate) fn own_resource(attributes: &Attributes<'_>) -> Check {
    Check {
        group: attributes.served.info.group.clone(),
        resource: attributes.served.info.plural.clone(),
        subresource: attributes.subresource.to_owned(),
        namespace: attributes.namespace.to_owned(),
        name: attributes.name.to_owned(),
        ..Check::default()
    }
}

/// Answers to questions about permissions. An evaluation cannot wait: what is not known yet is noted, and everything is
/// evaluated again once it is.
#[derive(Default)]
pub(crate) struct Answers {
    known: RefCell<HashMap<Check, Decision>>,
    asked: RefCell<Vec<Check>>,
}

impl Authorizer for Answers {
    fn authorize(&self, check: &Check) -> Decision {
        if let Some(known) = self.known.borrow().get(check) {
            return known.clone();
        }
        self.asked.borrow_mut().push(check.clone());
        Decision::default()
    }
}

/// Evaluates something, and again whenever it asked for a permission that had to be looked up first.
pub(crate) async fn settled<T>(server: &ApiServer, attributes: &Attributes<'_>, evaluate: impl Fn(&Answers) -> T) -> T {
    let mut answers = Answers::default();
    let mut rounds = 0;
    loop {
        let result = evaluate(&answers);
        rounds += 1;
        let asks = !answers.asked.get_mut().is_empty() && rounds < MOST_ROUNDS;
        let Some(context) = attributes.context.filter(|_| asks) else { return result };
        drop(result);
        answers.find(server, &context.user).await;
    }
}

impl Answers {
    /// Answers what was asked.
    async fn find(&mut self, server: &ApiServer, user: &UserInfo) {
        for check in self.asked.take() {
            let user = match &check.service_account {
                Some((namespace, name)) => service_account(namespace, name),
                None => user.clone(),
            };
            // One that cannot be read narrows nothing down.
            let selector =
                FieldSelector::parse(&check.field_selector).ok().filter(|_| !check.field_selector.is_empty());
            let access = Access {
                is_resource: check.path.is_none(),
                verb: &check.verb,
                group: &check.group,
                version: "*",
                namespace: &check.namespace,
                resource: &check.resource,
                subresource: &check.subresource,
                name: &check.name,
                path: check.path.as_deref().unwrap_or_default(),
                field_selector: selector.as_ref(),
            };
            let decision = auth::decide(server, &user, &access).await;
            let decision = Decision { allowed: decision.is_allowed(), reason: decision.reason, error: None };
            self.known.get_mut().insert(check, decision);
        }
    }
}

fn service_account(namespace: &str, name: &str) -> UserInfo {
    let all = format!("system:serviceaccounts:{namespace}");
    UserInfo::authenticated(format!("system:serviceaccount:{namespace}:{name}"), &["system:serviceaccounts", &all])
}

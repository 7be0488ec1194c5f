//! Looks through the expressions of validating policies for what cannot work on the resources they are for, and says so in
//! their status. Nothing else depends on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::schema::{self, Ref, Shape};
use api::{ApiError, Object, ObjectExt as _};
use cel::Types;
use serde_json::{Value, json};

use super::expression::{Compiler, Returns};
use super::{GROUP, generation};
use crate::admission::rules::strings;
use crate::field_manager::Tracking;
use crate::handlers::Writer;
use crate::registry::Served;
use crate::server::ApiServer;

/// More kinds than this are not looked at.
const MOST_KINDS: usize = 10;
const PLURAL: &str = "validatingadmissionpolicies";

/// Follows the policies, and writes what is found about each of their generations.
pub(crate) async fn keep(server: Arc<ApiServer>) {
    let Some(cache) = server.registry.stored(GROUP, PLURAL).and_then(|served| served.cache.clone()) else { return };
    loop {
        let Ok((mut place, snapshot)) = cache.watch_from(None) else { return };
        for stored in snapshot.objects.values() {
            report(&server, &stored.decode()).await;
        }
        while let Ok(changes) = place.next().await {
            for change in changes.iter().filter(|change| !change.deleted) {
                report(&server, &change.object.decode()).await;
            }
        }
    }
}

async fn report(server: &Arc<ApiServer>, policy: &Object) {
    let observed = policy.at(&["status", "observedGeneration"]).and_then(Value::as_i64);
    if observed == Some(generation(policy)) {
        return;
    }
    if let Err(error) = write(server, policy).await
        && !matches!(error.reason, "NotFound" | "Conflict")
    {
        tracing::warn!(%error, policy = policy.name(), "a policy's type checking was not written");
    }
}

async fn write(server: &Arc<ApiServer>, policy: &Object) -> Result<(), ApiError> {
    let served = server.registry.stored(GROUP, PLURAL).ok_or_else(ApiError::no_such_resource)?.clone();
    let warnings = check(server, policy);
    let writer = Writer {
        server,
        served: &served,
        context: None,
        subresource: "status",
        dry_run: false,
        tracking: Tracking::Update("kube-controller-manager"),
    };
    let generation = generation(policy);
    let change = |live: &Object| {
        let mut new = live.clone();
        if super::generation(live) == generation {
            let status = new.at_mut(&["status"]);
            status.insert("observedGeneration".into(), generation.into());
            let found = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
            status.insert("typeChecking".into(), found);
        }
        Ok(new)
    };
    writer.update("", policy.name(), change).await.map(|_| ())
}

/// The `expressionWarnings` of a policy.
fn check(server: &ApiServer, policy: &Object) -> Vec<Value> {
    let kinds = kinds(server, policy);
    let params = policy.at(&["spec", "paramKind"]).and_then(Value::as_object);
    let params = params.map(|kind| (kind.text(&["apiVersion"]), kind.text(&["kind"])));
    let mut warnings = Vec::new();
    let validations = policy.at(&["spec", "validations"]).and_then(Value::as_array).into_iter().flatten();
    for (index, validation) in validations.filter_map(Value::as_object).enumerate() {
        for field in ["expression", "messageExpression"] {
            let text = validation.text(&[field]);
            if text.is_empty() {
                continue;
            }
            let found: Vec<String> =
                kinds.iter().filter_map(|kind| check_one(server, policy, kind, params, text)).collect();
            if !found.is_empty() {
                let place = format!("spec.validations[{index}].{field}");
                warnings.push(json!({"fieldRef": place, "warning": found.join("\n")}));
            }
        }
    }
    warnings
}

fn check_one(
    server: &ApiServer,
    policy: &Object,
    kind: &Served,
    params: Option<(&str, &str)>,
    text: &str,
) -> Option<String> {
    let mut types = ObjectTypes::default();
    let object = cel::Type::object(&types.add(&kind.schema, &kind.info.kind));
    let params = params.map(|(api_version, kind)| {
        let all = server.registry.all();
        let found = all.iter().find(|served| served.info.api_version() == api_version && served.info.kind == kind);
        found.map_or(cel::Type::Dyn, |served| cel::Type::object(&types.add(&served.schema, kind)))
    });
    let mut compiler = Compiler::typed(object, params, Arc::new(types));
    let variables = policy.at(&["spec", "variables"]).and_then(Value::as_array).into_iter().flatten();
    for variable in variables.filter_map(Value::as_object) {
        // What is wrong with a variable is told where it is used.
        let _ = compiler.variable(variable.text(&["name"]), variable.text(&["expression"]));
    }
    let failure = compiler.compile(text, Returns::Anything, true).err()?;
    let wrong = if failure.internal { "type checking error: " } else { "" };
    Some(format!("{}, Kind={}: {wrong}{failure}\n", kind.info.api_version(), kind.info.kind))
}

/// The kinds a policy is for, as far as its rules name them.
fn kinds(server: &ApiServer, policy: &Object) -> Vec<Arc<Served>> {
    let rules = policy.at(&["spec", "matchConstraints", "resourceRules"]).and_then(Value::as_array);
    let mut found: BTreeMap<(String, String, String), Arc<Served>> = BTreeMap::new();
    for rule in rules.into_iter().flatten().filter_map(Value::as_object) {
        let named = |field: &str| strings(rule.get(field));
        let (groups, versions) = (named("apiGroups"), named("apiVersions"));
        let resources: Vec<String> = named("resources").into_iter().filter(|name| !name.contains('/')).collect();
        if [&groups, &versions, &resources].iter().any(|list| list.iter().any(|item| item == "*")) {
            continue;
        }
        for served in server.registry.all().iter() {
            let info = &served.info;
            if groups.contains(&info.group) && versions.contains(&info.version) && resources.contains(&info.plural) {
                let key = (info.group.clone(), info.version.clone(), info.kind.clone());
                found.insert(key, served.clone());
            }
            if found.len() == MOST_KINDS {
                break;
            }
        }
    }
    found.into_values().collect()
}

/// The object types of built-in and custom resources.
#[derive(Default)]
struct ObjectTypes {
    objects: BTreeMap<String, BTreeMap<String, cel::Type>>,
    begun: BTreeSet<String>,
}

impl ObjectTypes {
    /// Adds a type and all it consists of; returns its name. Types in the binary may contain themselves, those of custom
    /// resources cannot, and are called after where they are.
    fn add(&mut self, t: &Ref<schema::Type>, path: &str) -> String {
        let name = match t {
            Ref::Static(t) => t.name.to_string(),
            Ref::Shared(_) => path.to_owned(),
        };
        if !self.begun.insert(name.clone()) {
            return name;
        }
        let mut fields = BTreeMap::new();
        for field in t.fields.iter() {
            if let Some(escaped) = cel::escaping::escape(&field.name) {
                let seen = self.seen(&field.shape, &format!("{path}.{}", field.name));
                fields.insert(escaped, seen);
            }
        }
        self.objects.insert(name.clone(), fields);
        name
    }

    fn seen(&mut self, shape: &Shape, path: &str) -> cel::Type {
        match shape {
            Shape::String | Shape::Quantity => cel::Type::String,
            Shape::Bool => cel::Type::Bool,
            Shape::Int32 | Shape::Int64 => cel::Type::Int,
            Shape::Double => cel::Type::Double,
            Shape::Bytes => cel::Type::Bytes,
            Shape::Time | Shape::MicroTime => cel::Type::Timestamp,
            Shape::IntOrString | Shape::Any | Shape::SchemaOr(_) => cel::Type::Dyn,
            Shape::Object(t) => cel::Type::object(&self.add(t, path)),
            Shape::List(element) => cel::Type::list(self.seen(element, &format!("{path}.@items"))),
            Shape::Map(value) => cel::Type::map(cel::Type::String, self.seen(value, &format!("{path}.@values"))),
        }
    }
}

impl Types for ObjectTypes {
    fn has(&self, name: &str) -> bool {
        self.objects.contains_key(name)
    }

    fn field(&self, name: &str, field: &str) -> Option<cel::Type> {
        self.objects.get(name)?.get(field).cloned()
    }
}

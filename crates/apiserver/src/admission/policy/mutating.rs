//! MutatingAdmissionPolicy: policies that change what is written, by an applied configuration or a JSON patch.

use std::sync::Arc;

use api::patch::json_patch;
use api::schema::Type;
use api::status::Cause;
use api::{ApiError, Object, ObjectExt as _};
use cel::{List, Map, Value};
use serde_json::Value as Json;

use super::definition::{Binding, Mutation, Policy};
use super::evaluate::{BUDGET, Inputs, Session, conditions_hold};
use super::params;
use super::request;
use super::validating::{Seen, criteria, namespace_of};
use crate::admission::rules::{self, Matched};
use crate::admission::{Attributes, Reinvocation, refit};
use crate::convert;
use crate::registry::Served;
use crate::server::ApiServer;

pub(crate) const NAME: &str = "MutatingAdmissionPolicy";

/// Whether anything was changed.
pub(crate) async fn mutate(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    object: &mut Object,
    round: &mut Reinvocation,
) -> Result<bool, ApiError> {
    let hooks = server.mutating_policies.hooks();
    if hooks.is_empty() || rules::is_exempt(attributes) {
        return Ok(false);
    }
    round.begin(object);
    let mut is_changed = false;
    let mut failures: Vec<String> = Vec::new();
    let mut fail = |policy: &Policy, binding: Option<&Binding>, why: String| {
        if !policy.ignores_failure {
            let with = binding.map(|binding| format!(" with binding '{}'", binding.name)).unwrap_or_default();
            failures.push(format!("policy '{}'{with} denied request: {why}", policy.name));
        }
    };
    let mut invocations = Vec::new();
    for hook in hooks.iter() {
        let policy = &*hook.policy;
        let matched = match criteria(&policy.criteria, server, attributes, Some(object)) {
            Ok(Some(matched)) => matched,
            Ok(None) => continue,
            Err(why) => {
                fail(policy, None, format!("failed to configure policy: {why}"));
                continue;
            }
        };
        if let Some(why) = params::unknown_kind(server, policy) {
            fail(policy, None, format!("failed to configure policy: {why}"));
            continue;
        }
        let matched = Arc::new(matched);
        for binding in &hook.bindings {
            match criteria(&binding.criteria, server, attributes, Some(object)) {
                Ok(Some(_)) => {}
                Ok(None) => continue,
                Err(why) => {
                    fail(policy, Some(binding), format!("failed to configure binding: {why}"));
                    continue;
                }
            }
            match params::collect(server, policy, binding, attributes.namespace) {
                Ok(all) => invocations.extend(all.into_iter().map(|param| (hook, binding, matched.clone(), param))),
                Err(why) => fail(policy, Some(binding), format!("failed to configure binding: {why}")),
            }
        }
    }
    if !invocations.is_empty() {
        let is_read = invocations.iter().any(|(hook, ..)| hook.policy.reads_namespace);
        let namespace = namespace_of(server, attributes, is_read)?;
        for (hook, binding, matched, param) in invocations {
            let policy = &*hook.policy;
            let key = format!("{}/{}/{}", policy.name, binding.name, param.as_ref().map_or("", |param| param.name()));
            if !round.is_asked(&key) {
                continue;
            }
            let inputs =
                Invocation { server, attributes, matched: &matched, param: param.as_ref(), namespace: &namespace };
            match inputs.apply(policy, object).await {
                Ok(true) => {
                    is_changed = true;
                    round.changed();
                }
                Ok(false) => {}
                Err(why) => fail(policy, Some(binding), why),
            }
            if policy.reinvoked {
                round.invoked(&key);
            }
        }
    }
    // Unlike a webhook, a policy is asked again for its own change.
    if is_changed {
        round.changed();
    }
    round.end(object);
    if failures.is_empty() { Ok(is_changed) } else { Err(refusal(attributes, failures)) }
}

fn refusal(attributes: &Attributes<'_>, failures: Vec<String>) -> ApiError {
    let mut error = attributes.forbidden("");
    error.message = failures.first().cloned().unwrap_or_default();
    error.reason = "Invalid";
    if let Some(details) = &mut error.details {
        let cause = |message| Cause { reason: String::new(), message, field: String::new() };
        details.causes.extend(failures.into_iter().map(cause));
    }
    error
}

/// One policy with one parameter on one request.
struct Invocation<'a> {
    server: &'a Arc<ApiServer>,
    attributes: &'a Attributes<'a>,
    matched: &'a Matched,
    param: Option<&'a Object>,
    namespace: &'a Option<Json>,
}

/// What a mutation is to do, in JSON.
enum Change {
    Nothing,
    Apply(Object),
    Patch(Json),
}

impl Invocation<'_> {
    /// Whether the object is another now.
    async fn apply(&self, policy: &Policy, object: &mut Object) -> Result<bool, String> {
        if self.evaluated(policy, object, None).await?.is_none() {
            return Ok(false);
        }
        let mut is_changed = false;
        for mutation in &policy.mutations {
            if let Err(failure) = &mutation.expression.compiled {
                return Err(failure.to_string());
            }
            if let Some(change) = self.evaluated(policy, object, Some(mutation)).await? {
                is_changed |= self.make(change, object).await?;
            }
        }
        Ok(is_changed)
    }

    /// Whether the conditions hold; or, for a mutation, what it is to do.
    async fn evaluated(
        &self,
        policy: &Policy,
        object: &Object,
        mutation: Option<&Mutation>,
    ) -> Result<Option<Change>, String> {
        let seen = Seen::new(self.server, self.attributes, policy, self.matched, Some(object)).await;
        let seen = seen.map_err(|error| error.message)?;
        request::settled(self.server, self.attributes, |answers| {
            let inputs = Inputs {
                object: seen.object.as_deref(),
                old: seen.old.as_deref(),
                namespace: self.namespace.as_ref(),
                request: &seen.request,
                params: self.param,
                answers,
                resource: request::own_resource(self.attributes),
                variables: &policy.variables,
            };
            match mutation {
                Some(mutation) => change(mutation, &inputs).map(Some),
                None => {
                    let hold = conditions_hold(&policy.conditions, &inputs, policy.ignores_failure)?;
                    Ok(hold.then_some(Change::Nothing))
                }
            }
        })
        .await
    }

    /// Makes the change in the version the policy sees, and defaults what is new.
    async fn make(&self, change: Change, object: &mut Object) -> Result<bool, String> {
        let own = self.attributes.served;
        let served: &Served = match self.matched {
            Matched::Itself => own,
            Matched::As(other) => other,
        };
        let is_same = std::ptr::eq(own, served) || self.attributes.is_of_another_kind();
        let in_version = async |from: &Served, to: &Served, object: Object| match is_same {
            true => Ok(object),
            false => convert::to_version(self.server, from, to, object).await.map_err(|error| error.message),
        };
        let mut seen = in_version(own, served, object.clone()).await?;
        match change {
            Change::Nothing => return Ok(false),
            Change::Apply(mut config) => {
                for field in ["apiVersion", "kind"] {
                    if let Some(value) = seen.get(field) {
                        config.insert(field.to_owned(), value.clone());
                    }
                }
                let mut atomics = Vec::new();
                let fits = match served.custom() {
                    Some(_) => api::apply::validate(&config, &served.schema),
                    None => known(&config, &served.schema, ""),
                };
                fits.map_err(|why| {
                    format!("error applying patch: failed to convert patch object to typed object: {why}")
                })?;
                find_atomics(&config, &served.schema, "", &mut atomics);
                if !atomics.is_empty() {
                    let all = atomics.join(", ");
                    return Err(format!(
                        "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {all}"
                    ));
                }
                seen = api::apply::merge(&seen, &config, &served.schema);
            }
            Change::Patch(patch) => {
                let mut value = Json::Object(seen.clone());
                match json_patch(&mut value, &patch) {
                    Ok(()) => {}
                    // A test that fails means that there is nothing to do.
                    Err(api::patch::PatchError::TestFailed(_)) => return Ok(false),
                    Err(error) => return Err(format!("JSON Patch: {error}")),
                }
                if let Json::Object(patched) = value {
                    seen = patched;
                }
            }
        }
        let (changed, unknown) = refit(self.attributes, served, Json::Object(seen))?;
        if let Some(unknown) = unknown.first() {
            return Err(format!("strict decoding error: {unknown}"));
        }
        let changed = in_version(served, own, changed).await?;
        let is_changed = changed != *object;
        *object = changed;
        Ok(is_changed)
    }
}

fn change<'a>(mutation: &'a Mutation, inputs: &Inputs<'a>) -> Result<Change, String> {
    let mut session = Session::new(inputs, BUDGET);
    let evaluated = session.run(&mutation.expression);
    let value = evaluated.map_err(|error| error.to_string())??;
    match &value {
        Value::List(list) if mutation.is_json_patch => operations(list).map(Change::Patch),
        Value::Map(Map::Struct(..)) if !mutation.is_json_patch => {
            check_names(&value, "Object").map_err(|why| format!("type mismatch: {why}"))?;
            match value.to_json() {
                Ok(Json::Object(config)) => Ok(Change::Apply(config)),
                Ok(_) => Err("invalid return type".to_owned()),
                Err(t) => Err(format!("invalid return type: {t}")),
            }
        }
        other => Err(format!("unsupported return type from ApplyConfiguration expression: {}", other.type_name())),
    }
}

fn operations(list: &List<'_>) -> Result<Json, String> {
    let mut operations = Vec::with_capacity(list.len());
    for operation in list.iter() {
        if let Value::Map(map) = &operation
            && let Ok(Some(value)) = map.find(&Value::string("value"))
            && let Value::Map(Map::Struct(name, _)) = &value
        {
            check_names(&value, name).map_err(|why| format!("type mismatch: {why}"))?;
        }
        let json = operation
            .to_json()
            .map_err(|t| format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {t}"))?;
        operations.push(json);
    }
    Ok(Json::Array(operations))
}

/// An object that was built must be called after where it stands: `Object.spec` under `spec`.
fn check_names(value: &Value<'_>, expected: &str) -> Result<(), String> {
    match value {
        Value::List(list) => list.iter().try_for_each(|item| check_names(&item, expected)),
        Value::Map(Map::Struct(name, fields)) => {
            if *name != expected {
                return Err(format!(
                    "unexpected type name {name:?}, expected {expected:?}, which matches field name path from root Object type"
                ));
            }
            fields.iter().try_for_each(|(field, value)| {
                check_names(value, &format!("{expected}.{}", field.as_str().unwrap_or_default()))
            })
        }
        Value::Map(map) => map.keys().iter().try_for_each(|key| match map.find(key) {
            Ok(Some(value)) => check_names(&value, expected),
            _ => Ok(()),
        }),
        _ => Ok(()),
    }
}

/// What is applied must be of the type.
fn known(config: &Object, schema: &Type, path: &str) -> Result<(), String> {
    use api::schema::Shape;
    for (name, value) in config {
        let path = format!("{path}.{name}");
        let Some(field) = schema.field(name) else {
            return Err(format!("{path}: field not declared in schema"));
        };
        match (&field.shape, value) {
            (Shape::Object(t), Json::Object(inner)) => known(inner, t, &path)?,
            (Shape::List(shape), Json::Array(items)) => {
                if let Shape::Object(t) = &**shape {
                    items.iter().filter_map(Json::as_object).try_for_each(|item| known(item, t, &path))?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Where a configuration sets what can only be replaced as a whole.
fn find_atomics(config: &Object, schema: &Type, path: &str, found: &mut Vec<String>) {
    use api::schema::{Shape, Topology};
    for (name, value) in config {
        let Some(field) = schema.field(name) else { continue };
        let path = format!("{path}.{name}");
        match (&field.shape, value) {
            (Shape::Object(t), Json::Object(inner)) => {
                if field.topology == Topology::Atomic || (t.atomic && field.topology != Topology::Granular) {
                    found.push(path.clone());
                }
                find_atomics(inner, t, &path, found);
            }
            (Shape::Map(_), Json::Object(_)) if field.topology == Topology::Atomic => found.push(path),
            (Shape::List(shape), Json::Array(items)) => {
                if matches!(field.topology, Topology::Default | Topology::Atomic) {
                    found.push(path.clone());
                }
                if let Shape::Object(t) = &**shape {
                    for (index, item) in items.iter().enumerate() {
                        if let Some(item) = item.as_object() {
                            find_atomics(item, t, &format!("{path}[{index}]"), found);
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

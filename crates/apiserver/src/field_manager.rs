//! Who manages which field: keeps `metadata.managedFields` on every write, and answers server-side apply.

mod name;
mod reset;

use api::apply::{self, ApplyError, Conflict, Managed, Manager, Operation, Reset, Versions, Write};
use api::schema::Type;
use api::status::{Cause, Details};
use api::{ApiError, Object, ObjectExt as _};
use serde_json::Value;

pub(crate) use self::name::{of_request, problems};
use crate::convert;
use crate::registry::{Registry, Served};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// What was there before anyone applied anything.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Upstream's limit on all annotations of an object together.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// The fields that a path leaves as they were.
pub(crate) fn reset_fields(served: &Served, subresource: &str) -> &'static [&'static [&'static str]] {
    match reset::of(served, subresource) {
        Reset::Fields(paths) => paths,
        Reset::AllBut(_) => &[],
    }
}

/// How a write is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tracking<'a> {
    /// The system's own change: nobody's.
    None,
    /// By this manager.
    Update(&'a str),
    /// By this manager through the scale subresource, of which only the replicas are the resource's.
    Scale(&'a str),
    /// The object already carries its managers.
    Applied,
    /// The same of what was applied through the scale subresource.
    AppliedScale,
}

impl Tracking<'_> {
    pub(crate) fn is_scale(&self) -> bool {
        matches!(self, Self::Scale(_) | Self::AppliedScale)
    }
}

/// A resource's managers as seen from one of its versions and subresources.
pub(crate) struct FieldManager<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) served: &'a Served,
    pub(crate) subresource: &'a str,
}

impl Versions for FieldManager<'_> {
    fn schema(&self, api_version: &str) -> Option<&Type> {
        let Some(custom) = self.served.custom() else {
            return self.version(api_version).map(|served| &*served.schema);
        };
        let (group, name) = api_version.split_once('/')?;
        let definition = &custom.definition;
        let version = definition.versions.iter().find(|version| version.name == name && definition.group == group)?;
        Some(definition.schema(version))
    }

    fn convert(&self, object: &Object, from: &str, to: &str) -> Object {
        let known = |version: &str| self.version(version).filter(|_| self.served.custom().is_none());
        convert::between(known(from), known(to), to, object.clone())
    }
}

impl FieldManager<'_> {
    fn version(&self, api_version: &str) -> Option<&Served> {
        if api_version == self.served.info.api_version() {
            return Some(self.served);
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.registry.find(group, version, &self.served.info.plural).map(|served| &**served)
    }

    fn write<'w>(&'w self, name: &str, operation: Operation, now: &'w str) -> Write<'w> {
        let name = if name.is_empty() { "unknown" } else { name };
        let manager = Manager {
            name: name.to_owned(),
            operation,
            subresource: self.subresource.to_owned(),
            api_version: self.served.info.api_version(),
        };
        // The scale subresource has a type of its own, which has no place for the time.
        let now = (self.subresource != "scale").then_some(now);
        Write { versions: self, manager, reset: reset::of(self.served, self.subresource), now }
    }

    fn blank(&self) -> Object {
        let mut blank = api::decode::blank(&self.served.schema);
        blank.insert("kind".into(), self.served.info.kind.clone().into());
        blank.insert("apiVersion".into(), self.served.info.api_version().into());
        blank
    }

    /// Records a write: `live` is `None` where the object is new.
    pub(crate) fn update(&self, live: Option<&Object>, new: &mut Object, name: &str, now: &str) {
        let sent = new.metadata().remove("managedFields");
        let is_reset = match sent.as_ref() {
            Some(Value::Array(entries)) => match entries.as_slice() {
                [] => true,
                [Value::Object(entry)] => entry.is_empty(),
                _ => false,
            },
            _ => false,
        };
        let of_live = || {
            let list = live.and_then(|live| live.at(&["metadata", "managedFields"])).cloned().unwrap_or_default();
            apply::decode(list).unwrap_or_default()
        };
        let mut managed = if !self.subresource.is_empty() {
            of_live()
        } else if is_reset {
            Vec::new()
        } else {
            // Clients that know nothing of managers do not delete them.
            match sent.map(apply::decode) {
                Some(Ok(managed)) if !managed.is_empty() => managed,
                _ => of_live(),
            }
        };
        if managed.is_empty() && live.is_some() {
            return;
        }
        let write = self.write(name, Operation::Update, now);
        let blank = live.is_none().then(|| self.blank());
        let outcome = match (live, &blank) {
            (Some(live), _) | (None, Some(live)) => apply::update(&write, live, new, &mut managed),
            (None, None) => Ok(()),
        };
        if outcome.is_ok() {
            set(new, managed);
        }
    }

    /// Applies `config` to `live`, or to nothing; the result carries its managers.
    pub(crate) fn apply(
        &self,
        live: Option<&Object>,
        config: &Object,
        name: &str,
        force: bool,
        now: &str,
    ) -> Result<Object, ApiError> {
        self.check(config)?;
        let blank = self.blank();
        let live = live.unwrap_or(&blank);
        let list = live.at(&["metadata", "managedFields"]).cloned().unwrap_or_default();
        let mut managed =
            apply::decode(list).map_err(|error| unknown_error(format!("failed to decode managed fields: {error}")))?;
        if managed.is_empty() {
            let write = self.write(BEFORE_FIRST_APPLY, Operation::Update, now);
            apply::update(&write, &blank, live, &mut managed).map_err(|error| unknown_error(error.to_string()))?;
        }
        let write = self.write(name, Operation::Apply, now);
        let before = managed.clone();
        let mut outcome = apply::apply(&write, live, config, &mut managed, force);
        if let (Err(ApplyError::Conflicts(conflicts)), "kubectl") = (&outcome, name)
            && let Some(allowed) = self.applied_by_client(live)
        {
            // Client-side apply is taken over without conflicts.
            let left = apply::beyond(conflicts.clone(), &allowed);
            outcome = if left.is_empty() {
                managed = before;
                apply::apply(&write, live, config, &mut managed, true)
            } else {
                Err(ApplyError::Conflicts(left))
            };
        }
        let mut new = outcome.map_err(|error| match error {
            ApplyError::Conflicts(conflicts) => conflict(&conflicts),
            other => unknown_error(other.to_string()),
        })?;
        if name == "kubectl" {
            refresh_last_applied(&mut new, config);
        }
        set(&mut new, managed);
        Ok(new)
    }

    fn check(&self, config: &Object) -> Result<(), ApiError> {
        let (kind, version) = (config.text(&["kind"]), config.text(&["apiVersion"]));
        let info = &self.served.info;
        if kind != info.kind || version != info.api_version() {
            return Err(ApiError::bad_request(format!("invalid object type: {}", type_text(config))));
        }
        if config.at(&["metadata", "managedFields"]).is_some() {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        apply::validate(config, &self.served.schema).map_err(|why| {
            let place = format!("{}/{}; {}", config.namespace(), config.name(), type_text(config));
            unknown_error(format!("failed to create typed patch object ({place}): {why}"))
        })
    }

    /// What `kubectl apply` set before it applied on the server, and is still so.
    fn applied_by_client(&self, live: &Object) -> Option<apply::Fields> {
        let text = live.text(&["metadata", "annotations", LAST_APPLIED]);
        let last: Object = serde_json::from_str(text).ok()?;
        (last.text(&["apiVersion"]) == self.served.info.api_version())
            .then(|| apply::still_applied(&last, live, &self.served.schema))
    }
}

/// A type as messages write it: `apps/v1, Kind=Deployment`, `/v1, Kind=Pod`.
pub(crate) fn type_text(object: &Object) -> String {
    let (kind, version) = (object.text(&["kind"]), object.text(&["apiVersion"]));
    match version.matches('/').count() {
        0 => format!("/{version}, Kind={kind}"),
        1 => format!("{version}, Kind={kind}"),
        // What is no version of one group is no type at all.
        _ => "/, Kind=".to_owned(),
    }
}

fn set(object: &mut Object, managed: Vec<Managed>) {
    match apply::encode(managed) {
        Some(list) => object.metadata().insert("managedFields".into(), list),
        None => object.metadata().remove("managedFields"),
    };
}

/// kubectl's annotation follows what it applies on the server, so that client-side apply still works.
fn refresh_last_applied(object: &mut Object, config: &Object) {
    if object.text(&["metadata", "annotations", LAST_APPLIED]).is_empty() {
        return;
    }
    let mut config = config.clone();
    config.remove_at(&["metadata", "annotations", LAST_APPLIED]);
    let text = Value::Object(config).to_string() + "\n";
    let annotations = object.at_mut(&["metadata", "annotations"]);
    annotations.insert(LAST_APPLIED.to_owned(), text.into());
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > MAX_ANNOTATIONS {
        annotations.remove(LAST_APPLIED);
    }
}

/// An error upstream has no reason for.
fn unknown_error(message: String) -> ApiError {
    ApiError::new(500, "", message)
}

fn conflict(conflicts: &[Conflict]) -> ApiError {
    let causes = conflicts
        .iter()
        .map(|conflict| Cause {
            reason: "FieldManagerConflict".into(),
            message: format!("conflict with {}", conflict.manager_text()),
            field: conflict.path.clone(),
        })
        .collect();
    let message = match conflicts {
        [one] => format!("Apply failed with 1 conflict: conflict with {}: {}", one.manager_text(), one.path),
        many => {
            let mut lines: Vec<String> = Vec::new();
            let mut last: Option<&Manager> = None;
            for conflict in many {
                if last != Some(&conflict.manager) {
                    lines.push(format!("conflicts with {}:", conflict.manager_text()));
                    last = Some(&conflict.manager);
                }
                lines.push(format!("- {}", conflict.path));
            }
            format!("Apply failed with {} conflicts: {}", many.len(), lines.join("\n"))
        }
    };
    ApiError::new(409, "Conflict", message).with(Details { causes, ..Details::default() })
}

/// The same but for the times in `managedFields`: not worth a write. Nothing is copied, and most writes differ early.
pub(crate) fn same_but_times(new: &Object, old: &Object) -> bool {
    same_but(new, old, "metadata", |new, old| match (new.as_object(), old.as_object()) {
        (Some(new), Some(old)) => same_but(new, old, "managedFields", same_managers),
        _ => new == old,
    })
}

/// Equal, where one key's values are compared otherwise.
fn same_but(left: &Object, right: &Object, key: &str, same: impl Fn(&Value, &Value) -> bool) -> bool {
    left.len() == right.len()
        && left.iter().all(|(name, value)| match right.get(name) {
            Some(other) if name == key => same(value, other),
            other => other == Some(value),
        })
}

fn same_managers(new: &Value, old: &Value) -> bool {
    let (Value::Array(new), Value::Array(old)) = (new, old) else { return new == old };
    let without_time =
        |entry: &Value| entry.as_object().map_or(0, |map| map.len() - usize::from(map.contains_key("time")));
    let same_entry = |left: &Value, right: &Value| match (left.as_object(), right.as_object()) {
        (Some(l), Some(r)) => {
            without_time(left) == without_time(right)
                && l.iter().filter(|(key, _)| *key != "time").all(|(key, value)| r.get(key) == Some(value))
        }
        _ => left == right,
    };
    new.len() == old.len() && new.iter().all(|entry| old.iter().any(|other| same_entry(entry, other)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_alone_are_no_change() {
        let object = |time: &str, fields: Value, data: &str| {
            let entry = json!({"manager": "a", "operation": "Apply", "time": time, "fieldsV1": fields});
            let other = json!({"manager": "b", "operation": "Update", "fieldsV1": {}});
            json!({"metadata": {"name": "x", "managedFields": [entry, other]}, "data": {"k": data}})
        };
        let same = |left: Value, right: Value| same_but_times(left.as_object().unwrap(), right.as_object().unwrap());
        let base = || object("1", json!({"f:data": {}}), "v");
        assert!(same(base(), object("2", json!({"f:data": {}}), "v")));
        assert!(!same(base(), object("1", json!({"f:spec": {}}), "v")));
        assert!(!same(base(), object("1", json!({"f:data": {}}), "w")));
        let mut fewer = base();
        fewer["metadata"]["managedFields"].as_array_mut().unwrap().pop();
        assert!(!same(base(), fewer));
    }
}

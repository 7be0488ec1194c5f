//! Server-side apply: who manages which field of an object, and what an applied configuration makes of it.
//!
//! Everything is decided over schemas, for built-in and custom resources alike, without I/O or clock: [`update`] keeps
//! ownership true after any other write, [`apply`] merges a configuration and tells what it conflicts with.

mod compare;
mod fields;
mod form;
mod managers;
mod merge;
mod validate;

use std::borrow::Cow;

pub use self::compare::{Comparison, compare, field_set};
pub use self::fields::{Fields, of_paths};
pub use self::managers::{Managed, Manager, ManagersError, Operation, decode, encode};
pub use self::merge::merge;
pub use self::validate::validate;
use crate::object::Object;
use crate::schema::Type;

/// What server-side apply must know of a resource: its versions, and what a path cannot set.
pub trait Versions {
    /// The type in a version; `None` where it is not served (any more).
    fn schema(&self, api_version: &str) -> Option<&Type>;
    /// `object`, which is in the version that is written, in another one.
    fn convert(&self, object: &Object, from: &str, to: &str) -> Object;
}

/// What is never tracked, because the path a write takes resets it.
#[derive(Clone, Copy, Debug)]
pub enum Reset {
    /// These fields and everything below them.
    Fields(&'static [&'static [&'static str]]),
    /// Everything but these; `*` is any element.
    AllBut(&'static [&'static [&'static str]]),
}

impl Reset {
    fn filter(self, set: Fields) -> Fields {
        match self {
            Self::Fields([]) => set,
            Self::Fields(paths) => fields::recursive_difference(&set, &of_paths(paths)),
            Self::AllBut(patterns) => fields::matching(&set, patterns),
        }
    }
}

/// A write and who makes it.
pub struct Write<'a> {
    pub versions: &'a dyn Versions,
    pub manager: Manager,
    pub reset: Reset,
    /// When; a few writes leave no time.
    pub now: Option<&'a str>,
}

/// A field that someone else manages with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub manager: Manager,
    /// `.spec.replicas`
    pub path: String,
    keys: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ApplyError {
    #[error("{} conflicts", .0.len())]
    Conflicts(Vec<Conflict>),
    #[error("no corresponding type for {0}")]
    NoType(String),
    #[error("an element of a list lacks its key")]
    Nameless,
}

/// Metadata that belongs to the system, and the type, are nobody's.
const STRIPPED: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

impl Write<'_> {
    fn schema(&self) -> Result<&Type, ApplyError> {
        let version = &self.manager.api_version;
        self.versions.schema(version).ok_or_else(|| ApplyError::NoType(version.clone()))
    }

    fn in_version<'o>(&self, object: &'o Object, to: &str) -> Cow<'o, Object> {
        let from = &self.manager.api_version;
        if from == to { Cow::Borrowed(object) } else { Cow::Owned(self.versions.convert(object, from, to)) }
    }

    /// Takes from the others what `new` changed or removed; answers what they hold of it, and the change itself.
    fn take(
        &self,
        live: &Object,
        new: &Object,
        managed: &mut Vec<Managed>,
        is_own: impl Fn(&Manager) -> bool,
        force: bool,
    ) -> Result<Comparison, ApplyError> {
        let own = self.filtered(compare(live, new, self.schema()?));
        let mut others: Vec<(String, Comparison)> = Vec::new();
        let mut conflicts = Vec::new();
        managed.retain(|m| is_own(&m.manager) || self.versions.schema(&m.manager.api_version).is_some());
        for entry in managed.iter_mut().filter(|m| !is_own(&m.manager)) {
            let version = entry.manager.api_version.as_str();
            let comparison = if version == self.manager.api_version {
                &own
            } else {
                let known = others.iter().position(|(known, _)| known == version);
                let index = known.unwrap_or_else(|| {
                    let (live, new) = (self.in_version(live, version), self.in_version(new, version));
                    let schema = self.versions.schema(version);
                    let comparison = schema.map(|schema| self.filtered(compare(&live, &new, schema)));
                    others.push((version.to_owned(), comparison.unwrap_or_default()));
                    others.len() - 1
                });
                match others.get(index) {
                    Some((_, comparison)) => comparison,
                    None => continue,
                }
            };
            if comparison.is_same() {
                continue;
            }
            let set = fields::union(&comparison.modified, &comparison.added);
            let taken = fields::intersection(&entry.fields, &set);
            if !force {
                fields::visit(&taken, &mut Vec::new(), &mut |path| {
                    let keys = path.iter().map(|key| (*key).to_owned()).collect();
                    conflicts.push(Conflict { manager: entry.manager.clone(), path: form::display(path), keys });
                });
            }
            entry.fields = fields::difference(&fields::difference(&entry.fields, &taken), &comparison.removed);
        }
        if !conflicts.is_empty() {
            conflicts.sort_by_key(|conflict| conflict.manager.sort_key());
            return Err(ApplyError::Conflicts(conflicts));
        }
        managed.retain(|m| !fields::is_empty(&m.fields));
        Ok(own)
    }

    fn filtered(&self, comparison: Comparison) -> Comparison {
        Comparison {
            added: self.reset.filter(comparison.added),
            modified: self.reset.filter(comparison.modified),
            removed: self.reset.filter(comparison.removed),
            is_nameless: comparison.is_nameless,
        }
    }
}

/// Keeps `managed` true after `live` became `new` by anything but an apply. An unchanged object changes nothing.
pub fn update(write: &Write<'_>, live: &Object, new: &Object, managed: &mut Vec<Managed>) -> Result<(), ApplyError> {
    let change = write.take(live, new, managed, |_| false, true)?;
    if change.is_nameless {
        return Err(ApplyError::Nameless);
    }
    if change.is_same() {
        return Ok(());
    }
    let set = fields::union(&change.modified, &change.added);
    let set = fields::difference(&set, &of_paths(STRIPPED));
    if !fields::is_empty(&set) {
        match managed.iter_mut().find(|m| m.manager.is(&write.manager)) {
            Some(known) => {
                known.fields = fields::union(&set, &known.fields);
                known.time = write.now.map(ToOwned::to_owned);
            }
            None => {
                managed.push(Managed {
                    manager: write.manager.clone(),
                    time: write.now.map(ToOwned::to_owned),
                    fields: set,
                });
            }
        }
    }
    managers::cap(managed);
    Ok(())
}

/// Merges `config` into `live`: what it no longer sets and nobody else manages goes, what others manage with other values
/// conflicts, unless forced.
pub fn apply(
    write: &Write<'_>,
    live: &Object,
    config: &Object,
    managed: &mut Vec<Managed>,
    force: bool,
) -> Result<Object, ApplyError> {
    let schema = write.schema()?;
    let merged = merge(live, config, schema);
    let set = write.reset.filter(field_set(config, schema));
    let known = managed.iter().position(|m| m.manager.is(&write.manager));
    let last = known.map(|index| managed.remove(index));
    let time = last.as_ref().and_then(|last| last.time.clone());
    managed.push(Managed { manager: write.manager.clone(), time, fields: set });
    let new = prune(write, merged, managed, last)?;
    write.take(live, &new, managed, |manager| manager.is(&write.manager), force)?;
    let changed = without_managed_fields(live) != without_managed_fields(&new);
    if let Some(own) = managed.iter_mut().find(|m| m.manager.is(&write.manager)) {
        own.fields = fields::difference(&own.fields, &of_paths(STRIPPED));
        if changed {
            own.time = write.now.map(ToOwned::to_owned);
        }
    }
    managed.retain(|m| !fields::is_empty(&m.fields));
    Ok(new)
}

fn without_managed_fields(object: &Object) -> Object {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(serde_json::Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// Removes what the manager applied before and does not apply now, unless someone else manages it.
fn prune(write: &Write<'_>, merged: Object, managed: &[Managed], last: Option<Managed>) -> Result<Object, ApplyError> {
    let Some(last) = last.filter(|last| !fields::is_empty(&last.fields)) else { return Ok(merged) };
    let version = last.manager.api_version.as_str();
    let Some(schema) = write.versions.schema(version) else { return Ok(merged) };
    let base = write.in_version(&merged, version).into_owned();
    let named_last = merge::with_named_fields(&last.fields, schema);
    let mut pruned = merge::remove(&base, &named_last, schema);
    let mut versions: Vec<&str> = managed.iter().map(|m| m.manager.api_version.as_str()).collect();
    // Its own version first, then each other one.
    versions.sort_by_key(|v| (*v != version, *v));
    versions.dedup();
    for other in versions {
        let Some(schema) = write.versions.schema(other) else { continue };
        let convert = |object: &Object, from: &str, to: &str| {
            if from == to { object.clone() } else { write.versions.convert(object, from, to) }
        };
        let (all, left) = (convert(&base, version, other), convert(&pruned, version, other));
        let owned = managed.iter().filter(|m| m.manager.api_version == other);
        let owned = owned.fold(Fields::new(), |set, m| fields::union(&set, &m.fields));
        let named = |set: &Fields| merge::with_named_fields(set, schema);
        let keep = fields::union(&named(&field_set(&left, schema)), &named(&owned));
        let gone = fields::difference(&named(&field_set(&all, schema)), &keep);
        pruned = convert(&merge::remove(&all, &gone, schema), other, version);
    }
    // Only what was applied before may go: a conversion may have lost more.
    let named = |object: &Object| merge::with_named_fields(&field_set(object, schema), schema);
    let gone = fields::intersection(&fields::difference(&named(&base), &named(&pruned)), &named_last);
    let result = merge::remove(&base, &gone, schema);
    let target = &write.manager.api_version;
    Ok(if version == target { result } else { write.versions.convert(&result, version, target) })
}

/// The conflicts that `allowed` does not cover.
#[must_use]
pub fn beyond(conflicts: Vec<Conflict>, allowed: &Fields) -> Vec<Conflict> {
    let is_allowed = |conflict: &Conflict| {
        let keys: Vec<&str> = conflict.keys.iter().map(String::as_str).collect();
        fields::has(allowed, &keys)
    };
    conflicts.into_iter().filter(|conflict| !is_allowed(conflict)).collect()
}

/// What `last_applied` set and `live` still has.
pub fn still_applied(last_applied: &Object, live: &Object, schema: &Type) -> Fields {
    let change = compare(last_applied, live, schema);
    let set = field_set(last_applied, schema);
    let set = fields::difference(&set, &change.modified);
    fields::difference(&fields::difference(&set, &change.added), &change.removed)
}

impl Conflict {
    pub fn manager_text(&self) -> String {
        self.manager.display()
    }
}

#[cfg(test)]
mod tests;

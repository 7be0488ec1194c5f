//! Conversion between the version a client speaks and the one that is stored.

mod autoscaling;
mod resource;
mod webhook;

use std::borrow::Cow;

use api::schema::{self, Type};
use api::{ApiError, Object};
use serde_json::Value;

use crate::custom::{Conversion, Custom};
use crate::registry::Served;
use crate::server::ApiServer;
use crate::storage::Stored;

/// An object at rest, as clients of a version see it.
pub(crate) async fn from_storage(server: &ApiServer, served: &Served, stored: &Stored) -> Result<Object, ApiError> {
    let object = stored.decode();
    match served.custom() {
        None => Ok(read(served, object)),
        Some(_) if stored.is_plain && served.is_storage_version() => Ok(object),
        Some(custom) => Ok(custom_objects(server, served, custom, vec![object]).await?.remove(0)),
    }
}

/// Many at once: a webhook is asked once for all of them.
pub(crate) async fn list_from_storage(
    server: &ApiServer,
    served: &Served,
    stored: impl Iterator<Item = &Stored>,
) -> Result<Vec<Object>, ApiError> {
    match served.custom() {
        None => Ok(stored.map(|stored| read(served, stored.decode())).collect()),
        Some(custom) => custom_objects(server, served, custom, stored.map(Stored::decode).collect()).await,
    }
}

/// An object of a version, as it is stored.
pub(crate) async fn to_storage<'a>(
    server: &ApiServer,
    served: &Served,
    object: &'a Object,
) -> Result<Cow<'a, Object>, ApiError> {
    if served.is_storage_version() {
        return Ok(Cow::Borrowed(object));
    }
    let Some(custom) = served.custom() else { return Ok(Cow::Owned(write(served, object.clone()))) };
    let definition = &custom.definition;
    let Some(storage) = definition.storage() else { return Ok(Cow::Borrowed(object)) };
    let converted = convert_all(server, custom, vec![object.clone()], &served.storage_version).await?;
    Ok(Cow::Owned(converted.into_iter().next().map(|object| definition.prune(object, storage)).unwrap_or_default()))
}

/// What is read of an object that is stored like this, where that may differ from what was written: a definition has its say once more. What
/// its stored version lacks is gone, what it defaults is there. The same holds for an autoscaler of the version that has only part of it.
pub(crate) async fn read_back(
    server: &ApiServer,
    served: &Served,
    stored: &Object,
) -> Result<Option<Object>, ApiError> {
    let Some(custom) = served.custom() else {
        let is_part = served.info.group == "autoscaling" && !served.is_storage_version();
        return Ok(is_part.then(|| read(served, stored.clone())));
    };
    Ok(custom_objects(server, served, custom, vec![stored.clone()]).await?.pop())
}

/// Each in what its own version says, then in the wanted one.
async fn custom_objects(
    server: &ApiServer,
    served: &Served,
    custom: &Custom,
    objects: Vec<Object>,
) -> Result<Vec<Object>, ApiError> {
    let definition = &custom.definition;
    let fitted = objects.into_iter().map(|object| definition.fit(object)).collect();
    let wanted = served.info.api_version();
    let converted = convert_all(server, custom, fitted, &wanted).await?;
    Ok(converted.into_iter().map(|object| definition.prune(object, custom.version())).collect())
}

async fn convert_all(
    server: &ApiServer,
    custom: &Custom,
    mut objects: Vec<Object>,
    wanted: &str,
) -> Result<Vec<Object>, ApiError> {
    match &custom.definition.conversion {
        Conversion::None => {
            objects.iter_mut().for_each(|object| drop(object.insert("apiVersion".into(), wanted.into())));
            Ok(objects)
        }
        Conversion::Webhook(webhook, reviews) => webhook::convert(server, webhook, reviews, objects, wanted).await,
    }
}

/// For who manages what: fields are compared in the version their manager speaks. A webhook is not asked for that, so its
/// versions are taken to have the same fields.
pub(crate) fn between(from: Option<&Served>, to: Option<&Served>, wanted: &str, mut object: Object) -> Object {
    if let Some(from) = from {
        object = write(from, object);
    }
    match to {
        Some(to) => read(to, object),
        None => {
            object.insert("apiVersion".into(), wanted.into());
            object
        }
    }
}

/// The same from one version that is served to another.
pub(crate) fn across(from: &Served, to: &Served, object: Object) -> Object {
    let builtin = |served| Some(served).filter(|served: &&Served| served.custom().is_none());
    between(builtin(from), builtin(to), &to.info.api_version(), object)
}

/// The same where nothing is taken for granted: a webhook is asked, if the definition names one.
pub(crate) async fn to_version(
    server: &ApiServer,
    from: &Served,
    to: &Served,
    object: Object,
) -> Result<Object, ApiError> {
    let Some(custom) = to.custom() else { return Ok(across(from, to, object)) };
    let converted = convert_all(server, custom, vec![object], &to.info.api_version()).await?;
    let pruned = converted.into_iter().next().map(|object| custom.definition.prune(object, custom.version()));
    pruned.ok_or_else(|| ApiError::internal("the conversion answered no object"))
}

/// An object at rest, without asking a webhook.
pub(crate) fn seen(served: &Served, stored: &Stored) -> Object {
    match served.custom() {
        None => read(served, stored.decode()),
        Some(custom) => {
            let object = between(None, None, &served.info.api_version(), custom.definition.fit(stored.decode()));
            custom.definition.prune(object, custom.version())
        }
    }
}

/// An autoscaler of autoscaling/v1 with all that it stands for.
pub(crate) fn autoscaler_from_v1(object: &Object) -> Object {
    let mut object = object.clone();
    autoscaling::from_v1(&mut object);
    object
}

/// Leaves what an autoscaler of the first version carries of its status, or of its spec, as it was.
pub(crate) fn keep_autoscaler_part(new: &mut Object, old: Option<&Object>, is_status: bool) {
    if new.get("apiVersion").is_some_and(|version| version == "autoscaling/v1") {
        autoscaling::keep(new, old, is_status);
    }
}

/// An autoscaler of the first version as it is after the way there and back: with its default, and what it carries in one form.
pub(crate) fn settle_autoscaler_in_v1(object: &mut Object) {
    autoscaling::from_v1(object);
    autoscaling::to_v1(object);
}

/// A claim or slice in the shape of resource.k8s.io/v1, whatever its version.
pub(crate) fn resource_in_v1(object: &Object) -> Cow<'_, Object> {
    if object.get("apiVersion").is_none_or(|version| version != "resource.k8s.io/v1beta1") {
        return Cow::Borrowed(object);
    }
    let mut object = object.clone();
    resource::from_v1beta1(&mut object);
    Cow::Owned(object)
}

fn read(served: &Served, mut object: Object) -> Object {
    if served.is_storage_version() {
        return object;
    }
    match (served.info.group.as_str(), served.info.version.as_str(), served.info.plural.as_str()) {
        ("events.k8s.io", _, "events") => rename(&mut object, &EVENT_FIELDS, false),
        ("autoscaling", "v1", _) => autoscaling::to_v1(&mut object),
        ("resource.k8s.io", "v1beta1", _) => resource::to_v1beta1(&mut object),
        _ => (),
    }
    settle(&mut object, &served.schema);
    object.insert("apiVersion".into(), served.info.api_version().into());
    object
}

fn write(served: &Served, mut object: Object) -> Object {
    if served.is_storage_version() {
        return object;
    }
    match (served.info.group.as_str(), served.info.version.as_str(), served.info.plural.as_str()) {
        ("events.k8s.io", _, "events") => rename(&mut object, &EVENT_FIELDS, true),
        ("autoscaling", "v1", _) => autoscaling::from_v1(&mut object),
        ("resource.k8s.io", "v1beta1", _) => resource::from_v1beta1(&mut object),
        _ => (),
    }
    let (group, version) = served.storage_version.split_once('/').unwrap_or(("", &served.storage_version));
    if let Some(schema) = schema::of_kind(group, version, &served.info.kind) {
        settle(&mut object, schema);
    }
    object.insert("apiVersion".into(), served.storage_version.clone().into());
    object
}

/// What one version leaves out when it is zero, another may write.
fn settle(object: &mut Object, schema: &Type) {
    let mut value = Value::Object(std::mem::take(object));
    // It was fitted to its own version before: nothing in it can be of a wrong type here.
    let _ = api::decode::conform(&mut value, schema);
    if let Value::Object(fitted) = value {
        *object = fitted;
    }
    api::decode::complete(object, schema);
}

/// core/v1 and events.k8s.io/v1 name the same things differently.
const EVENT_FIELDS: [(&str, &str); 8] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
    ("reportingInstance", "reportingInstance"),
];

fn rename(object: &mut Object, fields: &[(&str, &str)], to_left: bool) {
    for (left, right) in fields {
        let (from, to) = if to_left { (right, left) } else { (left, right) };
        if let Some(value) = object.remove(*from) {
            object.insert((*to).to_owned(), value);
        }
    }
}

//! An object at rest: its canonical bytes, with what selectors ask for read out once.

use std::sync::{Arc, OnceLock};

use api::Object;
use api::protobuf::ProtobufError;
use api::schema::Type;
use api::selector::Labels;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::texts::Texts;
use crate::strategy::service::default_on_read;

/// What an enveloped message begins with.
const PROTOBUF: &[u8] = b"k8s\0";
const METADATA: &[u8] = b"\"metadata\":{";

/// One revision of one object. Immutable, shared by the cache, the event ring and every watcher.
#[derive(Debug)]
pub(crate) struct Stored {
    /// `namespace/name`, or `name`: the store's key below the resource's prefix.
    pub key: Arc<str>,
    pub revision: i64,
    /// Keys and values in turn.
    labels: Texts,
    /// The paths of the selectable fields beyond name and namespace, and their values; absent ones are empty. Those of
    /// custom resources are not known to the binary, so the values have each its path before it.
    selectable: &'static [&'static str],
    fields: Texts,
    /// The bytes are what a client of the stored version is to see. Only custom resources can be at rest in another
    /// version, or with fields that their definition has come to default or to drop.
    pub is_plain: bool,
    bytes: Bytes,
    /// The protobuf message, once somebody asked for it.
    message: OnceLock<Bytes>,
    /// Where `"metadata":{` begins.
    metadata_at: usize,
}

/// What is read out of an object once, when it comes from the store.
#[derive(Clone, Debug)]
pub(crate) enum Reading {
    /// The values at these paths.
    Paths(&'static [&'static str]),
    /// The same of services, which get what they lack; the family is that of those that do not say.
    Services(&'static [&'static str], &'static str),
    Custom(Arc<dyn Examine>),
}

/// Reads what a custom resource's definition asks for.
pub(crate) trait Examine: std::fmt::Debug + Send + Sync {
    /// Its selectable fields, each after its path, and whether it can be shown as it is.
    fn examine(&self, object: Object) -> (Texts, bool);
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    labels: Option<Labels>,
}

impl Stored {
    pub(crate) fn read(key: &str, revision: i64, bytes: Bytes, reading: &Reading) -> Result<Self, serde_json::Error> {
        if bytes.starts_with(PROTOBUF) {
            // Written by an API server that stores protobuf.
            let object = unpack(&bytes).map_err(serde::de::Error::custom)?;
            return Self::read(key, revision, api::object::canonical(&object).into(), reading);
        }
        let bytes = match reading {
            Reading::Services(_, usual) => default_on_read(&bytes, usual)?.map_or(bytes, Bytes::from),
            _ => bytes,
        };
        let head: Head<'_> = serde_json::from_slice(&bytes)?;
        let meta: Meta = serde_json::from_str(head.metadata.get())?;
        let at = (head.metadata.get().as_ptr() as usize).saturating_sub(bytes.as_ptr() as usize);
        let metadata_at = at.saturating_sub(METADATA.len() - 1);
        if bytes.get(metadata_at..).is_none_or(|rest| !rest.starts_with(METADATA)) {
            // Written by someone else: bring it into our form once.
            let object: Object = serde_json::from_slice(&bytes)?;
            return Self::read(key, revision, api::object::canonical(&object).into(), reading);
        }
        let labels = Texts::new(meta.labels.iter().flatten().flat_map(|(key, value)| [key, value]));
        let (selectable, fields, is_plain): (&[&str], _, _) = match reading {
            Reading::Paths([]) => (&[], Texts::default(), true),
            Reading::Paths(paths) | Reading::Services(paths, _) => (paths, fields(&bytes, paths)?, true),
            Reading::Custom(custom) => {
                let (fields, is_plain) = custom.examine(serde_json::from_slice(&bytes)?);
                (&[], fields, is_plain)
            }
        };
        let message = OnceLock::new();
        Ok(Self { key: key.into(), revision, labels, selectable, fields, is_plain, bytes, message, metadata_at })
    }

    /// The same object as of another revision: what has gone is shown as it last was, at the revision that took it away.
    pub(crate) fn at(&self, revision: i64) -> Self {
        Self {
            key: self.key.clone(),
            revision,
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            bytes: self.bytes.clone(),
            message: OnceLock::new(),
            ..*self
        }
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        let at = self.labels.iter().step_by(2).position(|known| known == key)?;
        Some(self.labels.get(2 * at + 1))
    }

    pub(crate) fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub(crate) fn name(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }

    /// A selectable field's value.
    pub(crate) fn field(&self, path: &str) -> &str {
        match path {
            "metadata.name" => self.name(),
            "metadata.namespace" => self.namespace(),
            other if self.selectable.is_empty() => {
                let at = self.fields.iter().step_by(2).position(|known| known == other);
                at.map_or("", |at| self.fields.get(2 * at + 1))
            }
            other => self.selectable.iter().position(|known| *known == other).map_or("", |at| self.fields.get(at)),
        }
    }

    /// Appends the object with its resource version. Items of a list leave their type out, as upstream's do.
    pub(crate) fn write(&self, out: &mut Vec<u8>, with_type: bool) {
        let start = if with_type { 0 } else { self.metadata_at };
        let splice = self.metadata_at + METADATA.len();
        if !with_type {
            out.push(b'{');
        }
        out.extend_from_slice(self.bytes.get(start..splice).unwrap_or_default());
        out.extend_from_slice(format!("\"resourceVersion\":\"{}\"", self.revision).as_bytes());
        let rest = self.bytes.get(splice..).unwrap_or_default();
        if rest.first() != Some(&b'}') {
            out.push(b',');
        }
        out.extend_from_slice(rest);
    }

    /// About how many bytes `write` appends.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + 32
    }

    /// The object's protobuf message, with its resource version; made once, `schema` is the stored version's.
    pub(crate) fn message(&self, schema: &Type) -> Result<Bytes, ProtobufError> {
        if let Some(known) = self.message.get() {
            return Ok(known.clone());
        }
        let made = Bytes::from(api::protobuf::transcode(&self.bytes, schema, self.revision)?);
        Ok(self.message.get_or_init(|| made).clone())
    }

    /// The object as a tree, with its resource version.
    pub(crate) fn decode(&self) -> Object {
        // What is stored was decoded once already in `read`.
        let mut object: Object = serde_json::from_slice(&self.bytes).unwrap_or_default();
        api::ObjectExt::metadata(&mut object).insert("resourceVersion".into(), self.revision.to_string().into());
        object
    }
}

fn unpack(bytes: &[u8]) -> Result<Object, ProtobufError> {
    let envelope = api::protobuf::open(bytes)?;
    let unknown = || ProtobufError::Json(format!("no kind {} of {}", envelope.kind, envelope.api_version));
    let schema = api::protobuf::type_of(&envelope.api_version, &envelope.kind).ok_or_else(unknown)?;
    let mut object = api::protobuf::decode(envelope.raw, schema)?;
    object.insert("kind".into(), envelope.kind.into());
    object.insert("apiVersion".into(), envelope.api_version.into());
    Ok(object)
}

fn fields(bytes: &[u8], selectable: &[&str]) -> Result<Texts, serde_json::Error> {
    let object: Object = serde_json::from_slice(bytes)?;
    Ok(Texts::new(selectable.iter().map(|path| field(&object, path).unwrap_or_default())))
}

/// What a selector compares: zeros count where upstream keeps a number or a truth value, and some names are not paths.
fn field(object: &Object, name: &str) -> Option<String> {
    let at = |path: &str| match api::ObjectExt::at(object, &path.split('.').collect::<Vec<_>>()) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => Some(other.to_string()),
    };
    let (path, otherwise) = match name {
        "name" => ("metadata.name", None),
        "source" => ("source.component", at("reportingComponent")),
        "status.successful" => ("status.succeeded", Some("0".into())),
        "status.replicas" => (name, Some("0".into())),
        "spec.unschedulable" | "spec.hostNetwork" => (name, Some("false".into())),
        _ => (name, None),
    };
    at(path).filter(|text| !text.is_empty()).or(otherwise)
}

/// What happened to one key at one revision.
#[derive(Debug)]
pub(crate) struct Change {
    pub revision: i64,
    /// The object now, or as it last was if it is gone (with the revision of its deletion).
    pub object: Arc<Stored>,
    pub previous: Option<Arc<Stored>>,
    pub deleted: bool,
    /// The event's JSON frame for ADDED, MODIFIED, DELETED: made for the first watcher that needs it, shared by all.
    frames: [OnceLock<Bytes>; 3],
    protobuf_frames: [OnceLock<Bytes>; 3],
}

impl Change {
    pub(crate) fn new(revision: i64, object: Arc<Stored>, previous: Option<Arc<Stored>>, deleted: bool) -> Self {
        Self { revision, object, previous, deleted, frames: Default::default(), protobuf_frames: Default::default() }
    }

    /// `{"type":"ADDED","object":{…}}\n`
    pub(crate) fn frame(&self, kind: EventType, object: &Stored) -> Bytes {
        let [added, modified, deleted] = &self.frames;
        kind.choose(added, modified, deleted).get_or_init(|| frame(kind, object)).clone()
    }

    /// The same in protobuf, made by `make` for the first who asks.
    pub(crate) fn protobuf_frame(&self, kind: EventType, make: impl FnOnce() -> Bytes) -> Bytes {
        let [added, modified, deleted] = &self.protobuf_frames;
        kind.choose(added, modified, deleted).get_or_init(make).clone()
    }
}

/// What a watcher is told; an object that starts or stops matching a selector is added or deleted for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventType {
    Added,
    Modified,
    Deleted,
}

impl EventType {
    fn choose<T>(self, added: T, modified: T, deleted: T) -> T {
        match self {
            Self::Added => added,
            Self::Modified => modified,
            Self::Deleted => deleted,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One watch event in JSON.
pub(crate) fn frame(kind: EventType, object: &Stored) -> Bytes {
    let mut out = Vec::with_capacity(object.size() + 64);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_str().as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    object.write(&mut out, true);
    out.extend_from_slice(b"}\n");
    out.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_selector_sees_zeros_and_the_fields_upstream_renames() {
        let check = |object: Value, name: &str, want: Option<&str>| {
            let found = field(object.as_object().unwrap(), name);
            assert_eq!(found.as_deref(), want, "{name} of {object}");
        };
        check(json!({"spec": {}}), "spec.unschedulable", Some("false"));
        check(json!({"spec": {"unschedulable": true}}), "spec.unschedulable", Some("true"));
        check(json!({}), "spec.hostNetwork", Some("false"));
        check(json!({}), "status.replicas", Some("0"));
        check(json!({"status": {"succeeded": 3}}), "status.successful", Some("3"));
        check(json!({"status": {}}), "status.successful", Some("0"));
        check(json!({"metadata": {"name": "disk"}}), "name", Some("disk"));
        check(json!({"source": {"component": "kubelet"}, "reportingComponent": "x"}), "source", Some("kubelet"));
        check(json!({"source": {}, "reportingComponent": "x"}), "source", Some("x"));
        check(json!({"status": {"phase": null}}), "status.phase", None);
    }

    #[test]
    fn the_resource_version_is_spliced_in() {
        check(
            r#"{"kind":"A","apiVersion":"v1","metadata":{"name":"x"},"spec":{}}"#,
            r#"{"kind":"A","apiVersion":"v1","metadata":{"resourceVersion":"7","name":"x"},"spec":{}}"#,
            r#"{"metadata":{"resourceVersion":"7","name":"x"},"spec":{}}"#,
        );
        check(
            r#"{"kind":"A","apiVersion":"v1","metadata":{}}"#,
            r#"{"kind":"A","apiVersion":"v1","metadata":{"resourceVersion":"7"}}"#,
            r#"{"metadata":{"resourceVersion":"7"}}"#,
        );
        // Written by another hand, in another order.
        check(
            r#"{"apiVersion":"v1", "metadata" : {"name":"x"}, "kind":"A"}"#,
            r#"{"kind":"A","apiVersion":"v1","metadata":{"resourceVersion":"7","name":"x"}}"#,
            r#"{"metadata":{"resourceVersion":"7","name":"x"}}"#,
        );
    }

    #[track_caller]
    fn check(at_rest: &str, whole: &str, item: &str) {
        let stored = Stored::read("d/x", 7, Bytes::copy_from_slice(at_rest.as_bytes()), &Reading::Paths(&[])).unwrap();
        let text = |with_type| {
            let mut out = Vec::new();
            stored.write(&mut out, with_type);
            String::from_utf8(out).unwrap()
        };
        assert_eq!((text(true).as_str(), text(false).as_str()), (whole, item));
    }
}

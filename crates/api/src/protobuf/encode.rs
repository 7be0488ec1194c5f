//! JSON, as text or as a tree, straight into protobuf: no tree is built of what is only passed on.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::wire::Message as _;
use super::{ProtobufError, Result};
use crate::schema::{Field, Ref, Shape, Type, generated};

const RESOURCE_VERSION: u32 = 6;

/// What stands for an object where only its metadata is asked for.
pub(super) static PARTIAL_OBJECT_METADATA: Type = Type {
    name: Cow::Borrowed("io.k8s.apimachinery.pkg.apis.meta.v1.PartialObjectMetadata"),
    atomic: false,
    custom: None,
    fields: Cow::Borrowed(&[Field {
        name: Cow::Borrowed("metadata"),
        tag: 1,
        outer: 0,
        required: false,
        zero: crate::schema::Zero::Written,
        shape: Shape::Object(Ref::Static(&generated::APIMACHINERY_PKG_APIS_META_V1_OBJECTMETA)),
        topology: crate::schema::Topology::Default,
        patch: crate::schema::Patch::NONE,
        default: None,
    }]),
};

/// The message of an object at rest, with its resource version.
pub fn transcode(json: &[u8], schema: &Type, revision: i64) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(json.len());
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let revision = revision.to_string();
    let write = Write { out: &mut out, schema, version: Some(&revision) };
    write.deserialize(&mut deserializer).map_err(|error| ProtobufError::Json(error.to_string()))?;
    Ok(out)
}

/// The message of an object as a tree.
pub(super) fn message(value: &Value, schema: &Type, version: Option<&str>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let write = Write { out: &mut out, schema, version };
    write.deserialize(value).map_err(|error| ProtobufError::Json(error.to_string()))?;
    Ok(out)
}

/// Writes the fields of an object. `version` is the resource version of the object's own metadata.
struct Write<'o, 'a> {
    out: &'o mut Vec<u8>,
    schema: &'a Type,
    version: Option<&'a str>,
}

impl<'de> DeserializeSeed<'de> for Write<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Write<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of type {}", self.schema.name)
    }

    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        // Messages that are inlined in JSON, until all their fields are known.
        let mut inlined: Vec<(u32, Vec<u8>)> = Vec::new();
        let mut next = 0;
        while let Some(found) = map.next_key_seed(Find { schema: self.schema, next })? {
            let Some((index, field)) = found.filter(|(_, field)| field.tag != 0) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            next = index + 1;
            let version = self.version.filter(|_| field.name == "metadata");
            let slot = match field.outer {
                0 => &mut *self.out,
                outer => {
                    let known = inlined.iter().position(|(known, _)| *known == outer);
                    let at = known.unwrap_or_else(|| {
                        inlined.push((outer, Vec::new()));
                        inlined.len() - 1
                    });
                    match inlined.get_mut(at) {
                        Some((_, out)) => out,
                        None => continue,
                    }
                }
            };
            map.next_value_seed(WriteValue { out: slot, tag: field.tag, shape: &field.shape, version })?;
        }
        flush(self.out, inlined);
        Ok(())
    }
}

/// Deeper messages go into the ones around them first.
fn flush(out: &mut Vec<u8>, mut inlined: Vec<(u32, Vec<u8>)>) {
    inlined.sort_by_key(|(outer, _)| std::cmp::Reverse(*outer));
    let mut waiting: Vec<(u32, Vec<u8>)> = Vec::new();
    for (outer, mut bytes) in inlined {
        let (inner, rest) = waiting.into_iter().partition(|(around, _)| *around == outer);
        waiting = rest;
        let inner: Vec<(u32, Vec<u8>)> = inner;
        inner.iter().for_each(|(_, message)| bytes.extend_from_slice(message));
        let mut wrapped = Vec::with_capacity(bytes.len() + 4);
        wrapped.bytes(outer & 0xff, &bytes);
        waiting.push((outer >> 8, wrapped));
    }
    for (around, bytes) in waiting {
        match around {
            0 => out.extend_from_slice(&bytes),
            around => out.bytes(around, &bytes),
        }
    }
}

/// Finds a field by its name; objects at rest are in order, so the next is usually not far.
struct Find<'a> {
    schema: &'a Type,
    next: usize,
}

impl<'de, 'a> DeserializeSeed<'de> for Find<'a> {
    type Value = Option<(usize, &'a Field)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Find<'a> {
    type Value = Option<(usize, &'a Field)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E>(self, name: &str) -> std::result::Result<Self::Value, E> {
        let fields = self.schema.fields.iter().enumerate();
        let (before, after) = (fields.clone().take(self.next), fields.skip(self.next));
        Ok(after.chain(before).find(|(_, field)| field.name == name))
    }
}

/// Writes one value under its tag; a null writes nothing.
struct WriteValue<'o, 'a> {
    out: &'o mut Vec<u8>,
    tag: u32,
    shape: &'a Shape,
    version: Option<&'a str>,
}

impl<'de> DeserializeSeed<'de> for WriteValue<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        if let Shape::SchemaOr(other) = self.shape {
            let value: Value = serde::Deserialize::deserialize(deserializer)?;
            let bytes = super::schema_or::encode(&value, *other).map_err(D::Error::custom)?;
            self.out.bytes(self.tag, &bytes);
            return Ok(());
        }
        if matches!(self.shape, Shape::Any) {
            let raw: Box<RawValue> = serde::Deserialize::deserialize(deserializer)?;
            if raw.get() != "null" {
                self.out.message(self.tag, |out| out.bytes(1, raw.get().as_bytes()));
            }
            return Ok(());
        }
        deserializer.deserialize_any(self)
    }
}

impl WriteValue<'_, '_> {
    fn refuse<E: serde::de::Error>(&self, found: &str) -> E {
        E::custom(format!("{found} does not fit field {}", self.tag))
    }

    fn integer<E: serde::de::Error>(self, value: i64) -> std::result::Result<(), E> {
        match self.shape {
            Shape::Int32 | Shape::Int64 => self.out.number(self.tag, value as u64),
            Shape::Double => self.out.double(self.tag, value as f64),
            Shape::IntOrString => self.out.message(self.tag, |out| {
                out.number(1, 0);
                out.number(2, value as u64);
                out.bytes(3, b"");
            }),
            Shape::Quantity => self.out.message(self.tag, |out| out.bytes(1, value.to_string().as_bytes())),
            _ => return Err(self.refuse("a number")),
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for WriteValue<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of field {}", self.tag)
    }

    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> std::result::Result<(), E> {
        match self.shape {
            Shape::Bool => self.out.number(self.tag, value.into()),
            _ => return Err(self.refuse("a boolean")),
        }
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> std::result::Result<(), E> {
        self.integer(value)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> std::result::Result<(), E> {
        let value = i64::try_from(value).map_err(|_| self.refuse("so large a number"))?;
        self.integer(value)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> std::result::Result<(), E> {
        match self.shape {
            Shape::Double => self.out.double(self.tag, value),
            _ => return Err(self.refuse("a fraction")),
        }
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<(), E> {
        let tag = self.tag;
        match self.shape {
            Shape::String => self.out.bytes(tag, text.as_bytes()),
            Shape::Bytes => {
                let bytes = STANDARD.decode(text.replace(['\r', '\n'], "")).map_err(E::custom)?;
                self.out.bytes(tag, &bytes);
            }
            Shape::Quantity => self.out.message(tag, |out| out.bytes(1, text.as_bytes())),
            Shape::IntOrString => self.out.message(tag, |out| {
                out.number(1, 1);
                out.number(2, 0);
                out.bytes(3, text.as_bytes());
            }),
            Shape::Time | Shape::MicroTime => {
                let at: jiff::Timestamp = text.parse().map_err(E::custom)?;
                self.out.message(tag, |out| {
                    out.number(1, at.as_second() as u64);
                    out.number(2, at.subsec_nanosecond() as u64);
                });
            }
            _ => return Err(self.refuse("a string")),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<(), A::Error> {
        let Shape::List(inner) = self.shape else { return Err(self.refuse("a list")) };
        while items
            .next_element_seed(WriteValue { out: &mut *self.out, tag: self.tag, shape: inner, version: None })?
            .is_some()
        {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        match self.shape {
            Shape::Object(schema) => {
                let start = self.out.begin(self.tag);
                if let Some(version) = self.version {
                    self.out.bytes(RESOURCE_VERSION, version.as_bytes());
                }
                Write { out: &mut *self.out, schema, version: None }.visit_map(map)?;
                self.out.end(start);
                Ok(())
            }
            Shape::Map(inner) => {
                while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                    let start = self.out.begin(self.tag);
                    self.out.bytes(1, key.as_bytes());
                    map.next_value_seed(MapValue { out: &mut *self.out, shape: inner })?;
                    self.out.end(start);
                }
                Ok(())
            }
            _ => Err(A::Error::custom(format!("an object does not fit field {}", self.tag))),
        }
    }
}

/// The value of a map's entry; a list there is a message with the items in field 1.
struct MapValue<'o, 'a> {
    out: &'o mut Vec<u8>,
    shape: &'a Shape,
}

impl<'de> DeserializeSeed<'de> for MapValue<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        if !matches!(self.shape, Shape::List(_)) {
            return WriteValue { out: self.out, tag: 2, shape: self.shape, version: None }.deserialize(deserializer);
        }
        let start = self.out.begin(2);
        WriteValue { out: &mut *self.out, tag: 1, shape: self.shape, version: None }.deserialize(deserializer)?;
        self.out.end(start);
        Ok(())
    }
}

//! The places in a custom resource's schema where JSON holds a schema or something simpler.

use serde_json::{Value, json};

use super::decode::{Raw, message, parts, utf8};
use super::encode::message as written;
use super::wire::Message as _;
use super::{ProtobufError, Result};
use crate::object::Object;
use crate::schema::SchemaOr;
use crate::schema::generated::APIEXTENSIONS_APISERVER_PKG_APIS_APIEXTENSIONS_V1_JSONSCHEMAPROPS as SCHEMA;

pub(super) fn encode(value: &Value, other: SchemaOr) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    match (other, value) {
        (SchemaOr::Bool, Value::Bool(allows)) => out.number(1, (*allows).into()),
        (SchemaOr::Bool, schema @ Value::Object(_)) => {
            out.number(1, 1);
            out.bytes(2, &written(schema, &SCHEMA, None)?);
        }
        (_, schema @ Value::Object(_)) => out.bytes(1, &written(schema, &SCHEMA, None)?),
        (SchemaOr::Array, Value::Array(schemas)) => {
            for schema in schemas {
                out.bytes(2, &written(schema, &SCHEMA, None)?);
            }
        }
        (SchemaOr::Strings, Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).for_each(|name| out.bytes(2, name.as_bytes()));
        }
        (_, other) => return Err(ProtobufError::Json(format!("{other} is no schema"))),
    }
    Ok(out)
}

pub(super) fn decode(bytes: &[u8], other: SchemaOr, depth: usize) -> Result<Value> {
    let schema = |bytes: &[u8]| {
        let mut object = Object::new();
        message(&mut object, bytes, &SCHEMA, 0, depth + 1).map(|()| Value::Object(object))
    };
    let (mut whole, mut allows, mut items) = (None, false, Vec::new());
    for (tag, raw) in parts(bytes)? {
        match (other, tag, raw) {
            (SchemaOr::Bool, 1, Raw::Number(number)) => allows = number != 0,
            (SchemaOr::Bool, 2, Raw::Bytes(bytes)) | (_, 1, Raw::Bytes(bytes)) => whole = Some(schema(bytes)?),
            (SchemaOr::Array, 2, Raw::Bytes(bytes)) => items.push(schema(bytes)?),
            (SchemaOr::Strings, 2, Raw::Bytes(bytes)) => items.push(utf8(bytes)?.into()),
            _ => (),
        }
    }
    Ok(match (whole, other) {
        (Some(schema), _) => schema,
        (None, SchemaOr::Bool) => json!(allows),
        (None, _) => Value::Array(items),
    })
}

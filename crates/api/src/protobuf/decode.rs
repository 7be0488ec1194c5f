//! Protobuf messages as the JSON they stand for.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value};

use super::{BYTES, FIXED32, FIXED64, ProtobufError, Result, VARINT};
use crate::object::Object;
use crate::schema::{Field, Shape, Type, Zero};

const MAX_DEPTH: usize = 100;

/// A message as the JSON object it stands for.
pub fn decode(bytes: &[u8], schema: &Type) -> Result<Object> {
    let mut object = Map::new();
    message(&mut object, bytes, schema, 0, 0)?;
    Ok(object)
}

pub(super) struct Reader<'a>(pub(super) &'a [u8]);

pub(super) enum Raw<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Reader<'a> {
    pub(super) fn key(&mut self) -> Result<Option<(u32, u8)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let tag = u32::try_from(key >> 3).map_err(|_| ProtobufError::Overflow)?;
        Ok(Some((tag, (key & 7) as u8)))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first().ok_or(ProtobufError::Truncated)?;
            self.0 = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Overflow)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(ProtobufError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn value(&mut self, wire: u8) -> Result<Raw<'a>> {
        let fixed = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        match wire {
            VARINT => self.varint().map(Raw::Number),
            FIXED64 => self.take(8).map(fixed).map(Raw::Number),
            FIXED32 => self.take(4).map(fixed).map(Raw::Number),
            BYTES => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Overflow)?;
                self.take(length).map(Raw::Bytes)
            }
            other => Err(ProtobufError::WireType(other)),
        }
    }
}

pub(super) fn utf8(bytes: &[u8]) -> Result<String> {
    std::str::from_utf8(bytes).map(ToOwned::to_owned).map_err(|_| ProtobufError::Utf8)
}

/// Reads the fields of one message into `object`; `outer` is the inlined message we are in.
pub(super) fn message(object: &mut Object, bytes: &[u8], schema: &Type, outer: u32, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(ProtobufError::TooDeep);
    }
    let mut reader = Reader(bytes);
    while let Some((tag, wire)) = reader.key()? {
        let raw = reader.value(wire)?;
        if let Some(field) = schema.fields.iter().find(|field| field.tag == tag && field.outer == outer) {
            read_field(object, field, &raw, depth)?;
        } else if let Raw::Bytes(bytes) = raw {
            let inner = outer << 8 | tag;
            if tag < 256 && schema.fields.iter().any(|field| field.outer == inner || field.outer >> 8 == inner) {
                message(object, bytes, schema, inner, depth + 1)?;
            }
        }
    }
    Ok(())
}

fn read_field(object: &mut Object, field: &Field, raw: &Raw<'_>, depth: usize) -> Result<()> {
    let name = field.name.as_ref();
    match (&field.shape, raw) {
        (Shape::List(inner), Raw::Bytes(bytes)) if matches!(**inner, Shape::Int32 | Shape::Int64 | Shape::Bool) => {
            let mut packed = Reader(bytes);
            while !packed.0.is_empty() {
                let number = Raw::Number(packed.varint()?);
                push(object, name, scalar(inner, &number, depth)?);
            }
        }
        (Shape::List(inner), raw) => push(object, name, scalar(inner, raw, depth)?),
        (Shape::Map(inner), Raw::Bytes(bytes)) => {
            let (key, value) = map_entry(bytes, inner, depth)?;
            let map = object.entry(name).or_insert_with(|| Value::Object(Map::new()));
            if let Some(map) = map.as_object_mut() {
                map.insert(key, value);
            }
        }
        (shape, raw) => {
            let value = scalar(shape, raw, depth)?;
            let zero = match &value {
                Value::Null => true,
                Value::Bool(value) => !value,
                Value::Number(number) => number.as_f64() == Some(0.0),
                Value::String(text) => text.is_empty(),
                _ => false,
            };
            if !zero || field.zero != Zero::Omitted || (field.required && !value.is_null()) {
                object.insert(name.to_owned(), value);
            }
        }
    }
    Ok(())
}

fn push(object: &mut Object, name: &str, value: Value) {
    let list = object.entry(name).or_insert_with(|| Value::Array(Vec::new()));
    if let Some(list) = list.as_array_mut() {
        list.push(value);
    }
}

fn map_entry(bytes: &[u8], inner: &Shape, depth: usize) -> Result<(String, Value)> {
    let mut reader = Reader(bytes);
    let mut key = String::new();
    let mut value = zero(inner);
    while let Some((tag, wire)) = reader.key()? {
        match (tag, reader.value(wire)?) {
            (1, Raw::Bytes(text)) => key = utf8(text)?,
            (2, raw) => value = scalar(inner, &raw, depth)?,
            _ => (),
        }
    }
    Ok((key, value))
}

fn zero(shape: &Shape) -> Value {
    match shape {
        Shape::Int32 | Shape::Int64 | Shape::Double => 0.into(),
        Shape::Bool => false.into(),
        Shape::List(_) => Value::Array(Vec::new()),
        Shape::Object(_) | Shape::Map(_) => Value::Object(Map::new()),
        Shape::Quantity => "0".into(),
        _ => "".into(),
    }
}

fn scalar(shape: &Shape, raw: &Raw<'_>, depth: usize) -> Result<Value> {
    Ok(match (shape, raw) {
        (Shape::Bool, Raw::Number(number)) => (*number != 0).into(),
        // Negative 32-bit numbers are sent sign-extended.
        (Shape::Int32, Raw::Number(number)) => (*number as i32).into(),
        (Shape::Int64, Raw::Number(number)) => (*number as i64).into(),
        (Shape::Double, Raw::Number(bits)) => double(f64::from_bits(*bits)),
        (Shape::String, Raw::Bytes(bytes)) => utf8(bytes)?.into(),
        (Shape::Bytes, Raw::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        (Shape::Object(schema), Raw::Bytes(bytes)) => {
            let mut object = Map::new();
            message(&mut object, bytes, schema, 0, depth + 1)?;
            Value::Object(object)
        }
        (Shape::List(inner), Raw::Bytes(bytes)) => {
            // A list inside a map or list is a message with the items in field 1.
            let mut items = Vec::new();
            let mut reader = Reader(bytes);
            while let Some((_, wire)) = reader.key()? {
                items.push(scalar(inner, &reader.value(wire)?, depth + 1)?);
            }
            Value::Array(items)
        }
        (Shape::Any, Raw::Bytes(bytes)) => match parts(bytes)?.into_iter().find(|(tag, _)| *tag == 1) {
            Some((_, Raw::Bytes(json))) if !json.is_empty() => {
                serde_json::from_slice(json).map_err(|error| ProtobufError::Json(error.to_string()))?
            }
            _ => Value::Null,
        },
        (Shape::SchemaOr(other), Raw::Bytes(bytes)) => super::schema_or::decode(bytes, *other, depth)?,
        (Shape::Time | Shape::MicroTime, Raw::Bytes(bytes)) => time(bytes, matches!(shape, Shape::MicroTime))?,
        (Shape::Quantity, Raw::Bytes(bytes)) => match parts(bytes)?.into_iter().find(|(tag, _)| *tag == 1) {
            Some((_, Raw::Bytes(text))) => utf8(text)?.into(),
            _ => "0".into(),
        },
        (Shape::IntOrString, Raw::Bytes(bytes)) => int_or_string(bytes)?,
        (_, Raw::Number(_)) => return Err(ProtobufError::WrongWireType(0)),
        (_, Raw::Bytes(_)) => return Err(ProtobufError::WrongWireType(2)),
    })
}

/// Whole numbers are written without a fraction.
fn double(value: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT {
        return (value as i64).into();
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

pub(super) fn parts(bytes: &[u8]) -> Result<Vec<(u32, Raw<'_>)>> {
    let mut reader = Reader(bytes);
    let mut parts = Vec::new();
    while let Some((tag, wire)) = reader.key()? {
        parts.push((tag, reader.value(wire)?));
    }
    Ok(parts)
}

/// A message without any byte is no time, and neither is the first instant of the first year; the epoch is one.
fn time(bytes: &[u8], micro: bool) -> Result<Value> {
    const NONE: i64 = -62_135_596_800;
    let (mut seconds, mut nanos) = (0_i64, 0_i32);
    for (tag, raw) in parts(bytes)? {
        match (tag, raw) {
            (1, Raw::Number(number)) => seconds = number as i64,
            (2, Raw::Number(number)) if micro => nanos = number as i32 / 1000 * 1000,
            _ => (),
        }
    }
    if bytes.is_empty() || (seconds == NONE && nanos == 0) {
        return Ok(Value::Null);
    }
    let at = jiff::Timestamp::from_second(seconds)
        .and_then(|at| at.checked_add(jiff::SignedDuration::from_nanos(nanos.into())))
        .map_err(|_| ProtobufError::Overflow)?;
    let format = if micro { "%Y-%m-%dT%H:%M:%S%.6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(at.strftime(format).to_string().into())
}

fn int_or_string(bytes: &[u8]) -> Result<Value> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    for (tag, raw) in parts(bytes)? {
        match (tag, raw) {
            (1, Raw::Number(kind)) => is_text = kind == 1,
            (2, Raw::Number(value)) => number = value as i32,
            (3, Raw::Bytes(value)) => text = utf8(value)?,
            _ => (),
        }
    }
    Ok(if is_text { text.into() } else { number.into() })
}

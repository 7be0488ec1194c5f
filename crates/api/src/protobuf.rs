//! Kubernetes' protobuf encoding, by schema: `k8s\0`, an envelope that names the type, and the object's message.

mod decode;
mod encode;
mod schema_or;
pub mod wire;

use serde_json::Value;

pub use self::decode::decode;
use self::decode::{Raw, Reader, utf8};
pub use self::encode::transcode;
use self::wire::Message as _;
use crate::schema::{self, Type};

const MAGIC: &[u8] = b"k8s\0";

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;
const FIXED32: u8 = 5;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoMagic,
    #[error("unexpected EOF")]
    Truncated,
    #[error("proto: illegal wireType {0}")]
    WireType(u8),
    #[error("proto: wrong wireType = {0}")]
    WrongWireType(u8),
    #[error("proto: integer overflow")]
    Overflow,
    #[error("proto: a string is not valid UTF-8")]
    Utf8,
    #[error("proto: embedded JSON is malformed: {0}")]
    Json(String),
    #[error("proto: exceeded max depth")]
    TooDeep,
}

type Result<T> = std::result::Result<T, ProtobufError>;

/// The type an enveloped message claims to be, and its bytes.
pub struct Envelope<'a> {
    pub api_version: String,
    pub kind: String,
    pub raw: &'a [u8],
}

pub fn open(bytes: &[u8]) -> Result<Envelope<'_>> {
    let mut reader = Reader(bytes.strip_prefix(MAGIC).ok_or(ProtobufError::NoMagic)?);
    let mut envelope = Envelope { api_version: String::new(), kind: String::new(), raw: &[] };
    while let Some((tag, wire)) = reader.key()? {
        match (tag, reader.value(wire)?) {
            (1, Raw::Bytes(bytes)) => {
                let mut meta = Reader(bytes);
                while let Some((tag, wire)) = meta.key()? {
                    match (tag, meta.value(wire)?) {
                        (1, Raw::Bytes(text)) => envelope.api_version = utf8(text)?,
                        (2, Raw::Bytes(text)) => envelope.kind = utf8(text)?,
                        _ => (),
                    }
                }
            }
            (2, Raw::Bytes(bytes)) => envelope.raw = bytes,
            _ => (),
        }
    }
    Ok(envelope)
}

/// Content encoding and type, both empty.
const SEAL_TAIL: [u8; 4] = [3 << 3 | BYTES, 0, 4 << 3 | BYTES, 0];

fn seal_head(api_version: &str, kind: &str) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.message(1, |meta| {
        meta.bytes(1, api_version.as_bytes());
        meta.bytes(2, kind.as_bytes());
    });
    out
}

/// Puts a message into its envelope.
pub fn seal(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut out = seal_head(api_version, kind);
    out.reserve(raw.len() + 16);
    out.bytes(2, raw);
    out.extend_from_slice(&SEAL_TAIL);
    out
}

/// What comes before and after the items of an enveloped list, whose messages have these lengths.
pub fn list_ends(
    api_version: &str,
    kind: &str,
    metadata: &Value,
    lengths: impl Iterator<Item = usize>,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut meta = Vec::new();
    meta.bytes(1, &encode::message(metadata, schema::named(&format!("{META}.ListMeta"))?, None).ok()?);
    let total: usize = meta.len() + lengths.map(|length| 1 + varint_length(length) + length).sum::<usize>();
    let mut head = seal_head(api_version, kind);
    head.key(2, BYTES);
    head.varint(total as u64);
    head.extend_from_slice(&meta);
    Some((head, SEAL_TAIL.to_vec()))
}

/// One item of a list.
pub fn write_item(out: &mut Vec<u8>, message: &[u8]) {
    out.bytes(2, message);
}

fn varint_length(value: usize) -> usize {
    (usize::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// A watch event with an object in its envelope, behind the length that frames it.
pub fn frame(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.reserve(object.len() + 32);
    out.bytes(1, kind.as_bytes());
    out.message(2, |raw| raw.bytes(1, object));
    let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX).to_be_bytes();
    if let Some(head) = out.get_mut(..4) {
        head.copy_from_slice(&length);
    }
    out
}

/// Any built-in object or list that names its type, in its envelope; `None` where its kind has no protobuf form.
pub fn encode(value: &Value) -> Option<Vec<u8>> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if let Some(schema) = type_of(api_version, kind) {
        let raw = encode::message(value, schema, None).ok()?;
        return Some(seal(api_version, kind, &raw));
    }
    let schema = type_of(api_version, kind.strip_suffix("List")?)?;
    let items = value.get("items").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let items: Vec<Vec<u8>> =
        items.iter().map(|item| encode::message(item, schema, None).ok()).collect::<Option<_>>()?;
    let metadata = value.get("metadata").unwrap_or(&Value::Null);
    let (mut out, tail) = list_ends(api_version, kind, metadata, items.iter().map(Vec::len))?;
    items.iter().for_each(|item| write_item(&mut out, item));
    out.extend_from_slice(&tail);
    Some(out)
}

/// The type of a kind, of the options and answers that belong to every group, or of an object's metadata alone.
pub fn type_of(api_version: &str, kind: &str) -> Option<&'static Type> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    match (group, kind) {
        ("meta.k8s.io", "PartialObjectMetadata") => Some(&encode::PARTIAL_OBJECT_METADATA),
        _ => schema::of_kind(group, version, kind).or_else(|| {
            let is_meta = matches!(kind, "Status" | "DeleteOptions");
            schema::named(&format!("{META}.{kind}")).filter(|_| is_meta)
        }),
    }
}

#[cfg(test)]
mod tests;

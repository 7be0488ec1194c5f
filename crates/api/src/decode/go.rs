//! What upstream's decoder calls things in its messages: the structs and types of Go, and how it reads a time.

use super::DecodeError;
use crate::schema::{Shape, Type};

/// The struct within `schema` that holds `field` in Go, where JSON shows none.
pub(super) fn embedded(schema: &Type, field: &str) -> Option<&'static str> {
    const OWN: [&str; 9] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    ];
    match (schema.name.strip_prefix("io.k8s.api.core.v1.")?, field) {
        (
            "ConfigMapEnvSource"
            | "ConfigMapKeySelector"
            | "ConfigMapProjection"
            | "ConfigMapVolumeSource"
            | "SecretEnvSource"
            | "SecretKeySelector"
            | "SecretProjection",
            "name",
        ) => Some("LocalObjectReference"),
        ("Probe", "exec" | "grpc" | "httpGet" | "tcpSocket") => Some("ProbeHandler"),
        ("EphemeralContainer", field) if field != "targetContainerName" => Some("EphemeralContainerCommon"),
        ("Volume", field) if field != "name" => Some("VolumeSource"),
        ("PersistentVolumeSpec", field) if !OWN.contains(&field) => Some("PersistentVolumeSource"),
        _ => None,
    }
}

pub(super) fn time(text: &str) -> Result<(), DecodeError> {
    let Err(_) = text.parse::<jiff::Timestamp>() else { return Ok(()) };
    let mut rest = text;
    let elements = ["2006", "-", "01", "-", "02", "T", "15", ":", "04", ":", "05", "Z07:00"];
    let failed = elements.into_iter().find(|element| {
        let read = match element.bytes().all(|b| b.is_ascii_digit()) {
            true => rest.get(..element.len()).is_some_and(|part| part.bytes().all(|b| b.is_ascii_digit())),
            false => rest.starts_with(element),
        };
        if read {
            rest = rest.get(element.len()..).unwrap_or_default();
        }
        !read
    });
    let what = failed.unwrap_or("Z07:00");
    Err(DecodeError::Value(format!(
        "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {rest:?} as {what:?}"
    )))
}

pub(super) fn short_name(schema: &Type) -> &str {
    schema.name.rsplit('.').next().unwrap_or_default()
}

pub(super) fn go_struct(schema: &Type) -> String {
    let mut parts = schema.name.rsplit('.');
    let (name, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    format!("{version}.{name}")
}

pub(super) fn go_type(shape: &Shape) -> String {
    match shape {
        Shape::String | Shape::Time | Shape::MicroTime => "string".into(),
        Shape::Bool => "bool".into(),
        Shape::Int32 => "int32".into(),
        Shape::Int64 => "int64".into(),
        Shape::Double => "float64".into(),
        Shape::Bytes => "[]uint8".into(),
        Shape::Quantity => "resource.Quantity".into(),
        // What is not text is read as a number.
        Shape::IntOrString => "int32".into(),
        Shape::Any | Shape::SchemaOr(_) => "interface {}".into(),
        Shape::Object(schema) => go_struct(schema),
        Shape::List(inner) => format!("[]{}", go_type(inner)),
        Shape::Map(inner) => format!("map[string]{}", go_type(inner)),
    }
}

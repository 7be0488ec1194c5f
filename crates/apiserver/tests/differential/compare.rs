//! What may differ between two servers, and what differs beyond that.

use serde_json::Value;

/// A body as a value: JSON where it is JSON, a list where it is the events of a watch, text otherwise.
pub(crate) fn body(bytes: &[u8]) -> Value {
    let lines = || serde_json::Deserializer::from_slice(bytes).into_iter().collect::<Result<Vec<Value>, _>>().ok();
    let events = || lines().filter(|events| !events.is_empty()).map(Value::from);
    let json = serde_json::from_slice(bytes).ok().or_else(events);
    json.unwrap_or_else(|| String::from_utf8_lossy(bytes).into_owned().into())
}

/// The answer without identities, times, versions and addresses that were handed out.
pub(crate) fn normal(mut value: Value) -> Value {
    normalize("", &mut value);
    value
}

fn normalize(key: &str, value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("managedFields");
            if let Some(prefix) = map.get("generateName").and_then(Value::as_str).map(str::to_owned) {
                map.insert("name".into(), format!("{prefix}<random>").into());
            }
            for (key, value) in map {
                normalize(key, value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| normalize(key, item)),
        Value::String(text) => {
            let is_time = text.len() >= 20 && text.ends_with('Z') && text.as_bytes().get(10) == Some(&b'T');
            if matches!(key, "uid" | "resourceVersion" | "continue" | "token") || is_time || text.starts_with("10.96.")
            {
                *text = format!("<{}>", if is_time { "time" } else { key });
            } else if key == "cells" && is_age(text) {
                *text = "<age>".to_owned();
            } else if text.starts_with("fd00:96:") {
                *text = format!("<{key} of IPv6>");
            } else {
                *text = without_dumps(&without_uids(text));
                // How far a server has come is its own affair.
                if let Some(at) = text.find(", current: ") {
                    text.truncate(at);
                }
            }
        }
        Value::Number(_) if matches!(key, "nodePort" | "healthCheckNodePort") => *value = "<port>".into(),
        _ => (),
    }
}

/// As tables tell it of what has just been made.
fn is_age(text: &str) -> bool {
    text.strip_suffix('s').is_some_and(|seconds| !seconds.is_empty() && seconds.bytes().all(|b| b.is_ascii_digit()))
}

/// Stock shows some values as its own memory, which no client can read: only where and why counts then. Maps of text,
/// such as labels, are shown as they were sent.
fn without_dumps(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(begin) = [" value: {", " value: [{"].iter().filter_map(|dump| rest.find(dump)).min() {
        let (head, tail) = rest.split_at(begin + " value: ".len());
        result.push_str(head);
        let mut values = serde_json::Deserializer::from_str(tail).into_iter::<Value>();
        let value = values.next().and_then(Result::ok);
        let end = if value.is_some() { values.byte_offset() } else { 0 };
        let is_text =
            |key: &str, value: &Value| value.is_string() && !key.starts_with(|c: char| c.is_ascii_uppercase());
        match value.as_ref().and_then(Value::as_object) {
            Some(map) if !map.is_empty() && map.iter().all(|(key, value)| is_text(key, value)) => {
                result.push_str(tail.get(..end).unwrap_or_default());
            }
            Some(_) => result.push_str("{…}"),
            None if value.as_ref().is_some_and(Value::is_array) => result.push_str("[…]"),
            None => result.push_str(tail.get(..1).unwrap_or_default()),
        }
        rest = tail.get(end.max(1)..).unwrap_or_default();
    }
    // What changed in it is shown as lines of that memory, too, up to the next complaint.
    let text = result + rest;
    match text.split_once("\n@@") {
        Some((head, shown)) => {
            let tail = shown.rsplit('\n').next().filter(|tail| tail.starts_with([',', ']'])).unwrap_or_default();
            format!("{head}{tail}")
        }
        None => text,
    }
}

/// Identities inside messages.
fn without_uids(text: &str) -> String {
    let is_uid = |word: &str| {
        word.len() == 36 && word.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && !word.contains(|c: char| c > 'f')
    };
    let words = text.split_inclusive([' ', ',', ':', '"', '(', ')']);
    words
        .map(|word| {
            let bare = word.trim_end_matches([' ', ',', ':', '"', '(', ')']);
            if is_uid(bare) { word.replace(bare, "<uid>") } else { word.to_owned() }
        })
        .collect()
}

/// What tells two answers apart: of errors their message says it all.
pub(crate) fn compare(wanted: &Value, got: &Value) -> Vec<String> {
    let told = |answer: &Value| {
        let body = answer.get("body")?;
        let message = body.get("message").filter(|_| body.get("kind").is_some_and(|kind| kind == "Status"))?;
        Some(message.as_str()?.to_owned())
    };
    let mut found = Vec::new();
    match (told(wanted), told(got)) {
        (None, None) => differences("", wanted, got, &mut found),
        (Some(wanted_message), Some(message)) if wanted_message == message => differences("", wanted, got, &mut found),
        (wanted_message, message) => {
            let line = |answer: &Value, message: Option<String>| {
                let body = answer.get("body").map(ToString::to_string).unwrap_or_default();
                format!("{} {}", answer.get("code").cloned().unwrap_or_default(), message.unwrap_or(body))
            };
            found.push(format!("- {}\n    + {}", line(wanted, wanted_message), line(got, message)));
        }
    }
    found
}

/// Every place where `got` is not what was `wanted`.
fn differences(path: &str, wanted: &Value, got: &Value, found: &mut Vec<String>) {
    match (wanted, got) {
        (Value::Object(wanted), Value::Object(got)) => {
            for (key, value) in wanted {
                differences(&format!("{path}.{key}"), value, got.get(key).unwrap_or(&Value::Null), found);
            }
            for (key, value) in got.iter().filter(|(key, _)| !wanted.contains_key(*key)) {
                found.push(format!("{path}.{key}\n      + {value}"));
            }
        }
        (Value::Array(wanted), Value::Array(got)) if wanted.len() == got.len() => {
            for (index, (wanted, got)) in wanted.iter().zip(got).enumerate() {
                differences(&format!("{path}[{index}]"), wanted, got, found);
            }
        }
        _ if wanted == got => (),
        _ => found.push(format!("{path}\n      - {wanted}\n      + {got}")),
    }
}

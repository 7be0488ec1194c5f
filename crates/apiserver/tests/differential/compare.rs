//! What may differ between two servers, and what differs beyond that.

use serde_json::Value;

/// A body as a value: JSON where it is JSON, text otherwise.
pub(crate) fn body(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|_| String::from_utf8_lossy(bytes).into_owned().into())
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
            } else {
                *text = without_dumps(&without_uids(text));
            }
        }
        Value::Number(_) if matches!(key, "nodePort" | "healthCheckNodePort") => *value = "<port>".into(),
        _ => (),
    }
}

/// What is immutable is shown by stock as its own memory, which no client can read: only that and where counts.
fn without_dumps(text: &str) -> String {
    const END: &str = "}: field is immutable";
    let mut rest = text;
    let mut result = String::new();
    while let Some(end) = rest.find(END) {
        let (head, tail) = rest.split_at(end);
        let begin = head.rfind("Invalid value: {").unwrap_or(head.len());
        result.push_str(head.get(..begin).unwrap_or_default());
        result.push_str("Invalid value: {…");
        result.push_str(END);
        rest = tail.get(END.len()..).unwrap_or_default();
    }
    result + rest
}

/// Identities inside messages.
fn without_uids(text: &str) -> String {
    let is_uid = |word: &str| {
        word.len() == 36 && word.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && !word.contains(|c: char| c > 'f')
    };
    let words = text.split_inclusive([' ', ',', ':', '"']);
    words
        .map(|word| {
            let bare = word.trim_end_matches([' ', ',', ':', '"']);
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

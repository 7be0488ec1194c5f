//! A request target as it is sent: `METHOD TARGET`. Every stage from authentication to routing decides on what is read from it once, so that
//! must be all of the path and nothing but the path.
#![no_main]

use api::selector::FieldSelector;
use apiserver::{RequestInfo, decode_path};
use http::{Method, Uri};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Some((method, target)) = text.split_once(' ') else { return };
    let (Ok(method), Ok(uri)) = (method.parse::<Method>(), target.parse::<Uri>()) else { return };
    let decoded = decode_path(uri.path());
    assert_eq!(decoded.as_deref(), decoded_by_hand(uri.path()).as_deref(), "{target}");
    let Some(path) = decoded else { return };
    let query = uri.query().unwrap_or_default();
    let selector = query.split_once("fieldSelector=").and_then(|(_, text)| FieldSelector::parse(text).ok());
    let is_watch = query.starts_with("watch");
    let info = RequestInfo::new(&method, &path, is_watch, selector.clone());
    assert_eq!(info.path, path);
    check_parts(&info, &method, is_watch, selector.as_ref());
    // However it is escaped, it is the same request.
    let escaped: String = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let again = decode_path(&escaped).expect("whole escapes");
    assert_eq!(again, path);
    assert_eq!(RequestInfo::new(&method, &again, is_watch, selector), info);
});

/// Every escape is decoded once, and what is not whole is no path.
fn decoded_by_hand(raw: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = raw.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                (digit(high)? * 16 + digit(low)?, after)
            }
            (b'%', _) => return None,
            _ => (first, after),
        };
        bytes.push(byte);
        rest = after;
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The fields are the segments of the path, each in its place: none is lost, joined with another or read as something else.
fn check_parts(info: &RequestInfo, method: &Method, is_watch: bool, selector: Option<&FieldSelector>) {
    let segments: Vec<&str> = info.path.trim_matches('/').split('/').collect();
    let below = match segments.as_slice() {
        ["api", version, below @ ..] => Some(("", *version, below)),
        ["apis", group, version, below @ ..] => Some((*group, *version, below)),
        _ => None,
    };
    let Some((group, version, below)) = below.filter(|(_, _, below)| !below.is_empty()) else {
        assert!(!info.is_resource, "{info:?}");
        let plain = RequestInfo { path: info.path.clone(), verb: info.verb, ..RequestInfo::default() };
        assert_eq!(*info, plain);
        return;
    };
    assert!(info.is_resource, "{info:?}");
    assert_eq!((info.group.as_str(), info.version.as_str()), (group, version));
    let of_many = |name| if info.is_of_many { "" } else { name };
    let mut parts = vec![info.resource.as_str(), of_many(&info.name), info.subresource.as_str()];
    parts.extend(info.rest.iter().map(String::as_str));
    let below = if info.is_old_watch { below.strip_prefix(&["watch"]).expect("an old watch") } else { below };
    let wanted = match below {
        // A namespace's own path; what is below it is in it.
        ["namespaces", namespace, resource, after @ ..] if !matches!(*resource, "status" | "finalize") => {
            // Namespaces are in no namespace: all of them are not those of one.
            let is_all = *resource == "namespaces" && info.is_of_many;
            assert_eq!(info.namespace, if is_all { "" } else { *namespace }, "{info:?}");
            [&[*resource], after].concat()
        }
        ["namespaces", namespace, ..] => {
            assert_eq!(info.namespace, *namespace, "{info:?}");
            below.to_vec()
        }
        _ => {
            assert_eq!(info.namespace, "", "{info:?}");
            below.to_vec()
        }
    };
    assert_eq!(said(&parts), said(&wanted), "{info:?}");
    for part in [&info.namespace, &info.resource, &info.subresource, &info.name] {
        assert!(!part.contains('/'), "{info:?}");
    }
    let is_of_many = matches!(info.verb, "list" | "watch" | "deletecollection");
    let verb = match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    };
    let is_old_watch = info.is_old_watch && info.subresource.is_empty();
    match info.verb {
        "watch" => assert!(is_old_watch || (is_watch && verb == "get" && info.is_of_many), "{info:?}"),
        "list" => assert!(verb == "get" && info.is_of_many && !is_watch, "{info:?}"),
        "deletecollection" => assert!(verb == "delete" && info.is_of_many, "{info:?}"),
        other => assert_eq!(other, verb, "{info:?}"),
    }
    // Only what reads or deletes many is restricted by a selector, and only there a selector names an object.
    assert_eq!(info.field_selector.as_ref(), selector.filter(|_| is_of_many), "{info:?}");
    assert!(is_of_many || !info.is_of_many || info.name.is_empty(), "{info:?}");
}

/// Without what was left out at the end.
fn said<'a>(parts: &[&'a str]) -> Vec<&'a str> {
    let end = parts.iter().rposition(|part| !part.is_empty()).map_or(0, |last| last + 1);
    parts.iter().take(end).copied().collect()
}

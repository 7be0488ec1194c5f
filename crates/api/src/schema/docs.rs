//! The documentation of built-in types and fields, kept compressed until something asks for it.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::generated::TYPES;

static COMPRESSED: &[u8] = include_bytes!("docs.zst");

/// A type's text, then one per field in the order of its table.
type Texts = HashMap<&'static str, Vec<&'static str>>;

/// What upstream says of a type and of each of its fields; `None` for types that are not built in.
///
/// Of a list (`…PodList`) it says something of the whole, the items and the metadata; of a value without fields
/// (`…Quantity`) of the whole alone.
pub fn of(type_name: &str) -> Option<&'static [&'static str]> {
    static TEXTS: OnceLock<Texts> = OnceLock::new();
    TEXTS.get_or_init(read).get(type_name).map(Vec::as_slice)
}

fn read() -> Texts {
    // The text is built into the binary and checked by a test, so an unreadable one cannot reach a user.
    let text = zstd::decode_all(COMPRESSED).unwrap_or_default();
    let text: &'static str = String::from_utf8(text).unwrap_or_default().leak();
    let mut parts = text.split('\0');
    let mut texts: Texts =
        TYPES.iter().map(|t| (t.name.as_ref(), parts.by_ref().take(t.fields.len() + 1).collect())).collect();
    while let Some(name) = parts.next().filter(|name| !name.is_empty()) {
        texts.insert(name, parts.by_ref().take(3).collect());
    }
    texts
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_type_has_its_texts() {
        let pod_spec = super::of("io.k8s.api.core.v1.PodSpec").unwrap();
        assert!(pod_spec[0].starts_with("PodSpec is a description of a pod"), "{}", pod_spec[0]);
        assert_eq!(super::of("io.k8s.api.core.v1.PodList").unwrap()[0], "PodList is a list of Pods.");
        assert!(super::of("io.k8s.apimachinery.pkg.apis.meta.v1.Time").is_some());
        let last = super::TYPES.last().unwrap();
        assert_eq!(super::of(&last.name).unwrap().len(), last.fields.len() + 1);
    }
}

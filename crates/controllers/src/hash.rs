//! Names for versions of a pod template: short, stable, and safe in labels and object names.

use k8s_openapi::api::core::v1::PodTemplateSpec;

/// No vowels (no words by accident) and nothing that looks like something else.
const SAFE: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Same template and collision count, same hash. `collision_count` is raised when two templates meet in one name.
pub(crate) fn compute_hash(template: &PodTemplateSpec, collision_count: Option<i32>) -> String {
    let mut hash = fnv32a(FNV_OFFSET, &serde_json::to_vec(template).unwrap_or_default());
    if let Some(count) = collision_count {
        hash = fnv32a(hash, &count.to_le_bytes());
    }
    safe_encode(&hash.to_string())
}

const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

pub(crate) fn fnv32a(start: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(FNV_PRIME))
}

pub(crate) fn safe_encode(text: &str) -> String {
    let safe = |byte: u8| SAFE.get(usize::from(byte) % SAFE.len()).map_or('b', |safe| char::from(*safe));
    text.bytes().map(safe).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fnv_and_encoding_follow_the_published_algorithms() {
        assert_eq!(fnv32a(FNV_OFFSET, b""), 0x811c_9dc5);
        assert_eq!(fnv32a(FNV_OFFSET, b"a"), 0xe40c_292c);
        assert_eq!(fnv32a(FNV_OFFSET, b"foobar"), 0xbf9c_f968);
        assert_eq!(safe_encode("0123456789"), "456789bcdf");
    }

    #[test]
    fn a_template_keeps_its_hash_and_a_collision_changes_it() {
        let template = |image: &str| -> PodTemplateSpec {
            serde_json::from_value(json!({ "spec": { "containers": [{ "name": "c", "image": image }] } })).unwrap()
        };
        let hash = |image: &str, count| compute_hash(&template(image), count);
        assert_eq!(hash("a", None), hash("a", None));
        assert_ne!(hash("a", None), hash("b", None));
        assert_ne!(hash("a", None), hash("a", Some(1)));
    }
}

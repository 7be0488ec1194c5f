//! What we take for JSON is JSON, and means what it says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let theirs = serde_json::from_slice::<Value>(bytes);
    match api::json::parse(bytes) {
        Ok((ours, _)) => assert_eq!(Some(ours), theirs.ok()),
        Err(_) => assert!(theirs.is_err() || bytes.len() > 128, "refused: {bytes:?}"),
    }
});

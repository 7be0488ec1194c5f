//! YAML becomes JSON, or is refused, in bounded time and space.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|text: &str| {
    let limits = serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 };
    let options = serde_saphyr::options! { alias_limits: limits, with_snippet: false };
    if let Ok(value) = serde_saphyr::from_str_with_options::<Value>(text, options) {
        assert!(serde_json::to_vec(&value).is_ok());
    }
});

//! Selectors of labels and fields.
#![no_main]

use api::selector::{FieldSelector, Selector};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(selector) = Selector::parse(text) {
        selector.matches_by(|key| (key.len() % 2 == 0).then_some("value"));
        selector.matches_by(|_| None);
    }
    if let Ok(selector) = FieldSelector::parse(text) {
        selector.matches(|field| if field.len() % 2 == 0 { "value" } else { "" });
    }
});

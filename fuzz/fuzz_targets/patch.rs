//! Patches of every kind on an object: the first line is the object, the rest the patch.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// More than any patch may make of what a fuzzer sends.
const GROWN: usize = 32 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Some((object, patch)) = std::str::from_utf8(bytes).ok().and_then(|text| text.split_once('\n')) else { return };
    let read = |text: &str| api::json::parse(text.as_bytes()).ok().map(|(value, _)| value);
    let (Some(object), Some(patch)) = (read(object), read(patch)) else { return };
    let pod = api::protobuf::type_of("v1", "Pod").expect("pods are built in");
    let patched = |apply: &dyn Fn(&mut Value) -> bool| {
        let mut target = object.clone();
        if apply(&mut target) {
            assert!(target.to_string().len() < GROWN);
        }
    };
    patched(&|target| {
        api::patch::merge_patch(target, &patch);
        true
    });
    patched(&|target| api::patch::json_patch(target, &patch).is_ok());
    patched(&|target| api::patch::strategic_merge(target, &patch, pod).is_ok());
});

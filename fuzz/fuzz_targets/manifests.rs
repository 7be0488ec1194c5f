//! What describes an image: manifests, indexes, configurations, docker archives' lists, names, and registries' challenges.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    runtime::fuzzing::read_documents(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        runtime::fuzzing::read_texts(text);
    }
});

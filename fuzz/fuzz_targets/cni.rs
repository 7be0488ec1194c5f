//! A call of the CNI plugin that stops before it touches a network: what gets that far has names that are names.
//!
//! The container's id, a line with the interface's name, then the network configuration.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// No verb of the specification: everything is decoded and checked, and nothing is done.
const VERB: &str = "DANCE";

fuzz_target!(|text: &str| {
    let mut parts = text.splitn(3, '\n');
    let [id, interface, input] = [(); 3].map(|()| parts.next().unwrap_or_default());
    let env = |name: &str| match name {
        "CNI_COMMAND" => Some(VERB.to_owned()),
        "CNI_CONTAINERID" => Some(id.to_owned()),
        "CNI_IFNAME" => Some(interface.to_owned()),
        _ => None,
    };
    let mut output = Vec::new();
    let code = network::cni::main(env, input.as_bytes(), &mut output);
    if output.is_empty() {
        return assert_eq!(code, 0);
    }
    assert_eq!(code, 1, "the verb was carried out");
    let failure: Value = serde_json::from_slice(&output).expect("an error object");
    let number = failure.get("code").and_then(Value::as_u64).expect("a code");
    assert!((1..=7).contains(&number), "{failure}");
    if failure.get("msg").is_some_and(|message| message == "unknown CNI_COMMAND") {
        let conf: Value = serde_json::from_str(input).expect("a configuration that was accepted");
        let bridge = conf.get("bridge").and_then(Value::as_str).unwrap_or("ferry0");
        for name in [interface, bridge] {
            assert!(name.len() < 16 && !name.is_empty() && !name.contains(['/', ' ', '\n', '\0']), "{name:?}");
        }
        assert!(!id.contains('/') && !id.starts_with('.'), "{id:?}");
    }
});

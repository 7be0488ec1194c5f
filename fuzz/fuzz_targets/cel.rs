//! Expressions: whatever is compiled is evaluated within its limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|text: &str| {
    let object = json!({"a": [1, "two", {"three": 3.5}], "b": {"c": null, "d": true}, "text": "2006-01-02T15:04:05Z"});
    let env = cel::Env::default().variable("object", cel::Type::Dyn);
    if let Ok(program) = env.compile(text) {
        let evaluated = program.eval(&[Some(cel::Value::json(&object))], 10_000);
        assert!(evaluated.cost <= 20_000, "{} for {text:?}", evaluated.cost);
    }
});

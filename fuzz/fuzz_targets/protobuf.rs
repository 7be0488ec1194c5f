//! A protobuf object that is understood says the same when it is written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let Ok(envelope) = api::protobuf::open(bytes) else { return };
    let Some(schema) = api::protobuf::type_of(&envelope.api_version, &envelope.kind) else { return };
    let Ok(mut object) = api::protobuf::decode(envelope.raw, schema) else { return };
    object.insert("kind".into(), envelope.kind.clone().into());
    object.insert("apiVersion".into(), envelope.api_version.clone().into());
    let Some(written) = api::protobuf::encode(&Value::Object(object.clone())) else { return };
    let again = api::protobuf::open(&written).expect("an envelope we made");
    let mut again = api::protobuf::decode(again.raw, schema).expect("a message we made");
    again.insert("kind".into(), envelope.kind.into());
    again.insert("apiVersion".into(), envelope.api_version.into());
    // Nothing, written or left out, is nothing.
    for object in [&mut again, &mut object] {
        object.retain(|_, value| !value.is_null());
    }
    assert_eq!(again, object);
});

//! Objects as kube-apiserver v1.36 wrote them, in JSON and in protobuf: both must mean the same here.

use api::{decode, protobuf};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

#[test]
fn upstreams_protobuf_is_upstreams_json() {
    let compressed = include_bytes!("protobuf.zst");
    let samples: Vec<Value> = serde_json::from_slice(&zstd::decode_all(&compressed[..]).unwrap()).unwrap();
    assert!(samples.len() > 40, "{} samples", samples.len());
    for sample in samples {
        let (json, bytes) = (&sample["json"], STANDARD.decode(sample["protobuf"].as_str().unwrap()).unwrap());
        let what = format!("{} {}", json["kind"], json["metadata"]["name"]);
        let envelope = protobuf::open(&bytes).unwrap();
        let schema = protobuf::type_of(&envelope.api_version, &envelope.kind).unwrap();
        let settled = |value: &Value| {
            let mut value = value.clone();
            // Protobuf names no types, neither the object's nor those of objects within it.
            let claims = value.pointer_mut("/spec/volumeClaimTemplates").and_then(Value::as_array_mut);
            claims.into_iter().flatten().for_each(without_type);
            without_type(&mut value);
            let unknown = decode::conform(&mut value, schema).unwrap();
            assert!(unknown.is_empty(), "{what}: {unknown:?}");
            value
        };
        let want = settled(json);
        let read = |raw: &[u8]| settled(&Value::Object(protobuf::decode(raw, schema).unwrap()));
        assert_eq!(read(envelope.raw), want, "{what}, as upstream wrote it");
        let ours = protobuf::encode(json).unwrap();
        assert_eq!(read(protobuf::open(&ours).unwrap().raw), want, "{what}, as we write it");
    }
}

fn without_type(value: &mut Value) {
    for key in ["kind", "apiVersion"] {
        value.as_object_mut().and_then(|object| object.remove(key));
    }
}

//! Messages by hand, and JSON that comes back as it went.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::schema::{SchemaOr, Shape, generated};

fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![tag << 3 | BYTES, bytes.len() as u8];
    out.extend_from_slice(bytes);
    out
}

#[test]
fn a_config_map_is_read() {
    let data = field(2, &[field(1, b"a"), field(2, b"b")].concat());
    let bytes = [field(1, &field(1, b"x")), data].concat();
    let schema = crate::schema::of_kind("", "v1", "ConfigMap").unwrap();
    assert_eq!(Value::Object(decode(&bytes, schema).unwrap()), json!({"metadata": {"name": "x"}, "data": {"a": "b"}}));
}

#[test]
fn inlined_messages_are_flattened() {
    // Volume { name = 1, volumeSource = 2 { emptyDir = 2 {} } }
    let volume = [field(1, b"v"), field(2, &field(2, b""))].concat();
    let pod = field(2, &field(1, &volume));
    let schema = crate::schema::of_kind("", "v1", "Pod").unwrap();
    let decoded = Value::Object(decode(&pod, schema).unwrap());
    assert_eq!(decoded, json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}));
}

#[test]
fn verbs_are_a_message_of_their_own() {
    // APIResource { name = 1, verbs = 4 { items = 1 } }
    let schema = crate::schema::named("io.k8s.apimachinery.pkg.apis.meta.v1.APIResource").unwrap();
    let verbs = field(4, &[field(1, b"get"), field(1, b"list")].concat());
    let decoded = Value::Object(decode(&[field(1, b"pods"), verbs.clone()].concat(), schema).unwrap());
    assert_eq!(decoded, json!({"name": "pods", "verbs": ["get", "list"]}));
    let written = transcode(decoded.to_string().as_bytes(), schema, 0).unwrap();
    assert!(written.windows(verbs.len()).any(|part| part == verbs), "{written:?}");
}

#[test]
fn zero_is_kept_only_where_it_differs_from_absent() {
    // Deployment { spec = 2 { replicas = 1: 0, minReadySeconds = 5: 0 } }
    let spec = [vec![1 << 3, 0], vec![5 << 3, 0]].concat();
    let schema = crate::schema::of_kind("apps", "v1", "Deployment").unwrap();
    let decoded = Value::Object(decode(&field(2, &spec), schema).unwrap());
    assert_eq!(decoded, json!({"spec": {"replicas": 0}}));
}

#[test]
fn only_a_time_without_bytes_is_none() {
    let schema = type_of("coordination.k8s.io/v1", "Lease").unwrap();
    for (bytes, whole, fine) in [
        (&[][..], json!(null), json!(null)),
        (&[8, 0, 16, 0], json!("1970-01-01T00:00:00Z"), json!("1970-01-01T00:00:00.000000Z")),
        (&[0x15, 0x15, 0x15, 0x15, 0x15], json!("1970-01-01T00:00:00Z"), json!("1970-01-01T00:00:00.353703Z")),
        (&[16, 0x80, 0xa8, 0xd6, 0xb9, 0x07], json!("1970-01-01T00:00:00Z"), json!("1970-01-01T00:00:02.000000Z")),
    ] {
        let metadata = field(1, &field(9, bytes));
        let spec = field(2, &field(3, bytes));
        let lease = decode(&[metadata, spec].concat(), schema).unwrap();
        assert_eq!(lease["metadata"]["deletionTimestamp"], whole, "{bytes:?}");
        assert_eq!(lease["spec"]["acquireTime"], fine, "{bytes:?}");
    }
}

#[test]
fn hostile_bytes_are_refused() {
    let schema = crate::schema::of_kind("", "v1", "Pod").unwrap();
    for bad in
        [&b"\x0a\xff\xff\xff\xff\x0f"[..], b"\x0a\x05ab", b"\x0f", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
    {
        assert!(decode(bad, schema).is_err(), "{bad:?}");
    }
    assert!(open(b"nope").is_err());
}

/// Any JSON that fits a shape, in the form upstream keeps it in.
fn fitting(shape: &Shape, depth: u32) -> BoxedStrategy<Value> {
    let text = "[a-z<&\u{e9}]{1,4}";
    match shape {
        Shape::String => text.prop_map(Value::from).boxed(),
        Shape::Bool => any::<bool>().prop_map(Value::from).boxed(),
        Shape::Int32 => any::<i32>().prop_map(Value::from).boxed(),
        Shape::Int64 => any::<i64>().prop_map(Value::from).boxed(),
        Shape::Double => (-1000_i32..1000).prop_map(|n| json!(f64::from(n) / 4.0 + 0.125)).boxed(),
        Shape::Bytes => proptest::collection::vec(any::<u8>(), 1..9).prop_map(|b| STANDARD.encode(b).into()).boxed(),
        Shape::Time => (-4_000_000_000_i64..4_000_000_000)
            .prop_map(|s| json!(jiff::Timestamp::from_second(s).unwrap().to_string()))
            .boxed(),
        Shape::MicroTime => (-4_000_000_000_i64..4_000_000_000, 0..1_000_000)
            .prop_map(|(s, micro)| {
                let at = jiff::Timestamp::new(s, micro * 1000).unwrap();
                json!(at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string())
            })
            .boxed(),
        Shape::Quantity => (1..900).prop_map(|n| json!(format!("{n}m"))).boxed(),
        Shape::IntOrString => prop_oneof![any::<i32>().prop_map(Value::from), text.prop_map(Value::from)].boxed(),
        Shape::Any => (text, any::<i32>()).prop_map(|(key, n)| json!({key: [n, null, {"x": 1.5}]})).boxed(),
        Shape::SchemaOr(SchemaOr::Bool) => any::<bool>().prop_map(Value::from).boxed(),
        Shape::SchemaOr(SchemaOr::Array) => Just(json!([{"type": "a"}, {"minLength": 0}])).boxed(),
        Shape::SchemaOr(SchemaOr::Strings) => Just(json!({"description": "d"})).boxed(),
        Shape::Object(schema) => object(schema, depth + 1),
        Shape::List(inner) => proptest::collection::vec(fitting(inner, depth + 1), 1..3).prop_map(Value::from).boxed(),
        Shape::Map(inner) => {
            let entries = proptest::collection::btree_map(text, fitting(inner, depth + 1), 1..3);
            entries.prop_map(|map| Value::Object(map.into_iter().collect())).boxed()
        }
    }
}

/// A few fields of a type, fewer the deeper it is.
fn object(schema: &Type, depth: u32) -> BoxedStrategy<Value> {
    let fields: Vec<_> = schema.fields.iter().filter(|field| field.tag != 0).cloned().collect();
    if fields.is_empty() || depth > 5 {
        return Just(json!({})).boxed();
    }
    let count = fields.len().min(4);
    proptest::sample::subsequence(fields, 0..=count)
        .prop_flat_map(move |chosen| {
            let values: Vec<_> = chosen.iter().map(|field| fitting(&field.shape, depth)).collect();
            let names: Vec<String> = chosen.iter().map(|field| field.name.to_string()).collect();
            values.prop_map(move |values| Value::Object(names.iter().cloned().zip(values).collect()))
        })
        .boxed()
}

/// Kinds that can be at rest, unlike `Status` and the options.
fn stored_kinds() -> impl Strategy<Value = (&'static str, &'static str, &'static str, &'static Type)> {
    let kinds = generated::KINDS.iter().filter(|(_, _, _, schema)| {
        matches!(schema.field("metadata").map(|f| &f.shape), Some(Shape::Object(meta)) if meta.name.ends_with(".ObjectMeta"))
    });
    proptest::sample::select(kinds.copied().collect::<Vec<_>>())
}

#[test]
fn json_comes_back_as_it_went() {
    let values = || {
        stored_kinds().prop_flat_map(|kind: (&str, &str, &str, &'static Type)| {
            let schema: &'static Type = kind.3;
            object(schema, 0).prop_map(move |value| (schema, value))
        })
    };
    // Values of values of values: a test's thread is too small for the generator.
    let check = move || {
        proptest!(ProptestConfig { cases: 2000, ..ProptestConfig::default() }, |((schema, value) in values())| {
            let mut before = value;
            crate::decode::conform(&mut before, schema).unwrap();
            let bytes = encode::message(&before, schema, None).unwrap();
            let from_text = transcode(before.to_string().as_bytes(), schema, 0).unwrap();
            let mut after = Value::Object(decode(&bytes, schema).unwrap());
            crate::decode::conform(&mut after, schema).unwrap();
            prop_assert_eq!(&after, &before);
            // The resource version is the only thing the text's way adds.
            let mut from_text = Value::Object(decode(&from_text, schema).unwrap());
            let version = from_text.get_mut("metadata").and_then(Value::as_object_mut).and_then(|m| m.remove("resourceVersion"));
            let own = before.pointer("/metadata/resourceVersion").cloned();
            prop_assert!(before.get("metadata").is_none() || version.is_some());
            if let (Some(own), Some(metadata)) = (own, from_text.get_mut("metadata").and_then(Value::as_object_mut)) {
                metadata.insert("resourceVersion".into(), own);
            }
            crate::decode::conform(&mut from_text, schema).unwrap();
            prop_assert_eq!(&from_text, &before);
        });
    };
    std::thread::Builder::new().stack_size(512 << 20).spawn(check).unwrap().join().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_bring_the_reader_down(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let pod = crate::schema::of_kind("", "v1", "Pod").unwrap();
        let _ = decode(&bytes, pod);
        let _ = open(&[MAGIC, &bytes].concat());
    }
}

#[test]
fn envelopes_lists_and_frames() {
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}});
    let sealed = encode(&pod).unwrap();
    let envelope = open(&sealed).unwrap();
    assert_eq!((envelope.kind.as_str(), envelope.api_version.as_str()), ("Pod", "v1"));
    let framed = frame("ADDED", &sealed);
    assert_eq!(u32::from_be_bytes(framed[..4].try_into().unwrap()) as usize, framed.len() - 4);
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [pod]});
    let sealed = encode(&list).unwrap();
    assert_eq!(open(&sealed).unwrap().raw, b"\x0a\x03\x12\x017\x12\x05\x0a\x03\x0a\x01a");
    assert!(encode(&json!({"kind": "Status", "apiVersion": "v1", "code": 404})).is_some());
    assert!(encode(&json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1"})).is_none());
    let partial = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": []});
    assert!(encode(&partial).is_some());
}

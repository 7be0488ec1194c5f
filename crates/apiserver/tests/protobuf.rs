//! Protobuf in and out, over every verb that carries an object.

mod support;

use anyhow::{Context as _, Result};
use api::protobuf;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use support::Api;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The object in an envelope, with the type it claims.
fn open(bytes: &[u8]) -> Result<Value> {
    let envelope = protobuf::open(bytes)?;
    let schema = protobuf::type_of(&envelope.api_version, &envelope.kind).context(envelope.kind.clone())?;
    let mut object = protobuf::decode(envelope.raw, schema)?;
    object.insert("kind".into(), envelope.kind.into());
    object.insert("apiVersion".into(), envelope.api_version.into());
    Ok(Value::Object(object))
}

fn map(name: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "labels": {"a": "b"}}, "data": {"k": "v"}})
}

async fn create(api: &Api, name: &str) -> Result<Value> {
    let body = protobuf::encode(&map(name)).context("encodes")?;
    let headers = [("content-type", PROTOBUF), ("accept", PROTOBUF)];
    let (code, head, bytes) = api.call(&format!("POST {MAPS}"), &headers, body).await?;
    assert_eq!((code, head.get("content-type").context("a type")?.to_str()?), (201, PROTOBUF));
    open(&bytes)
}

#[tokio::test]
async fn objects_go_in_and_out() -> Result<()> {
    let api = Api::start().await?;
    let created = create(&api, "x").await?;
    assert_eq!(created["data"], json!({"k": "v"}));
    let (_, _, bytes) = api.call(&format!("GET {MAPS}/x"), &[("accept", PROTOBUF)], "").await?;
    let (_, as_json) = api.json(&format!("GET {MAPS}/x"), &[], None).await?;
    assert_eq!(open(&bytes)?, as_json);
    assert_eq!(created, as_json);
    let patch = [("content-type", "application/merge-patch+json"), ("accept", PROTOBUF)];
    let (_, _, bytes) = api.call(&format!("PATCH {MAPS}/x"), &patch, r#"{"data":{"k":"w"}}"#).await?;
    assert_eq!(open(&bytes)?["data"], json!({"k": "w"}));
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "other"}});
    let options = protobuf::encode(&options).context("encodes")?;
    let headers = [("content-type", PROTOBUF), ("accept", PROTOBUF)];
    let (code, _, bytes) = api.call(&format!("DELETE {MAPS}/x"), &headers, options).await?;
    let status = open(&bytes)?;
    assert_eq!((code, &status["kind"], &status["reason"]), (409, &json!("Status"), &json!("Conflict")));
    let (code, head, bytes) = api.call(&format!("GET {MAPS}/gone"), &[("accept", PROTOBUF)], "").await?;
    assert_eq!((code, head["content-type"].to_str()?), (404, PROTOBUF));
    assert_eq!(open(&bytes)?["message"], "configmaps \"gone\" not found");
    Ok(())
}

#[tokio::test]
async fn lists_are_the_same_in_every_encoding() -> Result<()> {
    let api = Api::start().await?;
    for index in 0..300 {
        let mut object = map(&format!("m{index:03}"));
        object["data"]["k"] = "x".repeat(2000).into();
        api.json(&format!("POST {MAPS}"), &[], Some(&object)).await?;
    }
    let (_, head, bytes) = api.call(&format!("GET {MAPS}?limit=299"), &[("accept", PROTOBUF)], "").await?;
    assert!(head.get("content-length").is_none() && bytes.len() > 600_000, "{}", bytes.len());
    let envelope = protobuf::open(&bytes)?;
    assert_eq!(envelope.kind, "ConfigMapList");
    let (_, wanted) = api.json(&format!("GET {MAPS}?limit=299"), &[], None).await?;
    assert_eq!(protobuf::encode(&wanted).context("encodes")?.len(), bytes.len());
    let schema = api::schema::of_kind("", "v1", "ConfigMap").context("a kind")?;
    let found: Vec<Value> = items(envelope.raw)?
        .iter()
        .map(|item| Ok(Value::Object(protobuf::decode(item, schema)?)))
        .collect::<Result<_>>()?;
    assert_eq!(json!(found), wanted["items"]);
    let partial =
        format!("{PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{PROTOBUF};as=Table;g=meta.k8s.io;v=v1");
    let (_, _, bytes) = api.call(&format!("GET {MAPS}?limit=2"), &[("accept", &partial)], "").await?;
    let envelope = protobuf::open(&bytes)?;
    assert_eq!((envelope.kind.as_str(), items(envelope.raw)?.len()), ("PartialObjectMetadataList", 2));
    let table = format!("{PROTOBUF};as=Table;g=meta.k8s.io;v=v1");
    let (code, _, _) = api.call(&format!("GET {MAPS}"), &[("accept", &table)], "").await?;
    assert_eq!(code, 406);
    Ok(())
}

/// The items of a list's message, which has nothing but length-delimited fields.
fn items(mut raw: &[u8]) -> Result<Vec<&[u8]>> {
    fn varint(raw: &mut &[u8]) -> Result<usize> {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (byte, rest) = raw.split_first().context("a varint")?;
            *raw = rest;
            value |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
    }
    let mut items = Vec::new();
    while !raw.is_empty() {
        let key = varint(&mut raw)?;
        let length = varint(&mut raw)?;
        let (bytes, rest) = raw.split_at_checked(length).context("all of it")?;
        if key >> 3 == 2 {
            items.push(bytes);
        }
        raw = rest;
    }
    Ok(items)
}

#[tokio::test]
async fn watches_are_framed() -> Result<()> {
    let api = Api::start().await?;
    create(&api, "x").await?;
    let query =
        format!("GET {MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
    let response = api.send(&query, &[("accept", PROTOBUF)], "").await?;
    assert_eq!(response.headers()["content-type"], "application/vnd.kubernetes.protobuf;stream=watch");
    let mut body = response.into_body();
    let mut seen = Vec::new();
    let patch = [("content-type", "application/merge-patch+json")];
    while seen.len() < 4 {
        if seen.len() == 2 {
            api.call(&format!("PATCH {MAPS}/x"), &patch, r#"{"data":{"k":"w"}}"#).await?;
            api.call(&format!("DELETE {MAPS}/x"), &[], "").await?;
        }
        let frame = body.frame().await.context("a frame")?.map_err(|e| anyhow::anyhow!(e))?;
        let mut bytes = frame.into_data().ok().context("data")?;
        while !bytes.is_empty() {
            let length = u32::from_be_bytes(bytes.split_to(4).as_ref().try_into()?);
            let event = bytes.split_to(length as usize);
            // WatchEvent { type = 1, object = 2 { raw = 1 } }
            let kind_length = usize::from(event[1]);
            let kind = String::from_utf8(event[2..2 + kind_length].to_vec())?;
            let start = event.windows(4).position(|window| window == b"k8s\0").context("an envelope")?;
            let object = open(&event[start..])?;
            seen.push(format!("{kind} {}", object["metadata"]["name"].as_str().unwrap_or("-")));
        }
    }
    assert_eq!(seen, ["ADDED x", "BOOKMARK -", "MODIFIED x", "DELETED x"]);
    Ok(())
}

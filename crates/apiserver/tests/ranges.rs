//! The ranges of services change from one start of a server to the next; what services have stays theirs.

#![allow(clippy::indexing_slicing)] // Answers of the API are taken apart as they are.

mod support;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use apiserver::ServiceRanges;
use serde_json::{Value, json};
use support::Api;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs/kubernetes";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";

async fn start(store: &Arc<dyn store::Store>, ranges: &str, address: &str) -> Result<Api> {
    let address = address.parse()?;
    let ranges = ServiceRanges::parse(ranges, Some(address))?;
    Api::start_on(store.clone(), |config| {
        (config.service_cluster_ip_range, config.advertise_address) = (ranges, address);
    })
    .await
}

async fn get(api: &Api, path: &str) -> Result<Value> {
    Ok(api.json(&format!("GET {path}"), &[], None).await?.1)
}

/// Asks until the answer at a place is as wanted: something is on its way.
async fn arrives(api: &Api, path: &str, place: &str, want: &Value) -> Result<()> {
    for _ in 0..500 {
        if get(api, path).await?.pointer(place) == Some(want) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    anyhow::bail!("{path} is {}", get(api, path).await?)
}

async fn create(api: &Api, name: &str, more: Value) -> Result<Value> {
    let mut service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    service["spec"]
        .as_object_mut()
        .into_iter()
        .for_each(|spec| spec.extend(more.as_object().cloned().unwrap_or_default()));
    let (code, answer) = api.json(&format!("POST {SERVICES}"), &[], Some(&service)).await?;
    ensure!(code == 201, "{answer}");
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn services_keep_their_families_when_the_cluster_changes_its_own() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let store: Arc<dyn store::Store> = Arc::new(store::Embedded::open(dir.path(), store::Options::default())?);
    let api = start(&store, "10.96.0.0/16", "192.0.2.1").await?;
    let prefers =
        create(&api, "prefers", json!({"clusterIP": "10.96.0.50", "ipFamilyPolicy": "PreferDualStack"})).await?;
    assert_eq!(prefers["spec"]["ipFamilies"], json!(["IPv4"]));
    create(&api, "robbed", json!({"clusterIP": "10.96.0.51"})).await?;
    drop(api);

    // One from before there were families, and an address that somebody has given to another.
    let old = json!({
        "kind": "Service", "apiVersion": "v1", "metadata": {"name": "old", "namespace": "default", "uid": "u"},
        "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.52", "ports": [{"port": 80}]}, "status": {"loadBalancer": {}},
    });
    let robber = json!({
        "kind": "IPAddress", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": "10.96.0.51", "uid": "u"},
        "spec": {"parentRef": {"resource": "gateways", "name": "g"}},
    });
    let puts = [("services/specs/default/old", &old), ("ipaddresses/10.96.0.51", &robber)];
    let puts = puts.map(|(key, object)| store::Op::put(format!("/registry/{key}"), object.to_string()));
    store.txn(store::Txn { success: puts.into(), ..store::Txn::default() }).await?;

    let api = start(&store, "10.96.0.0/16,fd00:96::/112", "192.0.2.1").await?;
    assert_eq!(get(&api, RANGES).await?["spec"]["cidrs"], json!(["10.96.0.0/16", "fd00:96::/112"]));
    assert_eq!(get(&api, &format!("{SERVICES}/prefers")).await?["spec"]["ipFamilies"], json!(["IPv4"]));
    let spec = get(&api, &format!("{SERVICES}/old")).await?["spec"].clone();
    assert_eq!(spec["clusterIPs"], json!(["10.96.0.52"]));
    assert_eq!((&spec["ipFamilies"], &spec["ipFamilyPolicy"]), (&json!(["IPv4"]), &json!("SingleStack")));
    for (address, service) in [("10.96.0.50", "prefers"), ("10.96.0.51", "robbed"), ("10.96.0.52", "old")] {
        let held = get(&api, &format!("{ADDRESSES}/{address}")).await?;
        assert_eq!(held["spec"]["parentRef"]["name"], service, "{address}");
    }
    let patch = json!({"spec": {"clusterIPs": ["10.96.0.50", "fd00:96::50"], "ipFamilyPolicy": "RequireDualStack"}});
    let merge = [("content-type", "application/merge-patch+json")];
    let (code, answer) = api.json(&format!("PATCH {SERVICES}/prefers"), &merge, Some(&patch)).await?;
    assert_eq!(code, 200, "{answer}");
    drop(api);

    let api = start(&store, "fd00:96::/112,10.96.0.0/16", "2001:db8::1").await?;
    assert_eq!(get(&api, RANGES).await?["spec"]["cidrs"], json!(["10.96.0.0/16", "fd00:96::/112"]));
    assert_eq!(get(&api, &format!("{SERVICES}/kubernetes")).await?["spec"]["clusterIP"], "10.96.0.1");
    assert_eq!(get(&api, &format!("{SERVICES}/prefers")).await?["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(create(&api, "new", json!({})).await?["spec"]["ipFamilies"], json!(["IPv6"]));
    arrives(&api, SLICE, "/addressType", &"IPv6".into()).await?;
    assert_eq!(get(&api, SLICE).await?["endpoints"][0]["addresses"], json!(["2001:db8::1"]));
    Ok(())
}

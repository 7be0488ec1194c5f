//! Discovery beside what stock Kubernetes answers.

mod support;

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use support::Api;

const AGGREGATED: &str = "aggregated_v2";

/// Every document of a folder, which is named by its path: `apis__apps__v1.json`.
#[tokio::test]
async fn documents_are_those_of_upstream() -> Result<()> {
    let Some(reference) = std::env::var_os("FERRY_DISCOVERY") else {
        eprintln!("FERRY_DISCOVERY does not name a folder of upstream's documents: nothing to compare with");
        return Ok(());
    };
    let api = Api::start_with_all_versions().await?;
    let mut different = Vec::new();
    for entry in std::fs::read_dir(Path::new(&reference))? {
        let file = entry?.path();
        let name = file.file_stem().and_then(|name| name.to_str()).context("a file without a name")?;
        let theirs: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
        let accept = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
        let (request, headers) = match name {
            AGGREGATED => ("GET /apis".to_owned(), &accept[..]),
            name => (format!("GET /{}", name.replace("__", "/")), &[][..]),
        };
        let (_, ours) = api.json(&request, headers, None).await?;
        if without_addresses(ours) != without_addresses(theirs) {
            different.push(request);
        }
    }
    ensure!(different.is_empty(), "{} documents differ: {different:#?}", different.len());
    Ok(())
}

/// Only stable versions are served by default: in discovery, OpenAPI and `APIService`s, and by path.
#[tokio::test]
async fn beta_and_alpha_versions_are_off_by_default() -> Result<()> {
    let api = Api::start().await?;
    let (_, groups) = api.json("GET /apis", &[], None).await?;
    let versions: Vec<&str> = groups["groups"]
        .as_array()
        .context("groups")?
        .iter()
        .flat_map(|group| group["versions"].as_array().into_iter().flatten())
        .filter_map(|version| version["groupVersion"].as_str())
        .collect();
    let want = [
        "apiregistration.k8s.io/v1",
        "apps/v1",
        "events.k8s.io/v1",
        "authentication.k8s.io/v1",
        "authorization.k8s.io/v1",
        "autoscaling/v2",
        "autoscaling/v1",
        "batch/v1",
        "certificates.k8s.io/v1",
        "networking.k8s.io/v1",
        "policy/v1",
        "rbac.authorization.k8s.io/v1",
        "storage.k8s.io/v1",
        "admissionregistration.k8s.io/v1",
        "apiextensions.k8s.io/v1",
        "scheduling.k8s.io/v1",
        "coordination.k8s.io/v1",
        "node.k8s.io/v1",
        "discovery.k8s.io/v1",
        "resource.k8s.io/v1",
        "flowcontrol.apiserver.k8s.io/v1",
    ];
    assert_eq!(versions, want);
    let (_, index) = api.json("GET /openapi/v3", &[], None).await?;
    let (_, services) = api.json("GET /apis/apiregistration.k8s.io/v1/apiservices", &[], None).await?;
    let text = format!("{index}{services}");
    assert!(text.contains("coordination.k8s.io") && !text.contains("v1beta") && !text.contains("v1alpha"), "{text}");
    for off in ["coordination.k8s.io/v1beta1", "coordination.k8s.io/v1beta1/leasecandidates", "storagemigration.k8s.io"]
    {
        let (code, answer) = api.json(&format!("GET /apis/{off}"), &[], None).await.unwrap_or((404, Value::Null));
        assert_eq!(code, 404, "{off}: {answer}");
    }
    Ok(())
}

/// APIServices stored by a start with `api/all=true` are removed once their version is off.
#[tokio::test]
async fn a_version_turned_off_takes_its_api_service_along() -> Result<()> {
    const NAME: &str = "GET /apis/apiregistration.k8s.io/v1/apiservices/v1beta1.coordination.k8s.io";
    let all = Api::start_with_all_versions().await?;
    assert_eq!(all.json(NAME, &[], None).await?.0, 200);
    let stock = Api::start_on(all.store.clone(), |_| ()).await?;
    assert_eq!(stock.json(NAME, &[], None).await?.0, 404);
    Ok(())
}

/// Where the servers are is not the same.
fn without_addresses(mut value: Value) -> Value {
    if let Some(map) = value.as_object_mut() {
        map.remove("serverAddressByClientCIDRs");
    }
    value
}

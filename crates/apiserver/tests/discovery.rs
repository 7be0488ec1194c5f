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
    let api = Api::start().await?;
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

/// Where the servers are is not the same.
fn without_addresses(mut value: Value) -> Value {
    if let Some(map) = value.as_object_mut() {
        map.remove("serverAddressByClientCIDRs");
    }
    value
}

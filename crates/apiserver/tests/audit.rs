//! What the audit log says of requests once they are answered.

mod support;

use std::path::Path;

use anyhow::Result;
use apiserver::{Audit, AuditLog};
use serde_json::{Value, json};
use support::Api;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn audited(dir: &Path, rules: &str) -> Result<Api> {
    let policy = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}");
    let log = AuditLog { path: dir.join("audit.log"), max_age_days: 0, max_backups: 0, max_size_mib: 0 };
    let audit = Audit::new(&policy, log)?;
    Api::start_with(|config| config.audit = Some(audit.into())).await
}

fn events(dir: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(dir.join("audit.log"))?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// What was answered is in the log, at once and with as much of it as the rule asks for.
#[tokio::test]
async fn an_answered_request_is_logged() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let api = audited(
        dir.path(),
        "rules: [{level: RequestResponse, verbs: [create], omitManagedFields: true}, {level: Metadata, verbs: [get]}]",
    )
    .await?;
    let map = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
    let headers = [("user-agent", "test/1"), ("audit-id", "my-id"), ("x-forwarded-for", "192.0.2.7")];
    let (_, answered, _) = api.call(&format!("POST {MAPS}"), &headers, map.to_string()).await?;
    assert_eq!(answered["audit-id"], "my-id");
    api.call(&format!("GET {MAPS}/nope"), &[], "").await?;
    api.call(&format!("DELETE {MAPS}/a"), &[], "").await?;
    let found = events(dir.path())?;
    let stages: Vec<(&str, &str)> =
        found.iter().map(|e| (e["verb"].as_str().unwrap_or(""), e["stage"].as_str().unwrap_or(""))).collect();
    assert_eq!(
        stages,
        [
            ("create", "RequestReceived"),
            ("create", "ResponseComplete"),
            ("get", "RequestReceived"),
            ("get", "ResponseComplete")
        ]
    );
    let created = &found[1];
    assert_eq!(created["auditID"], "my-id");
    assert_eq!(created["requestURI"], MAPS);
    assert_eq!(created["user"], json!({"username": "admin", "groups": ["system:masters", "system:authenticated"]}));
    assert_eq!(
        created["objectRef"],
        json!({"resource": "configmaps", "namespace": "default", "name": "a", "apiVersion": "v1"})
    );
    assert_eq!(created["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert_eq!(created["requestObject"], map);
    assert_eq!(created["responseObject"]["data"], json!({"k": "v"}));
    assert_eq!(created["responseObject"]["metadata"].get("managedFields"), None);
    assert_eq!((&created["sourceIPs"], &created["userAgent"]), (&json!(["192.0.2.7"]), &json!("test/1")));
    assert_eq!(created["annotations"]["authorization.k8s.io/decision"], "allow");
    let missing = &found[3];
    assert_eq!(
        (&missing["responseStatus"]["code"], &missing["responseStatus"]["reason"]),
        (&json!(404), &json!("NotFound"))
    );
    assert_eq!((missing.get("responseObject"), missing.get("requestObject")), (None, None));
    Ok(())
}

/// A watch is told of when it begins and when it ends; whom somebody acts as is told, too, and that they may not.
#[tokio::test]
async fn watches_and_impersonation_are_told() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let api = audited(dir.path(), "omitStages: [RequestReceived]\nrules: [{level: Metadata}]").await?;
    let watch = api.send("GET /api/v1/pods?watch=1", &[], "").await?;
    assert_eq!(events(dir.path())?.last().map(|event| event["stage"].clone()), Some(json!("ResponseStarted")));
    drop(watch);
    let (code, ..) = api.call(&format!("GET {MAPS}"), &[("impersonate-user", "bob")], "").await?;
    assert_eq!(code, 403);
    let found = events(dir.path())?;
    assert!(found.iter().any(|event| event["verb"] == "watch" && event["stage"] == "ResponseComplete"), "{found:?}");
    let list = found.iter().find(|event| event["verb"] == "list").cloned().unwrap_or_default();
    assert_eq!((&list["user"]["username"], &list["impersonatedUser"]["username"]), (&json!("admin"), &json!("bob")));
    assert_eq!(list["annotations"]["authorization.k8s.io/decision"], "forbid");
    Ok(())
}

/// What is refused before it is read to its end is told of, too.
#[tokio::test]
async fn a_body_that_is_too_large_is_logged() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let api = audited(dir.path(), "omitStages: [RequestReceived]\nrules: [{level: Request, verbs: [create]}]").await?;
    let (code, ..) = api.call(&format!("POST {MAPS}"), &[], vec![b' '; 4 << 20]).await?;
    assert_eq!(code, 413);
    let found = events(dir.path())?;
    assert_eq!(found.iter().map(|event| event["responseStatus"]["code"].clone()).collect::<Vec<_>>(), [json!(413)]);
    Ok(())
}

/// Many at once lose nothing.
#[tokio::test]
async fn every_one_of_many_requests_is_logged() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let api = audited(
        dir.path(),
        "omitStages: [RequestReceived]\nrules: [{level: Metadata, resources: [{group: '', resources: [configmaps]}]}]",
    )
    .await?;
    let paths: Vec<String> = (0..200).map(|number| format!("GET {MAPS}/map-{number}")).collect();
    futures::future::try_join_all(paths.iter().map(|path| api.call(path, &[], ""))).await?;
    let found = events(dir.path())?;
    let names: std::collections::BTreeSet<String> =
        found.iter().map(|event| event["objectRef"]["name"].to_string()).collect();
    assert_eq!((found.len(), names.len()), (200, 200));
    Ok(())
}

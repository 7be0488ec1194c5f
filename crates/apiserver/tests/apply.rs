//! Server-side apply and managed fields, request by request, as kube-apiserver v1.36 answered the same requests.
//!
//! `scenarios/apply.json` holds each request with the status, error and managed fields that came back; times are `T`.

mod support;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use support::Api;

const STEPS: &str = include_str!("scenarios/apply.json");

async fn start() -> Result<Api> {
    let api = Api::start().await?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    api.json("POST /api/v1/namespaces/default/serviceaccounts", &[], Some(&account)).await?;
    Ok(api)
}

async fn perform(api: &Api, step: &Value) -> Result<(u16, Value)> {
    let text = |key: &str| step.get(key).and_then(Value::as_str).unwrap_or_default();
    let content_type = if text("as").is_empty() { "application/json" } else { text("as") };
    let headers = [("content-type", content_type), ("user-agent", text("agent"))];
    api.json(text("do"), &headers, step.get("body")).await.with_context(|| text("do").to_owned())
}

/// The same objects as tables: `scenarios/tables.json` holds upstream's columns and cells.
#[tokio::test]
async fn tables_are_those_of_upstream() -> Result<()> {
    let api = start().await?;
    let steps: Vec<Value> = serde_json::from_str(STEPS)?;
    let mut names = BTreeSet::new();
    for step in &steps {
        perform(&api, step).await?;
        names.extend(step.pointer("/body/metadata/name").and_then(Value::as_str));
    }
    let tables: Vec<Value> = serde_json::from_str(include_str!("scenarios/tables.json"))?;
    let mut differences = Vec::new();
    for table in &tables {
        let path = table["path"].as_str().context("a path")?;
        let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
        let (_, got) = api.json(&format!("GET {path}"), &accept, None).await?;
        let columns: Vec<Value> = got["columnDefinitions"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|column| json!([column["name"], column["type"], column["format"], column["priority"]]))
            .collect();
        let mut rows = Vec::new();
        for row in got["rows"].as_array().into_iter().flatten() {
            let metadata = &row["object"]["metadata"];
            let is_ours = metadata["name"].as_str().is_some_and(|name| names.contains(name));
            if !is_ours || metadata.get("namespace").is_some_and(|namespace| namespace != "default") {
                continue;
            }
            let mut cells = row["cells"].as_array().cloned().unwrap_or_default();
            for (cell, column) in cells.iter_mut().zip(&columns) {
                if matches!(column[0].as_str(), Some("Age" | "Created At" | "Last Seen" | "First Seen" | "Duration")) {
                    *cell = json!("<time>");
                }
            }
            rows.push(Value::Array(cells));
        }
        for (what, got, want) in [("columns", json!(columns), &table["columns"]), ("rows", json!(rows), &table["rows"])]
        {
            if got != *want {
                differences.push(format!("{path} {what}\n    got  {got}\n    want {want}"));
            }
        }
    }
    ensure!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));
    Ok(())
}

#[tokio::test]
async fn managed_fields_are_those_of_upstream() -> Result<()> {
    let api = start().await?;
    let steps: Vec<Value> = serde_json::from_str(STEPS)?;
    let mut differences = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let what = step["do"].as_str().unwrap_or_default();
        let (code, answer) = perform(&api, step).await?;
        let mut check = |what_part: &str, got: Value, want: Value| {
            if got != want {
                differences.push(format!("{index} {what}\n  {what_part}\n    got  {got}\n    want {want}"));
            }
        };
        check("code", code.into(), step["code"].clone());
        if answer["kind"] == "Status" {
            for part in ["message", "reason"] {
                check(part, answer[part].clone(), step[part].clone());
            }
            check("causes", answer["details"]["causes"].clone(), step["causes"].clone());
        } else {
            let (got, want) = (lines(&answer["metadata"]["managedFields"]), lines(&step["managed"]));
            let only =
                |left: &BTreeSet<String>, right: &BTreeSet<String>| json!(left.difference(right).collect::<Vec<_>>());
            check("managed", only(&got, &want), only(&want, &got));
        }
    }
    ensure!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));
    Ok(())
}

/// One line per managed field, without times: who manages what.
fn lines(managed: &Value) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for entry in managed.as_array().into_iter().flatten() {
        let text = |key: &str| entry[key].as_str().unwrap_or_default();
        let timed = if entry.get("time").is_some() { "timed" } else { "timeless" };
        let keys = ["manager", "operation", "apiVersion", "subresource", "fieldsType"].map(text);
        let who = format!("{} {timed}", keys.join(" "));
        collect(&entry["fieldsV1"], &mut format!("{who}: "), &mut lines);
    }
    lines
}

fn collect(fields: &Value, path: &mut String, lines: &mut BTreeSet<String>) {
    let Some(map) = fields.as_object() else { return };
    if map.is_empty() {
        lines.insert(path.clone());
    }
    for (key, below) in map {
        let length = path.len();
        path.push(' ');
        path.push_str(key);
        collect(below, path, lines);
        path.truncate(length);
    }
}

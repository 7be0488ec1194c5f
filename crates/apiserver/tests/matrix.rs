//! Every role and subject of the bootstrap policy, against what stock answers: who may do which verb on what.

mod support;

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use support::Api;

static RECORDED: &str = include_str!("scenarios/authorization.txt");
const GROUP: &str = "rbac.authorization.k8s.io";
const VERBS: [&str; 14] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "approve",
    "sign",
    "impersonate",
    "escalate",
    "bind",
    "proxy",
];

/// Resources and paths: one bit each.
type Allowed = (u128, u128);

#[derive(Default)]
struct Matrix<'a> {
    resources: Vec<&'a str>,
    paths: Vec<&'a str>,
    subjects: Vec<(&'a str, &'a str, HashMap<&'a str, Allowed>)>,
}

fn recorded() -> Result<Matrix<'static>> {
    let mut matrix = Matrix::default();
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        match words.as_slice() {
            ["resources", all @ ..] => matrix.resources = all.to_vec(),
            ["paths", all @ ..] => matrix.paths = all.to_vec(),
            ["subject", name, groups, verbs @ ..] => {
                let mut allowed = HashMap::new();
                for verb in verbs {
                    let (verb, bits) = verb.split_once('=').context("verb=bits")?;
                    let (resources, paths) = bits.split_once('+').context("resources+paths")?;
                    allowed.insert(verb, (u128::from_str_radix(resources, 16)?, u128::from_str_radix(paths, 16)?));
                }
                matrix.subjects.push((name, groups, allowed));
            }
            _ => anyhow::bail!("{line}"),
        }
    }
    Ok(matrix)
}

/// Binds every role to a user of its own.
async fn bound(matrix: &Matrix<'_>) -> Result<Api> {
    let api = Api::start().await?;
    for role in matrix.subjects.iter().filter_map(|(name, ..)| name.strip_prefix("matrix:")) {
        let name = format!("matrix:{role}");
        let binding = json!({
            "metadata": {"name": name}, "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": GROUP, "kind": "User", "name": name}],
        });
        let path = format!("POST /apis/{GROUP}/v1/clusterrolebindings");
        let (code, answer) = api.json(&path, &[], Some(&binding)).await?;
        anyhow::ensure!(code == 201, "{answer}");
    }
    api.json(&format!("GET /apis/{GROUP}/v1/clusterrolebindings"), &[], None).await?;
    Ok(api)
}

async fn is_allowed(api: &Api, user: &str, groups: &[&str], part: &str, attributes: Value) -> Result<bool> {
    let review = json!({"spec": {"user": user, "groups": groups, part: attributes}});
    let (code, answer) =
        api.json("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", &[], Some(&review)).await?;
    anyhow::ensure!(code == 201, "{answer}");
    Ok(answer.pointer("/status/allowed") == Some(&Value::Bool(true)))
}

#[tokio::test]
async fn decisions_are_those_of_stock() -> Result<()> {
    let matrix = recorded()?;
    let api = bound(&matrix).await?;
    let mut wrong = Vec::new();
    for (user, groups, allowed) in &matrix.subjects {
        let groups: Vec<&str> = groups.split(',').filter(|group| *group != "-").collect();
        for verb in VERBS {
            let (resources, paths) = allowed.get(verb).copied().unwrap_or_default();
            for (index, resource) in matrix.resources.iter().enumerate() {
                let (group, name) = resource.split_once('|').context("group|resource")?;
                let (name, sub) = name.split_once('/').unwrap_or((name, ""));
                let group = if group == "core" { "" } else { group };
                let asked =
                    json!({"verb": verb, "group": group, "resource": name, "subresource": sub, "namespace": "default"});
                let want = resources >> index & 1 == 1;
                if is_allowed(&api, user, &groups, "resourceAttributes", asked).await? != want {
                    wrong.push(format!("{user} {verb} {resource}: stock says {want}"));
                }
            }
            for (index, path) in matrix.paths.iter().enumerate() {
                let want = paths >> index & 1 == 1;
                let asked = json!({"verb": verb, "path": path});
                if is_allowed(&api, user, &groups, "nonResourceAttributes", asked).await? != want {
                    wrong.push(format!("{user} {verb} {path}: stock says {want}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

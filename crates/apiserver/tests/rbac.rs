//! Nobody gives away what they do not have: the documented ways to more rights through roles and bindings.

mod support;

use anyhow::Result;
use serde_json::{Value, json};
use support::Api;

const GROUP: &str = "rbac.authorization.k8s.io";
const PATH: &str = "/apis/rbac.authorization.k8s.io/v1";
const BOB: (&str, &str) = ("impersonate-user", "bob");
const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");
const APPLY: (&str, &str) = ("content-type", "application/apply-patch+yaml");

fn role(name: &str, rules: Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
}

fn binding(name: &str, role: &str, user: &str) -> Value {
    json!({
        "metadata": {"name": name}, "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": user}],
    })
}

/// Bob may write roles and bindings, and read pods; nothing else.
async fn api_with_bob() -> Result<Api> {
    let api = Api::start().await?;
    let rules = json!([
        {"apiGroups": [GROUP], "resources": ["roles", "clusterroles", "rolebindings", "clusterrolebindings"],
         "verbs": ["get", "create", "update", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    ]);
    created(&api, "clusterroles", &role("bob", rules)).await?;
    created(&api, "clusterrolebindings", &binding("bob", "bob", "bob")).await?;
    Ok(api)
}

async fn created(api: &Api, plural: &str, object: &Value) -> Result<()> {
    let (code, answer) = api.json(&format!("POST {PATH}/{plural}"), &[], Some(object)).await?;
    anyhow::ensure!(code == 201, "{answer}");
    // A read waits for what was written, which is then what authorization sees.
    api.json(&format!("GET {PATH}/{plural}"), &[], None).await?;
    Ok(())
}

async fn as_bob(api: &Api, what: &str, kind: Option<(&str, &str)>, object: &Value) -> Result<(u16, String)> {
    let (method, path) = what.split_once(' ').unwrap_or_default();
    let headers: Vec<(&str, &str)> = std::iter::once(BOB).chain(kind).collect();
    let (code, answer) = api.json(&format!("{method} {PATH}/{path}"), &headers, Some(object)).await?;
    Ok((code, answer.get("message").and_then(Value::as_str).unwrap_or_default().to_owned()))
}

fn more() -> Value {
    json!([{"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["get", "list"]}])
}

#[tokio::test]
async fn a_role_holds_no_more_than_its_writer_does() -> Result<()> {
    let api = api_with_bob().await?;
    let refused = "clusterroles.rbac.authorization.k8s.io \"more\" is forbidden: user \"bob\" \
                   (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n\
                   {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\"]}\n\
                   {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}";
    let refused = (403, refused.to_owned());
    assert_eq!(as_bob(&api, "POST clusterroles", None, &role("more", more())).await?, refused);
    let apply = "PATCH clusterroles/more?fieldManager=t";
    assert_eq!(as_bob(&api, apply, Some(APPLY), &role("more", more())).await?, refused);
    let own = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    assert_eq!(as_bob(&api, "POST clusterroles", None, &role("more", own.clone())).await?.0, 201);
    assert_eq!(as_bob(&api, "PUT clusterroles/more", None, &role("more", more())).await?, refused);
    let patch = json!({"rules": more()});
    assert_eq!(as_bob(&api, "PATCH clusterroles/more", Some(MERGE), &patch).await?, refused);
    let all = json!([{"nonResourceURLs": ["*"], "verbs": ["get"]}]);
    assert_eq!(as_bob(&api, "POST clusterroles", None, &role("all", all)).await?.0, 403);
    let any = json!({"metadata": {"name": "any"}, "rules": own, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    let told = "clusterroles.rbac.authorization.k8s.io \"any\" is forbidden: must have cluster-admin privileges to use the aggregationRule";
    assert_eq!(as_bob(&api, "POST clusterroles", None, &any).await?, (403, told.to_owned()));
    // The garbage collector's changes grant nothing.
    created(&api, "clusterroles", &role("other", more())).await?;
    let finalizer = json!({"metadata": {"finalizers": ["example.com/a"]}});
    assert_eq!(as_bob(&api, "PATCH clusterroles/other", Some(MERGE), &finalizer).await?.0, 200);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(as_bob(&api, "PATCH clusterroles/other", Some(MERGE), &label).await?.0, 403);
    // Who may escalate, may.
    let escalate = json!([{"apiGroups": [GROUP], "resources": ["clusterroles"], "verbs": ["escalate"]}]);
    created(&api, "clusterroles", &role("escalate", escalate)).await?;
    created(&api, "clusterrolebindings", &binding("escalate", "escalate", "bob")).await?;
    assert_eq!(as_bob(&api, "PUT clusterroles/more", None, &role("more", more())).await?.0, 200);
    Ok(())
}

#[tokio::test]
async fn a_binding_gives_no_more_than_its_writer_has() -> Result<()> {
    let api = api_with_bob().await?;
    let admin = binding("take", "cluster-admin", "bob");
    let (code, why) = as_bob(&api, "POST clusterrolebindings", None, &admin).await?;
    assert_eq!(code, 403);
    assert!(why.contains("is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"*\"]"), "{why}");
    let (code, why) = as_bob(&api, "POST clusterrolebindings", None, &binding("take", "none", "bob")).await?;
    assert_eq!((code, why.as_str()), (404, "clusterrolebindings.rbac.authorization.k8s.io \"none\" not found"));
    let local =
        json!({"metadata": {"name": "take"}, "roleRef": {"kind": "ClusterRole", "name": "edit"}, "subjects": []});
    assert_eq!(as_bob(&api, "POST namespaces/default/rolebindings", None, &local).await?.0, 201, "edit is empty yet");
    // To add oneself to what another has is the same.
    created(&api, "clusterroles", &role("more", more())).await?;
    created(&api, "clusterrolebindings", &binding("more", "more", "alice")).await?;
    let subjects = json!({"subjects": [{"kind": "User", "name": "bob", "apiGroup": GROUP}]});
    assert_eq!(as_bob(&api, "PATCH clusterrolebindings/more", Some(MERGE), &subjects).await?.0, 403);
    // Who may bind a role, may; but no other, and not beyond the namespace.
    let bind =
        json!([{"apiGroups": [GROUP], "resources": ["clusterroles"], "resourceNames": ["more"], "verbs": ["bind"]}]);
    created(&api, "clusterroles", &role("bind", bind)).await?;
    let here = binding("bind", "bind", "bob");
    let (code, answer) = api.json(&format!("POST {PATH}/namespaces/default/rolebindings"), &[], Some(&here)).await?;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(as_bob(&api, "POST namespaces/default/rolebindings", None, &binding("b", "more", "x")).await?.0, 201);
    assert_eq!(
        as_bob(&api, "POST namespaces/default/rolebindings", None, &binding("c", "cluster-admin", "x")).await?.0,
        403
    );
    assert_eq!(
        as_bob(&api, "POST namespaces/kube-system/rolebindings", None, &binding("d", "more", "x")).await?.0,
        403
    );
    assert_eq!(as_bob(&api, "PATCH clusterrolebindings/more", Some(MERGE), &subjects).await?.0, 403);
    Ok(())
}

#[tokio::test]
async fn reviews_answer_any_verb_and_say_why() -> Result<()> {
    let api = api_with_bob().await?;
    let odd = json!([
        {"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["ponder"]},
        {"nonResourceURLs": ["/x/*"], "verbs": ["trace"]},
    ]);
    created(&api, "clusterroles", &role("odd", odd)).await?;
    created(&api, "clusterrolebindings", &binding("odd", "odd", "bob")).await?;
    let ask = async |part: &str, attributes: Value| -> Result<Value> {
        let review = json!({"spec": {"user": "bob", part: attributes}});
        let (code, mut answer) =
            api.json("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", &[], Some(&review)).await?;
        anyhow::ensure!(code == 201, "{answer}");
        Ok(answer["status"].take())
    };
    let why = "RBAC: allowed by ClusterRoleBinding \"odd\" of ClusterRole \"odd\" to User \"bob\"";
    let ponder = json!({"group": "example.com", "resource": "things", "verb": "ponder"});
    assert_eq!(ask("resourceAttributes", ponder).await?, json!({"allowed": true, "reason": why}));
    let weigh = json!({"group": "example.com", "resource": "things", "verb": "weigh"});
    assert_eq!(ask("resourceAttributes", weigh).await?, json!({"allowed": false}));
    let trace = json!({"path": "/x/y", "verb": "trace"});
    assert_eq!(ask("nonResourceAttributes", trace).await?, json!({"allowed": true, "reason": why}));
    let (code, answer) =
        api.json("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", &[], Some(&json!({"spec": {}}))).await?;
    assert_eq!((code, answer["details"]["causes"].as_array().map(Vec::len)), (422, Some(2)), "{answer}");
    let rules = json!({"spec": {"namespace": "default"}});
    let (_, answer) =
        api.json("POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews", &[BOB], Some(&rules)).await?;
    let pods = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
    assert!(answer["status"]["resourceRules"].as_array().is_some_and(|all| all.contains(&pods)), "{answer}");
    assert_eq!(answer["status"]["incomplete"], false);
    Ok(())
}

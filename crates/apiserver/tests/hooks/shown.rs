//! About which requests they are asked, and in which form they see them.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::support::Api;
use crate::{MAPS, PATCH, PATIENCE, configure, created, hook, map, merge, patch, reviews, webhook};

#[tokio::test]
async fn webhooks_are_asked_about_what_concerns_them() -> Result<()> {
    let api = Api::start().await?;
    let (server, seen) = webhook(|_, _| json!({"allowed": true})).await?;
    created(&api, "/api/v1/namespaces", &json!({"metadata": {"name": "other", "labels": {"team": "x"}}})).await?;
    let rules = |resource: &str, operations: Value, scope: &str| json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": operations, "resources": [resource], "scope": scope}]);
    let label = |key: &str| json!({"matchLabels": {key: "x"}});
    let hooks = json!([
        hook(&server, "/updates", json!({"rules": rules("configmaps", json!(["UPDATE"]), "*")})),
        hook(&server, "/cluster", json!({"rules": rules("*", json!(["*"]), "Cluster")})),
        hook(&server, "/team", json!({"namespaceSelector": label("team")})),
        hook(&server, "/labelled", json!({"objectSelector": label("app")})),
        hook(
            &server,
            "/condition",
            json!({"matchConditions": [
                {"name": "a", "expression": "has(object.data) && 'wanted' in object.data && request.userInfo.username == 'admin'"},
            ]})
        ),
        hook(&server, "/none", json!({"rules": []})),
        hook(&server, "/self", json!({"rules": rules("*/*", json!(["*"]), "*"), "namespaceSelector": label("no")})),
    ]);
    configure(&api, "validating", "v", hooks).await?;
    reviews(&seen);
    let asked = || {
        let mut paths: Vec<String> =
            reviews(&seen).into_iter().map(|(path, _)| path.trim_end_matches("?timeout=10s").to_owned()).collect();
        paths.sort();
        paths.join(" ")
    };
    created(&api, MAPS, &map("a")).await?;
    assert_eq!(asked(), "");
    let (code, _) = api.json(&format!("PATCH {MAPS}/a"), &PATCH, Some(&json!({"data": {"wanted": ""}}))).await?;
    assert_eq!((code, asked().as_str()), (200, "/condition /updates"));
    created(&api, "/api/v1/namespaces/other/configmaps", &map("a")).await?;
    assert_eq!(asked(), "/team");
    let labelled = json!({"metadata": {"name": "b", "labels": {"app": "x"}}, "data": {}});
    created(&api, MAPS, &labelled).await?;
    assert_eq!(asked(), "/labelled");
    // The old object counts as well.
    let (code, _) = api.json(&format!("PATCH {MAPS}/b"), &PATCH, Some(&json!({"metadata": {"labels": null}}))).await?;
    assert_eq!((code, asked().as_str()), (200, "/labelled /updates"));
    created(&api, "/api/v1/namespaces", &json!({"metadata": {"name": "third"}})).await?;
    assert_eq!(asked(), "/cluster");
    // What configures admission is never subject to it.
    configure(&api, "mutating", "m", json!([])).await?;
    assert_eq!(asked(), "");
    Ok(())
}

/// A rule about one version is about the others too; the webhook sees and changes its own.
#[tokio::test]
async fn an_equivalent_resource_is_shown_in_the_version_of_the_rule() -> Result<()> {
    let api = Api::start().await?;
    let (server, seen) =
        webhook(|_, _| patch(json!([{"op": "replace", "path": "/spec/targetCPUUtilizationPercentage", "value": 70}])))
            .await?;
    let rule = |policy: &str| {
        let rules = json!([{
            "apiGroups": ["autoscaling"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["horizontalpodautoscalers"],
        }]);
        json!({"rules": rules, "matchPolicy": policy})
    };
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let scaler = |name: &str| {
        let target = json!({"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"});
        let resource = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}});
        json!({"metadata": {"name": name}, "spec": {
            "maxReplicas": 3, "scaleTargetRef": target, "metrics": [{"type": "Resource", "resource": resource}],
        }})
    };
    configure(&api, "mutating", "m", json!([hook(&server, "/exact", rule("Exact"))])).await?;
    created(&api, path, &scaler("a")).await?;
    assert_eq!(reviews(&seen).len(), 0);
    configure(&api, "mutating", "n", json!([hook(&server, "/same", rule("Equivalent"))])).await?;
    let made = created(&api, path, &scaler("b")).await?;
    assert_eq!(made["apiVersion"], "autoscaling/v2");
    assert_eq!(made["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 70);
    let request = reviews(&seen).remove(0).1["request"].take();
    assert_eq!((&request["kind"]["version"], &request["requestKind"]["version"]), (&json!("v1"), &json!("v2")));
    assert_eq!(request["object"]["apiVersion"], "autoscaling/v1");
    Ok(())
}

/// Versions of a custom resource are the same resource; what a webhook adds and the schema does not know is pruned.
#[tokio::test]
async fn custom_resources_are_shown_in_any_version_and_pruned() -> Result<()> {
    let api = Api::start().await?;
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"data": {"type": "object", "properties": {
        "known": {"type": "string"}, "level": {"type": "integer", "default": 3},
    }}}}});
    let version =
        |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
    let names = json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"});
    let definition = json!({"metadata": {"name": "things.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": names, "versions": [version("v1", true), version("v2", false)],
    }});
    created(&api, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await?;
    let path = "/apis/example.com/v2/namespaces/default/things";
    let deadline = Instant::now() + PATIENCE;
    while api.call(&format!("GET {path}"), &[], "").await?.0 != 200 {
        ensure!(Instant::now() < deadline, "the resource is not served");
        tokio::task::yield_now().await;
    }
    let (server, seen) = webhook(|_, _| {
        patch(json!([
            {"op": "add", "path": "/data/known", "value": "yes"}, {"op": "add", "path": "/data/unknown", "value": "yes"},
        ]))
    })
    .await?;
    let rules = json!([{
        "apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["things"],
    }]);
    configure(&api, "mutating", "m", json!([hook(&server, "/m", json!({"rules": rules}))])).await?;
    let thing = json!({"kind": "Thing", "apiVersion": "example.com/v2", "metadata": {"name": "a"}, "data": {}});
    let made = created(&api, path, &thing).await?;
    assert_eq!((&made["apiVersion"], &made["data"]), (&json!("example.com/v2"), &json!({"known": "yes", "level": 3})));
    assert_eq!(reviews(&seen)[0].1["request"]["object"]["apiVersion"], "example.com/v1");
    Ok(())
}

/// A deletion has an old object and options, and nothing that could be changed.
#[tokio::test]
async fn deletions_are_shown_with_what_goes() -> Result<()> {
    let api = Api::start().await?;
    let (server, seen) = webhook(|path, request| match (path, request["oldObject"]["data"]["k"].as_str()) {
        ("/change", _) => patch(json!([{"op": "add", "path": "/data", "value": {}}])),
        (_, Some("keep")) => json!({"allowed": false, "status": {"message": "kept"}}),
        _ => json!({"allowed": true}),
    })
    .await?;
    let rules =
        json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["configmaps"]}]);
    configure(&api, "validating", "v", json!([hook(&server, "/v", json!({"rules": rules}))])).await?;
    created(&api, MAPS, &map("a")).await?;
    created(&api, MAPS, &json!({"metadata": {"name": "b"}, "data": {"k": "keep"}})).await?;
    let options = json!({"propagationPolicy": "Orphan", "gracePeriodSeconds": 5});
    let (code, answer) = api.json(&format!("DELETE {MAPS}/b"), &[], Some(&options)).await?;
    assert_eq!(
        (code, answer["message"].as_str()),
        (400, Some("admission webhook \"v.example.com\" denied the request: kept"))
    );
    let request = reviews(&seen).remove(0).1["request"].take();
    assert_eq!((&request["object"], &request["oldObject"]["data"]["k"]), (&json!(null), &json!("keep")));
    let told = json!({
        "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "propagationPolicy": "Orphan", "gracePeriodSeconds": 5,
    });
    assert_eq!(request["options"], told);
    configure(&api, "mutating", "m", json!([hook(&server, "/change", json!({"rules": rules}))])).await?;
    let (code, answer) = api.json(&format!("DELETE {MAPS}/a"), &[], None).await?;
    assert_eq!(code, 500);
    let why = "attempted to modify the object, which is not supported for this operation";
    ensure!(answer["message"].as_str().is_some_and(|message| message.ends_with(why)), "{answer}");
    Ok(())
}

/// Through the scale subresource a Scale is written; to run something in a pod, options are.
#[tokio::test]
async fn scales_and_connections_are_objects_of_their_own() -> Result<()> {
    let api = Api::start().await?;
    let (server, seen) = webhook(|path, _| match path {
        "/scale" => patch(json!([{"op": "replace", "path": "/spec/replicas", "value": 2}])),
        _ => json!({"allowed": false, "status": {"message": "not here"}}),
    })
    .await?;
    let pods = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": pods});
    created(&api, deployments, &json!({"metadata": {"name": "d"}, "spec": spec})).await?;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "serviceAccountName": "s"}});
    created(&api, "/api/v1/namespaces/default/serviceaccounts", &json!({"metadata": {"name": "s"}})).await?;
    created(&api, "/api/v1/namespaces/default/pods", &pod).await?;
    let rule = |group: &str, resource: &str, operation: &str| json!({"rules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": [operation], "resources": [resource]}]});
    configure(&api, "mutating", "m", json!([hook(&server, "/scale", rule("apps", "deployments/scale", "UPDATE"))]))
        .await?;
    for (headers, change) in [
        (&PATCH, json!({"spec": {"replicas": 7}})),
        (
            &[("content-type", "application/apply-patch+yaml")],
            json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "d"}, "spec": {"replicas": 9}}),
        ),
    ] {
        let what = format!("PATCH {deployments}/d/scale?fieldManager=me&force=true");
        let what = if headers[0].1 == PATCH[0].1 { what.replace("&force=true", "") } else { what };
        let (code, scale) = api.json(&what, headers, Some(&change)).await?;
        assert_eq!((code, &scale["spec"]["replicas"]), (200, &json!(2)), "{scale}");
        let request = reviews(&seen).remove(0).1["request"].take();
        assert_eq!(request["kind"], json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}));
        assert_eq!((&request["subResource"], &request["object"]["spec"]), (&json!("scale"), &change["spec"]));
        assert_eq!(request["oldObject"]["kind"], "Scale");
        assert_eq!(request["resource"]["resource"], "deployments");
    }
    let (_, deployment) = api.json(&format!("GET {deployments}/d"), &[], None).await?;
    assert_eq!(deployment["spec"]["replicas"], 2);

    configure(&api, "validating", "v", json!([hook(&server, "/connect", rule("", "pods/*", "CONNECT"))])).await?;
    let place = "/api/v1/namespaces/default/pods/p";
    for (path, kind, object) in [
        (
            "exec?command=ls&command=-l&stdout=true&container=c",
            "PodExecOptions",
            json!({"stdout": true, "container": "c", "command": ["ls", "-l"]}),
        ),
        ("attach?stdin=1", "PodAttachOptions", json!({"stdin": true})),
        ("portforward?ports=80", "PodPortForwardOptions", json!({"ports": [80]})),
        ("proxy/a/b?x=y", "PodProxyOptions", json!({"path": "/a/b"})),
    ] {
        let (code, answer) = api.json(&format!("POST {place}/{path}"), &[], None).await?;
        let message = "admission webhook \"connect.example.com\" denied the request: not here";
        assert_eq!((code, answer["message"].as_str()), (400, Some(message)), "{path}");
        let request = reviews(&seen).remove(0).1["request"].take();
        let mut want = json!({"kind": kind, "apiVersion": "v1"});
        merge(&mut want, object);
        assert_eq!(request["object"], want);
        assert_eq!((&request["operation"], &request["options"]), (&json!("CONNECT"), &json!(null)));
        assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": kind}));
        assert_eq!((&request["name"], &request["namespace"]), (&json!("p"), &json!("default")));
    }
    Ok(())
}

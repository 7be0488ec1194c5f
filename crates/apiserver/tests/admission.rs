//! Built-in admission plugins, through the whole path of a write.

#[path = "support/https.rs"]
mod https;
mod support;

use anyhow::Result;
use apiserver::AdmissionSettings;
use serde_json::{Value, json};
use support::Api;

const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");

async fn created(api: &Api, path: &str, object: Value) -> Result<Value> {
    let (code, answer) = api.json(&format!("POST {path}"), &[], Some(&object)).await?;
    anyhow::ensure!(code == 201, "{path}: {answer}");
    api.json("GET /api/v1/namespaces", &[], None).await?;
    Ok(answer)
}

/// Code, message and warnings.
async fn send(api: &Api, what: &str, headers: &[(&str, &str)], object: &Value) -> Result<(u16, Value, Vec<String>)> {
    let (code, headers, bytes) = api.call(what, headers, object.to_string()).await?;
    let warnings = headers.get_all("warning").iter().map(|value| value.to_str().unwrap_or_default().to_owned());
    Ok((code, serde_json::from_slice(&bytes)?, warnings.collect()))
}

fn message(answer: &Value) -> &str {
    answer.get("message").and_then(Value::as_str).unwrap_or_default()
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    if let (Some(own), Some(more)) = (pod.pointer_mut("/spec").and_then(Value::as_object_mut), spec.as_object()) {
        own.extend(more.clone());
    }
    pod
}

async fn start(enable: &[&str], configuration: Option<Value>) -> Result<Api> {
    let enable = enable.iter().map(ToString::to_string).collect();
    let settings = AdmissionSettings { enable, disable: Vec::new(), configuration };
    let api = Api::start_with(|config| config.admission = settings).await?;
    created(&api, "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await?;
    Ok(api)
}

#[tokio::test]
async fn a_namespace_holds_its_pods_to_a_level() -> Result<()> {
    let api = start(&[], None).await?;
    let strict = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    let privileged = json!({"containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true}}]});
    let pods = "POST /api/v1/namespaces/default/pods";
    assert_eq!(send(&api, pods, &[], &pod("before", privileged.clone())).await?.0, 201);
    let (code, _, warnings) = send(&api, "PATCH /api/v1/namespaces/default", &[MERGE], &strict).await?;
    assert_eq!(code, 200);
    let told = [
        r#"299 - "existing pods in namespace \"default\" violate the new PodSecurity enforce level \"baseline:latest\"""#,
        r#"299 - "before: privileged""#,
    ];
    assert_eq!(warnings, told);
    api.json("GET /api/v1/namespaces", &[], None).await?;
    let why = "violates PodSecurity \"baseline:latest\": privileged (container \"c\" must not set securityContext.privileged=true)";
    let (code, answer, _) = send(&api, pods, &[], &pod("after", privileged.clone())).await?;
    assert_eq!((code, message(&answer)), (403, format!("pods \"after\" is forbidden: {why}").as_str()));
    // A workload is only warned.
    let deployment = json!({
        "metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": privileged,
        }},
    });
    let (code, _, warnings) = send(&api, "POST /apis/apps/v1/namespaces/default/deployments", &[], &deployment).await?;
    assert_eq!(code, 201);
    let escaped = format!("299 - \"would {}\"", why.replace("violates", "violate").replace('"', "\\\""));
    assert_eq!(warnings, [escaped]);
    let odd = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "odd"}}});
    let (code, answer, _) = send(&api, "PATCH /api/v1/namespaces/default", &[MERGE], &odd).await?;
    assert_eq!(code, 422, "{answer}");
    Ok(())
}

#[tokio::test]
async fn configuration_exempts_and_defaults() -> Result<()> {
    let configuration = json!({"plugins": [{"name": "PodSecurity", "configuration": {
        "apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
        "defaults": {"enforce": "restricted"}, "exemptions": {"usernames": ["bob"], "namespaces": ["kube-system"]},
    }}]});
    let api = start(&[], Some(configuration)).await?;
    created(&api, "/api/v1/namespaces/kube-system/serviceaccounts", json!({"metadata": {"name": "default"}})).await?;
    let plain = |name: &str| pod(name, json!({}));
    assert_eq!(send(&api, "POST /api/v1/namespaces/default/pods", &[], &plain("a")).await?.0, 403);
    let bob = [("impersonate-user", "bob"), ("impersonate-group", "system:masters")];
    assert_eq!(send(&api, "POST /api/v1/namespaces/default/pods", &bob, &plain("b")).await?.0, 201);
    assert_eq!(send(&api, "POST /api/v1/namespaces/kube-system/pods", &[], &plain("c")).await?.0, 201);
    Ok(())
}

#[tokio::test]
async fn limits_are_filled_in_and_held() -> Result<()> {
    let api = start(&[], None).await?;
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [{
        "type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "1"},
    }]}});
    created(&api, "/api/v1/namespaces/default/limitranges", range).await?;
    let pods = "POST /api/v1/namespaces/default/pods";
    let (code, answer, _) = send(&api, pods, &[], &pod("a", json!({}))).await?;
    assert_eq!(code, 201, "{answer}");
    let resources = answer.pointer("/spec/containers/0/resources");
    assert_eq!(resources, Some(&json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}})));
    assert_eq!(
        answer.pointer("/metadata/annotations/kubernetes.io~1limit-ranger"),
        Some(&json!("LimitRanger plugin set: cpu request for container c; cpu limit for container c"))
    );
    let large = json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "2"}}}]});
    let (code, answer, _) = send(&api, pods, &[], &pod("b", large)).await?;
    let why = "pods \"b\" is forbidden: maximum cpu usage per Container is 1, but limit is 2";
    assert_eq!((code, message(&answer)), (403, why));
    Ok(())
}

/// What a node does not say it can do is not asked of its pods.
#[tokio::test]
async fn a_resize_needs_a_node_that_can_follow_it() -> Result<()> {
    let api = start(&[], None).await?;
    let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8", "memory": "8Gi"}}});
    created(&api, "/api/v1/nodes", node).await?;
    let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
    let init = json!([{"name": "i", "image": "i", "resources": cpu("1")}]);
    let bound = pod("p", json!({"nodeName": "n", "initContainers": init}));
    created(&api, "/api/v1/namespaces/default/pods", bound).await?;
    let path = "PATCH /api/v1/namespaces/default/pods/p/resize";
    let strategic = ("content-type", "application/strategic-merge-patch+json");
    let resize = json!({"spec": {"initContainers": [{"name": "i", "resources": cpu("2")}]}});
    let (code, answer, _) = send(&api, path, &[strategic], &resize).await?;
    let why = "pods \"p\" is forbidden: pod update requires features InPlacePodVerticalScalingInitContainers which are not available on node \"n\"";
    assert_eq!((code, message(&answer)), (403, why), "{answer}");
    let declared = json!({"status": {"declaredFeatures": ["InPlacePodVerticalScalingInitContainers"]}});
    assert_eq!(send(&api, "PATCH /api/v1/nodes/n/status", &[MERGE], &declared).await?.0, 200);
    api.json("GET /api/v1/nodes", &[], None).await?;
    let (code, answer, _) = send(&api, path, &[strategic], &resize).await?;
    assert_eq!(code, 200, "{answer}");
    Ok(())
}

#[tokio::test]
async fn classes_are_chosen_and_enlarging_needs_one_that_can() -> Result<()> {
    let api = start(&[], None).await?;
    let class = json!({
        "metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "p",
    });
    created(&api, "/apis/storage.k8s.io/v1/storageclasses", class).await?;
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = created(&api, "/api/v1/namespaces/default/persistentvolumeclaims", claim).await?;
    assert_eq!(claim.pointer("/spec/storageClassName"), Some(&json!("fast")));
    assert_eq!(claim.pointer("/metadata/finalizers"), Some(&json!(["kubernetes.io/pvc-protection"])));
    let path = "PATCH /api/v1/namespaces/default/persistentvolumeclaims/c";
    let bound = json!({"status": {"phase": "Bound"}});
    assert_eq!(send(&api, &format!("{path}/status"), &[MERGE], &bound).await?.0, 200);
    let volume = json!({"spec": {"volumeName": "v"}});
    assert_eq!(send(&api, path, &[MERGE], &volume).await?.0, 200);
    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let (code, answer, _) = send(&api, path, &[MERGE], &larger).await?;
    assert_eq!(code, 403, "{answer}");
    assert!(message(&answer).ends_with("the storageclass that provisions the pvc must support resize"), "{answer}");
    let grow = json!({"allowVolumeExpansion": true});
    assert_eq!(send(&api, "PATCH /apis/storage.k8s.io/v1/storageclasses/fast", &[MERGE], &grow).await?.0, 200);
    api.json("GET /apis/storage.k8s.io/v1/storageclasses", &[], None).await?;
    assert_eq!(send(&api, path, &[MERGE], &larger).await?.0, 200);
    let ingress_class = json!({
        "metadata": {"name": "web", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}}, "spec": {"controller": "e.com/c"},
    });
    created(&api, "/apis/networking.k8s.io/v1/ingressclasses", ingress_class).await?;
    let ingress = json!({"metadata": {"name": "i"}, "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}});
    let ingress = created(&api, "/apis/networking.k8s.io/v1/namespaces/default/ingresses", ingress).await?;
    assert_eq!(ingress.pointer("/spec/ingressClassName"), Some(&json!("web")));
    Ok(())
}

#[tokio::test]
async fn optional_plugins_do_what_they_say() -> Result<()> {
    let selectors = json!({"podNodeSelectorPluginConfig": {"clusterDefaultNodeSelector": "disk=ssd", "default": "disk=ssd,zone=a"}});
    let configuration = json!({"plugins": [
        {"name": "PodNodeSelector", "configuration": selectors},
        {"name": "EventRateLimit", "configuration": {"limits": [{"type": "Server", "qps": 1, "burst": 1}]}},
    ]});
    let on = [
        "AlwaysPullImages",
        "NamespaceAutoProvision",
        "PodNodeSelector",
        "EventRateLimit",
        "DenyServiceExternalIPs",
        "LimitPodHardAntiAffinityTopology",
        "ExtendedResourceToleration",
        "OwnerReferencesPermissionEnforcement",
    ];
    let api = start(&on, Some(configuration)).await?;
    let pods = "POST /api/v1/namespaces/default/pods";
    let device = json!({"containers": [{"name": "c", "image": "i", "imagePullPolicy": "Never", "resources": {"limits": {"example.com/gpu": "1"}}}]});
    let (code, answer, _) = send(&api, pods, &[], &pod("a", device)).await?;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(answer.pointer("/spec/containers/0/imagePullPolicy"), Some(&json!("Always")));
    assert_eq!(answer.pointer("/spec/nodeSelector"), Some(&json!({"disk": "ssd"})));
    let tolerations = answer.pointer("/spec/tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    assert!(tolerations.iter().any(|toleration| toleration.get("key") == Some(&json!("example.com/gpu"))), "{answer}");
    for (spec, why) in [
        (
            json!({"nodeSelector": {"disk": "hdd"}}),
            "pod node label selector conflicts with its namespace node label selector",
        ),
        (
            json!({"nodeSelector": {"cpu": "fast"}}),
            "pod node label selector labels conflict with its namespace whitelist",
        ),
        (
            json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}}),
            "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname is allowed",
        ),
    ] {
        let (code, answer, _) = send(&api, pods, &[], &pod("b", spec)).await?;
        assert_eq!(code, 403, "{answer}");
        assert!(message(&answer).ends_with(why), "{answer}");
    }
    let map = json!({"metadata": {"name": "m"}});
    assert_eq!(send(&api, "POST /api/v1/namespaces/new/configmaps", &[], &map).await?.0, 201);
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "externalIPs": ["192.0.2.9"]}});
    let (code, answer, _) = send(&api, "POST /api/v1/namespaces/default/services", &[], &service).await?;
    assert_eq!(code, 403, "{answer}");
    let event = |name: &str| json!({"metadata": {"name": name}, "involvedObject": {"namespace": "default"}});
    assert_eq!(send(&api, "POST /api/v1/namespaces/default/events", &[], &event("a")).await?.0, 201);
    let (code, answer, _) = send(&api, "POST /api/v1/namespaces/default/events", &[], &event("b")).await?;
    assert_eq!((code, message(&answer)), (429, "limit reached on type Server for key "));
    Ok(())
}

#[tokio::test]
async fn somebody_else_says_which_images_may_run() -> Result<()> {
    let server = https::Https::start(|_, _, review| {
        let images = review.pointer("/spec/containers").cloned().unwrap_or_default();
        match images.to_string().contains("bad") {
            true => json!({"status": {"allowed": false, "reason": "bad"}}),
            false => json!({"status": {"allowed": true}}),
        }
    })
    .await?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("webhook.json");
    std::fs::write(&path, server.kubeconfig())?;
    let configuration = json!({"plugins": [{"name": "ImagePolicyWebhook", "configuration": {"imagePolicy": {"kubeConfigFile": path}}}]});
    let api = start(&["ImagePolicyWebhook"], Some(configuration)).await?;
    let pods = "POST /api/v1/namespaces/default/pods";
    for name in ["a", "b"] {
        assert_eq!(send(&api, pods, &[], &pod(name, json!({}))).await?.0, 201);
    }
    assert_eq!(server.count(), 1, "an answer is kept");
    let bad = json!({"containers": [{"name": "c", "image": "bad"}]});
    let (code, answer, _) = send(&api, pods, &[], &pod("c", bad)).await?;
    let why = "pods \"c\" is forbidden: image policy webhook backend denied one or more images: bad";
    assert_eq!((code, message(&answer)), (403, why));
    drop(server);
    let other = json!({"containers": [{"name": "c", "image": "other"}]});
    assert_eq!(send(&api, pods, &[], &pod("d", other)).await?.0, 403, "who cannot be judged does not run");
    Ok(())
}

/// Upstream reserves these names for configurations from files, which it does not read by default; so it warns only.
#[tokio::test]
async fn a_name_reserved_for_files_is_warned_of() -> Result<()> {
    let api = start(&[], None).await?;
    let told = "299 - \"metadata.name: names ending with \\\".static.k8s.io\\\" are reserved for static manifest-based configurations and \
                cannot be managed via the API\"";
    for plural in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
        for (name, want) in [("a.static.k8s.io", &[told][..]), ("static.k8s.io", &[])] {
            let object = json!({"metadata": {"name": name}});
            let (code, answer, warnings) = send(&api, &format!("POST {path}"), &[], &object).await?;
            assert_eq!(
                (code, warnings.as_slice()),
                (201, want.iter().map(ToString::to_string).collect::<Vec<_>>().as_slice()),
                "{answer}"
            );
            let labels = json!({"metadata": {"labels": {"a": "b"}}});
            let (code, answer, warnings) = send(&api, &format!("PATCH {path}/{name}"), &[MERGE], &labels).await?;
            assert_eq!((code, warnings.len()), (200, want.len()), "{answer}");
        }
    }
    Ok(())
}

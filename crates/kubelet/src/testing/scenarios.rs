//! Whole lives of pods: start order, crash loop, adoption, probes, deletion, volumes.

use std::time::Duration;

use serde_json::{Value, json};

use super::runtime::Script;
use super::{TestNode, is_ready, phase, waiting};

fn running(pod: &Value) -> bool {
    phase(pod) == "Running" && is_ready(pod)
}

#[tokio::test(start_paused = true)]
async fn a_pod_starts_runs_and_is_deleted_without_a_trace() {
    let mut node = TestNode::new();
    node.start().await;
    node.create("web", json!({}));
    let pod = node.wait("web", "running", running).await;
    let status = &pod["status"];
    assert_eq!(status["podIP"], "10.244.0.1");
    assert_eq!(status["podIPs"], json!([{ "ip": "10.244.0.1" }]));
    assert_eq!(status["hostIP"], "192.168.0.1");
    assert_eq!(status["observedGeneration"], 1);
    let container = &status["containerStatuses"][0];
    assert_eq!(container["containerID"], "fake://container2");
    assert_eq!((&container["ready"], &container["started"]), (&json!(true), &json!(true)));
    let types: Vec<_> = status["conditions"].as_array().unwrap().iter().map(|c| c["type"].as_str().unwrap()).collect();
    for wanted in ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        assert!(types.contains(&wanted), "{wanted}");
    }
    node.delete("web", 30);
    node.wait_gone("web").await;
    assert!(node.runtime.is_empty());
    assert_eq!(node.runtime.calls(), ["sandbox web", "create c 0", "start c", "stop c 30", "remove sandbox"]);
    assert!(!node.folder.path().join("kubelet/pods/uid-web").exists());
    assert!(!node.folder.path().join("logs/default_web_uid-web").exists());
    let events = node.api.events();
    for wanted in ["Created: Container created", "Started: Container started", "Killing: Stopping container c"] {
        assert!(events.iter().any(|event| event == wanted), "{wanted} in {events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn init_containers_run_in_order_and_sidecars_stay() {
    let mut node = TestNode::new();
    node.runtime.script("init:1", Script { exits: Some((Duration::from_secs(5), 0)), ..Default::default() });
    node.start().await;
    node.create(
        "web",
        json!({
            "initContainers": [
                { "name": "first", "image": "init:1" },
                { "name": "side", "image": "app:1", "restartPolicy": "Always" },
                { "name": "last", "image": "init:1" },
            ],
            "containers": [{ "name": "main", "image": "app:1" }],
        }),
    );
    let pod = node
        .wait("web", "waiting for init", |pod| {
            pod["status"]["initContainerStatuses"][0]["state"]["running"].is_object()
        })
        .await;
    assert_eq!((phase(&pod), waiting(&pod)), ("Pending", "PodInitializing"));
    node.wait("web", "running", running).await;
    let starts: Vec<_> = node.runtime.calls().into_iter().filter(|call| call.starts_with("start")).collect();
    assert_eq!(starts, ["start first", "start side", "start last", "start main"]);
    node.delete("web", 30);
    node.wait_gone("web").await;
    let stops: Vec<_> = node.runtime.calls().into_iter().filter(|call| call.starts_with("stop")).collect();
    assert_eq!(stops.len(), 2);
    assert!(stops[0].starts_with("stop main") && stops[1].starts_with("stop side"), "{stops:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failing_init_container_fails_a_pod_that_never_restarts() {
    let mut node = TestNode::new();
    node.runtime.script("init:1", Script { exits: Some((Duration::from_secs(1), 3)), ..Default::default() });
    node.start().await;
    node.create("job", json!({ "restartPolicy": "Never", "initContainers": [{ "name": "i", "image": "init:1" }] }));
    let pod = node.wait("job", "failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    assert!(!node.runtime.calls().contains(&"start c".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_crashing_container_backs_off_ten_seconds_then_twice_as_long() {
    let mut node = TestNode::new();
    node.runtime.script("app:1", Script { exits: Some((Duration::from_secs(1), 1)), ..Default::default() });
    node.start().await;
    let begun = tokio::time::Instant::now();
    node.create("web", json!({}));
    let restarted = |count: i64| {
        move |pod: &Value| {
            let status = &pod["status"]["containerStatuses"][0];
            status["restartCount"] == count && status["state"]["running"].is_object()
        }
    };
    node.wait("web", "restarted at once", restarted(1)).await;
    assert_eq!(begun.elapsed().as_secs(), 1);
    let pod = node.wait("web", "backing off", |pod| waiting(pod) == "CrashLoopBackOff").await;
    let container = &pod["status"]["containerStatuses"][0];
    assert_eq!(container["lastState"]["terminated"]["exitCode"], 1);
    assert_eq!(
        container["state"]["waiting"]["message"],
        "back-off 10s restarting failed container=c pod=web_default(uid-web)"
    );
    assert_eq!(phase(&pod), "Running");
    node.wait("web", "second restart", restarted(2)).await;
    assert_eq!(begun.elapsed().as_secs(), 1 + 1 + 10);
    node.wait("web", "third restart", restarted(3)).await;
    assert_eq!(begun.elapsed().as_secs(), 12 + 1 + 20);
    node.wait("web", "fourth restart", restarted(4)).await;
    assert!(
        node.api
            .events()
            .iter()
            .any(|event| event == "BackOff: Back-off restarting failed container c in pod web_default(uid-web)")
    );
    let state = |call: &str| node.runtime.calls().iter().filter(|made| made.starts_with(call)).count();
    assert_eq!(state("sandbox"), 1, "the sandbox stays");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_once_succeeds_or_fails() {
    let mut node = TestNode::new();
    node.runtime.script("good:1", Script { exits: Some((Duration::from_secs(2), 0)), ..Default::default() });
    node.runtime.script("bad:1", Script { exits: Some((Duration::from_secs(2), 7)), ..Default::default() });
    node.start().await;
    for (name, image, want) in [("good", "good:1", "Succeeded"), ("bad", "bad:1", "Failed")] {
        node.create(name, json!({ "restartPolicy": "Never", "containers": [{ "name": "c", "image": image }] }));
        let pod = node.wait(name, want, |pod| phase(pod) == want).await;
        assert!(!is_ready(&pod));
        assert!(pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"].is_string());
    }
    node.delete("good", 30);
    node.wait_gone("good").await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_kubelet_adopts_what_runs() {
    let mut node = TestNode::new();
    node.start().await;
    for name in ["a", "b"] {
        node.create(name, json!({ "containers": [{ "name": name, "image": "app:1", "readinessProbe": { "exec": { "command": ["x"] } } }] }));
        node.wait(name, "running", running).await;
    }
    node.runtime.kill("a");
    node.wait("a", "restarted", |pod| pod["status"]["containerStatuses"][0]["restartCount"] == 1 && running(pod)).await;
    let before: Vec<_> = node.runtime.calls().into_iter().filter(|call| !call.starts_with("exec")).collect();
    node.api.remove("/api/v1/namespaces/default/pods/b");
    node.start().await;
    let gone = async {
        while node.runtime.running() != ["a"] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("the orphan is stopped");
    let pod = node.wait("a", "still running", running).await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 1);
    let after: Vec<_> = node.runtime.calls().into_iter().filter(|call| !call.starts_with("exec")).collect();
    let new: Vec<_> = after[before.len()..].iter().filter(|call| !call.starts_with("remove")).collect();
    assert_eq!(new, ["stop b 30"], "nothing is started twice, and only the orphan is stopped");
    node.runtime.kill("a");
    node.wait("a", "counts on", |pod| pod["status"]["containerStatuses"][0]["restartCount"] == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_image_is_told_and_backed_off() {
    let mut node = TestNode::new();
    node.runtime.lose_image("none:1");
    node.start().await;
    node.create("web", json!({ "containers": [{ "name": "c", "image": "none:1" }] }));
    let pod = node.wait("web", "failing", |pod| waiting(pod) == "ErrImagePull").await;
    assert_eq!(phase(&pod), "Pending");
    let message = |pod: &Value| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(message(&pod), "rpc error: code = NotFound desc = none:1: not found");
    let pod = node.wait("web", "backing off", |pod| waiting(pod) == "ImagePullBackOff").await;
    assert_eq!(
        message(&pod),
        "Back-off pulling image \"none:1\": ErrImagePull: rpc error: code = NotFound desc = none:1: not found"
    );
    node.runtime.find_image("none:1");
    node.wait("web", "running", running).await;
    let events = node.api.events();
    for wanted in [
        "Pulling: Pulling image \"none:1\"",
        "Failed: Error: ErrImagePull",
        "BackOff: Back-off pulling image \"none:1\"",
    ] {
        assert!(events.iter().any(|event| event == wanted), "{wanted} in {events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn probes_decide_readiness_and_life() {
    let mut node = TestNode::new();
    node.runtime.script("late:1", Script { execs: vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0], ..Default::default() });
    node.runtime.script("sick:1", Script { execs: vec![0, 1], ..Default::default() });
    node.start().await;
    let probe =
        |period: i32| json!({ "exec": { "command": ["check"] }, "periodSeconds": period, "failureThreshold": 2 });
    node.create("late", json!({ "containers": [{ "name": "c", "image": "late:1", "readinessProbe": probe(5) }] }));
    let pod = node.wait("late", "running but not ready", |pod| phase(pod) == "Running").await;
    assert!(!is_ready(&pod));
    node.wait("late", "ready", is_ready).await;
    assert!(node.api.events().iter().any(|event| event.starts_with("Unhealthy: Readiness probe failed")));

    node.create("sick", json!({ "containers": [{ "name": "c", "image": "sick:1", "livenessProbe": probe(5) }] }));
    let begun = tokio::time::Instant::now();
    node.wait("sick", "restarted", |pod| pod["status"]["containerStatuses"][0]["restartCount"] == 1).await;
    assert_eq!(begun.elapsed().as_secs(), 10, "one success, then two failures five seconds apart");
    let events = node.api.events();
    assert!(
        events.iter().any(|event| event == "Killing: Container c failed liveness probe, will be restarted"),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_changed_image_replaces_that_container_only() {
    let mut node = TestNode::new();
    node.start().await;
    node.create("web", json!({ "containers": [{ "name": "a", "image": "app:1" }, { "name": "b", "image": "app:1" }] }));
    node.wait("web", "running", running).await;
    node.api.change("/api/v1/namespaces/default/pods/web", |pod| {
        pod["spec"]["containers"][0]["image"] = json!("app:2");
        pod["metadata"]["generation"] = json!(2);
    });
    let pod = node
        .wait("web", "replaced", |pod| running(pod) && pod["status"]["containerStatuses"][0]["image"] == "app:2")
        .await;
    assert_eq!(pod["status"]["containerStatuses"][1]["restartCount"], 0);
    assert_eq!(pod["status"]["observedGeneration"], 2);
    assert!(
        node.api.events().iter().any(|event| event == "Killing: Container a definition changed, will be restarted")
    );
}

#[tokio::test(start_paused = true)]
async fn a_stubborn_container_is_given_its_grace_and_a_shorter_one_wins() {
    let mut node = TestNode::new();
    node.runtime.script("app:1", Script { stop_takes: Duration::from_secs(1000), ..Default::default() });
    node.start().await;
    for (name, first, second, want) in [("whole", 30, None, 30), ("cut", 600, Some(5), 15)] {
        node.create(name, json!({ "terminationGracePeriodSeconds": first }));
        node.wait(name, "running", running).await;
        let begun = tokio::time::Instant::now();
        node.delete(name, first);
        if let Some(second) = second {
            tokio::time::sleep(Duration::from_secs(10)).await;
            node.delete(name, second);
        }
        node.wait_gone(name).await;
        assert_eq!(begun.elapsed().as_secs(), want, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_and_environment_come_from_objects_and_follow_them() {
    let mut node = TestNode::new();
    node.start().await;
    let mounts = json!([{ "name": "config", "mountPath": "/etc/config" }]);
    let env = json!([
        { "name": "MODE", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "mode" } } },
        { "name": "GREETING", "value": "$(MODE)-$(POD)" },
    ]);
    let spec = json!({
        "containers": [{ "name": "c", "image": "app:1", "env": env, "volumeMounts": mounts }],
        "volumes": [{ "name": "config", "configMap": { "name": "settings" } }],
    });
    node.create("web", spec);
    let told = async {
        while !node.api.events().iter().any(|event| event.starts_with("FailedMount")) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("an event");
    let want = "FailedMount: MountVolume.SetUp failed for volume \"config\" : configmap \"settings\" not found";
    assert!(node.api.events().iter().any(|event| event == want), "{:?}", node.api.events());
    let settings =
        |mode: &str| json!({ "metadata": { "name": "settings", "namespace": "default" }, "data": { "mode": mode } });
    node.api.put("/api/v1/configmaps", "default", settings("fast"));
    node.wait("web", "running", running).await;
    let file = node.folder.path().join("kubelet/pods/uid-web/volumes/kubernetes.io~configmap/config/mode");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "fast");
    node.api.put("/api/v1/configmaps", "default", settings("slow"));
    let follow = async {
        while std::fs::read_to_string(&file).unwrap() != "slow" {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), follow).await.expect("the file follows the object");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_fails_and_what_is_unsupported_waits() {
    let mut node = TestNode::new();
    node.start().await;
    let big = json!({ "containers": [{ "name": "c", "image": "app:1", "resources": { "requests": { "cpu": "5" } } }] });
    node.create("big", big);
    let pod = node.wait("big", "failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(pod["status"]["reason"], "OutOfcpu");
    assert_eq!(
        pod["status"]["message"],
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 5000, used: 0, capacity: 4000"
    );
    node.create("claim", json!({ "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "x" } }] }));
    // CVE-2024-10220, CVE-2025-1767: hooks in a repository ran on the node, and its own repositories were read.
    node.create("git", json!({ "volumes": [{ "name": "data", "gitRepo": { "repository": "/srv/secret.git" } }] }));
    for (pod, kind) in [("claim", "persistentVolumeClaim"), ("git", "gitRepo")] {
        let want = format!("volume type {kind} is not supported by this kubelet");
        let reported = async {
            while !node.api.events().iter().any(|event| event.ends_with(&want)) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), reported).await.expect("an event");
        node.delete(pod, 0);
        node.wait_gone(pod).await;
    }
    assert!(node.runtime.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_runtime_without_events_is_listed() {
    let mut node = TestNode::new();
    node.runtime.without_events();
    node.start().await;
    node.create("web", json!({}));
    node.wait("web", "running", running).await;
    node.runtime.kill("c");
    node.wait("web", "restarted", |pod| pod["status"]["containerStatuses"][0]["restartCount"] == 1 && running(pod))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_pod() {
    let mut node = TestNode::new();
    node.start().await;
    node.create("job", json!({ "activeDeadlineSeconds": 20 }));
    node.wait("job", "running", running).await;
    let pod = node.wait("job", "failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded");
    assert!(node.runtime.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_while_it_waits_for_its_image_ends_at_once_and_failed() {
    let mut node = TestNode::new();
    node.runtime.lose_image("none:1");
    node.start().await;
    let spec = json!({ "containers": [{ "name": "c", "image": "none:1" }] });
    node.create("web", spec);
    node.wait("web", "failing", |pod| waiting(pod) == "ErrImagePull").await;
    let seen = node.api.follow("/api/v1/namespaces/default/pods/web");
    node.delete("web", 30);
    node.wait_gone("web").await;
    let last = seen.lock().last().cloned().unwrap();
    assert_eq!(phase(&last), "Failed");
    assert_eq!(last["status"]["containerStatuses"][0]["state"]["terminated"]["reason"], "ContainerStatusUnknown");
    assert!(node.runtime.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_runs_is_mirrored_and_goes_with_its_file() {
    let mut node = TestNode::new();
    let folder = node.folder.path().join("manifests");
    std::fs::create_dir_all(&folder).unwrap();
    let manifest =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: own}\nspec: {containers: [{name: c, image: \"app:1\"}]}\n";
    std::fs::write(folder.join("own.yaml"), manifest).unwrap();
    node.start().await;
    let mirror = node.wait("own-node-1", "running", running).await;
    assert!(mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string());
    node.api.remove("/api/v1/namespaces/default/pods/own-node-1");
    node.wait("own-node-1", "mirrored again", |pod| pod.is_object()).await;
    assert_eq!(node.runtime.running(), ["c"], "deleting a mirror does not touch the pod");
    std::fs::remove_file(folder.join("own.yaml")).unwrap();
    node.wait_gone("own-node-1").await;
    let gone = async {
        while !node.runtime.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("the pod is gone");
}

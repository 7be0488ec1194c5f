//! Each rule of the Pod Security Standards, broken once.

use serde_json::json;

use super::super::policy::LATEST;
use super::*;

#[track_caller]
fn check_at(level: Level, version: Version, pod: Value, want: &str) {
    let empty = Object::new();
    let metadata = pod.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    let spec = pod.get("spec").and_then(Value::as_object).unwrap_or(&empty);
    assert_eq!(told(&evaluate(LevelVersion { level, version }, metadata, spec)), want);
}

#[track_caller]
fn baseline(spec: Value, want: &str) {
    check_at(Level::Baseline, LATEST, json!({"spec": spec}), want);
}

fn one(context: Value) -> Value {
    json!({"containers": [{"name": "a", "securityContext": context}]})
}

#[test]
fn baseline_forbids_what_breaks_out() {
    baseline(one(json!({})), "");
    baseline(
        one(json!({"privileged": true})),
        r#"privileged (container "a" must not set securityContext.privileged=true)"#,
    );
    baseline(json!({"hostNetwork": true, "hostPID": true}), "host namespaces (hostNetwork=true, hostPID=true)");
    baseline(
        json!({"volumes": [{"name": "x", "hostPath": {}}, {"name": "y", "hostPath": {}}]}),
        r#"hostPath volumes (volumes "x", "y")"#,
    );
    baseline(
        one(json!({"capabilities": {"add": ["NET_ADMIN", "CHOWN"]}})),
        r#"non-default capabilities (container "a" must not include "NET_ADMIN" in securityContext.capabilities.add)"#,
    );
    baseline(
        json!({"containers": [{"name": "a", "ports": [{"hostPort": 80}, {"hostPort": 443}]}, {"name": "b", "ports": [{"hostPort": 80}]}]}),
        r#"hostPort (containers "a", "b" use hostPorts 443, 80)"#,
    );
    baseline(
        json!({"containers": [{"name": "a", "livenessProbe": {"httpGet": {"host": "h"}}}]}),
        r#"probe or lifecycle host (container "a" uses probe or lifecycle host "h")"#,
    );
    baseline(
        one(json!({"procMount": "Unmasked"})),
        r#"procMount (container "a" must not set securityContext.procMount to "Unmasked")"#,
    );
    baseline(
        json!({"securityContext": {"seLinuxOptions": {"type": "x", "user": "u"}}}),
        r#"seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type "x"; user may not be set)"#,
    );
    baseline(
        json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}, "containers": [{"name": "a", "securityContext": {"seccompProfile": {"type": "Unconfined"}}}]}),
        r#"seccompProfile (pod and container "a" must not set securityContext.seccompProfile.type to "Unconfined")"#,
    );
    baseline(
        json!({"securityContext": {"sysctls": [{"name": "a.b"}, {"name": "net.ipv4.tcp_rmem"}]}}),
        "forbidden sysctls (a.b)",
    );
    baseline(
        json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}),
        "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
    );
    let annotated =
        json!({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/a": "unconfined"}}});
    let told = r#"forbidden AppArmor profile (annotation must not set AppArmor profile type to "container.apparmor.security.beta.kubernetes.io/a="unconfined"")"#;
    check_at(Level::Baseline, LATEST, annotated, told);
}

#[test]
fn restricted_asks_for_what_is_best() {
    let bare = r#"allowPrivilegeEscalation != false (container "a" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "a" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "a" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container "a" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#;
    check_at(Level::Restricted, LATEST, json!({"spec": {"containers": [{"name": "a"}]}}), bare);
    let good = json!({
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "a", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}}],
    });
    check_at(Level::Restricted, LATEST, json!({"spec": good}), "");
    let mut root = good.clone();
    root["securityContext"]["runAsUser"] = 0.into();
    root["volumes"] = json!([{"name": "v", "nfs": {}}]);
    let told = r#"restricted volume types (volume "v" uses restricted volume type "nfs"), runAsUser=0 (pod must not set runAsUser=0)"#;
    check_at(Level::Restricted, LATEST, json!({"spec": root}), told);
    // A user namespace makes root harmless, since 1.35.
    let mut inner = good;
    inner["securityContext"]["runAsUser"] = 0.into();
    inner["hostUsers"] = false.into();
    check_at(Level::Restricted, LATEST, json!({"spec": inner}), "");
    check_at(Level::Restricted, Version(34), json!({"spec": inner}), "runAsUser=0 (pod must not set runAsUser=0)");
}

#[test]
fn older_versions_are_as_they_were() {
    let sysctl = json!({"spec": {"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_fin_timeout"}]}}});
    check_at(Level::Baseline, Version(28), sysctl.clone(), "forbidden sysctls (net.ipv4.tcp_fin_timeout)");
    check_at(Level::Baseline, Version(29), sysctl, "");
    let annotated = json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}});
    let told = r#"seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod="unconfined")"#;
    check_at(Level::Baseline, Version(18), annotated.clone(), told);
    check_at(Level::Baseline, Version(19), annotated, "");
    let windows = json!({"spec": {"os": {"name": "windows"}, "securityContext": {"runAsNonRoot": true}, "containers": [{"name": "a"}]}});
    check_at(Level::Restricted, Version(25), windows, "");
    check_at(Level::Privileged, LATEST, json!({"spec": {"hostPID": true}}), "");
}

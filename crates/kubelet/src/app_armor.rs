//! AppArmor profiles: which one a container asks for, and whether this node can enforce any.

use cri::v1::SecurityProfile;
use cri::v1::security_profile::ProfileType;
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod};

use crate::spec;

/// The reason of a pod whose profile cannot be enforced.
pub(crate) const NOT_ADMITTED: &str = "AppArmor";

const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const UNCONFINED: &str = "Unconfined";
const ENABLED: &str = "/sys/module/apparmor/parameters/enabled";

/// Whether the kernel of this node enforces AppArmor profiles.
pub(crate) fn is_enabled() -> bool {
    std::fs::read_to_string(ENABLED).is_ok_and(|text| text.starts_with('Y'))
}

/// Refuses a pod that asks for a profile which this node, or nobody, could enforce.
pub(crate) fn check(pod: &Pod, is_enabled: bool) -> Result<(), String> {
    let containers = spec::all_containers(pod);
    let asked: Vec<AppArmorProfile> = containers.iter().filter_map(|container| profile(pod, container)).collect();
    if asked.iter().all(|profile| profile.type_ == UNCONFINED) {
        return Ok(());
    }
    if !is_enabled {
        return Err("Cannot enforce AppArmor: AppArmor is not enabled on the host".to_owned());
    }
    let is_nameless = |profile: &AppArmorProfile| {
        profile.type_ == "Localhost" && profile.localhost_profile.as_deref().is_none_or(|name| name.trim().is_empty())
    };
    match asked.iter().find(|profile| is_nameless(profile)) {
        Some(profile) => {
            let name = profile.localhost_profile.as_deref().unwrap_or_default();
            Err(format!("Cannot enforce AppArmor: invalid empty AppArmor profile name: {name:?}"))
        }
        None => Ok(()),
    }
}

/// The container's field, else its annotation (static pods may have only that), else the pod's field.
fn profile(pod: &Pod, container: &Container) -> Option<AppArmorProfile> {
    let own = container.security_context.as_ref().and_then(|context| context.app_armor_profile.clone());
    let pod_wide = || spec::spec(pod).security_context.as_ref()?.app_armor_profile.clone();
    own.or_else(|| annotated(pod, &container.name)).or_else(pod_wide)
}

fn annotated(pod: &Pod, container: &str) -> Option<AppArmorProfile> {
    let value = pod.metadata.annotations.as_ref()?.get(&format!("{ANNOTATION}{container}"))?;
    let of = |type_: &str, localhost_profile| AppArmorProfile { type_: type_.to_owned(), localhost_profile };
    match value.as_str() {
        "runtime/default" => Some(of("RuntimeDefault", None)),
        "unconfined" => Some(of(UNCONFINED, None)),
        other => other.strip_prefix("localhost/").map(|name| of("Localhost", Some(name.to_owned()))),
    }
}

/// The profile for the runtime to enforce.
pub(crate) fn of_container(pod: &Pod, container: &Container) -> Option<SecurityProfile> {
    let profile = profile(pod, container)?;
    let kind = match profile.type_.as_str() {
        "RuntimeDefault" => ProfileType::RuntimeDefault,
        "Localhost" => ProfileType::Localhost,
        _ => ProfileType::Unconfined,
    };
    Some(SecurityProfile { profile_type: kind as i32, localhost_ref: profile.localhost_profile.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(pod: Value, container: Value, annotation: Option<&str>) -> Pod {
        let annotations: std::collections::BTreeMap<_, _> =
            annotation.map(|value| (format!("{ANNOTATION}c"), value.to_owned())).into_iter().collect();
        serde_json::from_value(json!({
            "metadata": { "annotations": annotations },
            "spec": { "securityContext": pod, "containers": [{ "name": "c", "securityContext": container }] },
        }))
        .expect("a pod")
    }

    fn asks(kind: &str) -> Value {
        json!({ "appArmorProfile": { "type": kind, "localhostProfile": (kind == "Localhost").then_some("mine") } })
    }

    #[test]
    fn a_pod_that_asks_for_a_profile_is_refused_where_there_is_no_app_armor() {
        let refusal = Some("Cannot enforce AppArmor: AppArmor is not enabled on the host".to_owned());
        for (pod, want) in [
            (pod(json!({}), json!({}), None), None),
            (pod(asks("Unconfined"), json!({}), None), None),
            (pod(asks("RuntimeDefault"), json!({}), None), refusal.clone()),
            (pod(json!({}), asks("Localhost"), None), refusal.clone()),
            (pod(json!({}), json!({}), Some("localhost/mine")), refusal),
            (pod(json!({}), json!({}), Some("unconfined")), None),
        ] {
            assert_eq!(check(&pod, false).err(), want, "{pod:?}");
            assert_eq!(check(&pod, true), Ok(()));
        }
        assert_eq!(
            check(&pod(json!({}), json!({}), Some("localhost/")), true).err().as_deref(),
            Some("Cannot enforce AppArmor: invalid empty AppArmor profile name: \"\"")
        );
    }

    #[test]
    fn the_container_overrides_the_annotation_and_that_the_pod() {
        let given = |pod: &Pod| {
            let container = spec::containers(pod).first().expect("a container");
            of_container(pod, container).map(|profile| (profile.profile_type(), profile.localhost_ref))
        };
        assert_eq!(given(&pod(json!({}), json!({}), None)), None);
        let own = pod(asks("RuntimeDefault"), asks("Localhost"), Some("unconfined"));
        assert_eq!(given(&own), Some((ProfileType::Localhost, "mine".to_owned())));
        let annotated = pod(asks("RuntimeDefault"), json!({}), Some("unconfined"));
        assert_eq!(given(&annotated), Some((ProfileType::Unconfined, String::new())));
        let pod_wide = pod(asks("RuntimeDefault"), json!({}), None);
        assert_eq!(given(&pod_wide), Some((ProfileType::RuntimeDefault, String::new())));
    }
}

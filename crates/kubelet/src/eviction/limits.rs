//! Limits on local storage: `emptyDir.sizeLimit`, and `ephemeral-storage` of pods and containers. Pure.

use api::quantity::Quantity;
use disk_usage::Usage;
use k8s_openapi::api::core::v1::Pod;

use super::rank::PodUsage;
use crate::{resources, spec};

/// Whether the disk usage of a pod has to be known.
pub(crate) fn has_any(pod: &Pod) -> bool {
    pod_limit(pod).is_some() || empty_dirs(pod).next().is_some()
}

/// The emptyDirs on disk that have a limit.
fn empty_dirs(pod: &Pod) -> impl Iterator<Item = (&str, Quantity)> {
    spec::spec(pod).volumes.iter().flatten().filter_map(|volume| {
        let source = volume.empty_dir.as_ref()?;
        let limit = Quantity::parse(&source.size_limit.as_ref()?.0).ok()?;
        // The kernel limits what is in memory.
        let is_on_disk = source.medium.as_deref().unwrap_or_default().is_empty();
        (is_on_disk && limit.is_positive()).then_some((volume.name.as_str(), limit))
    })
}

fn pod_limit(pod: &Pod) -> Option<Quantity> {
    resources::pod_limit(pod, "ephemeral-storage")
}

fn exceeds(usage: Usage, limit: Quantity) -> bool {
    usage.is_hidden || i64::try_from(usage.bytes).unwrap_or(i64::MAX) > limit.value()
}

/// The message of the first limit that a pod exceeds, in upstream's order.
pub(crate) fn exceeded(pod: &Pod, usage: &PodUsage, has_image_fs: bool) -> Option<String> {
    for (name, limit) in empty_dirs(pod) {
        if usage.volumes.get(name).is_some_and(|used| exceeds(*used, limit)) {
            return Some(format!("Usage of EmptyDir volume \"{name}\" exceeds the limit \"{limit}\". "));
        }
    }
    if let Some(limit) = pod_limit(pod)
        && exceeds(usage.disk(true, true), limit)
    {
        return Some(format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "));
    }
    spec::containers(pod).iter().find_map(|container| {
        let limit = resources::limit(container, "ephemeral-storage").filter(|limit| !limit.is_zero())?;
        let used = usage.containers.get(&container.name)?;
        let mut disk = used.logs;
        if !has_image_fs {
            disk += used.root;
        }
        let name = &container.name;
        exceeds(disk, limit)
            .then(|| format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". "))
    })
}

/// The share of a limit that is used, for the one that is closest to being exceeded.
pub(crate) fn fullness(pod: &Pod, usage: &PodUsage) -> f64 {
    let share = |used: u64, limit: Quantity| used as f64 / limit.approximate().max(1.0);
    let volumes = empty_dirs(pod)
        .map(|(name, limit)| share(usage.volumes.get(name).map_or(0, |used| used.bytes), limit))
        .fold(0.0, f64::max);
    pod_limit(pod).map_or(volumes, |limit| volumes.max(share(usage.disk(true, true).bytes, limit)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::rank::ContainerUsage;
    use super::*;

    fn pod(containers: Value, volumes: Value) -> Pod {
        serde_json::from_value(json!({ "metadata": {}, "spec": { "containers": containers, "volumes": volumes } }))
            .expect("a pod")
    }

    fn disk(bytes: u64) -> Usage {
        Usage { bytes, ..Usage::default() }
    }

    fn usage(root: u64, logs: u64, volume: u64) -> PodUsage {
        let container = ContainerUsage { root: disk(root), logs: disk(logs), ..ContainerUsage::default() };
        PodUsage {
            containers: [("c".to_owned(), container)].into(),
            volumes: [("v".to_owned(), disk(volume))].into(),
            ..PodUsage::default()
        }
    }

    #[test]
    fn each_limit_has_its_message() {
        let limited = |name: &str, limit: &str| json!({ "name": name, "resources": { "limits": { "ephemeral-storage": limit } } });
        let cache = pod(json!([{ "name": "c" }]), json!([{ "name": "v", "emptyDir": { "sizeLimit": "1Ki" } }]));
        assert!(has_any(&cache));
        assert_eq!(exceeded(&cache, &usage(9999, 9999, 1024), false), None);
        let hidden = PodUsage {
            volumes: [("v".to_owned(), Usage { is_hidden: true, ..Usage::default() })].into(),
            ..PodUsage::default()
        };
        for used in [usage(0, 0, 1025), hidden] {
            let message = exceeded(&cache, &used, false);
            assert_eq!(message.as_deref(), Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". "));
        }
        let two = pod(json!([limited("c", "1Ki"), limited("d", "1Ki")]), json!([]));
        let message = exceeded(&two, &usage(500, 600, 1000), false);
        let want = "Pod ephemeral local storage usage exceeds the total limit of containers 2Ki. ";
        assert_eq!(message.as_deref(), Some(want));
        let message = exceeded(&two, &usage(500, 600, 0), false);
        assert_eq!(message.as_deref(), Some("Container c exceeded its local ephemeral storage limit \"1Ki\". "));
        assert_eq!(exceeded(&two, &usage(500, 600, 0), true), None);
        assert!((fullness(&two, &usage(512, 512, 0)) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn pods_without_limits_are_not_measured() {
        assert!(!has_any(&pod(json!([{ "name": "c" }]), json!([{ "name": "v", "emptyDir": {} }]))));
        let memory = json!([{ "name": "v", "emptyDir": { "medium": "Memory", "sizeLimit": "1Ki" } }]);
        assert!(!has_any(&pod(json!([{ "name": "c" }]), memory)));
    }
}

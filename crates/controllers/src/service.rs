//! Facts about Services that the endpoint controllers share: which pods they select, and at which ports.

use std::sync::Arc;

use api::selector::Selector;
use client::{Change, Informer, Key, WorkQueue};
use k8s_openapi::api::core::v1::{Container, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::{meta, pod};

pub(crate) const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// `None` for a Service whose endpoints someone else writes.
pub(crate) fn selector(service: &Service) -> Option<Selector> {
    let spec = service.spec.as_ref().filter(|spec| spec.type_.as_deref() != Some("ExternalName"))?;
    spec.selector.as_ref().filter(|labels| !labels.is_empty()).map(Selector::from_labels)
}

pub(crate) fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None")
}

pub(crate) fn publishes_not_ready(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses) == Some(true)
}

pub(crate) fn ports(service: &Service) -> impl Iterator<Item = &ServicePort> {
    service.spec.iter().flat_map(|spec| spec.ports.iter().flatten())
}

pub(crate) fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

/// The pod's port behind a Service port; a named one is looked up in the containers, sidecars included.
pub(crate) fn find_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    let name = match &port.target_port {
        None => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let spec = pod.spec.as_ref()?;
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    let matches = |known: &&k8s_openapi::api::core::v1::ContainerPort| {
        known.name.as_ref() == Some(name) && known.protocol.as_deref().unwrap_or("TCP") == protocol(port)
    };
    ports.filter(matches).map(|found| found.container_port).next()
}

pub(crate) fn addresses(pod: &Pod) -> impl Iterator<Item = &str> {
    pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten()).map(|ip| ip.ip.as_str())
}

/// Whether an address is of a family.
pub(crate) fn is_of(address: &str, family: &str) -> bool {
    api::addresses::lenient(address).is_some_and(|address| api::addresses::family(address) == family)
}

pub(crate) fn can_be_endpoint(pod: &Pod) -> bool {
    !pod::is_finished(pod) && addresses(pod).next().is_some()
}

/// The name under which DNS serves this pod of a headless Service.
pub(crate) fn hostname<'a>(pod: &'a Pod, service: &Service) -> Option<&'a str> {
    let spec = pod.spec.as_ref()?;
    let hostname = spec.hostname.as_deref().filter(|hostname| !hostname.is_empty())?;
    (spec.subdomain.as_deref() == Some(meta::name(service))).then_some(hostname)
}

/// Wakes every Service that a pod's change can matter to.
pub(crate) fn wake_on_pods(pods: &Informer<Pod>, services: &Informer<Service>, queue: &WorkQueue) {
    let (services, queue) = (services.clone(), queue.clone());
    pods.subscribe(move |change| {
        let new = change.object();
        let old = match change {
            Change::Updated { old, .. } if same_endpoint(old, new) => return,
            Change::Updated { old, .. } => Some(old),
            _ => None,
        };
        for service in services.in_namespace(meta::namespace(&**new)) {
            let Some(selector) = selector(&service) else { continue };
            let selected = |pod: &Arc<Pod>| selector.matches(meta::labels(&**pod));
            if selected(new) || old.is_some_and(selected) {
                queue.add(Key::of(&*service));
            }
        }
    });
}

/// Nothing that an endpoint is made of differs.
fn same_endpoint(old: &Pod, new: &Pod) -> bool {
    let names = |pod: &Pod| pod.spec.as_ref().map(|spec| (spec.hostname.clone(), spec.subdomain.clone()));
    meta::uid(old) == meta::uid(new)
        && addresses(old).eq(addresses(new))
        && pod::is_ready(old) == pod::is_ready(new)
        && pod::is_finished(old) == pod::is_finished(new)
        && meta::is_deleting(old) == meta::is_deleting(new)
        && pod::node_name(old) == pod::node_name(new)
        && meta::labels(old) == meta::labels(new)
        && names(old) == names(new)
}

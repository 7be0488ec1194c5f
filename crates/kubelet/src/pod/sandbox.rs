//! The sandbox a pod asks the runtime for.

use std::collections::BTreeMap;

use cri::v1::{LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata, PortMapping, Protocol};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::labels;
use crate::context::Context;
use crate::dns::{self, ClusterDns, HostDns};
use crate::{resources, security, spec, sysctls};

pub(crate) fn config(context: &Context, pod: &Pod, attempt: u32) -> PodSandboxConfig {
    let cluster = ClusterDns { servers: &context.cluster_dns, domain: &context.cluster_domain };
    let host = HostDns::read(&context.resolv_conf);
    let hostname =
        if spec::is_host_network(pod) { String::new() } else { dns::kernel_host_name(pod, &context.cluster_domain) };
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: spec::name(pod).to_owned(),
            uid: spec::uid(pod).to_owned(),
            namespace: spec::namespace(pod).to_owned(),
            attempt,
        }),
        hostname,
        log_directory: context.pod_log_dir(pod).display().to_string(),
        dns_config: Some(dns::config(pod, &host, &cluster)),
        port_mappings: spec::containers(pod).iter().flat_map(port_mappings).collect(),
        labels: labels::pod_labels(pod),
        annotations: pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
        linux: Some(linux(context, pod)),
    }
}

fn linux(context: &Context, pod: &Pod) -> LinuxPodSandboxConfig {
    let limits = resources::of_pod(pod);
    let sysctls = spec::spec(pod).security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    let sysctls: BTreeMap<_, _> =
        sysctls.map(|sysctl| (sysctls::normalize(&sysctl.name), sysctl.value.clone())).collect();
    LinuxPodSandboxConfig {
        cgroup_parent: context.cgroups.pod_parent(pod),
        security_context: Some(security::of_sandbox(pod)),
        sysctls,
        overhead: Some(Default::default()),
        resources: Some(cri::v1::LinuxContainerResources {
            cpu_period: resources::CPU_PERIOD_US,
            cpu_quota: limits.cpu_quota.unwrap_or(0),
            cpu_shares: limits.cpu_shares,
            memory_limit_in_bytes: limits.memory.unwrap_or(0),
            ..Default::default()
        }),
    }
}

/// Only ports that are wanted on the host need the runtime's help.
fn port_mappings(container: &Container) -> Vec<PortMapping> {
    let one = |port: &k8s_openapi::api::core::v1::ContainerPort| PortMapping {
        protocol: match port.protocol.as_deref() {
            Some("UDP") => Protocol::Udp as i32,
            Some("SCTP") => Protocol::Sctp as i32,
            _ => Protocol::Tcp as i32,
        },
        container_port: port.container_port,
        host_port: port.host_port.unwrap_or(0),
        host_ip: port.host_ip.clone().unwrap_or_default(),
    };
    container.ports.iter().flatten().map(one).collect()
}

//! A pod's resolver configuration and the names it goes by: DNS policy, host name, `/etc/hosts`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use cri::v1::DnsConfig;
use k8s_openapi::api::core::v1::{HostAlias, Pod};

use crate::spec;

const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_HOST_NAME: usize = 63;

/// What the node resolves with.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HostDns {
    servers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
}

impl HostDns {
    pub(crate) fn read(path: &Path) -> Self {
        std::fs::read_to_string(path).map(|text| Self::parse(&text)).unwrap_or_default()
    }

    pub(crate) fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => found.servers.extend(words.next().map(str::to_owned)),
                Some("search") => {
                    let domains = words.filter(|word| *word != ".").map(|word| word.trim_end_matches('.').to_owned());
                    found.searches = domains.collect();
                }
                Some("options") => found.options.extend(words.map(str::to_owned)),
                _ => (),
            }
        }
        found
    }
}

pub(crate) struct ClusterDns<'a> {
    pub(crate) servers: &'a [IpAddr],
    pub(crate) domain: &'a str,
}

pub(crate) fn config(pod: &Pod, host: &HostDns, cluster: &ClusterDns<'_>) -> DnsConfig {
    let policy = spec::spec(pod).dns_policy.as_deref().unwrap_or("ClusterFirst");
    let from_cluster = match policy {
        "ClusterFirstWithHostNet" => true,
        "ClusterFirst" => !spec::is_host_network(pod),
        _ => false,
    };
    let mut config = if policy == "None" {
        DnsConfig::default()
    } else if from_cluster && !cluster.servers.is_empty() {
        let domain = cluster.domain;
        let mut searches =
            vec![format!("{}.svc.{domain}", spec::namespace(pod)), format!("svc.{domain}"), domain.to_owned()];
        searches.extend(host.searches.iter().cloned());
        DnsConfig {
            servers: cluster.servers.iter().map(IpAddr::to_string).collect(),
            searches,
            options: vec!["ndots:5".to_owned()],
        }
    } else {
        DnsConfig { servers: host.servers.clone(), searches: host.searches.clone(), options: host.options.clone() }
    };
    if let Some(own) = &spec::spec(pod).dns_config {
        config.servers.extend(own.nameservers.iter().flatten().cloned());
        config.searches.extend(own.searches.iter().flatten().cloned());
        let mut options: BTreeMap<String, Option<String>> = BTreeMap::new();
        for option in &config.options {
            let (name, value) =
                option.split_once(':').map_or((option.as_str(), None), |(n, v)| (n, Some(v.to_owned())));
            options.insert(name.to_owned(), value);
        }
        for option in own.options.iter().flatten() {
            options.insert(option.name.clone().unwrap_or_default(), option.value.clone());
        }
        let text = |(name, value): (String, Option<String>)| match value {
            Some(value) if !value.is_empty() => format!("{name}:{value}"),
            _ => name,
        };
        config.options = options.into_iter().map(text).collect();
    }
    unique(&mut config.servers, MAX_SERVERS);
    unique(&mut config.searches, MAX_SEARCHES);
    config
}

fn unique(list: &mut Vec<String>, at_most: usize) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|item| seen.insert(item.clone()));
    list.truncate(at_most);
}

/// The pod's host name, and its domain when it has a subdomain.
pub(crate) fn host_name(pod: &Pod, cluster_domain: &str) -> (String, Option<String>) {
    let pod_spec = spec::spec(pod);
    if let Some(name) = &pod_spec.hostname_override {
        return (cut(name), None);
    }
    let name = pod_spec.hostname.as_deref().filter(|name| !name.is_empty()).unwrap_or(spec::name(pod));
    let subdomain = pod_spec.subdomain.as_deref().filter(|name| !name.is_empty());
    (cut(name), subdomain.map(|subdomain| format!("{subdomain}.{}.svc.{cluster_domain}", spec::namespace(pod))))
}

/// What `hostname` prints inside the pod.
pub(crate) fn kernel_host_name(pod: &Pod, cluster_domain: &str) -> String {
    let (name, domain) = host_name(pod, cluster_domain);
    match domain {
        Some(domain) if spec::spec(pod).set_hostname_as_fqdn == Some(true) => format!("{name}.{domain}"),
        _ => name,
    }
}

fn cut(name: &str) -> String {
    name.chars().take(MAX_HOST_NAME).collect::<String>().trim_end_matches(['-', '.']).to_owned()
}

pub(crate) fn hosts(pod: &Pod, pod_ips: &[String], cluster_domain: &str) -> String {
    let (name, domain) = host_name(pod, cluster_domain);
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
    );
    for ip in pod_ips {
        text.push_str(&match &domain {
            Some(domain) => format!("{ip}\t{name}.{domain}\t{name}\n"),
            None => format!("{ip}\t{name}\n"),
        });
    }
    text.push_str(&aliases(spec::spec(pod).host_aliases.as_deref().unwrap_or_default()));
    text
}

/// Pods on the host's network see the host's file.
pub(crate) fn host_network_hosts(pod: &Pod, node_file: &str) -> String {
    let aliases = aliases(spec::spec(pod).host_aliases.as_deref().unwrap_or_default());
    format!("# Kubernetes-managed hosts file (host network).\n{node_file}{aliases}")
}

fn aliases(all: &[HostAlias]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n# Entries added by HostAliases.\n");
    for alias in all {
        text.push_str(&format!("{}\t{}\n", alias.ip, alias.hostnames.as_deref().unwrap_or_default().join("\t")));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({ "metadata": { "name": "web-0", "namespace": "n" }, "spec": spec }))
            .expect("a pod")
    }

    #[track_caller]
    fn check(spec: Value, want: &str) {
        let host = HostDns::parse("nameserver 1.1.1.1\n# nameserver 9.9.9.9\nsearch corp. .\noptions edns0\n");
        let servers = ["10.96.0.10".parse().expect("an address")];
        let cluster = ClusterDns { servers: &servers, domain: "cluster.local" };
        let config = config(&pod(spec), &host, &cluster);
        let got = [config.servers.join(","), config.searches.join(","), config.options.join(",")].join(" | ");
        assert_eq!(got, want);
    }

    #[test]
    fn policies() {
        let cluster = "10.96.0.10 | n.svc.cluster.local,svc.cluster.local,cluster.local,corp | ndots:5";
        let host = "1.1.1.1 | corp | edns0";
        check(json!({}), cluster);
        check(json!({ "dnsPolicy": "ClusterFirst", "hostNetwork": true }), host);
        check(json!({ "dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true }), cluster);
        check(json!({ "dnsPolicy": "Default" }), host);
        let own =
            json!({ "nameservers": ["8.8.8.8"], "searches": ["a"], "options": [{ "name": "ndots", "value": "2" }] });
        check(json!({ "dnsPolicy": "None", "dnsConfig": own }), "8.8.8.8 | a | ndots:2");
        check(
            json!({ "dnsConfig": own }),
            "10.96.0.10,8.8.8.8 | n.svc.cluster.local,svc.cluster.local,cluster.local,corp,a | ndots:2",
        );
    }

    #[test]
    fn host_names() {
        let name = |spec| host_name(&pod(spec), "cluster.local");
        assert_eq!(name(json!({})), ("web-0".into(), None));
        assert_eq!(
            name(json!({ "hostname": "h", "subdomain": "web" })),
            ("h".into(), Some("web.n.svc.cluster.local".into()))
        );
        let fqdn = pod(json!({ "subdomain": "web", "setHostnameAsFQDN": true }));
        assert_eq!(kernel_host_name(&fqdn, "cluster.local"), "web-0.web.n.svc.cluster.local");
    }

    #[test]
    fn hosts_file_ends_with_the_pod_and_its_aliases() {
        let aliases = json!([{ "ip": "1.2.3.4", "hostnames": ["a", "b"] }]);
        let text =
            hosts(&pod(json!({ "subdomain": "web", "hostAliases": aliases })), &["10.0.0.2".into()], "cluster.local");
        assert!(text.ends_with(
            "10.0.0.2\tweb-0.web.n.svc.cluster.local\tweb-0\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"
        ));
    }
}

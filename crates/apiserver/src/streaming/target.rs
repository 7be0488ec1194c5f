//! Where a streaming request goes, and how the one there is spoken to.

use std::net::IpAddr;

use api::{ApiError, GroupResource, Object, ObjectExt as _};
use serde_json::Value;

use crate::http::Query;
use crate::pipeline::Context;
use crate::server::ApiServer;

/// An address, and the path and query to ask for there.
pub(super) struct Target {
    pub(super) host: String,
    /// The address to connect to, where the host's addresses were checked: a second lookup could find others.
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) way: Way,
    pub(super) path_and_query: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Without TLS.
    Plain,
    /// A kubelet: it is shown who we are, and shows who it is, where there is an authority that says so.
    Kubelet,
    /// The same, but whoever asked does not want to know who it is.
    UnverifiedKubelet,
    /// Nobody vouches for what runs in a cluster, and it is none of its business who we are.
    Anybody,
}

/// What stock makes of an error that nobody gave a reason.
pub(super) fn unexplained(message: impl Into<String>) -> ApiError {
    ApiError::new(500, "", message)
}

/// `resource` is what is asked for by `name`; what is missing on the way there is told as if it were one.
pub(super) fn find(
    server: &ApiServer,
    (plural, resource): (&str, &str),
    key: &str,
    name: &str,
) -> Result<Object, ApiError> {
    let cache = server.registry.find("", "v1", plural).and_then(|served| served.cache.as_ref());
    let stored = cache.and_then(|cache| cache.get(key));
    Ok(stored.ok_or_else(|| ApiError::not_found(GroupResource { group: "", resource }, name))?.decode())
}

pub(super) fn find_pod(server: &ApiServer, namespace: &str, name: &str) -> Result<Object, ApiError> {
    find(server, ("pods", "pods"), &format!("{namespace}/{name}"), name)
}

/// The address of a node's kubelet.
pub(super) fn kubelet(server: &ApiServer, node: &str, resource: &str) -> Result<(String, u16), ApiError> {
    let object = find(server, ("nodes", resource), node, node)?;
    let addresses =
        object.at(&["status", "addresses"]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let addresses: Vec<&Object> = addresses.iter().filter_map(Value::as_object).collect();
    let of_type = |wanted: &String| {
        let address = addresses.iter().find(|address| address.text(&["type"]) == wanted)?;
        Some(address.text(&["address"]).to_owned())
    };
    let host = server.config.kubelet.preferred_address_types.iter().find_map(of_type).ok_or_else(|| {
        let known = addresses.iter().map(|known| format!("{{{} {}}}", known.text(&["type"]), known.text(&["address"])));
        let known = known.collect::<Vec<_>>().join(" ");
        unexplained(format!("no preferred addresses found; known addresses: [{known}]"))
    })?;
    let port = object.at(&["status", "daemonEndpoints", "kubeletEndpoint", "Port"]).and_then(Value::as_u64);
    Ok((host, port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0).unwrap_or(10250)))
}

/// The kubelet that runs a pod, for exec, attach and port-forward. `query` is what was asked for and admitted.
pub(super) fn of_action(server: &ApiServer, context: &Context, query: &Query) -> Result<Target, ApiError> {
    let (info, action) = (&context.info, context.info.subresource.as_str());
    let forwarded = if action == "portforward" { ports(query)? } else { Vec::new() };
    let pod = find_pod(server, &info.namespace, &info.name)?;
    let path_and_query = if action == "portforward" {
        let query = if forwarded.is_empty() { String::new() } else { format!("?port={}", forwarded.join("%2C")) };
        format!("/portForward/{}/{}{query}", info.namespace, info.name)
    } else {
        let container = container(&pod, query.get("container"))?;
        format!("/{action}/{}/{}/{container}{}", info.namespace, info.name, exec_query(query))
    };
    let node = pod.text(&["spec", "nodeName"]);
    if node.is_empty() {
        return Err(ApiError::bad_request(format!("pod {} does not have a host assigned", info.name)));
    }
    let (host, port) = kubelet(server, node, "pods")?;
    Ok(Target { host, address: None, port, way: Way::Kubelet, path_and_query })
}

fn ports(query: &Query) -> Result<Vec<String>, ApiError> {
    let each = query.all("ports").flat_map(|text| text.split(','));
    each.map(|text| match text.parse::<u16>() {
        Ok(port) => Ok(port.to_string()),
        Err(error) => {
            let is_large = matches!(error.kind(), std::num::IntErrorKind::PosOverflow);
            let why = if is_large { "value out of range" } else { "invalid syntax" };
            Err(ApiError::bad_request(format!("cannot convert to []int32: strconv.ParseUint: parsing {text:?}: {why}")))
        }
    })
    .collect()
}

/// The container a request is about; the only one where it names none.
pub(super) fn container(pod: &Object, asked: Option<&str>) -> Result<String, ApiError> {
    let names = |list: &str| -> Vec<String> {
        let containers = pod.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten();
        containers.filter_map(|c| Some(c.get("name")?.as_str()?.to_owned())).collect()
    };
    let main = names("containers");
    let all = [names("initContainers"), main.clone(), names("ephemeralContainers")].concat();
    match (asked, main.as_slice()) {
        (Some(asked), _) if all.iter().any(|name| name == asked) => Ok(asked.to_owned()),
        (Some(asked), _) => {
            Err(ApiError::bad_request(format!("container {asked} is not valid for pod {}", pod.name())))
        }
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(ApiError::bad_request(format!(
            "a container name must be specified for pod {}, choose one of: [{}]",
            pod.name(),
            all.join(" ")
        ))),
    }
}

/// The kubelet spells the flags differently.
fn exec_query(query: &Query) -> String {
    let mut pairs: Vec<String> = query.all("command").map(|word| format!("command={}", escape(word))).collect();
    for (name, kubelet_name) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if query.flag(name) {
            pairs.push(format!("{kubelet_name}=1"));
        }
    }
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

pub(super) fn escape(text: &str) -> String {
    escape_but(text, b"")
}

/// What is in a path, but for what separates its parts.
/// A path as Go writes it into a request line.
pub(crate) fn escape_path(path: &str) -> String {
    escape_but(path, b"/$&+,:;=@")
}

fn escape_but(text: &str, left: &[u8]) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
            plain if left.contains(&plain) => char::from(plain).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// An endpoint that is ready, of a service's port: by its number or name, or the only one.
pub(crate) fn service_endpoint(
    server: &ApiServer,
    namespace: &str,
    name: &str,
    port: Option<&str>,
) -> Option<(String, u16)> {
    let service = find(server, ("services", "services"), &format!("{namespace}/{name}"), name).ok()?;
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let ports: Vec<&Object> = ports.iter().filter_map(Value::as_object).collect();
    let wanted = match port {
        None | Some("") if ports.len() == 1 => ports.first(),
        None | Some("") => ports.iter().find(|p| p.text(&["name"]).is_empty()),
        Some(text) => ports
            .iter()
            .find(|p| p.text(&["name"]) == text || p.get("port").map(Value::to_string).as_deref() == Some(text)),
    };
    let port_name = wanted?.text(&["name"]);
    let slices = server.registry.find("discovery.k8s.io", "v1", "endpointslices")?.cache.as_ref()?.snapshot();
    for stored in slices.objects.values() {
        let of_service = stored.label("kubernetes.io/service-name") == Some(name);
        if stored.namespace() != namespace || !of_service {
            continue;
        }
        let slice = stored.decode();
        let list =
            |key: &str| slice.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
        let port = list("ports").find(|p| p.text(&["name"]) == port_name).and_then(|p| p.get("port")?.as_u64());
        let ready = list("endpoints").find(|e| e.at(&["conditions", "ready"]) != Some(&Value::Bool(false)));
        let address = ready.and_then(|e| e.get("addresses")?.get(0)?.as_str());
        if let (Some(port), Some(host)) = (port.and_then(|port| u16::try_from(port).ok()), address) {
            return Some((host.to_owned(), port));
        }
    }
    None
}

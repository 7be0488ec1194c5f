//! Where a streaming request goes.

use std::net::IpAddr;
use std::sync::Arc;

use api::{ApiError, GroupResource, Object, ObjectExt as _};
use serde_json::Value;

use crate::http::Query;
use crate::pipeline::Context;
use crate::server::ApiServer;

/// An address, and the path and query to ask for there.
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
    pub(super) path_and_query: String,
}

/// `query` is what was asked for and admitted.
pub(super) fn of(server: &Arc<ApiServer>, context: &Context, query: &Query) -> Result<Target, ApiError> {
    let target = find_target(server, context, query)?;
    // Whoever may write a pod's or endpoint's address must not reach this machine's own services through us.
    let inner = context.info.subresource == "proxy" && context.info.resource != "nodes";
    if inner && target.host.parse::<IpAddr>().is_ok_and(|address| !is_proxied(address)) {
        return Err(ApiError::bad_request("address not allowed"));
    }
    Ok(target)
}

fn is_proxied(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local)
}

fn find_target(server: &Arc<ApiServer>, context: &Context, query: &Query) -> Result<Target, ApiError> {
    let info = &context.info;
    match (info.resource.as_str(), info.subresource.as_str()) {
        ("pods", "proxy") => pod_proxy(server, context),
        ("services", "proxy") => service_proxy(server, context),
        ("nodes", "proxy") => {
            let (name, _) = split_port(&info.name);
            let (host, port) = kubelet(server, name)?;
            Ok(Target { host, port, tls: true, path_and_query: rest_of(context) })
        }
        ("pods", action) => pod_action(server, context, query, action),
        _ => Err(ApiError::no_such_resource()),
    }
}

fn find(server: &ApiServer, plural: &str, key: &str, name: &str) -> Result<Object, ApiError> {
    let cache = server.registry.find("", "v1", plural).and_then(|served| served.cache.as_ref());
    let stored = cache.and_then(|cache| cache.get(key));
    Ok(stored.ok_or_else(|| ApiError::not_found(GroupResource { group: "", resource: plural }, name))?.decode())
}

/// The address of a node's kubelet.
fn kubelet(server: &ApiServer, node: &str) -> Result<(String, u16), ApiError> {
    let object = find(server, "nodes", node, node)?;
    let addresses =
        object.at(&["status", "addresses"]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let of_type = |wanted: &String| {
        let address =
            addresses.iter().filter_map(Value::as_object).find(|address| address.text(&["type"]) == wanted)?;
        Some(address.text(&["address"]).to_owned())
    };
    let host = server.config.kubelet.preferred_address_types.iter().find_map(of_type).ok_or_else(|| {
        let known: Vec<_> = addresses.iter().filter_map(|address| address.get("address")?.as_str()).collect();
        ApiError::internal(format!("no preferred addresses found; known addresses: {known:?}"))
    })?;
    let port = object.at(&["status", "daemonEndpoints", "kubeletEndpoint", "Port"]).and_then(Value::as_u64);
    Ok((host, port.and_then(|port| u16::try_from(port).ok()).unwrap_or(10250)))
}

fn pod_action(server: &ApiServer, context: &Context, query: &Query, action: &str) -> Result<Target, ApiError> {
    let info = &context.info;
    let pod = find(server, "pods", &format!("{}/{}", info.namespace, info.name), &info.name)?;
    let node = pod.text(&["spec", "nodeName"]);
    if node.is_empty() {
        return Err(ApiError::bad_request(format!("pod {} does not have a host assigned", info.name)));
    }
    let (host, port) = kubelet(server, node)?;
    let path_and_query = if action == "portforward" {
        let ports: Vec<String> = query.all("ports").map(|port| format!("port={port}")).collect();
        format!("/portForward/{}/{}?{}", info.namespace, info.name, ports.join("&"))
    } else {
        let container = container(&pod, query.get("container"))?;
        let place = format!("{}/{}/{container}", info.namespace, info.name);
        match action {
            "log" => format!("/containerLogs/{place}?{}", log_query(context)),
            _ => format!("/{action}/{place}?{}", exec_query(query)),
        }
    };
    Ok(Target { host, port, tls: true, path_and_query })
}

/// The container a request is about; the only one, or the annotated default, where it names none.
fn container(pod: &Object, asked: Option<&str>) -> Result<String, ApiError> {
    let names = |list: &str| -> Vec<String> {
        let containers = pod.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten();
        containers.filter_map(|c| Some(c.get("name")?.as_str()?.to_owned())).collect()
    };
    let (main, init) = (names("containers"), names("initContainers"));
    let all = || main.iter().chain(&init).cloned().chain(names("ephemeralContainers"));
    if let Some(asked) = asked {
        let known = all().any(|name| name == asked);
        let pod = pod.name();
        let refuse = || ApiError::bad_request(format!("container {asked} is not valid for pod {pod}"));
        return if known { Ok(asked.to_owned()) } else { Err(refuse()) };
    }
    let default = pod.text(&["metadata", "annotations", "kubectl.kubernetes.io/default-container"]);
    if all().any(|name| name == default) {
        return Ok(default.to_owned());
    }
    match main.as_slice() {
        [only] => Ok(only.clone()),
        _ => {
            let mut why = format!(
                "a container name must be specified for pod {}, choose one of: [{}]",
                pod.name(),
                main.join(" ")
            );
            if !init.is_empty() {
                why.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
            }
            Err(ApiError::bad_request(why))
        }
    }
}

fn log_query(context: &Context) -> String {
    let names = ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream"];
    let pairs = names.iter().filter_map(|name| Some(format!("{name}={}", escape(context.query.get(name)?))));
    pairs.collect::<Vec<_>>().join("&")
}

/// The kubelet spells the flags differently.
fn exec_query(query: &Query) -> String {
    let mut pairs: Vec<String> = query.all("command").map(|word| format!("command={}", escape(word))).collect();
    for (name, kubelet_name) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if query.flag(name) {
            pairs.push(format!("{kubelet_name}=1"));
        }
    }
    pairs.join("&")
}

pub(super) fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// `name`, `name:port`, `https:name:port`
fn split_port(text: &str) -> (&str, Option<&str>) {
    let text = text.strip_prefix("https:").or_else(|| text.strip_prefix("http:")).unwrap_or(text);
    match text.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    }
}

/// What follows `/proxy`, with the client's query.
fn rest_of(context: &Context) -> String {
    let path = format!("/{}", context.info.rest.join("/"));
    let trailing = if context.info.path.ends_with('/') && path != "/" { "/" } else { "" };
    let pairs: Vec<String> = context.query.pairs().map(|(k, v)| format!("{}={}", escape(k), escape(v))).collect();
    let query = if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) };
    format!("{path}{trailing}{query}")
}

fn pod_proxy(server: &ApiServer, context: &Context) -> Result<Target, ApiError> {
    let info = &context.info;
    let (name, port) = split_port(&info.name);
    let pod = find(server, "pods", &format!("{}/{name}", info.namespace), name)?;
    let host = pod.text(&["status", "podIP"]).to_owned();
    if host.is_empty() {
        return Err(ApiError::unavailable("address not allowed: the pod has no address yet"));
    }
    let first =
        pod.at(&["spec", "containers"]).and_then(|c| c.get(0)?.get("ports")?.get(0)?.get("containerPort")?.as_u64());
    let number = match port {
        Some(text) => text.parse().map_err(|_| ApiError::bad_request(format!("invalid port {text:?}")))?,
        None => first.and_then(|port| u16::try_from(port).ok()).unwrap_or(80),
    };
    Ok(Target { host, port: number, tls: info.name.starts_with("https:"), path_and_query: rest_of(context) })
}

fn service_proxy(server: &ApiServer, context: &Context) -> Result<Target, ApiError> {
    let info = &context.info;
    let (name, port) = split_port(&info.name);
    find(server, "services", &format!("{}/{name}", info.namespace), name)?;
    let (host, port) = service_endpoint(server, &info.namespace, name, port)
        .ok_or_else(|| ApiError::unavailable(format!("no endpoints available for service {:?}", info.name)))?;
    Ok(Target { host, port, tls: info.name.starts_with("https:"), path_and_query: rest_of(context) })
}

/// An endpoint that is ready, of a service's port: by its number or name, or the only one.
pub(crate) fn service_endpoint(
    server: &ApiServer,
    namespace: &str,
    name: &str,
    port: Option<&str>,
) -> Option<(String, u16)> {
    let service = find(server, "services", &format!("{namespace}/{name}"), name).ok()?;
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

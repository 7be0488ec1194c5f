//! Requests to pods, services and nodes, carried on as if the client had asked them itself.
//!
//! Addresses in what they answer lead back through the proxy (see [`super::rewrite`]).

use std::io::Read as _;
use std::net::IpAddr;

use ::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use api::{ApiError, Object, ObjectExt as _};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use rand::seq::SliceRandom as _;
use serde_json::Value;

use super::connect::{self, boxed, is_upgrade};
use super::rewrite::{Malformed, Page, cleaned};
use super::target::{self, Target, Way, escape_path};
use crate::http::{Body, BoxError, full};
use crate::pipeline::Context;
use crate::server::ApiServer;

/// Larger pages are passed on as they are: no page of links is, and nobody else should wait for one.
const MAX_PAGE: usize = 4 << 20;

/// The decoded path behind `/proxy`: empty, or from its first slash on.
pub(super) fn path(context: &Context) -> String {
    let mut path = context.info.rest.join("/");
    if !path.is_empty() && !path.starts_with('/') {
        path.insert(0, '/');
    }
    if context.info.path.ends_with('/') && !path.ends_with('/') {
        path.push('/');
    }
    path
}

/// `admitted` is the path that admission wants instead.
pub(super) async fn answer(
    server: &ApiServer,
    context: &Context,
    admitted: Option<&str>,
    mut request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let location = Location::find(server, context).await?;
    let asked = admitted.map_or_else(|| path(context), ToOwned::to_owned);
    let path = joined(&asked);
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    if is_upgrade(request.headers()) {
        let target = location.target(&path, &query).map_err(connect::undialled)?;
        return connect::upgrade(&server.config.kubelet, &target, request).await;
    }
    let seen = &context.info.path;
    if path.is_empty() && matches!(*request.method(), Method::GET | Method::HEAD) {
        return moved(&format!("{}/{query}", escape_path(seen)));
    }
    let page =
        Page { prefix: prefix_of(seen, &path).to_owned(), source: location.authority(), asked: host_of(&request) };
    let to = if path.is_empty() { "/" } else { &path };
    if let Ok(value) = HeaderValue::try_from(page.forwarded(&escape_path(to))) {
        request.headers_mut().insert(HeaderName::from_static("x-forwarded-uri"), value);
    }
    let target = location.target(to, &query).map_err(unreachable)?;
    let sent = connect::send(&server.config.kubelet, &target, request).await;
    told(page, sent.map_err(|error| unreachable(error.to_string()))?).await
}

fn unreachable(why: String) -> ApiError {
    ApiError::unavailable(format!("error trying to reach service: {why}"))
}

fn host_of(request: &Request<Body>) -> String {
    let header = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    header.or_else(|| request.uri().authority().map(|host| host.as_str())).unwrap_or_default().to_owned()
}

fn moved(to: &str) -> Result<Response<Body>, ApiError> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    response.headers_mut().insert(header::LOCATION, HeaderValue::try_from(to).map_err(ApiError::internal)?);
    Ok(response)
}

/// Without what `.` and `..` and doubled slashes say; a slash at the end stays.
fn joined(path: &str) -> String {
    let mut clean = if path.is_empty() { String::new() } else { cleaned(path) };
    if path.ends_with('/') && !clean.ends_with('/') {
        clean.push('/');
    }
    clean
}

/// What the path of the request has before the part that is carried on.
fn prefix_of<'a>(seen: &'a str, path: &str) -> &'a str {
    let with_slash = seen.ends_with('/') && !path.ends_with('/');
    let suffix = if with_slash { format!("{path}/") } else { path.to_owned() };
    seen.strip_suffix(suffix.as_str()).unwrap_or(seen)
}

/// Somebody to carry requests to.
#[derive(Debug)]
struct Location {
    way: Way,
    host: String,
    /// The address the host was found to have, which is an allowed one.
    address: IpAddr,
    /// As it was asked for; it need not be one.
    port: String,
}

impl Location {
    async fn find(server: &ApiServer, context: &Context) -> Result<Self, ApiError> {
        let info = &context.info;
        let kind = info.resource.trim_end_matches('s');
        let asked = Asked::parse(&info.name)
            .ok_or_else(|| ApiError::bad_request(format!("invalid {kind} request {:?}", info.name)))?;
        match kind {
            "node" => Self::node(server, &asked).await,
            "pod" => Self::pod(server, &asked, &info.namespace),
            _ => Self::service(server, &asked, &info.namespace, &info.name),
        }
    }

    fn pod(server: &ApiServer, asked: &Asked<'_>, namespace: &str) -> Result<Self, ApiError> {
        let pod = target::find_pod(server, namespace, asked.name)?;
        let containers = pod.at(&["spec", "containers"]).and_then(Value::as_array).into_iter().flatten();
        let mut ports = containers.filter_map(|container| container.get("ports")?.get(0)?.get("containerPort"));
        let port = match asked.port {
            "" => ports.next().map(Value::to_string).unwrap_or_default(),
            port => port.to_owned(),
        };
        let addresses = pod.at(&["status", "podIPs"]).and_then(Value::as_array);
        let host = addresses.and_then(|all| all.first()?.get("ip")?.as_str()).unwrap_or_default().to_owned();
        Ok(Self { way: asked.way, address: allowed(host.parse().ok())?, host, port })
    }

    fn service(server: &ApiServer, asked: &Asked<'_>, namespace: &str, id: &str) -> Result<Self, ApiError> {
        let (name, key) = (asked.name, format!("{namespace}/{}", asked.name));
        let none = |of: &str| ApiError::unavailable(format!("no endpoints available for service {of:?}"));
        let port_name = match asked.port.parse::<i64>() {
            Ok(number) => {
                let service = target::find(server, ("services", "services"), &key, name)?;
                let mut ports = objects(service.at(&["spec", "ports"]));
                let port = ports.find(|port| port.get("port").and_then(Value::as_i64) == Some(number));
                let missing = || format!("no service port {number} found for service {name:?}");
                port.ok_or_else(|| ApiError::unavailable(missing()))?.text(&["name"]).to_owned()
            }
            Err(_) => asked.port.to_owned(),
        };
        let endpoints = target::find(server, ("endpoints", "services"), &key, name)?;
        let subsets: Vec<&Object> = objects(endpoints.get("subsets")).collect();
        if subsets.is_empty() {
            return Err(none(name));
        }
        let mut found: Vec<(&str, String)> = Vec::new();
        for subset in subsets {
            let mut ports = objects(subset.get("ports")).filter(|port| port.text(&["name"]) == port_name);
            let Some(port) = ports.next().and_then(|port| port.get("port")) else { continue };
            let own = objects(subset.get("addresses")).filter(|address| is_of_pod(server, address, namespace));
            found.extend(own.map(|address| (address.text(&["ip"]), port.to_string())));
        }
        found.shuffle(&mut rand::rng());
        let (host, port) = found.into_iter().next().ok_or_else(|| none(id))?;
        Ok(Self { way: asked.way, address: allowed(host.parse().ok())?, host: host.to_owned(), port })
    }

    async fn node(server: &ApiServer, asked: &Asked<'_>) -> Result<Self, ApiError> {
        let (host, kubelet_port) = target::kubelet(server, asked.name, "nodes")?;
        let found = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => match tokio::net::lookup_host((host.as_str(), 0)).await {
                Ok(found) => found.map(|address| address.ip()).collect(),
                Err(_) => return Err(ApiError::bad_request(format!("lookup {host}: no such host"))),
            },
        };
        let address = allowed(found.first().copied().filter(|_| found.iter().copied().all(is_global)))?;
        let kubelet_port = kubelet_port.to_string();
        let (way, port) = match asked.port {
            "" => (Way::Kubelet, kubelet_port),
            port if port == kubelet_port => (Way::Kubelet, kubelet_port),
            other => (asked.way, other.to_owned()),
        };
        Ok(Self { way, host, address, port })
    }

    fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port.is_empty() { host } else { format!("{host}:{}", self.port) }
    }

    fn target(&self, path: &str, query: &str) -> Result<Target, String> {
        let port = match (self.port.as_str(), self.way) {
            ("", Way::Plain) => 80,
            ("", _) => 443,
            (text, _) => text.parse().map_err(|_| format!("dial tcp: address {text}: invalid port"))?,
        };
        let path = if path.is_empty() { "/".to_owned() } else { escape_path(path) };
        let path_and_query = format!("{path}{query}");
        Ok(Target { host: self.host.clone(), address: Some(self.address), port, way: self.way, path_and_query })
    }
}

fn objects(list: Option<&Value>) -> impl Iterator<Item = &Object> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

/// Only what a pod really has is an address to go to: whoever may write endpoints could name any other.
fn is_of_pod(server: &ApiServer, address: &Object, namespace: &str) -> bool {
    let (of, name) = (address.text(&["targetRef", "namespace"]), address.text(&["targetRef", "name"]));
    let Ok(pod) = target::find_pod(server, of, name) else { return false };
    let mut own = objects(pod.at(&["status", "podIPs"]));
    of == namespace && own.any(|own| own.text(&["ip"]) == address.text(&["ip"]))
}

/// The address, if requests may be proxied to it: a user who may write the status of a pod or node must not reach this
/// machine's own services through the API server.
fn allowed(address: Option<IpAddr>) -> Result<IpAddr, ApiError> {
    address.filter(|address| is_global(*address)).ok_or_else(|| ApiError::bad_request("address not allowed"))
}

/// Whether requests may be proxied to the address. An IPv4 address in IPv6 form is the IPv4 address: the kernel connects to it.
fn is_global(address: IpAddr) -> bool {
    let address = match address {
        IpAddr::V6(six) => {
            six.to_ipv4().filter(|_| !six.is_loopback() && !six.is_unspecified()).map_or(address, IpAddr::V4)
        }
        IpAddr::V4(_) => address,
    };
    let is_near = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(is_near || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// `name`, `name:port` or `scheme:name:port`, the last two of which may have nothing for a port.
#[derive(Debug, PartialEq, Eq)]
struct Asked<'a> {
    way: Way,
    name: &'a str,
    port: &'a str,
}

impl<'a> Asked<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let (scheme, name, port) = match *parts.as_slice() {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => return None,
        };
        let way = match scheme {
            "" | "http" => Way::Plain,
            "https" => Way::Anybody,
            _ => return None,
        };
        (!name.is_empty()).then_some(Self { way, name, port })
    }
}

/// The answer as the client is told it.
async fn told(page: Page, answer: Response<Incoming>) -> Result<Response<Body>, ApiError> {
    let (mut parts, body) = answer.into_parts();
    for name in [
        header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        header::ACCESS_CONTROL_ALLOW_METHODS,
        header::ACCESS_CONTROL_ALLOW_ORIGIN,
        header::CONNECTION,
        header::TRANSFER_ENCODING,
    ] {
        parts.headers.remove(name);
    }
    if let Some(location) = parts.headers.get(header::LOCATION).and_then(|value| value.to_str().ok()) {
        let to = page.url(location).map_err(|Malformed(why)| {
            ApiError::internal(format!("error trying to parse Location header: parse {location:?}: {why}"))
        })?;
        parts.headers.insert(header::LOCATION, HeaderValue::try_from(to).map_err(ApiError::internal)?);
        return Ok(Response::from_parts(parts, boxed(body)));
    }
    if !is_html(&parts.headers) {
        return Ok(Response::from_parts(parts, boxed(body)));
    }
    let body = rewritten(&page, &mut parts.headers, body).await?;
    Ok(Response::from_parts(parts, body))
}

fn is_html(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim() == "text/html")
}

/// The page with its addresses changed; one that is too large, or packed in a way that is not known, as it is.
async fn rewritten(page: &Page, headers: &mut HeaderMap, mut body: Incoming) -> Result<Body, ApiError> {
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreachable(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        read.extend_from_slice(&data);
        if read.len() > MAX_PAGE {
            return Ok(followed_by(read.into(), body));
        }
    }
    let encoding = headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes);
    let Some(plain) = unpacked(encoding.unwrap_or_default(), &read) else { return Ok(full(read)) };
    headers.remove(header::CONTENT_ENCODING);
    headers.remove(header::CONTENT_LENGTH);
    Ok(full(page.html(&plain)))
}

fn followed_by(first: Bytes, rest: Incoming) -> Body {
    use futures::StreamExt as _;
    let first = Full::new(first).map_err(BoxError::from).into_data_stream();
    let all = first.chain(boxed(rest).into_data_stream()).map(|data| data.map(hyper::body::Frame::data));
    http_body_util::StreamBody::new(all).boxed_unsync()
}

fn unpacked(encoding: &[u8], bytes: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    let limit = u64::try_from(MAX_PAGE).ok()? + 1;
    match encoding {
        b"" => plain.extend_from_slice(bytes),
        b"gzip" => drop(flate2::read::GzDecoder::new(bytes).take(limit).read_to_end(&mut plain).ok()?),
        b"deflate" => drop(flate2::read::DeflateDecoder::new(bytes).take(limit).read_to_end(&mut plain).ok()?),
        _ => return None,
    }
    (plain.len() <= MAX_PAGE).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_request_is_for_is_read_as_upstream_reads_it() {
        let read = |text| Asked::parse(text).map(|asked| (asked.way, asked.name, asked.port));
        assert_eq!(read("web"), Some((Way::Plain, "web", "")));
        assert_eq!(read("web:80"), Some((Way::Plain, "web", "80")));
        assert_eq!(read("http:web:"), Some((Way::Plain, "web", "")));
        assert_eq!(read("https:web:tls"), Some((Way::Anybody, "web", "tls")));
        assert_eq!([read("ftp:web:80"), read("a:b:c:d"), read(":80"), read("")], [None; 4]);
    }

    #[test]
    fn a_path_is_cleaned_and_what_stands_before_it_known() {
        assert_eq!(joined(""), "");
        assert_eq!(joined("/"), "/");
        assert_eq!(joined("/a b/c/d/../e//f"), "/a b/c/e/f");
        assert_eq!(joined("/a/./"), "/a/");
        assert_eq!(joined("/../../etc"), "/etc");
        let seen = "/api/v1/namespaces/d/pods/web/proxy";
        assert_eq!(prefix_of(&format!("{seen}/x"), "/x"), seen);
        assert_eq!(prefix_of(&format!("{seen}/x/"), "/x/"), seen);
        assert_eq!(prefix_of(seen, ""), seen);
    }

    #[test]
    fn only_global_addresses_are_proxied_to() {
        for (text, want) in [
            ("10.0.0.1", true),
            ("8.8.8.8", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("0.0.0.0", false),
            ("169.254.169.254", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::1", false),
            ("fe80::1", false),
            ("::ffff:10.0.0.1", true),
            ("::ffff:127.0.0.1", false),
            ("::127.0.0.1", false),
            ("::ffff:169.254.169.254", false),
            ("::ffff:0.0.0.0", false),
            ("::ffff:255.255.255.255", false),
            ("::ffff:224.0.0.1", false),
        ] {
            assert_eq!(is_global(text.parse().unwrap()), want, "{text}");
        }
    }

    #[test]
    fn a_page_that_unpacks_to_too_much_is_left_alone() {
        use std::io::Write as _;
        let packed = |size: usize| {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(&vec![b'a'; size]).unwrap();
            packer.finish().unwrap()
        };
        assert_eq!(unpacked(b"gzip", &packed(10)).unwrap(), b"aaaaaaaaaa");
        assert!(unpacked(b"gzip", &packed(MAX_PAGE + 1)).is_none());
        assert!(unpacked(b"gzip", b"not that").is_none());
        assert!(unpacked(b"br", b"x").is_none());
    }
}

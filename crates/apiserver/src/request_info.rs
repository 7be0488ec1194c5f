//! What a request asks for, read from its method and path alone.

use std::borrow::Cow;

use api::selector::FieldSelector;
use http::Method;

use crate::auth::Access;
use crate::http::percent_decode;

/// Upstream's RequestInfo: what authorization, flow control, audit and routing decide on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RequestInfo {
    pub is_resource: bool,
    pub path: String,
    pub verb: &'static str,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
    /// The path names no object.
    pub is_of_many: bool,
    /// `/watch/…`
    pub is_old_watch: bool,
    /// What follows the subresource: the path behind a proxy.
    pub rest: Vec<String>,
    /// What a list, watch or deletion of many is restricted to.
    pub field_selector: Option<FieldSelector>,
}

impl RequestInfo {
    /// A path that says what to do, but not to what.
    pub(crate) fn is_of_nothing(&self) -> bool {
        let is_bare_proxy = self.resource == "proxy" && self.namespace.is_empty() && self.name.is_empty();
        self.is_resource && (is_bare_proxy || (self.is_old_watch && self.resource.is_empty()))
    }

    /// Watches and streams last as long as both sides want.
    pub(crate) fn is_long_running(&self) -> bool {
        self.verb == "watch" || matches!(self.subresource.as_str(), "log" | "exec" | "attach" | "portforward" | "proxy")
    }

    pub(crate) fn access(&self) -> Access<'_> {
        Access {
            is_resource: self.is_resource,
            verb: self.verb,
            group: &self.group,
            version: &self.version,
            namespace: &self.namespace,
            resource: &self.resource,
            subresource: &self.subresource,
            name: &self.name,
            path: &self.path,
            field_selector: self.field_selector.as_ref(),
        }
    }

    /// `selected` is what a list or watch is restricted to; `watch` the query flag.
    pub(crate) fn new(method: &Method, path: &str, watch: bool, selected: Option<FieldSelector>) -> Self {
        let plain_verb = method_verb(method);
        let mut info = Self { path: decoded(path).into_owned(), verb: plain_verb, ..Self::default() };
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, mut rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return info,
        };
        if rest.is_empty() {
            return info;
        }
        if let ["watch", after @ ..] = rest {
            (info.is_old_watch, rest) = (true, after);
        }
        info.group = group.to_owned();
        info.version = version.to_owned();
        info.is_resource = true;
        let rest = match rest {
            ["namespaces", namespace, sub, after @ ..] if !matches!(*sub, "status" | "finalize") => {
                info.namespace = segment(namespace);
                std::iter::once(sub).chain(after).copied().collect::<Vec<_>>()
            }
            ["namespaces", namespace, ..] => {
                info.namespace = segment(namespace);
                rest.to_vec()
            }
            other => other.to_vec(),
        };
        let mut rest = rest.into_iter().map(str::to_owned);
        let mut next = || rest.next().map(|text| segment(&text)).unwrap_or_default();
        (info.resource, info.name, info.subresource) = (next(), next(), next());
        info.rest = rest.collect();
        if info.resource == "namespaces" && info.name.is_empty() {
            info.namespace.clear();
        }
        info.is_of_many = info.name.is_empty();
        info.verb = match (plain_verb, info.is_of_many) {
            _ if info.is_old_watch && info.subresource.is_empty() => "watch",
            ("get", true) if watch => "watch",
            ("get", true) => "list",
            ("delete", true) => "deletecollection",
            (verb, _) => verb,
        };
        if matches!(info.verb, "list" | "watch" | "deletecollection") {
            if info.name.is_empty() {
                info.name = selected.as_ref().and_then(|s| s.exact("metadata.name")).unwrap_or_default().to_owned();
            }
            info.field_selector = selected;
        }
        info
    }
}

/// A name may be escaped; what would then be more than one name stays as it is, and is nothing's name.
fn segment(text: &str) -> String {
    let plain = decoded(text);
    if plain.contains('/') { text.to_owned() } else { plain.into_owned() }
}

fn decoded(text: &str) -> Cow<'_, str> {
    if text.contains('%') { percent_decode(&text.replace('+', "%2b")).into() } else { text.into() }
}

fn method_verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_requests() {
        check("GET", "/api/v1/pods", "list /v1 pods");
        check("GET", "/api/v1/namespaces/a/pods", "list /v1 pods ns=a");
        check("GET", "/api/v1/namespaces/a/pods/b/log", "get /v1 pods ns=a name=b sub=log");
        check("GET", "/api/v1/namespaces", "list /v1 namespaces");
        check("GET", "/api/v1/namespaces/a", "get /v1 namespaces ns=a name=a");
        check("PUT", "/api/v1/namespaces/a/finalize", "update /v1 namespaces ns=a name=a sub=finalize");
        check("DELETE", "/apis/apps/v1/namespaces/a/deployments", "deletecollection apps/v1 deployments ns=a");
        check("GET", "/apis/apps/v1/watch/namespaces/a/deployments", "watch apps/v1 deployments ns=a");
        check("GET", "/api/v1/nodes/n/proxy/metrics", "get /v1 nodes name=n sub=proxy rest=metrics");
        check("GET", "/api/v1/nodes/a%3Ab", "get /v1 nodes name=a:b");
        check("GET", "/api/v1/namespaces/a/pods/b%2Flog", "get /v1 pods ns=a name=b%2Flog");
        check("GET", "/api/v1/namespaces/a%2Fb/pods/c", "get /v1 pods ns=a%2Fb name=c");
        check("GET", "/apis/apps/v1", "get");
        check("GET", "/healthz", "get");
    }

    #[track_caller]
    fn check(method: &str, path: &str, want: &str) {
        let info = RequestInfo::new(&method.parse().unwrap(), path, false, None);
        let mut text = info.verb.to_owned();
        if info.is_resource {
            text += &format!(" {}/{} {}", info.group, info.version, info.resource);
            for (key, value) in [("ns", &info.namespace), ("name", &info.name), ("sub", &info.subresource)] {
                if !value.is_empty() {
                    text += &format!(" {key}={value}");
                }
            }
            if !info.rest.is_empty() {
                text += &format!(" rest={}", info.rest.join("/"));
            }
        }
        assert_eq!(text, want, "{path}");
    }
}

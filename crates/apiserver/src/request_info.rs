//! Upstream's RequestInfo, read from a request's method and decoded path alone.
//!
//! The path is decoded once ([`decode_path`]) and everything is read from the result: authentication exemptions, audit,
//! flow control, authorization, routing and aggregation. Two readings of one path would be a way around authorization.

use std::borrow::Cow;

use api::selector::FieldSelector;
use http::Method;

use crate::auth::Access;
use crate::http::{has_whole_escapes, percent_decode};

/// The attributes that authorization, flow control, audit and routing decide on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestInfo {
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
    /// The path segments behind the subresource: the path to ask for behind a proxy.
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

    /// `path` is decoded ([`decode_path`]); `selected` is the field selector of the query, `watch` its watch flag.
    pub fn new(method: &Method, path: &str, watch: bool, selected: Option<FieldSelector>) -> Self {
        let plain_verb = method_verb(method);
        let mut info = Self { path: path.to_owned(), verb: plain_verb, ..Self::default() };
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
                info.namespace = (*namespace).to_owned();
                std::iter::once(sub).chain(after).copied().collect::<Vec<_>>()
            }
            ["namespaces", namespace, ..] => {
                info.namespace = (*namespace).to_owned();
                rest.to_vec()
            }
            other => other.to_vec(),
        };
        let mut rest = rest.into_iter().map(str::to_owned);
        let mut next = || rest.next().unwrap_or_default();
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
                let name = selected.as_ref().and_then(|selected| selected.exact("metadata.name"));
                // No object has a name that is not one segment of a path.
                let name = name.filter(|name| api::validation::is_path_segment(name).is_empty());
                info.name = name.unwrap_or_default().to_owned();
            }
            info.field_selector = selected;
        }
        info
    }
}

/// The path with its percent escapes decoded, as Go's `URL.Path`; `None` where an escape is malformed.
///
/// An escaped slash separates segments like any other: upstream's authorization and routing both see it that way.
pub fn decode_path(raw: &str) -> Option<Cow<'_, str>> {
    if !raw.contains('%') {
        return Some(raw.into());
    }
    // A plus sign is a space in queries only.
    has_whole_escapes(raw).then(|| percent_decode(&raw.replace('+', "%2b")).into())
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
        check("GET", "/api/v1/namespaces/a/pods/b+c", "get /v1 pods ns=a name=b+c");
        check("GET", "/api/v1/namespaces/a/pods/b%252Flog", "get /v1 pods ns=a name=b%2Flog");
        check("GET", "/apis/apps/v1", "get");
        check("GET", "/healthz", "get");
    }

    #[test]
    fn a_selector_names_what_a_path_could_name() {
        for (selector, name) in [("metadata.name=a", "a"), ("metadata.name=a/b", ""), ("metadata.name=..", "")] {
            let selected = FieldSelector::parse(selector).unwrap();
            let info = RequestInfo::new(&Method::GET, "/api/v1/namespaces/a/pods", false, Some(selected));
            assert_eq!(info.name, name, "{selector}");
        }
    }

    /// Each pair is one request to every stage; a stage that read only one form could be passed with the other.
    #[test]
    fn an_escaped_path_is_the_same_request() {
        for (escaped, plain) in [
            ("/%61pis/metrics.example/v1", "/apis/metrics.example/v1"),
            ("/%61pis/metrics.example/v1/widgets", "/apis/metrics.example/v1/widgets"),
            ("/api%2Fv1/secrets", "/api/v1/secrets"),
            ("/api/v1/namespaces/a/pods/b%2Flog", "/api/v1/namespaces/a/pods/b/log"),
            ("/api/v1/namespaces/a%2Fb/pods/c", "/api/v1/namespaces/a/b/pods/c"),
            ("/%68ealthz", "/healthz"),
            ("/%2Fapi/v1/pods", "//api/v1/pods"),
        ] {
            let info = |path: &str| RequestInfo::new(&Method::GET, &decode_path(path).unwrap(), false, None);
            assert_eq!(info(escaped), info(plain), "{escaped}");
        }
    }

    #[test]
    fn a_malformed_escape_is_no_path() {
        for raw in ["/api/%", "/api/%4", "/api/%zz", "/api/v1/%2", "/%u0041"] {
            assert_eq!(decode_path(raw), None, "{raw}");
        }
    }

    #[track_caller]
    fn check(method: &str, path: &str, want: &str) {
        let info = RequestInfo::new(&method.parse().unwrap(), &decode_path(path).unwrap(), false, None);
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

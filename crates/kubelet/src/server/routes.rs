//! Which path does what.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::relay::Session;
use super::{Body, Server, logs, relay, respond, stats, text};
use crate::pod::observed::{State, observe};
use crate::spec;

/// Decoded query parameters, in order of appearance.
#[derive(Clone, Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(query: &str) -> Self {
        let decode = |text: &str| percent_decode(&text.replace('+', " "));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (decode(k), decode(v))).collect(),
        )
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"))
    }
}

fn percent_decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        let digit = || bytes.clone().next().and_then(|next| char::from(next).to_digit(16));
        if byte != b'%' || digit().is_none() {
            out.push(byte);
            continue;
        }
        let code = [bytes.next(), bytes.next()].map(|next| next.and_then(|next| char::from(next).to_digit(16)));
        if let [Some(high), Some(low)] = code {
            out.push(u8::try_from(high << 4 | low).unwrap_or(b'?'));
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl Server {
    pub(super) async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let query = Query::parse(request.uri().query().unwrap_or_default());
        match parts.as_slice() {
            ["healthz"] | ["healthz", "ping" | "log"] => text(StatusCode::OK, "ok".to_owned()),
            ["pods"] => self.list_pods(|_| true),
            ["runningpods"] => self.list_pods(|pod| spec::status(pod).phase.as_deref() == Some("Running")),
            ["containerLogs", namespace, name, container] => {
                logs::serve(&self, namespace, name, container, &query).await
            }
            ["exec", namespace, name, .., container] => {
                self.container_stream(request, &query, "exec", namespace, name, container).await
            }
            ["attach", namespace, name, .., container] => {
                self.container_stream(request, &query, "attach", namespace, name, container).await
            }
            ["portForward", namespace, name, ..] => self.port_forward(request, &query, namespace, name).await,
            ["stats", "summary"] => stats::summary(&self).await,
            ["metrics", "resource"] => stats::resource(&self).await,
            ["configz"] => self.configz(),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        }
    }

    fn list_pods(&self, wanted: impl Fn(&Pod) -> bool) -> Response<Body> {
        let items: Vec<_> = self.pods.list().into_iter().filter(|pod| wanted(pod)).collect();
        let list = json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items });
        respond(StatusCode::OK, "application/json", list.to_string())
    }

    fn configz(&self) -> Response<Body> {
        let context = &self.context;
        let config = json!({ "kubeletconfig": {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "clusterDomain": context.cluster_domain,
            "clusterDNS": context.cluster_dns,
            "maxPods": context.max_pods,
            "nodeStatusUpdateFrequency": "10s",
            "nodeStatusReportFrequency": "5m0s",
            "cgroupDriver": "cgroupfs",
            "resolvConf": context.resolv_conf,
        } });
        respond(StatusCode::OK, "application/json", config.to_string())
    }

    async fn container_stream(
        &self,
        request: Request<Incoming>,
        query: &Query,
        verb: &str,
        namespace: &str,
        name: &str,
        container: &str,
    ) -> Response<Body> {
        let Some(pod) = self.pod(namespace, name) else {
            return text(StatusCode::NOT_FOUND, "pod does not exist".to_owned());
        };
        let observed = match observe(self.context.cri.as_ref(), spec::uid(&pod)).await {
            Ok(observed) => observed,
            Err(status) => return text(StatusCode::INTERNAL_SERVER_ERROR, status.message().to_owned()),
        };
        let Some(seen) = observed.latest(container).filter(|seen| seen.state == State::Running) else {
            let message = format!("container not found (\"{container}\")");
            return text(StatusCode::NOT_FOUND, message);
        };
        let streams = ["input", "output", "error", "tty"].map(|name| query.is_set(name));
        let [stdin, stdout, stderr, tty] = streams;
        if !(stdin || stdout || stderr) {
            let message = "you must specify at least 1 of stdin, stdout, stderr".to_owned();
            return text(StatusCode::BAD_REQUEST, message);
        }
        // A terminal has one output.
        let stderr = stderr && !tty;
        let container_id = seen.id.clone();
        let session = if verb == "exec" {
            let cmd = query.all("command");
            Session::Exec(cri::v1::ExecRequest { container_id, cmd, tty, stdin, stdout, stderr })
        } else {
            Session::Attach(cri::v1::AttachRequest { container_id, stdin, tty, stdout, stderr })
        };
        relay::serve(self.context.cri.clone(), session, request).await
    }

    async fn port_forward(
        &self,
        request: Request<Incoming>,
        query: &Query,
        namespace: &str,
        name: &str,
    ) -> Response<Body> {
        let Some(pod) = self.pod(namespace, name) else {
            return text(StatusCode::NOT_FOUND, "pod does not exist".to_owned());
        };
        let observed = observe(self.context.cri.as_ref(), spec::uid(&pod)).await.unwrap_or_default();
        let Some(sandbox) = observed.sandboxes.first().filter(|sandbox| sandbox.ready) else {
            let message = format!("failed to find sandbox for pod {}", spec::display(&pod));
            return text(StatusCode::NOT_FOUND, message);
        };
        let ports = query
            .all("port")
            .iter()
            .chain(&query.all("ports"))
            .flat_map(|list| list.split(',').filter_map(|port| port.trim().parse().ok()).collect::<Vec<i32>>())
            .collect();
        let session =
            Session::PortForward(cri::v1::PortForwardRequest { pod_sandbox_id: sandbox.id.clone(), port: ports });
        relay::serve(self.context.cri.clone(), session, request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = Query::parse("command=sh&command=-c&command=echo+a%20b%26&output=1&tty=false&odd=%zz");
        assert_eq!(query.all("command"), ["sh", "-c", "echo a b&"]);
        assert!(query.is_set("output") && !query.is_set("tty") && !query.is_set("input"));
        assert_eq!(query.get("odd"), Some("%zz"));
    }
}

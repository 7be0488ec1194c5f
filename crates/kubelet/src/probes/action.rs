//! One look at a container: exec, HTTP, TCP or gRPC, with upstream's verdicts and messages.

use std::time::Duration;

use cri::v1::ExecSyncRequest;
use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tonic::Code;

use super::{grpc, http};
use crate::budget::Budget;
use crate::expand::expand;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Success,
    Warning(String),
    Failure(String),
    Unknown(String),
}

pub(crate) struct Action<'a> {
    pub(crate) cri: &'a dyn cri::Cri,
    pub(crate) container: &'a Container,
    pub(crate) id: &'a str,
    pub(crate) pod_ip: &'a str,
    pub(crate) timeout: Duration,
}

const MAX_OUTPUT: usize = 10 * 1024;

impl Action<'_> {
    pub(crate) async fn run(&self, probe: &Probe) -> Answer {
        if let Some(exec) = &probe.exec {
            return self.exec(exec.command.as_deref().unwrap_or_default()).await;
        }
        if let Some(get) = &probe.http_get {
            let target = match http::target(get, self.container, self.pod_ip) {
                Ok(target) => target,
                Err(error) => return Answer::Unknown(error.to_string()),
            };
            return http::probe(&target, self.timeout).await;
        }
        if let Some(tcp) = &probe.tcp_socket {
            let port = match port(&tcp.port, self.container) {
                Ok(port) => port,
                Err(error) => return Answer::Unknown(error.to_string()),
            };
            let host = tcp.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(self.pod_ip);
            return self.tcp(host, port).await;
        }
        if let Some(action) = &probe.grpc {
            let port = u16::try_from(action.port).unwrap_or_default();
            let service = action.service.as_deref().unwrap_or_default();
            return grpc::probe(self.pod_ip, port, service, self.timeout).await;
        }
        Answer::Unknown(format!("missing probe handler for {}", self.container.name))
    }

    async fn exec(&self, command: &[String]) -> Answer {
        let plain = |name: &str| {
            let mut all = self.container.env.iter().flatten();
            all.find(|variable| variable.name == name).and_then(|variable| variable.value.clone())
        };
        let mut budget = Budget::of_process();
        let cmd = match command.iter().map(|word| expand(word, &mut budget, plain)).collect() {
            Ok(cmd) => cmd,
            Err(error) => return Answer::Unknown(error.to_string()),
        };
        let request = ExecSyncRequest {
            container_id: self.id.to_owned(),
            cmd,
            timeout: i64::try_from(self.timeout.as_secs()).unwrap_or(1),
        };
        match self.cri.exec_sync(request).await {
            Ok(done) if done.exit_code == 0 => Answer::Success,
            Ok(done) => {
                let mut output = [done.stdout, done.stderr].concat();
                output.truncate(MAX_OUTPUT);
                Answer::Failure(String::from_utf8_lossy(&output).into_owned())
            }
            Err(status) if status.code() == Code::DeadlineExceeded => Answer::Failure(format!(
                "command timed out: {:?} timed out after {}s",
                command.join(" "),
                self.timeout.as_secs()
            )),
            Err(status) => {
                Answer::Unknown(format!("rpc error: code = {:?} desc = {}", status.code(), status.message()))
            }
        }
    }

    async fn tcp(&self, host: &str, port: u16) -> Answer {
        let address = http::join(host, port);
        match tokio::time::timeout(self.timeout, tokio::net::TcpStream::connect((host, port))).await {
            Ok(Ok(_)) => Answer::Success,
            Ok(Err(error)) => Answer::Failure(format!("dial tcp {address}: {}", http::describe(&error))),
            Err(_) => Answer::Failure(format!("dial tcp {address}: i/o timeout")),
        }
    }
}

#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum PortError {
    #[error("invalid port number: {0}")]
    Number(i32),
    #[error("couldn't find port: {0}")]
    Name(String),
}

/// A number, or the name of one of the container's ports.
pub(crate) fn port(port: &IntOrString, container: &Container) -> Result<u16, PortError> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => match text.parse() {
            Ok(number) => number,
            Err(_) => {
                let named = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some(text));
                named.map(|port| port.container_port).ok_or_else(|| PortError::Name(text.clone()))?
            }
        },
    };
    u16::try_from(number).ok().filter(|number| *number > 0).ok_or(PortError::Number(number))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_by_number_and_name() {
        let container: Container =
            serde_json::from_value(json!({ "name": "c", "ports": [{ "name": "web", "containerPort": 80 }] }))
                .expect("one");
        let text = |text: &str| port(&IntOrString::String(text.to_owned()), &container);
        assert_eq!(port(&IntOrString::Int(8080), &container), Ok(8080));
        assert_eq!(port(&IntOrString::Int(0), &container), Err(PortError::Number(0)));
        assert_eq!(text("web"), Ok(80));
        assert_eq!(text("81"), Ok(81));
        assert_eq!(text("db"), Err(PortError::Name("db".into())));
    }
}

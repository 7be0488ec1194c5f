//! A certificate asked for through the API: what the request says, and waiting for the answer.

use std::error::Error;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use client::{Event, Target, follow};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SanType};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha512_256};

use super::leaf::Leaf;

const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// The first pause after a server that did not answer, doubled up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("the request for a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("cannot create certificate signing request: {0}")]
    Refused(kube::Error),
    #[error("an answer that is no certificate signing request: {0}")]
    Odd(&'static str),
    #[error("certificate signing request is denied, reason: {reason}, message: {message}")]
    Denied { reason: String, message: String },
    #[error("certificate signing request failed, reason: {reason}, message: {message}")]
    Failed { reason: String, message: String },
    #[error("the certificate signing request was deleted")]
    Deleted,
    #[error("what was issued is no certificate for the key that asked")]
    Foreign,
    #[error("what was issued has already ended")]
    Over,
    #[error("nobody issued a certificate within {0:?}")]
    Late(Duration),
}

/// What a certificate is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    signer: &'static str,
    usages: [&'static str; 2],
    common_name: String,
    names: Vec<String>,
    addresses: Vec<IpAddr>,
}

const ORGANIZATION: &str = "system:nodes";

impl Template {
    /// As whom a kubelet shows itself to the API server.
    pub fn client(node: &str) -> Self {
        Self {
            signer: "kubernetes.io/kube-apiserver-client-kubelet",
            // Keys are elliptic: only RSA would need "key encipherment" too.
            usages: ["digital signature", "client auth"],
            common_name: format!("system:node:{node}"),
            names: Vec::new(),
            addresses: Vec::new(),
        }
    }

    /// How it shows itself to those who call it, by the addresses that its node has.
    pub fn serving(node: &str, address: IpAddr) -> Self {
        let (names, mut addresses) = match node.parse() {
            Ok(own) => (Vec::new(), vec![own, address]),
            Err(_) => (vec![node.to_owned()], vec![address]),
        };
        addresses.dedup();
        let signer = "kubernetes.io/kubelet-serving";
        let usages = ["digital signature", "server auth"];
        Self { signer, usages, names, addresses, ..Self::client(node) }
    }

    /// Whether a certificate says all that would be asked for; it may say more.
    pub(super) fn is_met_by(&self, leaf: &Leaf) -> bool {
        self.common_name == leaf.common_name
            && leaf.organizations.iter().any(|name| name == ORGANIZATION)
            && self.names.iter().all(|name| leaf.names.contains(name))
            && self.addresses.iter().all(|address| leaf.addresses.contains(address))
    }

    /// The same for the same key, so that a kubelet that starts again finds what it asked for.
    pub(super) fn digested_name(&self, key: &KeyPair) -> String {
        let mut hash = Sha512_256::new();
        let public = key.subject_public_key_info();
        let parts = [public.as_slice(), self.common_name.as_bytes(), ORGANIZATION.as_bytes()];
        for part in parts.into_iter().chain(self.usages.iter().map(|usage| usage.as_bytes())) {
            hash.update(URL_SAFE_NO_PAD.encode(part));
            hash.update("|");
        }
        format!("node-csr-{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
    }

    fn request(&self, key: &KeyPair) -> Result<String, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, ORGANIZATION);
        params.distinguished_name.push(DnType::CommonName, self.common_name.as_str());
        for name in &self.names {
            params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        params.subject_alt_names.extend(self.addresses.iter().map(|address| SanType::IpAddress(*address)));
        params.serialize_request(key)?.pem()
    }

    fn object(&self, name: Option<&str>, key: &KeyPair) -> Result<Value, rcgen::Error> {
        let metadata = match name {
            Some(name) => json!({"name": name}),
            None => json!({"generateName": "csr-"}),
        };
        Ok(json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": metadata,
            "spec": {
                "request": STANDARD.encode(self.request(key)?), "signerName": self.signer, "usages": self.usages,
            },
        }))
    }

    /// Asks for a certificate for `key` and waits until it is issued; answers chain and key, in PEM.
    pub(super) async fn ask(
        &self,
        client: &kube::Client,
        name: Option<&str>,
        key: &KeyPair,
        patience: Duration,
    ) -> Result<String, RequestError> {
        let asked = async {
            let made = create(client, name, &self.object(name, key)?).await?;
            let field = |field: &str| made.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
            let name = field("name").ok_or(RequestError::Odd("no name"))?;
            issued(client, name, field("uid").ok_or(RequestError::Odd("no uid"))?).await
        };
        let chain = tokio::time::timeout(patience, asked).await.unwrap_or(Err(RequestError::Late(patience)))?;
        let leaf = Leaf::read(chain.as_bytes()).ok_or(RequestError::Foreign)?;
        if leaf.public_key != key.subject_public_key_info() {
            return Err(RequestError::Foreign);
        }
        if leaf.is_over(jiff::Timestamp::now()) {
            return Err(RequestError::Over);
        }
        Ok(format!("{}\n{}", chain.trim_end(), key.serialize_pem()))
    }
}

/// Makes the request, or finds the one that was made before; a server that does not answer is waited for.
async fn create(client: &kube::Client, name: Option<&str>, object: &Value) -> Result<Value, RequestError> {
    let mut pause = RETRY_MIN;
    loop {
        let answer = match (send(client, "POST", PATH, object.to_string()).await, name) {
            (Err(kube::Error::Api(status)), Some(name)) if status.is_already_exists() => {
                send(client, "GET", &format!("{PATH}/{name}"), String::new()).await
            }
            (answer, _) => answer,
        };
        match answer {
            Ok(made) => return Ok(made),
            Err(error) if is_final(&error) => return Err(RequestError::Refused(error)),
            Err(error) => tracing::warn!(error = whole(&error), "no certificate can be asked for yet"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// An error with what caused it: what a client says first is only that something failed.
fn whole(error: &kube::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

/// Whether a server answered, and would answer the same in a moment.
fn is_final(error: &kube::Error) -> bool {
    if let kube::Error::Api(status) = error {
        return status.code != 429 && status.code < 500;
    }
    // One that does not believe a certificate, since it has ended, may say so before anything can be asked.
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let inner = inner.map(|inner| inner as &(dyn Error + 'static));
        if inner.unwrap_or(error).downcast_ref().is_some_and(|tls| matches!(tls, rustls::Error::AlertReceived(_))) {
            return true;
        }
        next = inner.unwrap_or(error).source();
    }
    false
}

async fn send(client: &kube::Client, method: &str, path: &str, body: String) -> Result<Value, kube::Error> {
    let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
    client.request(request.body(body.into_bytes()).map_err(kube::Error::HttpError)?).await
}

async fn issued(client: &kube::Client, name: &str, uid: &str) -> Result<String, RequestError> {
    let target = Target { path: PATH.to_owned(), fields: format!("metadata.name={name}"), ..Target::default() };
    let (mut outcome, mut seen) = (None, false);
    follow(client, &target, &mut |event| {
        outcome = match event {
            Event::Listed(text) | Event::Applied(text) => {
                seen = true;
                answer(text, uid)
            }
            Event::Begin => {
                seen = false;
                None
            }
            Event::End if seen => None,
            Event::End | Event::Deleted(_) => Some(Err(RequestError::Deleted)),
        };
        if outcome.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .await;
    outcome.unwrap_or(Err(RequestError::Deleted))
}

/// What has become of a request; `None` while nothing has.
fn answer(text: &str, uid: &str) -> Option<Result<String, RequestError>> {
    let Ok(request) = serde_json::from_str::<Value>(text) else { return Some(Err(RequestError::Odd("no JSON"))) };
    if request.pointer("/metadata/uid").and_then(Value::as_str) != Some(uid) {
        return Some(Err(RequestError::Deleted));
    }
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut is_approved = false;
    for condition in request.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten() {
        let (reason, message) = (text(condition, "reason"), text(condition, "message"));
        match text(condition, "type").as_str() {
            "Denied" => return Some(Err(RequestError::Denied { reason, message })),
            "Failed" => return Some(Err(RequestError::Failed { reason, message })),
            "Approved" => is_approved = true,
            _ => (),
        }
    }
    let certificate = request.pointer("/status/certificate").and_then(Value::as_str).filter(|text| !text.is_empty());
    let encoded = certificate.filter(|_| is_approved)?;
    let decoded = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    Some(decoded.ok_or(RequestError::Odd("a certificate that is no PEM")))
}

#[cfg(test)]
mod tests {
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::extensions::GeneralName;
    use x509_parser::extensions::ParsedExtension;
    use x509_parser::prelude::FromDer as _;

    use super::*;

    /// What a request says, in a line.
    fn told(template: &Template) -> String {
        let object = template.object(Some("x"), &KeyPair::generate().unwrap()).unwrap();
        let spec = &object["spec"];
        let pem = STANDARD.decode(spec["request"].as_str().unwrap()).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
        assert_eq!(pem.label, "CERTIFICATE REQUEST");
        let (_, request) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        request.verify_signature().unwrap();
        let mut line =
            format!("{} {} {}", spec["signerName"], spec["usages"], request.certification_request_info.subject);
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(names) = extension else { panic!("{extension:?}") };
            for name in &names.general_names {
                match name {
                    GeneralName::DNSName(name) => line.push_str(&format!(" {name}")),
                    GeneralName::IPAddress(bytes) => line.push_str(&format!(" {bytes:?}")),
                    other => panic!("{other:?}"),
                }
            }
        }
        line
    }

    #[test]
    fn a_request_says_what_upstream_says() {
        assert_eq!(
            told(&Template::client("a")),
            "\"kubernetes.io/kube-apiserver-client-kubelet\" [\"digital signature\",\"client auth\"] O=system:nodes, CN=system:node:a"
        );
        let serving =
            "\"kubernetes.io/kubelet-serving\" [\"digital signature\",\"server auth\"] O=system:nodes, CN=system:node:";
        let address = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(told(&Template::serving("a", address)), format!("{serving}a a [10, 0, 0, 1]"));
        assert_eq!(told(&Template::serving("10.0.0.1", address)), format!("{serving}10.0.0.1 [10, 0, 0, 1]"));
    }

    #[test]
    fn the_name_of_a_request_is_of_its_key() {
        let (one, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let template = Template::client("a");
        assert_eq!(template.digested_name(&one), template.digested_name(&one));
        assert_ne!(template.digested_name(&one), template.digested_name(&other));
        assert_ne!(template.digested_name(&one), Template::client("b").digested_name(&one));
        assert_eq!(template.digested_name(&one).len(), "node-csr-".len() + 43);
    }

    #[test]
    fn a_certificate_that_says_less_does_not_do() {
        let full = Leaf {
            common_name: "system:node:a".into(),
            organizations: vec!["system:nodes".into()],
            names: vec!["a".into(), "more".into()],
            addresses: vec![[10, 0, 0, 1].into()],
            ..Leaf::default()
        };
        let template = Template::serving("a", [10, 0, 0, 1].into());
        assert!(template.is_met_by(&full));
        assert!(!Template::serving("b", [10, 0, 0, 1].into()).is_met_by(&full));
        assert!(!Template::serving("a", [10, 0, 0, 2].into()).is_met_by(&full));
        assert!(!template.is_met_by(&Leaf { organizations: vec![], ..full.clone() }));
        assert!(!template.is_met_by(&Leaf { names: vec!["more".into()], ..full }));
    }

    #[test]
    fn a_request_waits_until_somebody_decided() {
        let issued = json!({"certificate": STANDARD.encode("PEM")});
        check(json!({}), "nothing yet");
        check(issued.clone(), "nothing yet");
        let with = |kind: &str| {
            let mut status = issued.clone();
            status["conditions"] = json!([{"type": kind, "reason": "R", "message": "M"}]);
            status
        };
        check(with("Approved"), "PEM");
        check(with("Denied"), "certificate signing request is denied, reason: R, message: M");
        check(with("Failed"), "certificate signing request failed, reason: R, message: M");
        check(json!({"conditions": [{"type": "Approved"}]}), "nothing yet");
        let of_another = answer(&json!({"metadata": {"uid": "2"}}).to_string(), "1");
        assert!(matches!(of_another, Some(Err(RequestError::Deleted))));
    }

    #[track_caller]
    fn check(status: Value, want: &str) {
        let told = answer(&json!({"metadata": {"uid": "1"}, "status": status}).to_string(), "1");
        let told = match told {
            None => "nothing yet".to_owned(),
            Some(Ok(pem)) => pem,
            Some(Err(error)) => error.to_string(),
        };
        assert_eq!(told, want);
    }
}

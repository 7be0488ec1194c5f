//! Certificate signing requests: approves those that kubelets make for themselves, signs what was approved, and removes what
//! is done with. Upstream's csrapproving, csrsigning and csrcleaner, one after the other on each request.

mod request;
mod sign;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::{Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};

use self::request::Request;
pub use self::sign::{Signing, SigningError};
use crate::controller::{Context, Controller};

const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const API_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const LEGACY: &str = "kubernetes.io/legacy-unknown";
/// How long a request is kept that somebody has decided on, and one that nobody has.
const DECIDED: Duration = Duration::from_secs(3600);
const PENDING: Duration = Duration::from_secs(24 * 3600);
const DENIED: Duration = Duration::from_secs(60);

pub(crate) struct Certificates {
    client: kube::Client,
    requests: Informer<CertificateSigningRequest>,
    signing: Option<Arc<Signing>>,
}

impl Controller for Certificates {
    const ACCOUNT: &'static str = "certificate-controller";
    const WORKERS: usize = 5;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let requests = context.informers.of::<CertificateSigningRequest>();
        requests.subscribe(move |change| queue.add(Key::of(&**change.object())));
        Self { client: context.client.clone(), requests, signing: context.signing.clone() }
    }
}

/// What is to be done about a request now.
#[derive(Debug, PartialEq)]
enum Step {
    /// If they may, of which these subresources tell.
    Approve(&'static [(&'static str, &'static str)]),
    Sign,
    Fail(String),
    Delete,
    Wait(Duration),
}

const SELF: (&str, &str) =
    ("selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview.");
const NODE: (&str, &str) = ("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.");

fn conditions(request: &CertificateSigningRequest) -> &[CertificateSigningRequestCondition] {
    request.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

fn has(request: &CertificateSigningRequest, kind: &str) -> bool {
    conditions(request).iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Decides without asking anybody.
fn plan(request: &CertificateSigningRequest, signs: bool, now: Timestamp) -> Step {
    let issued = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    let (kept, since) = match conditions(request).iter().filter_map(|known| known.last_update_time.as_ref()).min() {
        Some(time) => (DECIDED, time.0),
        None => (PENDING, request.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0)),
    };
    let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    if age > kept || issued.is_some_and(|certificate| sign::is_over(&certificate.0, now)) {
        return Step::Delete;
    }
    let wait = Step::Wait(kept - age + Duration::from_secs(1));
    if issued.is_some() || has(request, "Denied") || has(request, "Failed") {
        return wait;
    }
    let (signer, usages) = (request.spec.signer_name.as_str(), request.spec.usages.as_deref().unwrap_or_default());
    if has(request, "Approved") {
        if !signs || ![KUBELET_CLIENT, KUBELET_SERVING, API_CLIENT, LEGACY].contains(&signer) {
            return wait;
        }
        let checked = Request::parse(&request.spec.request.0).and_then(|parsed| match signer {
            KUBELET_CLIENT => parsed.check_kubelet_client(usages),
            KUBELET_SERVING => parsed.check_kubelet_serving(usages),
            API_CLIENT => request::check_client_usages(usages),
            _ => Ok(()),
        });
        return checked.map_or_else(Step::Fail, |()| Step::Sign);
    }
    match Request::parse(&request.spec.request.0) {
        Ok(parsed) if signer == KUBELET_CLIENT && parsed.check_kubelet_client(usages).is_ok() => {
            let is_own = request.spec.username.as_deref() == Some(parsed.common_name.as_str());
            Step::Approve(if is_own { &[SELF, NODE] } else { &[NODE] })
        }
        _ => wait,
    }
}

#[async_trait]
impl Reconciler for Certificates {
    const NAME: &'static str = "certificates";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(request) = self.requests.get(key) else { return Ok(Next::OnChange) };
        let condition = |kind: &str, reason: &str, message: &str| {
            // Fractions of a second would be lost when it is written again, which is a change that nobody may make.
            let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastUpdateTime": now})
        };
        match plan(&request, self.signing.is_some(), Timestamp::now()) {
            Step::Wait(time) => return Ok(Next::After(time)),
            Step::Delete => {
                let requests = Api::<CertificateSigningRequest>::all(self.client.clone());
                match requests.delete(&key.name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => (),
                    deleted => drop(deleted?),
                }
            }
            Step::Approve(ways) => {
                for (subresource, message) in ways {
                    if self.may(&request, subresource).await? {
                        let approved = condition("Approved", "AutoApproved", message);
                        self.write(&request, "approval", |status| add(status, approved)).await?;
                        return Ok(Next::OnChange);
                    }
                }
                // They may come to be allowed.
                return Ok(Next::After(DENIED));
            }
            Step::Fail(why) => {
                let failed = condition("Failed", "SignerValidationFailure", &why);
                self.write(&request, "status", |status| add(status, failed)).await?;
            }
            Step::Sign => {
                let Some(signing) = &self.signing else { return Ok(Next::OnChange) };
                let certificate = signing.sign(&request.spec, Timestamp::now()).map_err(ReconcileError::other)?;
                let encoded = json!(k8s_openapi::ByteString(certificate.into_bytes()));
                self.write(&request, "status", |status| set(status, "certificate", encoded)).await?;
            }
        }
        Ok(Next::OnChange)
    }
}

fn set(status: &mut Value, field: &str, value: Value) {
    if let Some(status) = status.as_object_mut() {
        status.insert(field.to_owned(), value);
    }
}

fn add(status: &mut Value, condition: Value) {
    match status.get_mut("conditions").and_then(Value::as_array_mut) {
        Some(conditions) => conditions.push(condition),
        None => set(status, "conditions", json!([condition])),
    }
}

impl Certificates {
    /// Whether who made the request may have such a certificate without asking.
    async fn may(&self, request: &CertificateSigningRequest, subresource: &str) -> Result<bool, ReconcileError> {
        let review = json!({
            "kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {},
            "spec": {
                "user": request.spec.username, "uid": request.spec.uid, "groups": request.spec.groups, "extra": request.spec.extra,
                "resourceAttributes": {
                    "group": "certificates.k8s.io", "resource": "certificatesigningrequests", "verb": "create",
                    "subresource": subresource, "version": "*",
                },
            },
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = self.ask("POST", path, &review).await?;
        Ok(answer.pointer("/status/allowed") == Some(&Value::Bool(true)))
    }

    async fn write(
        &self,
        request: &CertificateSigningRequest,
        part: &str,
        change: impl FnOnce(&mut Value) + Send,
    ) -> Result<(), ReconcileError> {
        let mut object = serde_json::to_value(request).map_err(ReconcileError::other)?;
        let mut status = object.get("status").filter(|status| status.is_object()).cloned().unwrap_or_else(|| json!({}));
        change(&mut status);
        set(&mut object, "status", status);
        let name = request.metadata.name.as_deref().unwrap_or_default();
        self.ask("PUT", &format!("{PATH}/{name}/{part}"), &object).await.map(drop)
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, ReconcileError> {
        let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.body(body.to_string().into_bytes()).map_err(ReconcileError::other)?;
        Ok(self.client.request::<Value>(request).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn csr(signer: &str, subject: &[&str], names: &[&str], usages: &[&str]) -> CertificateSigningRequest {
        let mut params =
            rcgen::CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, subject[0]);
        subject[1..].iter().for_each(|group| params.distinguished_name.push(rcgen::DnType::OrganizationName, *group));
        let made = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        serde_json::from_value(json!({
            "metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "request": k8s_openapi::ByteString(made.into_bytes()), "signerName": signer, "usages": usages,
                "username": "system:node:a", "groups": ["system:nodes"],
            },
        }))
        .unwrap()
    }

    fn with(mut request: CertificateSigningRequest, kind: &str) -> CertificateSigningRequest {
        let condition = json!({"type": kind, "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z"});
        request.status = Some(serde_json::from_value(json!({"conditions": [condition]})).unwrap());
        request
    }

    fn after(minutes: i64) -> Timestamp {
        "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_mins(minutes)
    }

    const CLIENT: [&str; 2] = ["digital signature", "client auth"];
    const SERVING: [&str; 3] = ["digital signature", "key encipherment", "server auth"];

    #[test]
    fn kubelets_are_approved_for_what_they_are_and_nothing_else() {
        let check = |request: CertificateSigningRequest, want: &[(&'static str, &'static str)]| {
            let found = plan(&request, true, after(1));
            let ways = if let Step::Approve(ways) = &found { *ways } else { &[] };
            assert_eq!(ways, want, "{:?}", request.spec.signer_name);
        };
        check(csr(KUBELET_CLIENT, &["system:node:a", "system:nodes"], &[], &CLIENT), &[SELF, NODE]);
        check(csr(KUBELET_CLIENT, &["system:node:b", "system:nodes"], &[], &CLIENT), &[NODE]);
        check(csr(KUBELET_CLIENT, &["admin", "system:nodes"], &[], &CLIENT), &[]);
        check(csr(KUBELET_CLIENT, &["system:node:a", "system:masters"], &[], &CLIENT), &[]);
        check(csr(KUBELET_CLIENT, &["system:node:a", "system:nodes", "system:masters"], &[], &CLIENT), &[]);
        check(csr(KUBELET_CLIENT, &["system:node:a", "system:nodes"], &["a"], &CLIENT), &[]);
        check(csr(KUBELET_CLIENT, &["system:node:a", "system:nodes"], &[], &SERVING), &[]);
        // Upstream leaves serving certificates to people.
        check(csr(KUBELET_SERVING, &["system:node:a", "system:nodes"], &["a"], &SERVING), &[]);
        check(csr(API_CLIENT, &["system:node:a", "system:nodes"], &[], &CLIENT), &[]);
    }

    #[test]
    fn what_was_approved_is_signed_if_it_is_what_its_signer_signs() {
        let check = |request: CertificateSigningRequest, want: Step| {
            let signer = request.spec.signer_name.clone();
            assert_eq!(plan(&with(request, "Approved"), true, after(1)), want, "{signer}");
        };
        let fail = |why: &str| Step::Fail(why.to_owned());
        let node = ["system:node:a", "system:nodes"];
        check(csr(KUBELET_CLIENT, &node, &[], &CLIENT), Step::Sign);
        check(csr(KUBELET_SERVING, &node, &["a"], &SERVING), Step::Sign);
        check(csr(KUBELET_SERVING, &node, &[], &SERVING), fail("DNS or IP subjectAltName is required"));
        check(csr(KUBELET_SERVING, &["a"], &["a"], &SERVING), fail("subject organization is not system:nodes"));
        let usages = "usages did not match [client auth digital signature key encipherment]";
        check(csr(KUBELET_CLIENT, &node, &[], &SERVING), fail(usages));
        check(csr(API_CLIENT, &["ann"], &[], &CLIENT), Step::Sign);
        let wrong = "invalid usage for client certificate: server auth";
        check(csr(API_CLIENT, &["ann"], &[], &SERVING), fail(wrong));
        check(csr(LEGACY, &["ann"], &[], &SERVING), Step::Sign);
        check(csr("example.com/own", &["ann"], &[], &CLIENT), Step::Wait(Duration::from_secs(59 * 60 + 1)));
        let request = with(csr(KUBELET_CLIENT, &node, &[], &CLIENT), "Approved");
        assert_eq!(
            plan(&request, false, after(1)),
            Step::Wait(Duration::from_secs(59 * 60 + 1)),
            "no key to sign with"
        );
    }

    #[test]
    fn requests_are_removed_in_time() {
        let request = || csr("example.com/own", &["ann"], &[], &CLIENT);
        let is_removed =
            |request: &CertificateSigningRequest, minutes| plan(request, true, after(minutes)) == Step::Delete;
        assert!(!is_removed(&request(), 24 * 60));
        assert!(is_removed(&request(), 24 * 60 + 1));
        for kind in ["Approved", "Denied", "Failed"] {
            assert!(!is_removed(&with(request(), kind), 60), "{kind}");
            assert!(is_removed(&with(request(), kind), 61), "{kind}");
        }
    }

    #[test]
    fn a_signed_certificate_says_what_was_asked_for_and_not_more() {
        let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap();
        let signing =
            Signing::new(&authority.pem(), &key.serialize_pem(), Duration::from_secs(30 * 24 * 3600)).unwrap();
        let mut request = csr(KUBELET_SERVING, &["system:node:a", "system:nodes"], &["a.example"], &SERVING);
        request.spec.expiration_seconds = Some(3600);
        let now = Timestamp::now();
        let made = signing.sign(&request.spec, now).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(made.as_bytes()).unwrap();
        let made = pem.parse_x509().unwrap();
        assert_eq!(made.subject().to_string(), "CN=system:node:a, O=system:nodes");
        assert!(!made.is_ca());
        let usages = made.extended_key_usage().unwrap().unwrap().value;
        assert!(usages.server_auth && !usages.client_auth && !usages.any);
        assert!(made.subject_alternative_name().unwrap().unwrap().value.general_names.len() == 1);
        assert_eq!(made.validity().not_after.timestamp(), now.as_second() + 3600);
        assert_eq!(made.validity().not_before.timestamp(), now.as_second() - 300);
        let (_, authority) = x509_parser::parse_x509_certificate(authority.der()).unwrap();
        assert!(made.verify_signature(Some(authority.public_key())).is_ok());
        // No longer than the signer says, nor than ten minutes at least.
        request.spec.expiration_seconds = Some(365 * 24 * 3600);
        let long = signing.lifetime(&request.spec);
        request.spec.expiration_seconds = Some(60);
        assert_eq!((long.as_secs(), signing.lifetime(&request.spec).as_secs()), (30 * 24 * 3600, 600));
    }
}

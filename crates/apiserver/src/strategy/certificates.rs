//! Certificate signing requests: what may be asked for, and who may write which part of the answer.

use api::field::FieldError;
use api::validation::{NameRule, is_subdomain};
use api::{Object, ObjectExt as _, UserInfo};
use base64::Engine as _;
use serde_json::{Value, json};
use x509::{Subject, SubjectError};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer as _, Pem, X509Certificate};

use super::check::{At, check, unique};
use super::{Strategy, items, items_mut};

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];
const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
const SHORTEST_SECONDS: i64 = 600;
const DECISIONS: [&str; 2] = ["Approved", "Denied"];
const FINAL: [&str; 3] = ["Approved", "Denied", "Failed"];

pub(super) struct CertificateSigningRequests;

impl Strategy for CertificateSigningRequests {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["spec.signerName"]
    }

    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    /// What was asked for stays.
    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        if let Some(spec) = old.get("spec") {
            new.insert("spec".into(), spec.clone());
        }
    }

    /// Conditions tell since when they are as they are.
    fn prepare_part(&self, _subresource: &str, new: &mut Object, old: &Object) {
        let now = crate::handlers::now();
        let known = items(old, &["status", "conditions"]);
        for condition in items_mut(new.at_mut(&["status"]), "conditions") {
            let unset = |condition: &Object, field: &str| condition.get(field).is_none_or(Value::is_null);
            if unset(condition, "lastUpdateTime") {
                condition.insert("lastUpdateTime".into(), now.clone().into());
            }
            if unset(condition, "lastTransitionTime") {
                let same =
                    |one: &&&Object| ["type", "status"].iter().all(|field| one.get(*field) == condition.get(*field));
                let since = known.iter().find(same).and_then(|one| one.get("lastTransitionTime").cloned());
                condition.insert("lastTransitionTime".into(), since.unwrap_or_else(|| now.clone().into()));
            }
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| rules(&at))
    }

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = written(new, old, &DECISIONS);
        let certificate = |object: &Object| object.text(&["status", "certificate"]).to_owned();
        if certificate(new) != certificate(old) && !certificate(old).is_empty() {
            let detail = "updates may not modify existing certificate content";
            errors.push(FieldError::forbidden("status.certificate", detail));
        }
        errors
    }

    fn validate_part(&self, subresource: &str, new: &Object, old: &Object) -> Vec<FieldError> {
        if subresource == "approval" { written(new, old, &[]) } else { Vec::new() }
    }
}

/// Who asks is what was proven of them, not what they say.
pub(crate) fn set_requester(request: &mut Object, user: &UserInfo) {
    let spec = request.at_mut(&["spec"]);
    let fields = [
        ("username", json!(user.name), user.name.is_empty()),
        ("uid", json!(user.uid), user.uid.is_empty()),
        ("groups", json!(user.groups), user.groups.is_empty()),
        ("extra", json!(user.extra), user.extra.is_empty()),
    ];
    for (field, value, is_empty) in fields {
        spec.remove(field);
        if !is_empty {
            spec.insert(field.into(), value);
        }
    }
}

/// The subject of the certificate that a CertificateSigningRequest asks for; `None` if the request cannot be read.
pub(crate) fn requested_subject(request: &Object) -> Option<Subject> {
    Subject::of_request(&decoded(request.text(&["spec", "request"]))).ok()
}

/// What holds for every write of a status; conditions of the `closed` types are another's to decide.
fn written(new: &Object, old: &Object, closed: &[&str]) -> Vec<FieldError> {
    let mut errors = check(new, |at| rules(&at));
    let of = |object: &Object, kind: &str| -> Vec<Value> {
        let all = object.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
        all.into_iter().filter(|condition| condition.get("type").is_some_and(|found| found == kind)).collect()
    };
    let mut forbid = |verb: &str, kind: &str| {
        errors.push(FieldError::forbidden(
            "status.conditions",
            format!("updates may not {verb} a condition of type {kind:?}"),
        ));
    };
    for kind in FINAL.iter().filter(|kind| of(new, kind).len() < of(old, kind).len()) {
        forbid("remove", kind);
    }
    for kind in closed {
        let (now, before) = (of(new, kind), of(old, kind));
        match now.len().cmp(&before.len()) {
            std::cmp::Ordering::Greater => forbid("add", kind),
            std::cmp::Ordering::Equal if now != before => forbid("modify", kind),
            _ => (),
        }
    }
    errors
}

fn rules(at: &At<'_>) {
    let spec = at.field("spec");
    let request = spec.field("request");
    if let Some(why) = refused_request(request.text()) {
        request.invalid(why);
    }
    let usages = spec.field("usages");
    usages.needed();
    usages.items().iter().for_each(|usage| usage.one_of(&USAGES));
    unique(usages.items());
    let signer = spec.field("signerName");
    match signer.text() {
        LEGACY_SIGNER => signer.invalid("the legacy signerName is not allowed via this API version"),
        _ => signer_name(&signer),
    }
    let seconds = spec.field("expirationSeconds");
    if seconds.number().is_some_and(|number| number < SHORTEST_SECONDS) {
        seconds.invalid("may not specify a duration less than 600 seconds (10 minutes)");
    }
    conditions(&at.at(&["status", "conditions"]));
    let certificate = at.at(&["status", "certificate"]);
    if let Some(why) = refused_certificate(certificate.text()) {
        certificate.complain(FieldError::invalid(certificate.path(), "<certificate data>", why));
    }
}

fn conditions(at: &At<'_>) {
    let all = at.items();
    for (index, condition) in all.iter().enumerate() {
        let (kind, status) = (condition.field("type"), condition.field("status"));
        kind.needed();
        match FINAL.contains(&kind.text()) {
            true => status.needed_one_of(&["True"]),
            false => status.needed_one_of(&["False", "True", "Unknown"]),
        }
        if DECISIONS.contains(&kind.text()) {
            let mut decided = all.iter().take(index).map(|other| other.field("type").text());
            if decided.any(|other| DECISIONS.contains(&other) && other != kind.text()) {
                let detail = "Approved and Denied conditions are mutually exclusive";
                at.complain(FieldError::invalid(at.path(), kind.text(), detail));
            }
        }
    }
    unique(all.iter().map(|condition| condition.field("type")));
}

/// `domain/path`, with at least two segments in the domain.
pub(super) fn signer_name(at: &At<'_>) {
    if !at.needed() {
        return;
    }
    let parts: Vec<&str> = at.text().split('/').collect();
    let [domain, path] = parts.as_slice() else {
        return at.invalid("must be a fully qualified domain and path of the form 'example.com/signer-name'");
    };
    for detail in is_subdomain(domain) {
        at.complain(FieldError::invalid(at.path(), *domain, format!("validating label {domain:?}: {detail}")));
    }
    if !domain.contains('.') {
        at.complain(FieldError::invalid(
            at.path(),
            *domain,
            "should be a domain with at least two segments separated by dots",
        ));
    }
    if path.is_empty() {
        at.complain(FieldError::invalid(at.path(), *path, "validating label \"\": must be specified"));
    }
    for label in path.split('.') {
        for detail in is_subdomain(label) {
            at.complain(FieldError::invalid(at.path(), *path, format!("validating label {label:?}: {detail}")));
        }
    }
}

fn decoded(text: &str) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default()
}

/// Why a request cannot be signed: it must be well-formed, and made by the holder of its key.
fn refused_request(text: &str) -> Option<String> {
    let Ok(der) = x509::request_der(&decoded(text)) else {
        return Some(SubjectError::NotARequest.to_string());
    };
    match X509CertificationRequest::from_der(&der) {
        Ok((_, request)) => {
            let subject = Subject::of_name(&request.certification_request_info.subject);
            let unreadable = subject.err().map(|error| format!("x509: {error}"));
            unreadable.or_else(|| request.verify_signature().err().map(|error| format!("x509: {error}")))
        }
        Err(error) => Some(format!("x509: {error}")),
    }
}

fn refused_certificate(text: &str) -> Option<String> {
    let bytes = decoded(text);
    if bytes.is_empty() {
        return None;
    }
    let mut found = 0;
    for pem in Pem::iter_from_buffer(&bytes).map_while(Result::ok) {
        if pem.label != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", pem.label));
        }
        if let Err(error) = X509Certificate::from_der(&pem.contents) {
            return Some(format!("x509: {error}"));
        }
        found += 1;
    }
    (found == 0).then(|| "must contain at least one CERTIFICATE PEM block".to_owned())
}

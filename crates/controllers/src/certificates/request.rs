//! What a signing request asks for, and whether that is what a kubelet may ask for. The texts are upstream's.

use x509::Subject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer as _;

const NODES: &str = "system:nodes";
const NODE: &str = "system:node:";

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) common_name: String,
    organizations: Vec<String>,
    names: Kinds,
}

/// Which kinds of names it is for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Kinds {
    dns: bool,
    email: bool,
    ip: bool,
    uri: bool,
}

impl Request {
    pub(super) fn parse(pem: &[u8]) -> Result<Self, String> {
        let der = x509::request_der(pem).map_err(|error| error.to_string())?;
        let (_, request) = X509CertificationRequest::from_der(&der).map_err(|error| error.to_string())?;
        let subject =
            Subject::of_name(&request.certification_request_info.subject).map_err(|error| error.to_string())?;
        let mut names = Kinds::default();
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(alternative) = extension else { continue };
            for name in &alternative.general_names {
                match name {
                    GeneralName::DNSName(_) => names.dns = true,
                    GeneralName::RFC822Name(_) => names.email = true,
                    GeneralName::IPAddress(_) => names.ip = true,
                    GeneralName::URI(_) => names.uri = true,
                    _ => (),
                }
            }
        }
        Ok(Self { common_name: subject.common_name, organizations: subject.organizations, names })
    }

    pub(super) fn check_kubelet_client(&self, usages: &[String]) -> Result<(), String> {
        let wrong = match self {
            _ if self.organizations != [NODES] => "subject organization is not system:nodes",
            _ if self.names.dns => "DNS subjectAltNames are not allowed",
            _ if self.names.email => "Email subjectAltNames are not allowed",
            _ if self.names.ip => "IP subjectAltNames are not allowed",
            _ if self.names.uri => "URI subjectAltNames are not allowed",
            _ if !self.common_name.starts_with(NODE) => "subject common name does not begin with system:node:",
            _ => return check_usages(usages, "client auth"),
        };
        Err(wrong.into())
    }

    pub(super) fn check_kubelet_serving(&self, usages: &[String]) -> Result<(), String> {
        let wrong = match self {
            _ if self.organizations != [NODES] => "subject organization is not system:nodes",
            _ if !self.names.dns && !self.names.ip => "DNS or IP subjectAltName is required",
            _ if self.names.email => "Email subjectAltNames are not allowed",
            _ if self.names.uri => "URI subjectAltNames are not allowed",
            _ => {
                check_usages(usages, "server auth")?;
                if self.common_name.starts_with(NODE) {
                    return Ok(());
                }
                "subject common name does not begin with system:node:"
            }
        };
        Err(wrong.into())
    }
}

/// `own`, a signature, and what only RSA needs.
fn check_usages(usages: &[String], own: &str) -> Result<(), String> {
    let (signature, encipherment) = ("digital signature", "key encipherment");
    let has = |usage: &str| usages.iter().any(|known| known == usage);
    let knows = |usage: &String| [own, signature, encipherment].contains(&usage.as_str());
    if has(own) && has(signature) && usages.iter().all(knows) {
        return Ok(());
    }
    let mut wanted = [own, signature, encipherment];
    wanted.sort_unstable();
    Err(format!("usages did not match [{}]", wanted.join(" ")))
}

pub(super) fn check_client_usages(usages: &[String]) -> Result<(), String> {
    let known = ["digital signature", "key encipherment", "client auth"];
    match usages.iter().find(|usage| !known.contains(&usage.as_str())) {
        Some(odd) => Err(format!("invalid usage for client certificate: {odd}")),
        None if usages.iter().any(|usage| usage == "client auth") => Ok(()),
        None => Err("missing required usage for client certificate: client auth".into()),
    }
}

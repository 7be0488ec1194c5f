//! Who is calling: the names in a client certificate, and whether they may use a kubelet.

use x509_parser::prelude::{FromDer, X509Certificate};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Client {
    pub(super) name: String,
    pub(super) groups: Vec<String>,
}

pub(super) fn client(der: &[u8]) -> Option<Client> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok().map(str::to_owned)).collect();
    Some(Client { name, groups })
}

impl Client {
    pub(super) fn may_use_kubelet(&self) -> bool {
        self.name == "kube-apiserver-kubelet-client" || self.groups.iter().any(|group| group == "system:masters")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, groups: &[&str], want: bool) {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        for group in groups {
            params.distinguished_name.push(rcgen::DnType::OrganizationName, *group);
        }
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let client = client(certificate.der()).expect("names");
        assert_eq!((client.name.as_str(), client.may_use_kubelet()), (name, want));
    }

    #[test]
    fn only_the_api_server_and_masters_are_let_in() {
        check("kube-apiserver-kubelet-client", &[], true);
        check("admin", &["system:masters"], true);
        check("system:node:n", &["system:nodes"], false);
        assert_eq!(client(b"nonsense"), None);
    }
}

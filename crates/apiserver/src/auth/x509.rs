//! Client certificates: common name is the user, organizations are its groups; or a front proxy's, which speaks for others.

use std::sync::Arc;

use api::UserInfo;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::ClientCertificate;

/// Tells clients from proxies: the TLS layer lets in certificates of either's authorities.
pub(crate) struct Certificates {
    clients: Option<Arc<dyn ClientCertVerifier>>,
    proxies: Option<Arc<dyn ClientCertVerifier>>,
}

/// One that cannot be built believes nobody.
fn verifier(authorities: &[Vec<u8>]) -> Option<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(CertificateDer::from(authority.clone())).ok()?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()
}

impl Certificates {
    pub(crate) fn new(clients: &[Vec<u8>], proxies: &[Vec<u8>]) -> Self {
        Self { clients: verifier(clients), proxies: verifier(proxies) }
    }

    /// Whom the certificates a connection was opened with stand for.
    pub(crate) fn holder(&self, chain: &[CertificateDer<'_>]) -> ClientCertificate {
        let Some((own, others)) = chain.split_first() else { return ClientCertificate::default() };
        let is_of = |verifier: &Option<Arc<dyn ClientCertVerifier>>| {
            verifier.as_ref().is_some_and(|v| v.verify_client_cert(own, others, UnixTime::now()).is_ok())
        };
        ClientCertificate {
            user: is_of(&self.clients).then(|| user(own)).flatten(),
            proxy: is_of(&self.proxies).then(|| user(own)).flatten().map(|user| user.name),
        }
    }
}

fn user(certificate: &[u8]) -> Option<UserInfo> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let organizations: Vec<&str> = subject.iter_organization().filter_map(|o| o.as_str().ok()).collect();
    Some(UserInfo::authenticated(name, &organizations))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Authority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

    impl Authority {
        fn new() -> Self {
            let mut params = rcgen::CertificateParams::default();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
            Self(rcgen::CertifiedIssuer::self_signed(params, key).unwrap())
        }

        fn der(&self) -> Vec<u8> {
            self.0.der().to_vec()
        }

        fn sign(&self, name: &str, group: &str) -> CertificateDer<'static> {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
            params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
            let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
            params.signed_by(&key, &self.0).unwrap().der().clone()
        }
    }

    /// A proxy's certificate makes no user, and a client's no proxy, whatever they are called.
    #[test]
    fn each_authority_makes_its_own_kind() {
        let (clients, proxies) = (Authority::new(), Authority::new());
        let certificates = Certificates::new(&[clients.der()], &[proxies.der()]);
        let holder = certificates.holder(&[clients.sign("bob", "system:masters")]);
        assert_eq!(
            holder.user.map(|user| user.groups),
            Some(vec!["system:masters".into(), "system:authenticated".into()])
        );
        assert_eq!(holder.proxy, None);
        let holder = certificates.holder(&[proxies.sign("front", "system:masters")]);
        assert_eq!((holder.user, holder.proxy.as_deref()), (None, Some("front")));
        let holder = certificates.holder(&[Authority::new().sign("bob", "system:masters")]);
        assert_eq!((holder.user, holder.proxy), (None, None));
        let holder = Certificates::new(&[clients.der()], &[]).holder(&[clients.sign("front", "x")]);
        assert_eq!(holder.proxy, None, "without an authority for proxies there are none");
    }
}

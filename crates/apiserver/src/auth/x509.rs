//! Client certificates: common name is the user, organizations are its groups; or a front proxy's, which speaks for others.

use std::sync::Arc;

use api::UserInfo;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::ClientCertificate;

/// Tells clients from proxies: the TLS layer lets in certificates of either's authorities.
pub(crate) struct Certificates {
    /// The authorities of clients, in DER.
    pub(crate) client_ca: Vec<Vec<u8>>,
    /// Those of front proxies.
    pub(crate) proxy_ca: Vec<Vec<u8>>,
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
        Self {
            client_ca: clients.to_vec(),
            proxy_ca: proxies.to_vec(),
            clients: verifier(clients),
            proxies: verifier(proxies),
        }
    }

    /// Whom certificates stand for at that time.
    fn holder(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> ClientCertificate {
        let Some((own, others)) = chain.split_first() else { return ClientCertificate::default() };
        let is_of = |verifier: &Option<Arc<dyn ClientCertVerifier>>| {
            verifier.as_ref().is_some_and(|v| v.verify_client_cert(own, others, now).is_ok())
        };
        ClientCertificate {
            user: is_of(&self.clients).then(|| user(own)).flatten(),
            proxy: is_of(&self.proxies).then(|| user(own)).flatten().map(|user| user.name),
        }
    }
}

/// Whom the certificates that a connection was opened with stand for: looked at again once one has ended, or others are believed.
pub(crate) struct Holder {
    chain: Vec<CertificateDer<'static>>,
    /// In seconds since 1970.
    until: u64,
    known: Mutex<(Arc<Certificates>, ClientCertificate)>,
}

impl Holder {
    pub(crate) fn new(chain: &[CertificateDer<'_>], believed: &ArcSwap<Certificates>, now: UnixTime) -> Self {
        let chain: Vec<_> = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        let until = chain.iter().map(|certificate| end(certificate)).min().unwrap_or_default();
        let believed = believed.load_full();
        let known = believed.holder(&chain, now);
        Self { chain, until, known: Mutex::new((believed, known)) }
    }

    pub(crate) fn at(&self, now: UnixTime, believed: &ArcSwap<Certificates>) -> ClientCertificate {
        let believed = believed.load();
        let mut known = self.known.lock();
        if !Arc::ptr_eq(&known.0, &believed) || now.as_secs() > self.until {
            *known = (Arc::clone(&believed), believed.holder(&self.chain, now));
        }
        known.1.clone()
    }
}

fn end(certificate: &[u8]) -> u64 {
    let read = X509Certificate::from_der(certificate).ok();
    read.and_then(|(_, read)| u64::try_from(read.validity().not_after.timestamp()).ok()).unwrap_or_default()
}

fn user(certificate: &[u8]) -> Option<UserInfo> {
    let subject =
        ::x509::Subject::of_certificate(certificate).ok().filter(|subject| !subject.common_name.is_empty())?;
    let organizations: Vec<&str> = subject.organizations.iter().map(String::as_str).collect();
    let mut user = UserInfo::authenticated(subject.common_name, &organizations);
    // Tells one credential of a user from another, as the identifier of a token does.
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    user.extra.insert(super::CREDENTIAL_ID.into(), vec![format!("X509SHA256={digest}")]);
    Some(user)
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
            self.sign_until(name, group, jiff::Timestamp::now().as_second() + 3600)
        }

        fn sign_until(&self, name: &str, group: &str, until: i64) -> CertificateDer<'static> {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
            params.not_after = time::OffsetDateTime::from_unix_timestamp(until).unwrap();
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
        let holder = certificates.holder(&[clients.sign("bob", "system:masters")], UnixTime::now());
        assert_eq!(
            holder.user.map(|user| user.groups),
            Some(vec!["system:masters".into(), "system:authenticated".into()])
        );
        assert_eq!(holder.proxy, None);
        let own = clients.sign("bob", "x");
        let extra = user(&own).map(|user| user.extra).unwrap_or_default();
        let digest = ring::digest::digest(&ring::digest::SHA256, &own);
        let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(extra.get(super::super::CREDENTIAL_ID), Some(&vec![format!("X509SHA256={digest}")]));
        let holder = certificates.holder(&[proxies.sign("front", "system:masters")], UnixTime::now());
        assert_eq!((holder.user, holder.proxy.as_deref()), (None, Some("front")));
        let holder = certificates.holder(&[Authority::new().sign("bob", "system:masters")], UnixTime::now());
        assert_eq!((holder.user, holder.proxy), (None, None));
        let holder = Certificates::new(&[clients.der()], &[]).holder(&[clients.sign("front", "x")], UnixTime::now());
        assert_eq!(holder.proxy, None, "without an authority for proxies there are none");
    }

    /// A connection that was opened before a change goes on; who is behind it is what is believed now.
    #[test]
    fn what_has_ended_or_is_believed_no_more_stands_for_nobody() {
        let (old, new) = (Authority::new(), Authority::new());
        let believed = ArcSwap::from_pointee(Certificates::new(&[old.der()], &[]));
        let now = jiff::Timestamp::now().as_second();
        let at = |second: i64| UnixTime::since_unix_epoch(std::time::Duration::from_secs(second.try_into().unwrap()));
        let open = |name, until| Holder::new(&[old.sign_until(name, "x", until)], &believed, at(now));
        let (short, long) = (open("short", now + 60), open("long", now + 3600));
        let name = |holder: &Holder, second| holder.at(at(second), &believed).user.map(|user| user.name);
        assert_eq!((name(&short, now), name(&long, now)), (Some("short".into()), Some("long".into())));
        assert_eq!((name(&short, now + 61), name(&long, now + 61)), (None, Some("long".into())));
        let believe = |clients: &[Vec<u8>], proxies: &[Vec<u8>]| {
            believed.store(Arc::new(Certificates::new(clients, proxies)));
        };
        believe(&[old.der(), new.der()], &[]);
        assert_eq!(name(&long, now), Some("long".into()));
        believe(&[new.der()], &[old.der()]);
        assert_eq!(name(&long, now), None);
        assert_eq!(long.at(at(now), &believed).proxy.as_deref(), Some("long"), "it is a proxy's now");
    }
}

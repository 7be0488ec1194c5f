//! The cluster's certificates: one authority, and a certificate for each who serves or calls.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

const CA_YEARS: i64 = 10;
const LEAF_DAYS: i64 = 365;
/// Clocks of machines that join may be a little behind.
const BACKDATE_HOURS: i64 = 1;
const RENEW_BEFORE_DAYS: i64 = 30;

/// A certificate with its key, as PEM.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Identity {
    pub(crate) fn chain(&self) -> Result<Vec<CertificateDer<'static>>> {
        CertificateDer::pem_slice_iter(self.certificate.as_bytes()).map(|c| c.context("certificate")).collect()
    }

    pub(crate) fn private_key(&self) -> Result<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).context("private key")
    }

    /// For clients that are to show it.
    pub(crate) fn resolver(&self) -> Result<Arc<dyn ResolvesClientCert>> {
        let key = rustls::crypto::ring::sign::any_supported_type(&self.private_key()?)?;
        Ok(Arc::new(SingleCertAndKey::from(CertifiedKey::new(self.chain()?, key))))
    }
}

/// The authority of a cluster, in a directory of its own.
pub(crate) struct Pki {
    dir: PathBuf,
    pub(crate) ca: Identity,
}

impl Pki {
    /// Opens the authority, or makes one.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let (certificate, key) = (dir.join("ca.crt"), dir.join("ca.key"));
        if !certificate.exists() {
            let pair = KeyPair::generate()?;
            let mut params = named("kubernetes", &[], CA_YEARS * 365)?;
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages =
                vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::KeyCertSign];
            let made = params.self_signed(&pair)?;
            write(&key, &pair.serialize_pem())?;
            write(&certificate, &made.pem())?;
        }
        let ca = Identity { certificate: read(&certificate)?, key: read(&key)? };
        Ok(Self { dir: dir.to_owned(), ca })
    }

    /// A client certificate for a user in groups.
    pub(crate) fn client(&self, file: &str, user: &str, groups: &[&str]) -> Result<Identity> {
        self.leaf(file, user, groups, ExtendedKeyUsagePurpose::ClientAuth, &[], &[])
    }

    /// A serving certificate for names and addresses.
    pub(crate) fn server(&self, file: &str, user: &str, names: &[&str], addresses: &[IpAddr]) -> Result<Identity> {
        self.leaf(file, user, &[], ExtendedKeyUsagePurpose::ServerAuth, names, addresses)
    }

    fn leaf(
        &self,
        file: &str,
        user: &str,
        groups: &[&str],
        usage: ExtendedKeyUsagePurpose,
        names: &[&str],
        addresses: &[IpAddr],
    ) -> Result<Identity> {
        let (certificate, key) = (self.dir.join(format!("{file}.crt")), self.dir.join(format!("{file}.key")));
        if certificate.exists() && key.exists() {
            let known = Identity { certificate: read(&certificate)?, key: read(&key)? };
            if is_usable(&known, addresses) {
                return Ok(known);
            }
        }
        let mut params = named(user, groups, LEAF_DAYS)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![usage];
        for name in names {
            params.subject_alt_names.push(SanType::DnsName((*name).try_into()?));
        }
        params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        let issuer = Issuer::from_ca_cert_pem(&self.ca.certificate, KeyPair::from_pem(&self.ca.key)?)?;
        let pair = KeyPair::generate()?;
        let made = params.signed_by(&pair, &issuer)?;
        let identity = Identity { certificate: made.pem(), key: pair.serialize_pem() };
        write(&key, &identity.key)?;
        write(&certificate, &identity.certificate)?;
        Ok(identity)
    }

    /// The key that signs service-account tokens, in PEM.
    pub(crate) fn service_account_key(&self) -> Result<Vec<u8>> {
        let path = self.dir.join("sa.key");
        if !path.exists() {
            write(&path, &KeyPair::generate()?.serialize_pem())?;
        }
        Ok(read(&path)?.into_bytes())
    }

    pub(crate) fn ca_der(&self) -> Result<Vec<u8>> {
        let first = self.ca.chain()?.into_iter().next().context("the authority's certificate is empty")?;
        Ok(first.as_ref().to_vec())
    }
}

/// Still valid for a while, and for all of these addresses.
fn is_usable(identity: &Identity, addresses: &[IpAddr]) -> bool {
    let Ok(chain) = identity.chain() else { return false };
    let Some(Ok((_, certificate))) = chain.first().map(|der| x509_parser::parse_x509_certificate(der)) else {
        return false;
    };
    let until = certificate.validity().not_after.timestamp();
    let soon = jiff::Timestamp::now().as_second() + RENEW_BEFORE_DAYS * 24 * 3600;
    let names = certificate.subject_alternative_name().ok().flatten();
    let known: Vec<IpAddr> = names
        .iter()
        .flat_map(|n| &n.value.general_names)
        .filter_map(|name| match name {
            x509_parser::extensions::GeneralName::IPAddress(bytes) => {
                <[u8; 4]>::try_from(*bytes).ok().map(IpAddr::from)
            }
            _ => None,
        })
        .collect();
    until > soon && addresses.iter().filter(|a| a.is_ipv4()).all(|address| known.contains(address))
}

fn named(user: &str, groups: &[&str], days: i64) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    let now = jiff::Timestamp::now();
    params.not_before = date(now - jiff::SignedDuration::from_hours(BACKDATE_HOURS));
    params.not_after = date(now + jiff::SignedDuration::from_hours(24 * days));
    Ok(params)
}

fn date(at: jiff::Timestamp) -> time::OffsetDateTime {
    time::OffsetDateTime::from_unix_timestamp(at.as_second()).unwrap_or(time::OffsetDateTime::UNIX_EPOCH)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Whole or not at all, and for its owner alone.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .with_context(|| format!("cannot write {}", temporary.display()))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary, path).with_context(|| format!("cannot write {}", path.display()))
}

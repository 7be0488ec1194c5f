//! The cluster's certificates: one authority, and a certificate for each who serves or calls.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

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
}

/// The authority of a cluster, in a directory of its own.
#[derive(Clone)]
pub(crate) struct Pki {
    dir: PathBuf,
    pub(crate) ca: Identity,
}

impl Pki {
    /// Opens the authority, or makes one.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        close_to_others(dir)?;
        let (certificate, key) = (dir.join("ca.crt"), dir.join("ca.key"));
        if !certificate.exists() {
            let made = new_authority()?;
            write(&key, &made.key)?;
            write(&certificate, &made.certificate)?;
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
            if self.is_ours(&known) && is_usable(&known, addresses, jiff::Timestamp::now()) {
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

    /// Whom to believe: the authority that signs, and while it is changed the one before or after it.
    pub(crate) fn authorities(&self) -> Result<Vec<Vec<u8>>> {
        let chain = self.ca.chain()?;
        anyhow::ensure!(!chain.is_empty(), "the authority's certificate is empty");
        Ok(chain.iter().map(|certificate| certificate.as_ref().to_vec()).collect())
    }

    /// Signed by the authority that signs now.
    fn is_ours(&self, identity: &Identity) -> bool {
        let (Ok(own), Ok(chain)) = (self.ca.chain(), identity.chain()) else { return false };
        let (Some(own), Some(leaf)) = (own.first(), chain.first()) else { return false };
        let parsed = |der| x509_parser::parse_x509_certificate(der).ok().map(|(_, certificate)| certificate);
        let (Some(own), Some(leaf)) = (parsed(own), parsed(leaf)) else { return false };
        leaf.verify_signature(Some(own.public_key())).is_ok()
    }

    /// The next step of a change of the authority; answers what is to be done before the one after it.
    pub(crate) fn rotate(&self) -> Result<&'static str> {
        let path = |file: &str| self.dir.join(file);
        let (next, next_key) = (path("ca.next.crt"), path("ca.next.key"));
        let authorities = self.authorities()?.len();
        if authorities == 1 {
            let made = new_authority()?;
            write(&next_key, &made.key)?;
            write(&next, &made.certificate)?;
            write(&path("ca.crt"), &format!("{}{}", self.ca.certificate, made.certificate))?;
            return Ok(
                "A new authority is believed beside the old one, which still signs. Start everything anew, and give everybody \
                       the new pki/ca.crt or kubeconfig; then run this again.",
            );
        }
        let first = self.ca.certificate.split_inclusive("-----END CERTIFICATE-----\n").next().unwrap_or_default();
        if next.exists() {
            write(&path("ca.crt"), &format!("{}{first}", read(&next)?))?;
            write(&path("ca.key"), &read(&next_key)?)?;
            for file in [next, next_key] {
                std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
            }
            return Ok(
                "The new authority signs; the old one is still believed. Start everything anew, and give everybody new \
                       certificates; then run this again.",
            );
        }
        write(&path("ca.crt"), first)?;
        Ok("The old authority is gone. Start everything anew.")
    }
}

fn new_authority() -> Result<Identity> {
    let pair = KeyPair::generate()?;
    let mut params = named("kubernetes", &[], CA_YEARS * 365)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::KeyCertSign];
    Ok(Identity { certificate: params.self_signed(&pair)?.pem(), key: pair.serialize_pem() })
}

/// How long until one of these must be renewed.
pub(crate) fn good_for(identities: &[&Identity]) -> Result<std::time::Duration> {
    let mut least = i64::MAX;
    for identity in identities {
        let chain = identity.chain()?;
        let first = chain.first().context("an empty certificate")?;
        let (_, certificate) = x509_parser::parse_x509_certificate(first)?;
        least = least.min(certificate.validity().not_after.timestamp());
    }
    let left = least - RENEW_BEFORE_DAYS * 24 * 3600 - jiff::Timestamp::now().as_second();
    // A moment later it is certainly due.
    Ok(std::time::Duration::from_secs(u64::try_from(left + 1).unwrap_or_default()))
}

/// Still valid for a while, and for all of these addresses.
fn is_usable(identity: &Identity, addresses: &[IpAddr], now: jiff::Timestamp) -> bool {
    let Ok(chain) = identity.chain() else { return false };
    let Some(Ok((_, certificate))) = chain.first().map(|der| x509_parser::parse_x509_certificate(der)) else {
        return false;
    };
    let until = certificate.validity().not_after.timestamp();
    let soon = now.as_second() + RENEW_BEFORE_DAYS * 24 * 3600;
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

/// Makes a directory of Ferry's own that only root may enter, and closes one that others could enter.
pub(crate) fn close_to_others(dir: &Path) -> Result<()> {
    make_private(dir)?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))
        .with_context(|| format!("cannot close {} to other users", dir.display()))
}

/// Makes a directory that only root may enter. One that exists keeps its mode: it may be anything that a flag names.
pub(crate) fn make_private(dir: &Path) -> Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("cannot create {}", dir.display()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path()).unwrap();
        pki.client("admin", "ann", &[]).unwrap();
        pki.server("server", "x", &["localhost"], &[]).unwrap();
        pki.service_account_key().unwrap();
        pki.rotate().unwrap();
        let mut keys = 0;
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let path = entry.unwrap().path();
            if std::fs::read_to_string(&path).unwrap().contains("PRIVATE KEY") {
                keys += 1;
                let mode = std::fs::metadata(&path).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{}", path.display());
            }
        }
        assert_eq!(keys, 5);
    }

    #[test]
    fn directories_of_keys_and_sockets_are_closed_to_other_users() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let pki = dir.path().join("a/pki");
        make_private(&pki).unwrap();
        assert_eq!((mode(&pki), mode(&dir.path().join("a"))), (0o700, 0o700));
        // As an older release left it.
        std::fs::set_permissions(&pki, std::fs::Permissions::from_mode(0o755)).unwrap();
        make_private(&pki).unwrap();
        assert_eq!(mode(&pki), 0o755);
        Pki::open(&pki).unwrap();
        assert_eq!(mode(&pki), 0o700);
    }

    #[test]
    fn a_certificate_is_made_anew_a_month_before_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path()).unwrap();
        let made = pki.client("admin", "ann", &[]).unwrap();
        let after = |days: i64| jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * days);
        assert!(is_usable(&made, &[], after(LEAF_DAYS - RENEW_BEFORE_DAYS - 1)));
        assert!(!is_usable(&made, &[], after(LEAF_DAYS - RENEW_BEFORE_DAYS + 1)));
        let days = good_for(&[&made]).unwrap().as_secs_f64() / (24.0 * 3600.0);
        assert!((days - (LEAF_DAYS - RENEW_BEFORE_DAYS) as f64).abs() < 0.1, "{days}");
        assert_eq!(pki.client("admin", "ann", &[]).unwrap().certificate, made.certificate, "it is kept until then");
    }

    /// Whether somebody who believes these authorities believes this certificate.
    fn is_believed(authorities: &Pki, identity: &Identity) -> bool {
        let ders = authorities.authorities().unwrap();
        let chain = identity.chain().unwrap();
        let (_, leaf) = x509_parser::parse_x509_certificate(&chain[0]).unwrap();
        ders.iter().any(|der| {
            let (_, authority) = x509_parser::parse_x509_certificate(der).unwrap();
            leaf.verify_signature(Some(authority.public_key())).is_ok()
        })
    }

    /// At no step is anybody refused who was there at the step before.
    #[test]
    fn the_authority_is_changed_in_three_steps() {
        let dir = tempfile::tempdir().unwrap();
        let mut steps = vec![];
        for step in 0..4 {
            if step > 0 {
                Pki::open(dir.path()).unwrap().rotate().unwrap();
            }
            let pki = Pki::open(dir.path()).unwrap();
            let leaf = pki.server("server", "x", &["localhost"], &[]).unwrap();
            steps.push((pki, leaf));
        }
        for pair in steps.windows(2) {
            let [(before, old), (after, new)] = pair else { unreachable!() };
            assert!(is_believed(before, new) && is_believed(after, old));
        }
        let [(first, old), .., (last, new)] = steps.as_slice() else { unreachable!() };
        assert!(!is_believed(last, old) && !is_believed(first, new));
        assert_eq!(steps.iter().map(|(pki, _)| pki.authorities().unwrap().len()).collect::<Vec<_>>(), [1, 2, 2, 1]);
        assert!(!dir.path().join("ca.next.key").exists());
    }
}

//! Signs requests with the cluster's authority.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use rcgen::{CertificateSigningRequestParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use time::OffsetDateTime;

/// Clocks of those who look at it may be a little behind.
const BACKDATE: Duration = Duration::from_secs(300);
const SHORTEST: Duration = Duration::from_secs(600);
/// A certificate that lives for less than this is not made shorter by what it is backdated.
const SHORT: Duration = Duration::from_secs(8 * 3600);

#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    #[error("the authority's certificate or key cannot be read: {0}")]
    Authority(String),
    #[error("error auto signing csr: {0}")]
    Request(String),
    #[error("unrecognized usage values: {0:?}")]
    Usage(String),
    #[error("refusing to sign a certificate that expired in the past")]
    Over,
}

/// The authority, and for how long what it signs is good at most.
pub struct Signing {
    issuer: Issuer<'static, KeyPair>,
    until: i64,
    lifetime: Duration,
}

impl Signing {
    /// Certificate and key are PEM; of several certificates the first is the one that the key belongs to.
    ///
    /// # Errors
    /// Either cannot be read.
    pub fn new(certificate: &str, key: &str, lifetime: Duration) -> Result<Self, SigningError> {
        let wrong = |error: &dyn std::fmt::Display| SigningError::Authority(error.to_string());
        let key = KeyPair::from_pem(key).map_err(|error| wrong(&error))?;
        let issuer = Issuer::from_ca_cert_pem(certificate, key).map_err(|error| wrong(&error))?;
        let until = end(certificate.as_bytes()).ok_or_else(|| wrong(&"no certificate"))?;
        Ok(Self { issuer, until, lifetime })
    }

    pub(super) fn lifetime(&self, spec: &CertificateSigningRequestSpec) -> Duration {
        let asked = spec.expiration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
        asked.map_or(self.lifetime, |asked| asked.max(SHORTEST).min(self.lifetime))
    }

    /// The certificate, in PEM.
    pub(super) fn sign(&self, spec: &CertificateSigningRequestSpec, now: Timestamp) -> Result<String, SigningError> {
        let wrong = |error: &dyn std::fmt::Display| SigningError::Request(error.to_string());
        // The very bytes that were validated: another reader of the PEM text could find another block.
        let der = x509::request_der(&spec.request.0).map_err(|error| wrong(&error))?;
        let mut request = CertificateSigningRequestParams::from_der(&der.into()).map_err(|error| wrong(&error))?;
        let lifetime = self.lifetime(spec);
        let lasts = if lifetime < SHORT { lifetime } else { lifetime - BACKDATE };
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let until = (now.as_second() + seconds(lasts)).min(self.until);
        if until <= now.as_second() {
            return Err(SigningError::Over);
        }
        let params = &mut request.params;
        params.not_before = date(now.as_second() - seconds(BACKDATE));
        params.not_after = date(until);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.custom_extensions.clear();
        (params.key_usages, params.extended_key_usages) = usages(spec.usages.as_deref().unwrap_or_default())?;
        Ok(request.signed_by(&self.issuer).map_err(|error| wrong(&error))?.pem())
    }
}

fn date(seconds: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// When the first certificate of a PEM ends.
fn end(pem: &[u8]) -> Option<i64> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).ok()?;
    Some(pem.parse_x509().ok()?.validity().not_after.timestamp())
}

/// A certificate that nobody believes any more.
pub(super) fn is_over(pem: &[u8], now: Timestamp) -> bool {
    end(pem).is_some_and(|end| end < now.as_second())
}

type Usages = (Vec<KeyUsagePurpose>, Vec<ExtendedKeyUsagePurpose>);

fn usages(names: &[String]) -> Result<Usages, SigningError> {
    use ExtendedKeyUsagePurpose as Extended;
    let (mut plain, mut extended) = Usages::default();
    for name in names {
        let usage = match name.as_str() {
            "signing" | "digital signature" => Ok(KeyUsagePurpose::DigitalSignature),
            "content commitment" => Ok(KeyUsagePurpose::ContentCommitment),
            "key encipherment" => Ok(KeyUsagePurpose::KeyEncipherment),
            "key agreement" => Ok(KeyUsagePurpose::KeyAgreement),
            "data encipherment" => Ok(KeyUsagePurpose::DataEncipherment),
            "cert sign" => Ok(KeyUsagePurpose::KeyCertSign),
            "crl sign" => Ok(KeyUsagePurpose::CrlSign),
            "encipher only" => Ok(KeyUsagePurpose::EncipherOnly),
            "decipher only" => Ok(KeyUsagePurpose::DecipherOnly),
            "any" => Err(Extended::Any),
            "server auth" => Err(Extended::ServerAuth),
            "client auth" => Err(Extended::ClientAuth),
            "code signing" => Err(Extended::CodeSigning),
            "email protection" | "s/mime" => Err(Extended::EmailProtection),
            "timestamping" => Err(Extended::TimeStamping),
            "ocsp signing" => Err(Extended::OcspSigning),
            "ipsec end system" => Err(Extended::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 5])),
            "ipsec tunnel" => Err(Extended::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 6])),
            "ipsec user" => Err(Extended::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 7])),
            "microsoft sgc" => Err(Extended::Other(vec![1, 3, 6, 1, 4, 1, 311, 10, 3, 3])),
            "netscape sgc" => Err(Extended::Other(vec![2, 16, 840, 1, 113_730, 4, 1])),
            other => return Err(SigningError::Usage(other.to_owned())),
        };
        match usage {
            Ok(usage) if !plain.contains(&usage) => plain.push(usage),
            Err(usage) if !extended.contains(&usage) => extended.push(usage),
            _ => (),
        }
    }
    Ok((plain, extended))
}

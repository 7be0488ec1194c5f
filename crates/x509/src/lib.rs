//! The subject of a certificate or of a signing request, read as Go's `crypto/x509` reads it.
//!
//! A subject may name several common names, and a PEM text several blocks. Whoever validates a request, approves it, signs it
//! and later authenticates its holder must read the same one, so this crate is the only reader: the last common name, every
//! organization, the first PEM block.

use x509_parser::asn1_rs::{Any, Tag};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::X509Name;

const REQUEST_LABEL: &str = "CERTIFICATE REQUEST";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    NotARequest,
    #[error("malformed PEM: {0}")]
    Pem(String),
    #[error("malformed DER: {0}")]
    Der(String),
    /// Readers disagree about such a value, so it names nobody.
    #[error("the subject has a name that is not a valid string")]
    NotAString,
}

/// The user name and groups that a subject stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The last common name, as in Go's `pkix.Name`; empty if there is none.
    pub common_name: String,
    pub organizations: Vec<String>,
}

impl Subject {
    /// The subject of a certificate in DER.
    ///
    /// # Errors
    /// The certificate is malformed, or a name in its subject is not a string.
    pub fn of_certificate(der: &[u8]) -> Result<Self, SubjectError> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|error| SubjectError::Der(error.to_string()))?;
        Self::of_name(certificate.subject())
    }

    /// The subject of the signing request in a PEM text (see [`request_der`]).
    ///
    /// # Errors
    /// As [`request_der`], or the request is malformed, or a name in its subject is not a string.
    pub fn of_request(pem: &[u8]) -> Result<Self, SubjectError> {
        let der = request_der(pem)?;
        let request = X509CertificationRequest::from_der(&der);
        let (_, request) = request.map_err(|error| SubjectError::Der(error.to_string()))?;
        Self::of_name(&request.certification_request_info.subject)
    }

    /// # Errors
    /// A common name or an organization is not a string.
    pub fn of_name(name: &X509Name<'_>) -> Result<Self, SubjectError> {
        let mut subject = Self::default();
        for common_name in name.iter_common_name() {
            subject.common_name = text(common_name.attr_value())?;
        }
        for organization in name.iter_organization() {
            subject.organizations.push(text(organization.attr_value())?);
        }
        Ok(subject)
    }
}

/// The DER of the signing request in a PEM text: of its first block, which must be one.
///
/// # Errors
/// There is no block, it is malformed, or it is not a signing request.
pub fn request_der(pem: &[u8]) -> Result<Vec<u8>, SubjectError> {
    let first = Pem::iter_from_buffer(pem).next().ok_or(SubjectError::NotARequest)?;
    let first = first.map_err(|error| SubjectError::Pem(error.to_string()))?;
    if first.label == REQUEST_LABEL { Ok(first.contents) } else { Err(SubjectError::NotARequest) }
}

/// A string of one of the types that Go reads in a subject.
fn text(value: &Any<'_>) -> Result<String, SubjectError> {
    let bytes = value.data;
    let read = match value.tag() {
        Tag::Utf8String => std::str::from_utf8(bytes).ok().map(str::to_owned),
        Tag::PrintableString => bytes.iter().all(|byte| is_printable(*byte)).then(|| latin1(bytes)),
        Tag::NumericString => bytes.iter().all(|byte| byte.is_ascii_digit() || *byte == b' ').then(|| latin1(bytes)),
        Tag::Ia5String => bytes.is_ascii().then(|| latin1(bytes)),
        Tag::TeletexString => Some(latin1(bytes)),
        Tag::BmpString => utf16(bytes),
        _ => None,
    };
    read.ok_or(SubjectError::NotAString)
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

fn utf16(bytes: &[u8]) -> Option<String> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let units: Vec<u16> = pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
    if rest.is_empty() { String::from_utf16(&units).ok() } else { None }
}

/// The alphabet of PrintableString, with the `*` and `&` that Go takes, too.
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMON_NAME: [u8; 3] = [0x55, 4, 3];
    const ORGANIZATION: [u8; 3] = [0x55, 4, 10];
    const UTF8: u8 = 12;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(content.len()).unwrap()], content].concat()
    }

    /// A distinguished name of these attributes: object identifier, tag and bytes of the value.
    fn name(attributes: &[([u8; 3], u8, &[u8])]) -> Vec<u8> {
        let one =
            |(oid, tag, value): &([u8; 3], u8, &[u8])| der(0x31, &der(0x30, &[der(6, oid), der(*tag, value)].concat()));
        der(0x30, &attributes.iter().map(one).collect::<Vec<_>>().concat())
    }

    #[track_caller]
    fn check(attributes: &[([u8; 3], u8, &[u8])], want: Result<(&str, &[&str]), SubjectError>) {
        let der = name(attributes);
        let (_, name) = X509Name::from_der(&der).unwrap();
        let found = Subject::of_name(&name);
        let want = want.map(|(name, groups)| Subject {
            common_name: name.to_owned(),
            organizations: groups.iter().map(ToString::to_string).collect(),
        });
        assert_eq!(found, want);
    }

    #[test]
    fn the_last_common_name_and_every_organization_count() {
        let (first, last): (&[u8], &[u8]) = (b"system:node:a", b"system:admin");
        check(&[(COMMON_NAME, UTF8, first), (COMMON_NAME, UTF8, last)], Ok(("system:admin", &[])));
        check(
            &[(ORGANIZATION, UTF8, b"a"), (COMMON_NAME, UTF8, b"x"), (ORGANIZATION, UTF8, b"b")],
            Ok(("x", &["a", "b"])),
        );
        check(&[], Ok(("", &[])));
    }

    #[test]
    fn strings_of_every_type_that_go_reads_are_read() {
        for (tag, value, want) in [
            (12, "é".as_bytes(), "é"),
            (19, b"a*b", "a*b"),
            (18, b"1 2", "1 2"),
            (22, b"a@b", "a@b"),
            (20, &[0xe9], "é"),
            (30, &[0, b'a', 0, 0xe9], "aé"),
        ] {
            check(&[(COMMON_NAME, tag, value)], Ok((want, &[])));
        }
    }

    /// A reader that passed over such a value would find another name than one that does not.
    #[test]
    fn a_name_that_is_not_a_string_refuses_the_subject() {
        for (tag, value) in [(12, &[0xff][..]), (19, b"a@b"), (18, b"a"), (22, &[0xe9]), (30, &[0]), (4, b"octets")] {
            check(&[(COMMON_NAME, UTF8, b"x"), (COMMON_NAME, tag, value)], Err(SubjectError::NotAString));
            check(&[(COMMON_NAME, UTF8, b"x"), (ORGANIZATION, tag, value)], Err(SubjectError::NotAString));
        }
    }

    #[test]
    fn a_request_is_the_first_block() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let request = |name: &str| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.serialize_request(&key).unwrap().pem().unwrap()
        };
        let both = format!("{}{}", request("first"), request("second"));
        assert_eq!(Subject::of_request(both.as_bytes()).unwrap().common_name, "first");
        assert_eq!(Subject::of_request(b""), Err(SubjectError::NotARequest));
        let other = request("x").replace("CERTIFICATE REQUEST", "CERTIFICATE");
        assert_eq!(Subject::of_request(other.as_bytes()), Err(SubjectError::NotARequest));
    }
}

//! What a certificate in PEM says of itself.

use std::net::IpAddr;

use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;

/// The first certificate of a chain, as far as the kubelet cares.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leaf {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    /// From when and until when it is good, in seconds since 1970; `until` is the earliest end in the chain.
    pub from: i64,
    pub until: i64,
    /// SubjectPublicKeyInfo, in DER.
    pub public_key: Vec<u8>,
}

impl Leaf {
    /// `None` if there is no certificate, or one that cannot be read. What else is in the text is passed over.
    pub fn read(pem: &[u8]) -> Option<Self> {
        let mut leaf: Option<Self> = None;
        for section in Pem::iter_from_buffer(pem) {
            let section = section.ok()?;
            if section.label != "CERTIFICATE" {
                continue;
            }
            let certificate = section.parse_x509().ok()?;
            let validity = certificate.validity();
            let (from, until) = (validity.not_before.timestamp(), validity.not_after.timestamp());
            if let Some(known) = &mut leaf {
                known.until = known.until.min(until);
                continue;
            }
            let subject = x509::Subject::of_name(certificate.subject()).ok()?;
            let mut read = Self {
                common_name: subject.common_name,
                organizations: subject.organizations,
                from,
                until,
                public_key: certificate.public_key().raw.to_vec(),
                ..Self::default()
            };
            let others = certificate.subject_alternative_name().ok()?;
            for name in others.iter().flat_map(|extension| &extension.value.general_names) {
                match name {
                    GeneralName::DNSName(name) => read.names.push((*name).to_owned()),
                    GeneralName::IPAddress(bytes) => read.addresses.extend(address(bytes)),
                    _ => (),
                }
            }
            leaf = Some(read);
        }
        leaf
    }

    pub fn is_over(&self, now: jiff::Timestamp) -> bool {
        now.as_second() > self.until
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let short = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    short.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

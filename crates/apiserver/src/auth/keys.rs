//! The keys of service-account tokens: the one that signs, and those whose signatures are believed.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RsaKeyPair,
};
use rustls::pki_types::pem::{PemObject as _, SectionKind};
use serde_json::{Value, json};
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::jwt::{Key, Unverified};

const SEQUENCE: u8 = 0x30;
const OCTETS: u8 = 0x04;
const BITS: u8 = 0x03;
const RSA: &[u8] = &[0x06, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 0x05, 0];
const P256: &[u8] = &[0x06, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const P384: &[u8] = &[0x06, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 0x06, 5, 0x2b, 0x81, 4, 0, 0x22];
const ZERO: &[u8] = &[0x02, 1, 0];

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("there is no private key of RSA (2048 bits or more), P-256 or P-384 in PEM")]
    NoPrivate,
    #[error("there is no key of RSA, P-256, P-384 or P-521 in PEM")]
    NoPublic,
    #[error("the key cannot sign")]
    Sign,
}

/// Signs service-account tokens, and knows whose signatures on them to believe.
pub struct ServiceAccountKeys {
    pair: Pair,
    /// What a token's header says of the key that signed it.
    header: Value,
    believed: Vec<Key>,
}

enum Pair {
    Rsa(Box<RsaKeyPair>),
    Elliptic(Box<EcdsaKeyPair>),
}

impl ServiceAccountKeys {
    /// `signing` is a private key in PEM; in `others` there are more keys, public or private, whose tokens are believed.
    pub fn read(signing: &[u8], others: &[Vec<u8>]) -> Result<Self, KeyError> {
        let (pair, public) =
            sections(signing).find_map(|(kind, der)| private(kind, &der)).ok_or(KeyError::NoPrivate)?;
        let own = Key::of(&public).ok_or(KeyError::NoPrivate)?;
        let header = json!({"alg": own.algorithm(), "kid": own.id});
        let mut believed = Vec::new();
        for other in others {
            let known = believed.len();
            believed.extend(sections(other).filter_map(|(kind, der)| Key::of(&public_of(kind, der)?)));
            if believed.len() == known {
                return Err(KeyError::NoPublic);
            }
        }
        if !believed.iter().any(|key| key.id == own.id) {
            believed.push(own);
        }
        Ok(Self { pair, header, believed })
    }

    pub(super) fn sign(&self, claims: &Value) -> Result<String, KeyError> {
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", encode(&self.header), encode(claims));
        let random = SystemRandom::new();
        let signature = match &self.pair {
            Pair::Elliptic(pair) => pair.sign(&random, text.as_bytes()).map_err(|_| KeyError::Sign)?.as_ref().to_vec(),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                let signed = pair.sign(&RSA_PKCS1_SHA256, &random, text.as_bytes(), &mut signature);
                signed.map_err(|_| KeyError::Sign)?;
                signature
            }
        };
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// One of the keys signed it: the one it names, if it names one.
    pub(super) fn signed(&self, token: &Unverified<'_>) -> bool {
        let named = |key: &&Key| token.key_id.is_empty() || key.id == token.key_id;
        self.believed.iter().filter(named).any(|key| key.signed(token))
    }

    /// There is a key that could have signed it.
    pub(super) fn knows(&self, token: &Unverified<'_>) -> bool {
        token.key_id.is_empty() || self.believed.iter().any(|key| key.id == token.key_id)
    }

    /// As JSON Web Keys.
    pub(super) fn published(&self) -> Value {
        json!({"keys": self.believed.iter().map(Key::published).collect::<Vec<_>>()})
    }

    pub(super) fn algorithms(&self) -> Vec<&'static str> {
        let algorithms: std::collections::BTreeSet<_> = self.believed.iter().map(Key::algorithm).collect();
        algorithms.into_iter().collect()
    }
}

fn sections(pem: &[u8]) -> impl Iterator<Item = (SectionKind, Vec<u8>)> {
    <(SectionKind, Vec<u8>)>::pem_slice_iter(pem).map_while(Result::ok)
}

/// A private key with its public half, as SubjectPublicKeyInfo.
fn private(kind: SectionKind, der: &[u8]) -> Option<(Pair, Vec<u8>)> {
    let rsa = |pair: RsaKeyPair| {
        let public = public_info(RSA, pair.public_key().as_ref());
        (Pair::Rsa(Box::new(pair)), public)
    };
    let elliptic = |pkcs8: &dyn Fn(&[u8]) -> Vec<u8>| {
        [(P256, &ECDSA_P256_SHA256_FIXED_SIGNING), (P384, &ECDSA_P384_SHA384_FIXED_SIGNING)].into_iter().find_map(
            |(curve, algorithm)| {
                let pair = EcdsaKeyPair::from_pkcs8(algorithm, &pkcs8(curve), &SystemRandom::new()).ok()?;
                let public = public_info(curve, pair.public_key().as_ref());
                Some((Pair::Elliptic(Box::new(pair)), public))
            },
        )
    };
    match kind {
        SectionKind::RsaPrivateKey => RsaKeyPair::from_der(der).ok().map(rsa),
        // What PKCS #8 puts around it is all it lacks.
        SectionKind::EcPrivateKey => {
            elliptic(&|curve| tagged(SEQUENCE, &[ZERO, &tagged(SEQUENCE, &[curve]), &tagged(OCTETS, &[der])]))
        }
        SectionKind::PrivateKey => elliptic(&|_| der.to_vec()).or_else(|| RsaKeyPair::from_pkcs8(der).ok().map(rsa)),
        _ => None,
    }
}

/// The public key in a section of PEM, as SubjectPublicKeyInfo.
fn public_of(kind: SectionKind, der: Vec<u8>) -> Option<Vec<u8>> {
    match kind {
        SectionKind::PublicKey => Some(der),
        SectionKind::Certificate => {
            let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
            Some(certificate.public_key().raw.to_vec())
        }
        private_kind => private(private_kind, &der).map(|(_, public)| public),
    }
}

fn public_info(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    tagged(SEQUENCE, &[&tagged(SEQUENCE, &[algorithm]), &tagged(BITS, &[&[0], key])])
}

/// A value in DER.
fn tagged(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len().to_be_bytes();
    let length: Vec<u8> = length.into_iter().skip_while(|byte| *byte == 0).collect();
    let mut out = vec![tag];
    match length.as_slice() {
        [] => out.push(0),
        [short] if *short < 0x80 => out.push(*short),
        long => {
            out.push(0x80 | u8::try_from(long.len()).unwrap_or_default());
            out.extend(long);
        }
    }
    out.extend(content);
    out
}

impl Key {
    /// From SubjectPublicKeyInfo; named as upstream names keys, by their digest.
    fn of(info: &[u8]) -> Option<Self> {
        let (_, parsed) = SubjectPublicKeyInfo::from_der(info).ok()?;
        let digest = ring::digest::digest(&ring::digest::SHA256, info);
        Self::parsed(URL_SAFE_NO_PAD.encode(digest.as_ref()), &parsed.parsed().ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::jwt::parse;
    use super::*;

    /// Made by `openssl genrsa -traditional 2048`.
    const RSA_PEM: &str = include_str!("../../tests/support/rsa.pem");

    fn pem(label: &str, der: &[u8]) -> Vec<u8> {
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n").into_bytes()
    }

    fn elliptic() -> Vec<u8> {
        let random = SystemRandom::new();
        EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap().as_ref().to_vec()
    }

    #[test]
    fn tokens_are_believed_by_every_form_of_their_key() {
        let pkcs8 = elliptic();
        // What is in PKCS #8 after version and algorithm.
        let sec1 = &pkcs8[29..];
        let (_, ec_public) = private(SectionKind::PrivateKey, &pkcs8).unwrap();
        let rsa_der = sections(RSA_PEM.as_bytes()).next().unwrap().1;
        let (_, rsa_public) = private(SectionKind::RsaPrivateKey, &rsa_der).unwrap();
        let rsa_pkcs8 = tagged(SEQUENCE, &[ZERO, &tagged(SEQUENCE, &[RSA]), &tagged(OCTETS, &[&rsa_der])]);
        let cases = [
            ("ES256", vec![pem("PRIVATE KEY", &pkcs8), pem("EC PRIVATE KEY", sec1)], pem("PUBLIC KEY", &ec_public)),
            ("RS256", vec![RSA_PEM.into(), pem("PRIVATE KEY", &rsa_pkcs8)], pem("PUBLIC KEY", &rsa_public)),
        ];
        let other = ServiceAccountKeys::read(&pem("PRIVATE KEY", &elliptic()), &[]).unwrap();
        for (algorithm, forms, public) in cases {
            for form in &forms {
                let keys = ServiceAccountKeys::read(form, &[]).unwrap();
                let token = keys.sign(&json!({"sub": "a"})).unwrap();
                let parsed = parse(&token).unwrap();
                assert_eq!(parsed.algorithm, algorithm);
                assert!(keys.signed(&parsed));
                assert!(!other.signed(&parsed));
                for believed in forms.iter().chain([&public]) {
                    let believer =
                        ServiceAccountKeys::read(&pem("PRIVATE KEY", &elliptic()), std::slice::from_ref(believed));
                    assert!(believer.unwrap().signed(&parsed));
                }
                let published = keys.published();
                let read = Key::read(&published["keys"][0]).unwrap();
                assert_eq!((read.id.as_str(), read.signed(&parsed)), (parsed.key_id.as_str(), true));
                assert_eq!(keys.algorithms(), [algorithm]);
            }
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let good = pem("PRIVATE KEY", &elliptic());
        assert!(matches!(ServiceAccountKeys::read(b"", &[]), Err(KeyError::NoPrivate)));
        assert!(matches!(ServiceAccountKeys::read(&pem("PRIVATE KEY", b"x"), &[]), Err(KeyError::NoPrivate)));
        assert!(matches!(ServiceAccountKeys::read(&good, &[b"x".to_vec()]), Err(KeyError::NoPublic)));
    }
}

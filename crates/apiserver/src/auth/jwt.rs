//! JSON Web Tokens of others: taken apart, and checked with the keys their issuer publishes.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use p521::ecdsa::signature::Verifier as _;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde_json::{Value, json};
use x509_parser::public_key::PublicKey;

use api::Object;

/// A longer one is not looked at.
const MAX_TOKEN: usize = 64 << 10;

/// A token whose signature is yet to be checked: nothing it says is to be believed.
pub(crate) struct Unverified<'a> {
    signed: &'a str,
    signature: Vec<u8>,
    pub(crate) algorithm: String,
    pub(crate) key_id: String,
    pub(crate) claims: Object,
}

/// `None` for what is no token of this kind at all.
pub(crate) fn parse(token: &str) -> Option<Unverified<'_>> {
    if token.len() > MAX_TOKEN {
        return None;
    }
    let (signed, signature) = token.rsplit_once('.')?;
    let (head, claims) = signed.split_once('.')?;
    let decode = |part: &str| -> Option<Object> { serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok() };
    let (head, claims) = (decode(head)?, decode(claims)?);
    let text = |name: &str| head.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    Some(Unverified { signed, signature, algorithm: text("alg"), key_id: text("kid"), claims })
}

/// One of the keys of an issuer.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) id: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    P256(Vec<u8>),
    P384(Vec<u8>),
    /// A curve that `ring` leaves out.
    P521(Vec<u8>),
}

impl Key {
    /// From a JSON Web Key; `None` for those that sign with what is not known here.
    pub(crate) fn read(key: &Value) -> Option<Self> {
        let text = |name: &str| key.get(name).and_then(Value::as_str).unwrap_or_default();
        let number = |name: &str| URL_SAFE_NO_PAD.decode(text(name)).ok().filter(|bytes| !bytes.is_empty());
        if !matches!(text("use"), "" | "sig") {
            return None;
        }
        let kind = match (text("kty"), text("crv")) {
            ("RSA", _) => Kind::Rsa { n: number("n")?, e: number("e")? },
            // A point on the curve, uncompressed: a four, then both coordinates.
            ("EC", "P-256") => Kind::P256([vec![4], number("x")?, number("y")?].concat()),
            ("EC", "P-384") => Kind::P384([vec![4], number("x")?, number("y")?].concat()),
            ("EC", "P-521") => Kind::P521([vec![4], number("x")?, number("y")?].concat()),
            _ => return None,
        };
        Some(Self { id: text("kid").to_owned(), kind })
    }

    /// From a key that was taken apart already.
    pub(super) fn parsed(id: String, key: &PublicKey<'_>) -> Option<Self> {
        let number = |bytes: &[u8]| bytes.iter().copied().skip_while(|byte| *byte == 0).collect();
        let kind = match key {
            PublicKey::RSA(key) => Kind::Rsa { n: number(key.modulus), e: number(key.exponent) },
            PublicKey::EC(point) if point.data().len() == 65 => Kind::P256(point.data().to_vec()),
            PublicKey::EC(point) if point.data().len() == 97 => Kind::P384(point.data().to_vec()),
            PublicKey::EC(point) if point.data().len() == 133 => Kind::P521(point.data().to_vec()),
            _ => return None,
        };
        Some(Self { id, kind })
    }

    /// What those who sign with it sign with.
    pub(super) fn algorithm(&self) -> &'static str {
        match self.kind {
            Kind::Rsa { .. } => "RS256",
            Kind::P256(_) => "ES256",
            Kind::P384(_) => "ES384",
            Kind::P521(_) => "ES512",
        }
    }

    /// As a JSON Web Key.
    pub(super) fn published(&self) -> Value {
        let mut key = json!({"use": "sig", "kid": self.id, "alg": self.algorithm()});
        let text = |bytes: &[u8]| Value::from(URL_SAFE_NO_PAD.encode(bytes));
        let parts = match &self.kind {
            Kind::Rsa { n, e } => vec![("kty", "RSA".into()), ("n", text(n)), ("e", text(e))],
            Kind::P256(point) | Kind::P384(point) | Kind::P521(point) => {
                let coordinates = point.get(1..).unwrap_or_default();
                let (x, y) = coordinates.split_at(coordinates.len() / 2);
                let curve = match self.kind {
                    Kind::P256(_) => "P-256",
                    Kind::P384(_) => "P-384",
                    _ => "P-521",
                };
                vec![("kty", "EC".into()), ("crv", curve.into()), ("x", text(x)), ("y", text(y))]
            }
        };
        if let Value::Object(key) = &mut key {
            key.extend(parts.into_iter().map(|(name, value)| (name.to_owned(), value)));
        }
        key
    }

    /// The algorithm the token names must be one of the key's own kind: none can be made to pass for another.
    pub(crate) fn signed(&self, token: &Unverified<'_>) -> bool {
        let text = token.signed.as_bytes();
        match (&self.kind, token.algorithm.as_str()) {
            (Kind::P256(point), "ES256") => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(text, &token.signature).is_ok()
            }
            (Kind::P384(point), "ES384") => {
                UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).verify(text, &token.signature).is_ok()
            }
            (Kind::P521(point), "ES512") => {
                let key = p521::ecdsa::VerifyingKey::from_sec1_bytes(point);
                let signature = p521::ecdsa::Signature::from_slice(&token.signature);
                matches!((key, signature), (Ok(key), Ok(signature)) if key.verify(text, &signature).is_ok())
            }
            (Kind::Rsa { n, e }, algorithm) => rsa(algorithm).is_some_and(|parameters| {
                RsaPublicKeyComponents { n, e }.verify(parameters, text, &token.signature).is_ok()
            }),
            _ => false,
        }
    }
}

fn rsa(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &RSA_PSS_2048_8192_SHA256,
        "PS384" => &RSA_PSS_2048_8192_SHA384,
        "PS512" => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

/// Those that can be checked here.
pub(crate) const ALGORITHMS: [&str; 9] =
    ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512"];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
    use serde_json::json;

    use super::*;

    fn encode(value: &Value) -> String {
        URL_SAFE_NO_PAD.encode(value.to_string())
    }

    #[test]
    fn a_signature_is_checked_by_the_key_and_the_algorithm() {
        let rng = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &rng).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.as_ref(), &rng).unwrap();
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        let key = Key::read(&json!({"kty": "EC", "crv": "P-256", "kid": "k", "x": x, "y": y})).unwrap();
        let token = |algorithm: &str| {
            let text = format!("{}.{}", encode(&json!({"alg": algorithm, "kid": "k"})), encode(&json!({"sub": "a"})));
            let signature = pair.sign(&rng, text.as_bytes()).unwrap();
            format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
        };
        let good = token("ES256");
        let parsed = parse(&good).unwrap();
        assert!(key.signed(&parsed));
        assert_eq!((parsed.key_id.as_str(), parsed.claims["sub"].as_str()), ("k", Some("a")));
        for algorithm in ["none", "HS256", "RS256", "ES384", ""] {
            assert!(!key.signed(&parse(&token(algorithm)).unwrap()), "{algorithm}");
        }
        let unsigned = format!("{}.", good.rsplit_once('.').unwrap().0);
        assert!(!key.signed(&parse(&unsigned).unwrap()));
        assert!(Key::read(&json!({"kty": "oct", "k": "AAAA"})).is_none());
        assert!(Key::read(&json!({"kty": "RSA", "n": "", "e": "AQAB"})).is_none());
    }

    #[test]
    fn a_key_on_the_largest_curve_is_believed_too() {
        use p521::ecdsa::{Signature, SigningKey, VerifyingKey, signature::Signer as _};
        let pair = SigningKey::from_slice(&[7; 66].map(|byte| byte & 1)).unwrap();
        let point = VerifyingKey::from(&pair).to_encoded_point(false);
        let (x, y) = point.as_bytes()[1..].split_at(66);
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        let published = json!({"use": "sig", "kty": "EC", "crv": "P-521", "kid": "k", "alg": "ES512", "x": x, "y": y});
        let key = Key::read(&published).unwrap();
        assert_eq!(key.published(), published);
        let token = |algorithm: &str| {
            let text = format!("{}.{}", encode(&json!({"alg": algorithm, "kid": "k"})), encode(&json!({"sub": "a"})));
            let signature: Signature = pair.sign(text.as_bytes());
            format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))
        };
        assert!(key.signed(&parse(&token("ES512")).unwrap()));
        assert!(!key.signed(&parse(&token("ES384")).unwrap()));
        let mut other = token("ES512");
        let last = if other.pop() == Some('A') { 'B' } else { 'A' };
        other.push(last);
        assert!(parse(&other).is_none_or(|other| !key.signed(&other)));
        let nowhere = json!({"kty": "EC", "crv": "P-521", "x": x, "y": x});
        assert!(!Key::read(&nowhere).unwrap().signed(&parse(&token("ES512")).unwrap()), "no point of the curve");
    }

    proptest! {
        /// Whatever is sent, it is taken apart or refused.
        #[test]
        fn no_bytes_break_the_parser(token in "\\PC{0,200}") {
            let _ = parse(&token);
        }

        #[test]
        fn no_parts_break_the_parser(head in "[-A-Za-z0-9_{}\":,]{0,60}", claims in "[-A-Za-z0-9_]{0,60}", signature in "[-A-Za-z0-9_=]{0,90}") {
            let token = format!("{}.{claims}.{signature}", URL_SAFE_NO_PAD.encode(head));
            if let Some(parsed) = parse(&token) {
                let key = Key { id: String::new(), kind: Kind::Rsa { n: vec![1], e: vec![3] } };
                prop_assert!(!key.signed(&parsed));
            }
        }
    }
}

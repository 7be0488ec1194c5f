//! Whether a certificate and a key belong together, in the words of upstream's library.

use base64::Engine as _;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// What is wrong with a pair that a secret holds, each as base64.
pub(super) fn complaint(certificate: &str, key: &str) -> Option<String> {
    let [certificate, key] =
        [certificate, key].map(|text| base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default());
    let is_key = |label: &str| label == "PRIVATE KEY" || label.ends_with(" PRIVATE KEY");
    let (leaf, skipped) = first(&certificate, |label| label == "CERTIFICATE");
    let Some(leaf) = leaf else {
        return Some(match skipped.as_slice() {
            [] => "tls: failed to find any PEM data in certificate input".to_owned(),
            [only] if only.ends_with("PRIVATE KEY") => "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched".to_owned(),
            _ => format!("tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [{}]", skipped.join(" ")),
        });
    };
    let (own, skipped) = first(&key, is_key);
    if own.is_none() {
        return Some(match skipped.as_slice() {
            [] => "tls: failed to find any PEM data in key input".to_owned(),
            [only] if only == "CERTIFICATE" => {
                "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
            }
            _ => format!(
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [{}]",
                skipped.join(" ")
            ),
        });
    }
    let Ok((_, leaf)) = X509Certificate::from_der(&leaf.contents) else {
        return Some("x509: malformed certificate".to_owned());
    };
    let own = PrivateKeyDer::from_pem_slice(&key).ok()?;
    // Kinds of keys that we cannot read are not judged.
    let public = rustls::crypto::ring::sign::any_supported_type(&own).ok()?.public_key()?.as_ref().to_vec();
    (public != leaf.public_key().raw).then(|| "tls: private key does not match public key".to_owned())
}

/// The first block that is wanted, and the labels of those before it.
fn first(text: &[u8], wanted: impl Fn(&str) -> bool) -> (Option<Pem>, Vec<String>) {
    let mut skipped = Vec::new();
    for block in Pem::iter_from_buffer(text).map_while(Result::ok) {
        if wanted(&block.label) {
            return (Some(block), skipped);
        }
        skipped.push(block.label);
    }
    (None, skipped)
}

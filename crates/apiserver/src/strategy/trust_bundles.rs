//! ClusterTrustBundles: roots that somebody vouches for, named after the signer where they are a signer's.

use std::collections::BTreeMap;

use api::Object;
use api::field::FieldError;
use api::validation::{NameRule, is_subdomain};
use x509_parser::prelude::{FromDer as _, Pem, X509Certificate};

use super::certificates::signer_name;
use super::check::{At, check};
use super::{Strategy, fixed_at};

const MAX_BYTES: usize = 1024 * 1024;

pub(super) struct ClusterTrustBundles;

impl Strategy for ClusterTrustBundles {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["spec.signerName"]
    }

    /// What else a name must be depends on the signer.
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let signer = at.at(&["spec", "signerName"]);
            named(&at.at(&["metadata", "name"]), signer.text());
            if !signer.text().is_empty() {
                signer_name(&signer);
            }
            let bundle = at.at(&["spec", "trustBundle"]);
            for error in refused(bundle.text()) {
                bundle.complain(match error {
                    Refusal::TooLong => FieldError::too_long(bundle.path(), MAX_BYTES),
                    Refusal::Because(why) => FieldError::invalid(bundle.path(), "<value omitted>", why),
                });
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed_at(new, old, &["spec", "signerName"])
    }
}

fn named(name: &At<'_>, signer: &str) {
    let own = match signer {
        "" if name.text().contains(':') => {
            return name.invalid("ClusterTrustBundle without signer name must not have \":\" in its name");
        }
        "" => name.text(),
        signer => {
            let prefix = format!("{}:", signer.replace('/', ":"));
            match name.text().strip_prefix(&prefix) {
                Some(own) => own,
                None => {
                    return name.invalid(format!(
                        "ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"
                    ));
                }
            }
        }
    };
    is_subdomain(own).iter().for_each(|why| name.invalid(why));
}

#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    TooLong,
    Because(String),
}

/// Authorities only, each once, and nothing beside them.
fn refused(bundle: &str) -> Vec<Refusal> {
    if bundle.len() > MAX_BYTES {
        return vec![Refusal::TooLong];
    }
    let mut found: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    let mut refused = Vec::new();
    for (index, pem) in Pem::iter_from_buffer(bundle.as_bytes()).map_while(Result::ok).enumerate() {
        let mut refuse = |why: String| refused.push(Refusal::Because(format!("entry {index} {why}")));
        if pem.label != "CERTIFICATE" {
            refuse(format!("has bad block type: {}", pem.label));
            continue;
        }
        match X509Certificate::from_der(&pem.contents) {
            Err(_) => refuse("does not parse as X.509".to_owned()),
            Ok((_, certificate)) if !certificate.is_ca() => refuse("does not have the CA bit set".to_owned()),
            Ok(_) => found.entry(pem.contents).or_default().push(index),
        }
    }
    if !refused.is_empty() {
        return refused;
    }
    if found.is_empty() {
        return vec![Refusal::Because("at least one trust anchor must be provided".to_owned())];
    }
    let twice = found.values().filter(|indexes| indexes.len() > 1);
    let told = twice.map(|indexes| {
        let list: Vec<String> = indexes.iter().map(ToString::to_string).collect();
        Refusal::Because(format!("duplicate trust anchor (indices [{}])", list.join(" ")))
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn authority(is_ca: bool) -> String {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = rcgen::CertificateParams::default();
        if is_ca {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        params.self_signed(&key).unwrap().pem()
    }

    #[test]
    fn a_bundle_is_of_authorities_each_once() {
        let (one, two, leaf) = (authority(true), authority(true), authority(false));
        let check = |bundle: String, want: &[&str]| {
            let want: Vec<Refusal> = want.iter().map(|why| Refusal::Because((*why).to_owned())).collect();
            assert_eq!(refused(&bundle), want);
        };
        check(format!("{one}{two}"), &[]);
        check(String::new(), &["at least one trust anchor must be provided"]);
        check(format!("{one}{two}{one}"), &["duplicate trust anchor (indices [0 2])"]);
        check(format!("{one}{leaf}"), &["entry 1 does not have the CA bit set"]);
        let odd = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        check(odd.to_owned(), &["entry 0 does not parse as X.509"]);
        let key = one.replace("CERTIFICATE", "PUBLIC KEY");
        check(key, &["entry 0 has bad block type: PUBLIC KEY"]);
        assert_eq!(refused(&"x".repeat(MAX_BYTES + 1)), [Refusal::TooLong]);
    }

    #[test]
    fn a_name_begins_with_the_signer() {
        let pem = authority(true);
        let check = |name: &str, signer: Option<&str>, want: &[&str]| {
            let bundle = json!({"metadata": {"name": name}, "spec": {"signerName": signer, "trustBundle": pem}});
            let errors = ClusterTrustBundles.validate(bundle.as_object().unwrap());
            let told: Vec<String> = errors.iter().map(|error| error.detail.clone()).collect();
            assert_eq!(told, want, "{name}");
        };
        check("plain", None, &[]);
        check("e.com:s:a", Some("e.com/s"), &[]);
        check("e.com:s:a", None, &["ClusterTrustBundle without signer name must not have \":\" in its name"]);
        check("a", Some("e.com/s"), &["ClusterTrustBundle for signerName e.com/s must be named with prefix e.com:s:"]);
    }
}

//! Client certificates: common name is the user, organizations are its groups.

use api::UserInfo;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The user a verified client certificate stands for.
pub(crate) fn user(certificate: &[u8]) -> Option<UserInfo> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let organizations: Vec<&str> = subject.iter_organization().filter_map(|o| o.as_str().ok()).collect();
    Some(UserInfo::authenticated(name, &organizations))
}

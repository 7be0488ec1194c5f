//! Flags of whatever has an API server: how connections are secured, and how long things take. Names are upstream's.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use apiserver::{ShownByName, TlsSettings};
use clap::{ArgAction, Args};
use rustls::server::ResolvesServerCert;
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::auth::duration;
use crate::alone::identity;
use crate::reload;
use crate::renewal::Shown;

#[derive(Args, Clone)]
pub(crate) struct Serving {
    /// The oldest version of TLS that is spoken: VersionTLS12 or VersionTLS13 [default: VersionTLS12]
    #[arg(long, default_value = "", hide_default_value = true)]
    tls_min_version: String,
    /// Which suites are spoken of TLS 1.2; those of 1.3 always are [default: all that are good]
    #[arg(long, value_delimiter = ',')]
    tls_cipher_suites: Vec<String>,
    /// Another certificate for those who ask for its names: `CERTIFICATE,KEY` or `CERTIFICATE,KEY:NAME,*.DOMAIN`; may be repeated
    #[arg(long)]
    tls_sni_cert_key: Vec<String>,
    /// How long a request may take that is neither a watch nor a stream
    #[arg(long, value_parser = duration, default_value = "1m0s")]
    pub(crate) request_timeout: Duration,
    /// How long events are kept
    #[arg(long, value_parser = duration, default_value = "1h0m0s")]
    pub(crate) event_ttl: Duration,
    /// For how many seconds pods that do not say stay on a node that is not ready
    #[arg(long, default_value_t = 300)]
    default_not_ready_toleration_seconds: i64,
    /// For how many seconds pods that do not say stay on a node that is unreachable
    #[arg(long, default_value_t = 300)]
    default_unreachable_toleration_seconds: i64,
    /// Taken for manifests that turn profiles off: there are none here
    #[arg(long = "profiling", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    _profiling: bool,
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            tls_min_version: String::new(),
            tls_cipher_suites: Vec::new(),
            tls_sni_cert_key: Vec::new(),
            request_timeout: Duration::from_secs(60),
            event_ttl: Duration::from_secs(60 * 60),
            default_not_ready_toleration_seconds: 300,
            default_unreachable_toleration_seconds: 300,
            _profiling: false,
        }
    }
}

impl Serving {
    pub(crate) fn tls(&self) -> Result<TlsSettings> {
        Ok(TlsSettings::new(&self.tls_min_version, &self.tls_cipher_suites)?)
    }

    pub(crate) fn toleration_seconds(&self) -> [i64; 2] {
        [self.default_not_ready_toleration_seconds, self.default_unreachable_toleration_seconds]
    }

    /// What is shown to whom: certificates with names, and one for everybody else.
    pub(crate) fn shown(&self, usual: Arc<Shown>, drain: &CancellationToken) -> Result<Arc<dyn ResolvesServerCert>> {
        if self.tls_sni_cert_key.is_empty() {
            return Ok(usual);
        }
        let mut named = Vec::new();
        for text in &self.tls_sni_cert_key {
            let (certificate, key, names) = parts(text)?;
            let names = if names.is_empty() { names_of(Path::new(certificate), Path::new(key))? } else { names };
            let shown = reload::shown(Path::new(certificate), Path::new(key), drain)?;
            named.push((names, shown as Arc<dyn ResolvesServerCert>));
        }
        Ok(Arc::new(ShownByName { named, otherwise: usual }))
    }
}

/// `CERTIFICATE,KEY[:NAME,…]`
fn parts(text: &str) -> Result<(&str, &str, Vec<String>)> {
    let (files, names) = text.rsplit_once(':').unwrap_or((text, ""));
    let (certificate, key) =
        files.split_once(',').context("expected comma separated certificate and key file paths")?;
    ensure!(!certificate.is_empty() && !key.is_empty(), "expected comma separated certificate and key file paths");
    Ok((certificate, key, names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()))
}

/// The hosts that a certificate is for.
fn names_of(certificate: &Path, key: &Path) -> Result<Vec<String>> {
    let chain = identity(certificate, key)?.chain()?;
    let first = chain.first().with_context(|| format!("no certificate in {}", certificate.display()))?;
    let (_, parsed) = X509Certificate::from_der(first)?;
    let names = parsed.subject_alternative_name()?.map(|extension| extension.value.general_names.as_slice());
    let names = names.into_iter().flatten().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    Ok(names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::Pki;
    use crate::renewal::tests::connect;

    #[test]
    fn a_certificate_may_say_whom_it_is_for() {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(parts("a.crt,a.key").unwrap(), ("a.crt", "a.key", Vec::new()));
        assert_eq!(parts("a.crt,a.key:x,*.y").unwrap(), ("a.crt", "a.key", owned(&["x", "*.y"])));
        assert!(parts("a.crt").is_err() && parts(",a.key").is_err());
    }

    #[tokio::test]
    async fn who_asks_by_name_is_shown_the_certificate_of_that_name() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(&dir.path().join("pki")).unwrap();
        let authority = pki.authorities().unwrap().remove(0);
        let [usual, named] = ["usual", "named"].map(|name| pki.server(name, name, &["localhost"], &[]).unwrap());
        let files = ["tls.crt", "tls.key"].map(|name| dir.path().join(name));
        for (file, text) in files.iter().zip([&named.certificate, &named.key]) {
            std::fs::write(file, text).unwrap();
        }
        let files = files.map(|file| file.display().to_string()).join(",");
        for (names, wanted) in [("", &named), (":localhost", &named), (":*.example.com,elsewhere", &usual)] {
            let serving = Serving { tls_sni_cert_key: vec![format!("{files}{names}")], ..Serving::default() };
            let shown = serving.shown(Shown::new(&usual).unwrap(), &CancellationToken::new()).unwrap();
            let tls = apiserver::tls_config(&serving.tls().unwrap(), shown, std::slice::from_ref(&authority)).unwrap();
            let (_, seen) = connect(tls, &authority).await;
            assert_eq!(seen, wanted.chain().unwrap()[0].as_ref(), "{names:?}");
        }
    }
}

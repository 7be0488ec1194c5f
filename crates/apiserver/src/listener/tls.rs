//! How connections are secured: which versions and ciphers, which certificate is shown to whom, and whose clients are believed.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, RootCertStore, ServerConfig, SupportedProtocolVersion, version};

use serving::{COPIED_AT_ONCE, HTTP2};

use super::ServeError;

/// What `--tls-cipher-suites` may name and is not spoken here: suites that give away what was said once a key is known, or worse.
const WEAK: [&str; 16] = [
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
];
/// Of version 1.3, whose suites nobody chooses.
const ALWAYS: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// `--tls-min-version` and `--tls-cipher-suites`.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    provider: Arc<CryptoProvider>,
    versions: Vec<&'static SupportedProtocolVersion>,
}

impl Default for TlsSettings {
    fn default() -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Self { provider, versions: vec![&version::TLS13, &version::TLS12] }
    }
}

impl TlsSettings {
    /// In upstream's names; nothing leaves it at what is good.
    pub fn new(min_version: &str, suites: &[String]) -> Result<Self, ServeError> {
        let mut settings = Self::default();
        match min_version {
            // Older versions are not spoken.
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => (),
            "VersionTLS13" => settings.versions = vec![&version::TLS13],
            other => return Err(ServeError::Flag(format!("unknown tls version {other:?}"))),
        }
        let mut chosen = Vec::new();
        for name in suites {
            match spoken(name) {
                Some(suite) => chosen.push(suite),
                None if WEAK.contains(&name.as_str()) => tracing::warn!(%name, "a weak cipher suite is not used"),
                None if ALWAYS.contains(&name.as_str()) => (),
                None => {
                    return Err(ServeError::Flag(format!("Cipher suite {name} not supported or doesn't exist")));
                }
            }
        }
        if suites.is_empty() {
            return Ok(settings);
        }
        let mut provider = rustls::crypto::ring::default_provider();
        provider.cipher_suites.retain(|suite| suite.tls13().is_some() || chosen.contains(&suite.suite()));
        if provider.cipher_suites.iter().all(|suite| suite.tls13().is_some()) {
            settings.versions = vec![&version::TLS13];
        }
        Ok(Self { provider: Arc::new(provider), ..settings })
    }
}

fn spoken(name: &str) -> Option<CipherSuite> {
    Some(match name {
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" => CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" => CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" | "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256" => {
            CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        }
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" => CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" => CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" | "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256" => {
            CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
        }
        _ => return None,
    })
}

/// Certificates for those who ask for a host by name, in full before below a star; and one for everybody else.
#[derive(Debug)]
pub struct ShownByName {
    pub named: Vec<(Vec<String>, Arc<dyn ResolvesServerCert>)>,
    pub otherwise: Arc<dyn ResolvesServerCert>,
}

impl ResolvesServerCert for ShownByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().unwrap_or_default();
        let fitting = |star: bool| {
            let fits = |pattern: &String| pattern.starts_with('*') == star && fits(pattern, name);
            self.named.iter().find(|(patterns, _)| patterns.iter().any(fits))
        };
        let named = fitting(false).or_else(|| fitting(true));
        named.map_or(&self.otherwise, |(_, shown)| shown).resolve(hello)
    }
}

/// `*.example.com` is any host directly below.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(domain) => name.split_once('.').is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(domain)),
        None => !name.is_empty() && pattern.eq_ignore_ascii_case(name),
    }
}

/// A server that shows `shown` and asks clients for a certificate of `client_ca`, without insisting on one.
pub fn tls_config(
    settings: &TlsSettings,
    shown: Arc<dyn ResolvesServerCert>,
    client_ca: &[Vec<u8>],
) -> Result<Arc<ServerConfig>, ServeError> {
    let mut roots = RootCertStore::empty();
    for certificate in client_ca {
        roots.add(CertificateDer::from(certificate.clone()))?;
    }
    let provider = settings.provider.clone();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&settings.versions)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(shown);
    config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    config.max_fragment_size = Some(COPIED_AT_ONCE);
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_suites_are_chosen_by_upstreams_names() {
        check("", &[], "1.3 1.2, 6 older suites");
        check("VersionTLS12", &[], "1.3 1.2, 6 older suites");
        check("VersionTLS13", &[], "1.3, 6 older suites");
        check("VersionTLS14", &[], "unknown tls version \"VersionTLS14\"");
        check("", &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_RC4_128_SHA"], "1.3 1.2, 1 older suites");
        check("", &["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_AES_128_GCM_SHA256"], "1.3 1.2, 1 older suites");
        check("", &["TLS_RSA_WITH_AES_128_CBC_SHA"], "1.3, 0 older suites");
        check("", &["nonsense"], "Cipher suite nonsense not supported or doesn't exist");
    }

    #[track_caller]
    fn check(min_version: &str, suites: &[&str], want: &str) {
        let suites: Vec<String> = suites.iter().map(|&name| name.to_owned()).collect();
        let got = match TlsSettings::new(min_version, &suites) {
            Err(error) => error.to_string(),
            Ok(settings) => {
                let name = |version: &&'static SupportedProtocolVersion| {
                    if version.version == rustls::ProtocolVersion::TLSv1_3 { "1.3" } else { "1.2" }
                };
                let versions: Vec<&str> = settings.versions.iter().map(name).collect();
                let older = settings.provider.cipher_suites.iter().filter(|suite| suite.tls13().is_none()).count();
                format!("{}, {older} older suites", versions.join(" "))
            }
        };
        assert_eq!(got, want, "{min_version} {suites:?}");
    }

    #[test]
    fn names_fit_whole_or_below_a_star() {
        assert!(fits("api.example.com", "API.example.com") && fits("*.example.com", "api.example.com"));
        for (pattern, name) in
            [("*.example.com", "example.com"), ("*.example.com", "a.b.example.com"), ("a", "b"), ("", "")]
        {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}

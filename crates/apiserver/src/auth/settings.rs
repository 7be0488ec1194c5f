//! How authentication and authorization are set up: upstream's flags and configuration files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::{Object, ObjectExt as _};
use arc_swap::ArcSwap;
use cel::Type;
use serde_json::Value;

use super::abac::Abac;
use super::authenticator::{Anonymous, Authenticator};
use super::authorizer::{Authorizer, Mode};
use super::expression::Expression;
use super::oidc::Issuer;
use super::reload::Reloads;
use super::request_header::RequestHeaderSettings;
use super::token_file;
use super::webhook::{AccessWebhook, TokenWebhook};
use crate::outbound::{Outbound, OutboundError};

#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error("{0} cannot be read: {1}")]
    Read(PathBuf, #[source] std::io::Error),
    #[error("{0}: {1}")]
    Config(String, String),
    #[error("webhook: {0}")]
    Webhook(#[from] OutboundError),
}

/// A webhook as flags name it.
#[derive(Clone, Debug)]
pub struct WebhookSettings {
    pub config_file: PathBuf,
    /// `v1` or `v1beta1`
    pub version: String,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
}

/// `--oidc-*`
#[derive(Clone, Debug, Default)]
pub struct OidcSettings {
    pub issuer_url: String,
    pub client_id: String,
    pub ca_file: Option<PathBuf>,
    pub username_claim: String,
    pub username_prefix: String,
    pub groups_claim: String,
    pub groups_prefix: String,
    pub required_claims: Vec<(String, String)>,
    pub signing_algs: Vec<String>,
}

/// Where the keys of an issuer are; of the one that flags name, if none is named.
#[derive(Clone, Debug)]
pub struct JwksFile {
    pub issuer_url: Option<String>,
    pub path: PathBuf,
}

#[derive(Clone, Debug, Default)]
pub struct AuthSettings {
    /// `--api-audiences`; the issuer of service-account tokens where there are none.
    pub api_audiences: Vec<String>,
    pub token_auth_file: Option<PathBuf>,
    pub enable_bootstrap_token_auth: bool,
    /// `None` where no flag says so: then it is on.
    pub anonymous_auth: Option<bool>,
    pub oidc: Option<OidcSettings>,
    /// Files with the keys of issuers, instead of what the issuers publish.
    pub oidc_jwks_files: Vec<JwksFile>,
    pub token_webhook: Option<WebhookSettings>,
    pub request_header: RequestHeaderSettings,
    /// AuthenticationConfiguration
    pub authentication_config: Option<PathBuf>,
    /// In order; `Node,RBAC` where none is named.
    pub authorization_modes: Vec<String>,
    pub authorization_policy_file: Option<PathBuf>,
    pub authorization_webhook: Option<WebhookSettings>,
    /// AuthorizationConfiguration, instead of the three above.
    pub authorization_config: Option<PathBuf>,
    pub tokens: TokenSettings,
}

/// How long the tokens of service accounts last.
#[derive(Clone, Debug)]
pub struct TokenSettings {
    /// No longer than this, whatever is asked for.
    pub max_expiration: Option<Duration>,
    /// Those that kubelets ask for last longer than they say.
    pub extend_expiration: bool,
}

impl Default for TokenSettings {
    fn default() -> Self {
        Self { max_expiration: None, extend_expiration: true }
    }
}

const GROUP: &str = "apiserver.config.k8s.io/";

fn parse(path: &Path, text: &[u8], kind: &str) -> Result<Object, AuthError> {
    let refuse = |why: String| AuthError::Config(path.display().to_string(), why);
    let whole = crate::http::yaml(text).map_err(|error| refuse(error.message))?;
    let whole = whole.as_object().cloned().unwrap_or_default();
    if whole.text(&["kind"]) != kind || !whole.text(&["apiVersion"]).starts_with(GROUP) {
        return Err(refuse(format!("it is no {kind} of {GROUP}v1")));
    }
    Ok(whole)
}

fn list(whole: &Object, name: &str) -> Vec<Object> {
    let items = whole.get(name).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(|item| item.as_object().cloned()).collect()
}

impl AuthSettings {
    /// Reads every file that is named, as a server does when it starts.
    pub fn check(&self) -> Result<(), AuthError> {
        self.authenticator()?;
        self.authorizer()?;
        Ok(())
    }

    pub(crate) fn authenticator(&self) -> Result<Authenticator, AuthError> {
        let flag = |name: &'static str| move |why: String| AuthError::Config(name.to_owned(), why);
        let enabled = self.anonymous_auth.unwrap_or(true);
        let mut anonymous = Anonymous { enabled, paths: Vec::new(), configured: None };
        let (mut issuers, mut reloads) = (Vec::new(), Reloads::default());
        if let Some(path) = &self.authentication_config {
            let refuse = |why: String| AuthError::Config(path.display().to_string(), why);
            if self.oidc.is_some() {
                return Err(refuse("--oidc-* flags cannot be set beside an authentication configuration".into()));
            }
            reloads = Reloads::of(path)?;
            (issuers, anonymous.configured) = self.configured_issuers(&reloads.text())?;
            if let Some(own) = anonymous.configured.as_ref().and_then(Value::as_object) {
                if self.anonymous_auth.is_some() {
                    return Err(refuse("--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file".into()));
                }
                anonymous.enabled = own.get("enabled") == Some(&Value::Bool(true));
                anonymous.paths = list(own, "conditions").iter().map(|item| item.text(&["path"]).to_owned()).collect();
            }
        }
        if let Some(flags) = &self.oidc {
            let file = self.jwks_file(None).or_else(|| self.jwks_file(Some(&flags.issuer_url)));
            issuers.push(Issuer::from_flags(flags, file).map_err(flag("--oidc"))?);
        }
        let unused = |file: &&JwksFile| match &file.issuer_url {
            None => self.oidc.is_none(),
            Some(url) => !issuers.iter().any(|issuer| issuer.url() == url),
        };
        if let Some(file) = self.oidc_jwks_files.iter().find(unused) {
            let why = format!("{} is of no issuer that is configured", file.path.display());
            return Err(AuthError::Config("--oidc-jwks-file".into(), why));
        }
        let webhook = self.token_webhook.as_ref().map(|webhook| {
            let http = Outbound::from_kubeconfig(&webhook.config_file)?;
            Ok::<_, OutboundError>(TokenWebhook::new(http, webhook.version.clone(), webhook.authorized_ttl))
        });
        Ok(Authenticator {
            tokens: self.token_auth_file.as_deref().map(token_file::read).transpose()?.unwrap_or_default(),
            bootstrap: self.enable_bootstrap_token_auth,
            issuers: ArcSwap::from_pointee(issuers),
            webhook: webhook.transpose()?,
            request_header: self.request_header.clone(),
            anonymous,
            reloads,
        })
    }

    fn jwks_file(&self, issuer: Option<&str>) -> Option<PathBuf> {
        let found = self.oidc_jwks_files.iter().find(|file| file.issuer_url.as_deref() == issuer);
        found.map(|file| file.path.clone())
    }

    /// The issuers an AuthenticationConfiguration names, and what it says of the anonymous.
    pub(super) fn configured_issuers(&self, text: &[u8]) -> Result<(Vec<Issuer>, Option<Value>), AuthError> {
        let path = self.authentication_config.as_deref().unwrap_or(Path::new(""));
        let whole = parse(path, text, "AuthenticationConfiguration")?;
        let mut issuers: Vec<Issuer> = Vec::new();
        for (index, jwt) in list(&whole, "jwt").iter().enumerate() {
            let refuse = |why: String| AuthError::Config(path.display().to_string(), format!("jwt[{index}].{why}"));
            let file = self.jwks_file(Some(jwt.text(&["issuer", "url"])));
            let issuer = Issuer::from_configuration(jwt, file).map_err(refuse)?;
            if issuers.iter().any(|other| other.url() == issuer.url()) {
                return Err(refuse(format!("issuer.url: Duplicate value: {:?}", issuer.url())));
            }
            issuers.push(issuer);
        }
        Ok((issuers, whole.get("anonymous").cloned()))
    }

    pub(crate) fn authorizer(&self) -> Result<Authorizer, AuthError> {
        let (modes, reloads) = match &self.authorization_config {
            Some(path) => {
                let reloads = Reloads::of(path)?;
                (self.configured_modes(&reloads.text())?, reloads)
            }
            None => (self.by_modes()?, Reloads::default()),
        };
        Ok(Authorizer { modes: ArcSwap::from_pointee(modes), reloads })
    }

    fn by_modes(&self) -> Result<Vec<Mode>, AuthError> {
        let refuse = |why: String| AuthError::Config("--authorization-mode".into(), why);
        let named = &self.authorization_modes;
        let names = if named.is_empty() { vec!["Node".to_owned(), "RBAC".to_owned()] } else { named.clone() };
        let mut modes = Vec::new();
        for (index, name) in names.iter().enumerate() {
            if names.iter().take(index).any(|other| other == name) {
                return Err(refuse(format!("mode {name:?} is specified more than once")));
            }
            modes.push(match (name.as_str(), &self.authorization_policy_file, &self.authorization_webhook) {
                ("Node", ..) => Mode::Node,
                ("RBAC", ..) => Mode::Rbac,
                ("AlwaysAllow", ..) => Mode::AlwaysAllow,
                ("AlwaysDeny", ..) => Mode::AlwaysDeny,
                ("ABAC", Some(path), _) => Mode::Abac(Abac::read(path)?),
                ("ABAC", None, _) => return Err(refuse("mode ABAC needs --authorization-policy-file".into())),
                ("Webhook", _, Some(webhook)) => {
                    let http = Outbound::from_kubeconfig(&webhook.config_file)?;
                    let ttl = (webhook.authorized_ttl, webhook.unauthorized_ttl);
                    Mode::Webhook(AccessWebhook::new(
                        http,
                        webhook.version.clone(),
                        ttl,
                        false,
                        Duration::from_secs(30),
                    ))
                }
                ("Webhook", ..) => return Err(refuse("mode Webhook needs --authorization-webhook-config-file".into())),
                (other, ..) => return Err(refuse(format!("{other:?} is not a valid mode"))),
            });
        }
        Ok(modes)
    }

    /// What an AuthorizationConfiguration names, in its order.
    pub(super) fn configured_modes(&self, text: &[u8]) -> Result<Vec<Mode>, AuthError> {
        from_configuration(self.authorization_config.as_deref().unwrap_or(Path::new("")), text)
    }
}

fn from_configuration(path: &Path, text: &[u8]) -> Result<Vec<Mode>, AuthError> {
    let refuse = |why: String| AuthError::Config(path.display().to_string(), why);
    let whole = parse(path, text, "AuthorizationConfiguration")?;
    let mut modes = Vec::new();
    for (index, authorizer) in list(&whole, "authorizers").iter().enumerate() {
        let at = |why: String| refuse(format!("authorizers[{index}].{why}"));
        modes.push(match authorizer.text(&["type"]) {
            "Node" => Mode::Node,
            "RBAC" => Mode::Rbac,
            "AlwaysAllow" => Mode::AlwaysAllow,
            "AlwaysDeny" => Mode::AlwaysDeny,
            "Webhook" => Mode::Webhook(webhook(authorizer).map_err(at)?),
            other => return Err(at(format!("type: {other:?} is not supported in a configuration file"))),
        });
    }
    match modes.is_empty() {
        true => Err(refuse("authorizers: at least one authorization mode must be defined".into())),
        false => Ok(modes),
    }
}

fn webhook(authorizer: &Object) -> Result<AccessWebhook, String> {
    let text = |path: &[&str]| authorizer.text(&[&["webhook"], path].concat()).to_owned();
    let conditions =
        authorizer.get("webhook").and_then(Value::as_object).map(|webhook| list(webhook, "matchConditions"));
    let conditions = conditions.unwrap_or_default().into_iter().enumerate().map(|(index, condition)| {
        let made = Expression::compile(condition.text(&["expression"]), "request", &[Type::Bool], "");
        made.map_err(|why| format!("webhook.matchConditions[{index}].expression: {why}"))
    });
    let conditions = conditions.collect::<Result<Vec<_>, _>>()?;
    let duration = |field: &str, cached: &str, otherwise: u64| {
        if authorizer.at(&["webhook", cached]) == Some(&Value::Bool(false)) {
            return Ok(Duration::ZERO);
        }
        match text(&[field]).as_str() {
            "" => Ok(Duration::from_secs(otherwise)),
            text => parse_duration(text).ok_or_else(|| format!("webhook.{field}: {text:?} is no duration")),
        }
    };
    let version = text(&["subjectAccessReviewVersion"]);
    if !matches!(version.as_str(), "v1" | "v1beta1") {
        return Err("webhook.subjectAccessReviewVersion: must be v1 or v1beta1".into());
    }
    let denies = match text(&["failurePolicy"]).as_str() {
        "NoOpinion" => false,
        "Deny" => true,
        other => return Err(format!("webhook.failurePolicy: Unsupported value: {other:?}")),
    };
    let http = match text(&["connectionInfo", "type"]).as_str() {
        "KubeConfigFile" => Outbound::from_kubeconfig(Path::new(&text(&["connectionInfo", "kubeConfigFile"]))),
        other => return Err(format!("webhook.connectionInfo.type: {other:?} is not supported: use KubeConfigFile")),
    };
    let http = http.map_err(|error| format!("webhook.connectionInfo: {error}"))?;
    let ttl = (
        duration("authorizedTTL", "cacheAuthorizedRequests", 300)?,
        duration("unauthorizedTTL", "cacheUnauthorizedRequests", 30)?,
    );
    let timeout = match text(&["timeout"]).as_str() {
        "" => return Err("webhook.timeout: is required".into()),
        text => parse_duration(text).ok_or_else(|| format!("webhook.timeout: {text:?} is no duration"))?,
    };
    let mut webhook = AccessWebhook::new(http, version, ttl, denies, timeout);
    webhook.conditions = conditions;
    Ok(webhook)
}

/// `1m30s`, as Go writes durations.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|at| *at > 0)?;
        let (number, after) = rest.split_at_checked(digits)?;
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at_checked(end)?;
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            "us" | "µs" => 0.000_001,
            "ns" => 0.000_000_001,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?)?;
        rest = next;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, want) in [
            ("2m0s", Some(Duration::from_secs(120))),
            ("1h", Some(Duration::from_secs(3600))),
            ("1.5s", Some(Duration::from_millis(1500))),
            ("0s", Some(Duration::ZERO)),
            ("", None),
            ("5", None),
            ("m", None),
            ("5 s", None),
        ] {
            assert_eq!(parse_duration(text), want, "{text}");
        }
    }

    #[track_caller]
    fn check(modes: &[&str], want: Result<usize, &str>) {
        let settings =
            AuthSettings { authorization_modes: modes.iter().map(ToString::to_string).collect(), ..Default::default() };
        let found =
            settings.authorizer().map(|authorizer| authorizer.modes.load().len()).map_err(|error| error.to_string());
        assert_eq!(found, want.map_err(|why| format!("--authorization-mode: {why}")), "{modes:?}");
    }

    #[test]
    fn modes_are_taken_in_order_and_odd_ones_refused() {
        check(&[], Ok(2));
        check(&["RBAC"], Ok(1));
        check(&["RBAC", "RBAC"], Err("mode \"RBAC\" is specified more than once"));
        check(&["ABAC"], Err("mode ABAC needs --authorization-policy-file"));
        check(&["Sometimes"], Err("\"Sometimes\" is not a valid mode"));
    }

    #[test]
    fn a_configuration_file_says_the_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authz.yaml");
        let check = |text: &str, want: Result<usize, &str>| {
            std::fs::write(&path, text).unwrap();
            let settings = AuthSettings { authorization_config: Some(path.clone()), ..Default::default() };
            let found = settings.authorizer().map(|authorizer| authorizer.modes.load().len());
            match (found, want) {
                (Ok(found), Ok(want)) => assert_eq!(found, want),
                (Err(error), Err(why)) => assert!(error.to_string().ends_with(why), "{error}"),
                (found, want) => panic!("{:?} instead of {want:?}", found.map_err(|error| error.to_string())),
            }
        };
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n";
        check(&format!("{head}- {{type: Node, name: node}}\n- {{type: RBAC, name: rbac}}\n"), Ok(2));
        check(
            &format!("{head}- {{type: Maybe, name: x}}\n"),
            Err("\"Maybe\" is not supported in a configuration file"),
        );
        let conditions = "- {type: Webhook, name: w, webhook: {matchConditions: [{expression: '1 +'}]}}\n";
        std::fs::write(&path, format!("{head}{conditions}")).unwrap();
        let settings = AuthSettings { authorization_config: Some(path.clone()), ..Default::default() };
        let error = settings.authorizer().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("authorizers[0].webhook.matchConditions[0].expression: compilation failed"), "{error}");
        check("kind: Other\n", Err("it is no AuthorizationConfiguration of apiserver.config.k8s.io/v1"));
    }
}

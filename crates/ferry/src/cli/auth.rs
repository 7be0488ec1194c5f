//! Flags of whatever has an API server: who is believed, and who may do what. Names are upstream's.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use apiserver::{AuthSettings, JwksFile, OidcSettings, RequestHeaderSettings, TokenSettings, WebhookSettings};
use clap::{ArgAction, Args};

#[derive(Args, Clone, Default)]
pub(crate) struct Auth {
    /// Who a bearer token is of: `token,user,uid,"group,group"` in each line
    #[arg(long)]
    token_auth_file: Option<PathBuf>,
    /// Believe the tokens in secrets of type bootstrap.kubernetes.io/token in kube-system
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    enable_bootstrap_token_auth: bool,
    /// Requests that prove nothing are from system:anonymous [default: true]
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    anonymous_auth: Option<bool>,
    /// AuthenticationConfiguration of apiserver.config.k8s.io
    #[arg(long)]
    authentication_config: Option<PathBuf>,
    /// Whom a token must be meant for to be good for the API [default: the issuer of service-account tokens]
    #[arg(long, value_delimiter = ',')]
    api_audiences: Vec<String>,
    #[arg(long, requires = "oidc_client_id")]
    oidc_issuer_url: Option<String>,
    #[arg(long, requires = "oidc_issuer_url")]
    oidc_client_id: Option<String>,
    #[arg(long)]
    oidc_ca_file: Option<PathBuf>,
    /// A JSON Web Key Set in a file, instead of what the issuer publishes; `ISSUER-URL=FILE` for one of an authentication
    /// configuration. Read again when a token names a key that is not in it
    #[arg(long)]
    oidc_jwks_file: Vec<String>,
    #[arg(long, default_value = "sub")]
    oidc_username_claim: String,
    #[arg(long, default_value = "")]
    oidc_username_prefix: String,
    #[arg(long, default_value = "")]
    oidc_groups_claim: String,
    #[arg(long, default_value = "")]
    oidc_groups_prefix: String,
    /// `claim=value`, which a token must have
    #[arg(long, value_delimiter = ',')]
    oidc_required_claim: Vec<String>,
    #[arg(long, value_delimiter = ',', default_value = "RS256")]
    oidc_signing_algs: Vec<String>,
    /// A kubeconfig that says whom to ask whose a token is
    #[arg(long)]
    authentication_token_webhook_config_file: Option<PathBuf>,
    #[arg(long, default_value = "v1beta1")]
    authentication_token_webhook_version: String,
    #[arg(long, value_parser = duration, default_value = "2m0s")]
    authentication_token_webhook_cache_ttl: Duration,
    /// The longest that a service account's token lasts, whatever is asked for; 0 is as long as that
    #[arg(long, value_parser = duration, default_value = "0s")]
    service_account_max_token_expiration: Duration,
    /// Let tokens that kubelets ask for outlive what is asked for by far; they say when that was
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = true)]
    service_account_extend_token_expiration: bool,
    /// Authorities of front proxies, which say in headers whom they speak for
    #[arg(long)]
    pub(crate) requestheader_client_ca_file: Option<PathBuf>,
    #[arg(long, value_delimiter = ',')]
    requestheader_allowed_names: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    requestheader_username_headers: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    requestheader_uid_headers: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    requestheader_group_headers: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    requestheader_extra_headers_prefix: Vec<String>,
    /// Who says who may do what, in order: Node, RBAC, ABAC, Webhook, AlwaysAllow, AlwaysDeny [default: Node,RBAC]
    #[arg(long, value_delimiter = ',', conflicts_with = "authorization_config")]
    authorization_mode: Vec<String>,
    /// Policies of mode ABAC, one per line
    #[arg(long, conflicts_with = "authorization_config")]
    authorization_policy_file: Option<PathBuf>,
    /// A kubeconfig that says whom mode Webhook asks
    #[arg(long, conflicts_with = "authorization_config")]
    authorization_webhook_config_file: Option<PathBuf>,
    #[arg(long, default_value = "v1beta1")]
    authorization_webhook_version: String,
    #[arg(long, value_parser = duration, default_value = "5m0s")]
    authorization_webhook_cache_authorized_ttl: Duration,
    #[arg(long, value_parser = duration, default_value = "30s")]
    authorization_webhook_cache_unauthorized_ttl: Duration,
    /// AuthorizationConfiguration of apiserver.config.k8s.io, instead of the modes
    #[arg(long)]
    authorization_config: Option<PathBuf>,
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    apiserver::parse_duration(text).ok_or_else(|| format!("{text:?} is no duration such as 1m30s"))
}

fn version(text: &str, flag: &str) -> Result<String> {
    match text {
        "v1" | "v1beta1" => Ok(text.to_owned()),
        other => bail!("{flag} is v1 or v1beta1, not {other:?}"),
    }
}

/// `FILE` or `ISSUER-URL=FILE`
fn jwks_file(text: &str) -> JwksFile {
    match text.split_once('=') {
        Some((url, path)) if url.starts_with("https://") => {
            JwksFile { issuer_url: Some(url.to_owned()), path: path.into() }
        }
        _ => JwksFile { issuer_url: None, path: text.into() },
    }
}

impl Auth {
    pub(crate) fn settings(&self) -> Result<AuthSettings> {
        let token_webhook = self.authentication_token_webhook_config_file.clone().map(|config_file| {
            let ttl = self.authentication_token_webhook_cache_ttl;
            let version =
                version(&self.authentication_token_webhook_version, "--authentication-token-webhook-version")?;
            anyhow::Ok(WebhookSettings { config_file, version, authorized_ttl: ttl, unauthorized_ttl: ttl })
        });
        let authorization_webhook = self.authorization_webhook_config_file.clone().map(|config_file| {
            anyhow::Ok(WebhookSettings {
                config_file,
                version: version(&self.authorization_webhook_version, "--authorization-webhook-version")?,
                authorized_ttl: self.authorization_webhook_cache_authorized_ttl,
                unauthorized_ttl: self.authorization_webhook_cache_unauthorized_ttl,
            })
        });
        Ok(AuthSettings {
            api_audiences: self.api_audiences.clone(),
            oidc_jwks_files: self.oidc_jwks_file.iter().map(|text| jwks_file(text)).collect(),
            token_auth_file: self.token_auth_file.clone(),
            enable_bootstrap_token_auth: self.enable_bootstrap_token_auth,
            anonymous_auth: self.anonymous_auth,
            oidc: self.oidc()?,
            token_webhook: token_webhook.transpose()?,
            request_header: self.request_header()?,
            authentication_config: self.authentication_config.clone(),
            authorization_modes: self.authorization_mode.clone(),
            authorization_policy_file: self.authorization_policy_file.clone(),
            authorization_webhook: authorization_webhook.transpose()?,
            authorization_config: self.authorization_config.clone(),
            tokens: self.tokens()?,
        })
    }

    fn tokens(&self) -> Result<TokenSettings> {
        let most = self.service_account_max_token_expiration;
        let bounds = Duration::from_secs(3600)..=Duration::from_secs(1 << 32);
        if !most.is_zero() && !bounds.contains(&most) {
            bail!("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds");
        }
        let extend_expiration = self.service_account_extend_token_expiration;
        Ok(TokenSettings { max_expiration: (!most.is_zero()).then_some(most), extend_expiration })
    }

    fn oidc(&self) -> Result<Option<OidcSettings>> {
        let (Some(issuer_url), Some(client_id)) = (self.oidc_issuer_url.clone(), self.oidc_client_id.clone()) else {
            return Ok(None);
        };
        let required = self.oidc_required_claim.iter().map(|pair| {
            let (claim, value) = pair.split_once('=').context("--oidc-required-claim is claim=value")?;
            anyhow::Ok((claim.to_owned(), value.to_owned()))
        });
        Ok(Some(OidcSettings {
            issuer_url,
            client_id,
            ca_file: self.oidc_ca_file.clone(),
            username_claim: self.oidc_username_claim.clone(),
            username_prefix: self.oidc_username_prefix.clone(),
            groups_claim: self.oidc_groups_claim.clone(),
            groups_prefix: self.oidc_groups_prefix.clone(),
            required_claims: required.collect::<Result<_>>()?,
            signing_algs: self.oidc_signing_algs.clone(),
        }))
    }

    fn request_header(&self) -> Result<RequestHeaderSettings> {
        let client_ca = self.requestheader_client_ca_file.as_deref().map(crate::alone::authorities).transpose()?;
        Ok(RequestHeaderSettings {
            client_ca: client_ca.unwrap_or_default(),
            allowed_names: self.requestheader_allowed_names.clone(),
            username_headers: self.requestheader_username_headers.clone(),
            uid_headers: self.requestheader_uid_headers.clone(),
            group_headers: self.requestheader_group_headers.clone(),
            extra_headers_prefix: self.requestheader_extra_headers_prefix.clone(),
        })
    }
}

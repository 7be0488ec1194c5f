//! Flags of whatever has an API server: who may use it from a browser, and what is written down of its requests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use apiserver::{AdmissionSettings, Audit, AuditLog, Cors, EncryptionSettings, FlowSettings};
use clap::Args;

#[derive(Args, Clone, Default)]
pub(crate) struct Api {
    /// Pages of these origins may use the API: regular expressions, pinned to the host: `//example[.]com$`
    #[arg(long, value_delimiter = ',')]
    pub(crate) cors_allowed_origins: Vec<String>,
    /// Which requests are logged, and how much of them: a Policy of audit.k8s.io/v1
    #[arg(long, requires = "audit_log_path")]
    pub(crate) audit_policy_file: Option<PathBuf>,
    /// Where; `-` is standard output
    #[arg(long, requires = "audit_policy_file")]
    pub(crate) audit_log_path: Option<PathBuf>,
    /// Days after which a file that was rotated away is deleted; 0 keeps them
    #[arg(long, default_value_t = 0)]
    pub(crate) audit_log_maxage: u32,
    /// How many files that were rotated away are kept; 0 keeps all
    #[arg(long, default_value_t = 0)]
    pub(crate) audit_log_maxbackup: u32,
    /// Megabytes after which the file is rotated [default: 100]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) audit_log_maxsize: u64,
    /// Admission plugins to turn on beside those that are
    #[arg(long, value_delimiter = ',')]
    pub(crate) enable_admission_plugins: Vec<String>,
    /// Admission plugins to turn off
    #[arg(long, value_delimiter = ',')]
    pub(crate) disable_admission_plugins: Vec<String>,
    /// What admission plugins are configured with: an AdmissionConfiguration of apiserver.config.k8s.io/v1
    #[arg(long)]
    pub(crate) admission_control_config_file: Option<PathBuf>,
    /// Which of a node's addresses its kubelet is reached at, the first it has [default: InternalIP,ExternalIP,Hostname]
    #[arg(long, value_delimiter = ',')]
    pub(crate) kubelet_preferred_address_types: Vec<String>,
    /// How values are encrypted at rest: an EncryptionConfiguration of apiserver.config.k8s.io/v1
    #[arg(long)]
    pub(crate) encryption_provider_config: Option<PathBuf>,
    /// Take over changes of that file at once
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set)]
    pub(crate) encryption_provider_config_automatic_reload: bool,
    /// Let priority levels and flow schemas decide who is answered when; otherwise only the numbers below do
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) enable_priority_and_fairness: bool,
    /// Requests that read, answered at once; with priority levels the sum of both is divided among them
    #[arg(long, default_value_t = 400)]
    pub(crate) max_requests_inflight: usize,
    /// Requests that write, answered at once
    #[arg(long, default_value_t = 200)]
    pub(crate) max_mutating_requests_inflight: usize,
    /// The certificate it shows to API servers behind it, which believe what it then says of users
    #[arg(long, requires = "proxy_client_key_file")]
    pub(crate) proxy_client_cert_file: Option<PathBuf>,
    #[arg(long, requires = "proxy_client_cert_file")]
    pub(crate) proxy_client_key_file: Option<PathBuf>,
    /// Turns built-in APIs on or off: `api/all`, `api/ga`, `api/beta`, `api/alpha`, `GROUP/VERSION` or `GROUP/VERSION/RESOURCE`, each
    /// `=true` or `=false`. Stable versions are on by default, beta and alpha ones are off
    #[arg(long, value_delimiter = ',')]
    pub(crate) runtime_config: Vec<String>,
    #[command(flatten)]
    pub(crate) auth: super::auth::Auth,
    #[command(flatten)]
    pub(crate) serving: super::serving::Serving,
}

impl Api {
    pub(crate) fn admission(&self) -> Result<AdmissionSettings> {
        let configuration = self.admission_control_config_file.as_deref().map(AdmissionSettings::read).transpose()?;
        Ok(AdmissionSettings {
            enable: self.enable_admission_plugins.clone(),
            disable: self.disable_admission_plugins.clone(),
            configuration,
        })
    }

    pub(crate) fn encryption(&self) -> Result<Option<EncryptionSettings>> {
        let reload = self.encryption_provider_config_automatic_reload;
        if self.encryption_provider_config.is_none() && reload {
            anyhow::bail!(
                "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"
            );
        }
        Ok(self.encryption_provider_config.clone().map(|path| EncryptionSettings { path, reload }))
    }

    pub(crate) fn flow(&self) -> FlowSettings {
        FlowSettings {
            enable_priority_and_fairness: self.enable_priority_and_fairness,
            max_requests_inflight: self.max_requests_inflight,
            max_mutating_requests_inflight: self.max_mutating_requests_inflight,
        }
    }

    /// Certificate and key.
    pub(crate) fn proxy_client(&self) -> Option<(&Path, &Path)> {
        self.proxy_client_cert_file.as_deref().zip(self.proxy_client_key_file.as_deref())
    }

    pub(crate) fn cors(&self) -> Result<Cors> {
        Cors::new(&self.cors_allowed_origins).context("--cors-allowed-origins")
    }

    pub(crate) fn audit(&self) -> Result<Option<Arc<Audit>>> {
        let (Some(policy), Some(path)) = (&self.audit_policy_file, &self.audit_log_path) else { return Ok(None) };
        let text = std::fs::read_to_string(policy).with_context(|| format!("cannot read {}", policy.display()))?;
        let log = AuditLog {
            path: path.clone(),
            max_age_days: self.audit_log_maxage,
            max_backups: self.audit_log_maxbackup,
            max_size_mib: self.audit_log_maxsize,
        };
        Ok(Some(Arc::new(Audit::new(&text, log).with_context(|| policy.display().to_string())?)))
    }
}

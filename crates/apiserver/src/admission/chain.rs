//! The one table of plugins: their order, which of them are on, and what they are configured with.

use std::path::{Path, PathBuf};

use api::ObjectExt as _;
use serde_json::Value;

use super::{
    Plugin, always_pull_images, certificates, event_rate_limit, image_policy, limit_ranger, namespace,
    node_restriction, node_taint, placement, pod_resize, pod_security, pods, policy, refusals, runtime_class,
    service_account, storage, webhook,
};

/// What the flags say.
#[derive(Clone, Debug, Default)]
pub struct AdmissionSettings {
    /// `--enable-admission-plugins`
    pub enable: Vec<String>,
    /// `--disable-admission-plugins`
    pub disable: Vec<String>,
    /// `--admission-control-config-file`, read; what it names by path is read into it.
    pub configuration: Option<Value>,
}

impl AdmissionSettings {
    /// Reads an AdmissionConfiguration; what it names by path is beside it.
    pub fn read(path: &Path) -> Result<Value, AdmissionError> {
        let mut whole = read_yaml(path)?;
        let version = whole.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let kind = whole.get("kind").and_then(Value::as_str).unwrap_or_default();
        if !matches!(version, "apiserver.config.k8s.io/v1" | "apiserver.k8s.io/v1alpha1")
            || kind != "AdmissionConfiguration"
        {
            let why = format!("{version} {kind} is no AdmissionConfiguration of apiserver.config.k8s.io/v1");
            return Err(AdmissionError::File(path.to_owned(), why));
        }
        for plugin in whole.get_mut("plugins").and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(plugin) = plugin.as_object_mut() else { continue };
            let own = plugin.text(&["path"]).to_owned();
            if !own.is_empty() && plugin.get("configuration").is_none_or(Value::is_null) {
                let beside = path.parent().map_or_else(|| own.clone().into(), |dir| dir.join(&own));
                plugin.insert("configuration".into(), read_yaml(&beside)?);
            }
        }
        Ok(whole)
    }
}

fn read_yaml(path: &Path) -> Result<Value, AdmissionError> {
    let failed = |why: String| AdmissionError::File(path.to_owned(), why);
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    crate::http::yaml(&text).map_err(|error| failed(error.message))
}

#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    #[error("unknown admission plugin {0}")]
    Unknown(String),
    #[error("{0} in enable-admission-plugins and disable-admission-plugins overlapped")]
    Both(String),
    #[error("{0} cannot be used: {1}")]
    File(PathBuf, String),
    #[error("the configuration of the admission plugin {0} cannot be used: {1}")]
    Configuration(&'static str, String),
}

type Make = fn(Option<&Value>) -> Result<Box<dyn Plugin>, String>;

/// A plugin as the table has it. Some are done elsewhere in the path of a write and only named here.
struct Entry {
    name: &'static str,
    on: bool,
    make: Option<Make>,
}

const fn plugin(name: &'static str, on: bool, make: Make) -> Entry {
    Entry { name, on, make: Some(make) }
}

const fn elsewhere(name: &'static str, on: bool) -> Entry {
    Entry { name, on, make: None }
}

macro_rules! simple {
    ($plugin:expr) => {
        |_| Ok(Box::new($plugin))
    };
}

/// In upstream's order. NodeRestriction is on here: without it a node's credentials would reach beyond the node.
/// StorageObjectInUseProtection is off here: what it puts on volumes and claims, controllers must take off again, and a
/// cluster without those would never let one go.
const TABLE: &[Entry] = &[
    elsewhere("AlwaysAdmit", false),
    plugin("NamespaceAutoProvision", false, simple!(refusals::NamespaceAutoProvision)),
    plugin("NamespaceLifecycle", true, simple!(namespace::Lifecycle)),
    plugin("NamespaceExists", false, simple!(refusals::NamespaceExists)),
    plugin("LimitPodHardAntiAffinityTopology", false, simple!(placement::LimitPodHardAntiAffinityTopology)),
    plugin("LimitRanger", true, simple!(limit_ranger::LimitRanger)),
    plugin("ServiceAccount", true, simple!(service_account::ServiceAccount)),
    plugin("NodeRestriction", true, simple!(node_restriction::NodeRestriction)),
    plugin("TaintNodesByCondition", true, simple!(node_taint::TaintNodesByCondition)),
    plugin("AlwaysPullImages", false, simple!(always_pull_images::AlwaysPullImages)),
    plugin("ImagePolicyWebhook", false, image_policy::ImagePolicyWebhook::plugin),
    plugin("PodSecurity", true, pod_security::PodSecurity::plugin),
    plugin("PodNodeSelector", false, placement::PodNodeSelector::plugin),
    plugin("Priority", true, simple!(pods::Priority)),
    plugin("DefaultTolerationSeconds", true, simple!(pods::DefaultTolerationSeconds)),
    plugin("PodTolerationRestriction", false, placement::PodTolerationRestriction::plugin),
    plugin("EventRateLimit", false, event_rate_limit::EventRateLimit::plugin),
    plugin("ExtendedResourceToleration", false, simple!(placement::ExtendedResourceToleration)),
    plugin("DefaultStorageClass", true, simple!(storage::DefaultStorageClass)),
    plugin("StorageObjectInUseProtection", false, simple!(storage::StorageObjectInUseProtection)),
    plugin("OwnerReferencesPermissionEnforcement", false, simple!(refusals::OwnerReferencesPermissionEnforcement)),
    plugin("PersistentVolumeClaimResize", true, simple!(storage::PersistentVolumeClaimResize)),
    plugin("RuntimeClass", true, simple!(runtime_class::RuntimeClass)),
    plugin("CertificateApproval", true, simple!(certificates::Approval)),
    plugin("CertificateSigning", true, simple!(certificates::Signing)),
    plugin("CertificateSubjectRestriction", true, simple!(certificates::SubjectRestriction)),
    plugin("DefaultIngressClass", true, simple!(storage::DefaultIngressClass)),
    plugin("DenyServiceExternalIPs", false, simple!(refusals::DenyServiceExternalIps)),
    plugin("PodTopologyLabels", true, simple!(placement::PodTopologyLabels)),
    plugin("PodResizeValidator", true, simple!(pod_resize::PodResizeValidator)),
    // Asked after all others, and all others once more after it.
    elsewhere(policy::mutating::NAME, true),
    elsewhere(webhook::mutating::NAME, true),
    plugin("ValidatingAdmissionPolicy", true, simple!(policy::validating::ValidatingAdmissionPolicy)),
    plugin("ValidatingAdmissionWebhook", true, simple!(webhook::validating::ValidatingAdmissionWebhook)),
    // Charged in the transaction of the write.
    elsewhere("ResourceQuota", true),
    plugin("AlwaysDeny", false, simple!(refusals::AlwaysDeny)),
];

/// The plugins that are on.
pub(crate) struct Chain {
    names: Vec<&'static str>,
    plugins: Vec<Box<dyn Plugin>>,
}

impl Chain {
    pub(crate) fn new(settings: &AdmissionSettings) -> Result<Self, AdmissionError> {
        let known = |name: &str| TABLE.iter().any(|entry| entry.name == name);
        if let Some(name) = settings.enable.iter().chain(&settings.disable).find(|name| !known(name)) {
            return Err(AdmissionError::Unknown(name.clone()));
        }
        if let Some(name) = settings.enable.iter().find(|name| settings.disable.contains(name)) {
            return Err(AdmissionError::Both(name.clone()));
        }
        let listed = |list: &[String], entry: &Entry| list.iter().any(|name| name == entry.name);
        let mut chain = Self { names: Vec::new(), plugins: Vec::new() };
        for entry in TABLE {
            if listed(&settings.disable, entry) || !(entry.on || listed(&settings.enable, entry)) {
                continue;
            }
            chain.names.push(entry.name);
            let own = configuration(settings, entry.name);
            // Neither is an option: without them webhooks would be asked as nobody, or not at all.
            let unsupported = ["kubeConfigFile", "staticManifestsDir"].into_iter().find(|field| {
                entry.name.ends_with("AdmissionWebhook") && own.and_then(|own| own.get(field)?.as_str()) > Some("")
            });
            if let Some(field) = unsupported {
                return Err(AdmissionError::Configuration(entry.name, format!("{field} is not supported")));
            }
            if let Some(make) = entry.make {
                let made = make(own);
                chain.plugins.push(made.map_err(|why| AdmissionError::Configuration(entry.name, why))?);
            }
        }
        Ok(chain)
    }

    pub(super) fn plugins(&self) -> impl Iterator<Item = &dyn Plugin> {
        self.plugins.iter().map(|plugin| &**plugin)
    }

    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.names.contains(&name)
    }
}

fn configuration<'a>(settings: &'a AdmissionSettings, name: &str) -> Option<&'a Value> {
    let plugins = settings.configuration.as_ref()?.get("plugins")?.as_array()?;
    let own = plugins.iter().filter_map(Value::as_object).find(|plugin| plugin.text(&["name"]) == name)?;
    own.get("configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(enable: &[&str], disable: &[&str], want: Result<&[&str], &str>) {
        let list = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let settings = AdmissionSettings { enable: list(enable), disable: list(disable), configuration: None };
        let chain = Chain::new(&settings);
        match (chain, want) {
            (Ok(chain), Ok(names)) => {
                for name in names {
                    assert_eq!(chain.is_on(name.trim_start_matches('!')), !name.starts_with('!'), "{name}");
                }
            }
            (Err(error), Err(why)) => assert_eq!(error.to_string(), why),
            (chain, want) => panic!("{:?} instead of {want:?}", chain.map(|chain| chain.names)),
        }
    }

    #[test]
    fn what_webhooks_would_be_asked_with_is_not_passed_over() {
        let own = |configuration: Value| AdmissionSettings {
            configuration: Some(serde_json::json!({"plugins": [
                {"name": "MutatingAdmissionWebhook", "configuration": configuration},
            ]})),
            ..AdmissionSettings::default()
        };
        let error = Chain::new(&own(serde_json::json!({"kubeConfigFile": "/a"}))).err().map(|error| error.to_string());
        let why = "the configuration of the admission plugin MutatingAdmissionWebhook cannot be used: kubeConfigFile is not supported";
        assert_eq!(error.as_deref(), Some(why));
        assert!(Chain::new(&own(serde_json::json!({"kubeConfigFile": ""}))).is_ok());
    }

    #[test]
    fn flags_turn_plugins_on_and_off() {
        check(&[], &[], Ok(&["NamespaceLifecycle", "ResourceQuota", "!AlwaysAdmit"]));
        check(&["AlwaysAdmit"], &["Priority"], Ok(&["AlwaysAdmit", "!Priority", "ServiceAccount"]));
        check(&["Wrong"], &[], Err("unknown admission plugin Wrong"));
        check(
            &["Priority"],
            &["Priority"],
            Err("Priority in enable-admission-plugins and disable-admission-plugins overlapped"),
        );
    }
}

//! What is special about a resource: defaults, what create and update may set, validation, selectable fields.
//!
//! Everything a strategy does not say follows from the schema and the resource table.

mod admissionregistration;
mod apps;
mod autoscaling;
mod batch;
mod certificates;
mod check;
mod conditions;
mod coordination;
mod core;
pub(crate) mod definitions;
mod events;
mod flowcontrol;
mod image_name;
mod internal;
mod key_pair;
mod networking;
mod node;
mod node_selector;
mod pod;
mod pod_defaults;
mod pod_validation;
mod policy;
mod quota;

pub(crate) mod ratchet;
mod rbac;
mod resource;
pub(crate) mod service;
mod storage;
mod trust_bundles;
mod volume_sources;
mod warnings;

pub use self::pod_validation::allow_privileged;

pub(crate) use self::certificates::{requested_subject, set_requester};
pub(crate) use self::pod::qos_class;
use api::field::{FieldError, Path};
use api::validation::{Again, NameRule};
use api::{Object, ObjectExt as _};
use serde_json::Value;

/// The hooks of one resource. All are pure: what needs the cluster's state is admission.
pub(crate) trait Strategy: Send + Sync {
    /// Fields beyond name and namespace that field selectors may use.
    fn selectable_fields(&self) -> &'static [&'static str] {
        &[]
    }

    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }

    /// Fills in what the client left out.
    fn default(&self, _object: &mut Object) {}

    /// `metadata.generation` counts changes of the spec.
    fn counts_generation(&self) -> bool {
        false
    }

    /// Changes of the status count, too.
    fn counts_status(&self) -> bool {
        false
    }

    /// It counts changes of annotations too.
    fn counts_annotations(&self) -> bool {
        false
    }

    /// It counts changes of labels too.
    fn counts_labels(&self) -> bool {
        false
    }

    /// An empty list in this field counts as a change: of all that is compared, upstream compares a few to the letter.
    fn counts_empties(&self) -> Option<&'static str> {
        None
    }

    /// A PUT says which version of the object it replaces.
    fn needs_version(&self) -> bool {
        false
    }

    /// A client's word on status is dropped at creation; the few that keep it say so.
    fn keeps_status_on_create(&self) -> bool {
        false
    }

    /// Labels that a new object lacks are those of its template: what the system adds to these, it adds to both.
    fn shares_labels(&self, _object: &Object) -> bool {
        false
    }

    /// Where the spec of its pods is; nothing where there are none.
    fn pod_spec(&self) -> &'static [&'static str] {
        &[]
    }

    fn prepare_for_create(&self, _object: &mut Object) {}

    fn prepare_for_update(&self, _new: &mut Object, _old: &Object) {}

    /// What a first deletion changes, beside the time of it.
    fn prepare_for_delete(&self, _object: &mut Object) {}

    /// The same for a write through a subresource.
    fn prepare_part(&self, _subresource: &str, _new: &mut Object, _old: &Object) {}

    fn validate(&self, _object: &Object) -> Vec<FieldError> {
        Vec::new()
    }

    /// What may come only later, with a change.
    fn validate_create(&self, _object: &Object) -> Vec<FieldError> {
        Vec::new()
    }

    /// What a change may not do; what `validate` says of `new` comes before it.
    fn validate_update(&self, _new: &Object, _old: &Object) -> Vec<FieldError> {
        Vec::new()
    }

    /// All that is wrong with a new object, in upstream's order.
    fn judge_create(&self, object: &Object) -> Vec<FieldError> {
        let mut errors = self.validate(object);
        errors.extend(self.validate_create(object));
        errors
    }

    /// All that is wrong with a change, in upstream's order.
    fn judge_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = self.validate(new);
        errors.extend(self.validate_update(new, old));
        errors
    }

    /// What holds for a status that is written.
    fn validate_status(&self, _new: &Object, _old: &Object) -> Vec<FieldError> {
        Vec::new()
    }

    /// What holds for a write through another subresource.
    fn validate_part(&self, _subresource: &str, _new: &Object, _old: &Object) -> Vec<FieldError> {
        Vec::new()
    }

    /// What is worth telling of an object that may be created.
    fn warnings(&self, _object: &Object) -> Vec<String> {
        Vec::new()
    }

    /// What is worth telling of a change that may be made.
    fn warnings_on_update(&self, _subresource: &str, _new: &Object, _old: &Object) -> Vec<String> {
        Vec::new()
    }

    /// How long the object may take to go, in seconds; `None` where deletion is immediate.
    fn grace_period(&self, _object: &Object, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// A deletion that does not say what becomes of dependents leaves them alone, as it did before there was a choice.
    fn orphans_by_default(&self) -> bool {
        false
    }

    /// A PUT to a name that does not exist creates it.
    fn creates_on_update(&self) -> bool {
        false
    }
}

struct Plain;
impl Strategy for Plain {}

/// Takes away what an object's pods say of features that are off, which nobody hears of.
pub(crate) fn drop_disabled(strategy: &dyn Strategy, object: &mut Object) {
    let path = strategy.pod_spec();
    if !path.is_empty() && object.at(path).is_some() {
        pod::prepare::drop_disabled(object.at_mut(path));
    }
}

/// The strategy of a built-in resource.
pub(crate) fn of(group: &str, plural: &str) -> &'static dyn Strategy {
    match (group, plural) {
        ("", "pods") => &pod::Pods,
        ("", "services") => &service::Services,
        ("", "namespaces") => &core::Namespaces,
        ("", "nodes") => &node::Nodes,
        ("", "secrets") => &core::Secrets,
        ("", "configmaps") => &core::ConfigMaps,
        ("", "serviceaccounts") => &core::ServiceAccounts,
        ("", "events") => &events::CORE,
        ("events.k8s.io", "events") => &events::NEW,
        ("", "limitranges") => &quota::LimitRanges,
        ("", "resourcequotas") => &quota::ResourceQuotas,
        ("", "persistentvolumes") => &storage::PersistentVolumes,
        ("", "persistentvolumeclaims") => &storage::PersistentVolumeClaims,
        ("", "endpoints") => &networking::Endpoints,
        ("", "podtemplates") => &apps::PodTemplates,
        ("", "replicationcontrollers") => &apps::ReplicationControllers,
        ("apps", "controllerrevisions") => &apps::ControllerRevisions,
        ("apps", "deployments") => &apps::Deployments,
        ("apps", "replicasets") => &apps::ReplicaSets,
        ("apps", "daemonsets") => &apps::DaemonSets,
        ("apps", "statefulsets") => &apps::StatefulSets,
        ("autoscaling", "horizontalpodautoscalers") => &autoscaling::HorizontalPodAutoscalers,
        ("batch", "jobs") => &batch::Jobs,
        ("batch", "cronjobs") => &batch::CronJobs,
        ("coordination.k8s.io", "leases") => &coordination::Leases,
        ("coordination.k8s.io", "leasecandidates") => &coordination::LeaseCandidates,
        ("discovery.k8s.io", "endpointslices") => &networking::EndpointSlices,
        ("networking.k8s.io", "ingresses") => &networking::Ingresses,
        ("networking.k8s.io", "ingressclasses") => &networking::IngressClasses,
        ("networking.k8s.io", "networkpolicies") => &networking::NetworkPolicies,
        ("networking.k8s.io", "servicecidrs") => &networking::ServiceCidrs,
        ("networking.k8s.io", "ipaddresses") => &networking::IpAddresses,
        ("node.k8s.io", "runtimeclasses") => &node::RuntimeClasses,
        ("policy", "poddisruptionbudgets") => &policy::PodDisruptionBudgets,
        ("rbac.authorization.k8s.io", "roles" | "clusterroles") => &rbac::Roles,
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => &rbac::Bindings,
        ("scheduling.k8s.io", "priorityclasses") => &policy::PriorityClasses,
        ("storage.k8s.io", "storageclasses") => &storage::StorageClasses,
        ("storage.k8s.io", "volumeattributesclasses") => &storage::VolumeAttributesClasses,
        ("storage.k8s.io", "csidrivers") => &storage::CsiDrivers,
        ("storage.k8s.io", "csinodes") => &storage::CsiNodes,
        ("storage.k8s.io", "csistoragecapacities") => &storage::CsiStorageCapacities,
        ("storage.k8s.io", "volumeattachments") => &storage::VolumeAttachments,
        ("apiextensions.k8s.io", "customresourcedefinitions") => &definitions::Definitions,
        ("apiregistration.k8s.io", "apiservices") => &core::ApiServices,
        ("certificates.k8s.io", "certificatesigningrequests") => &certificates::CertificateSigningRequests,
        ("certificates.k8s.io", "clustertrustbundles") => &trust_bundles::ClusterTrustBundles,
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations" | "mutatingwebhookconfigurations") => {
            &admissionregistration::WebhookConfigurations
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicies" | "mutatingadmissionpolicies") => {
            &admissionregistration::Policies
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings") => {
            &admissionregistration::Bindings
        }
        ("resource.k8s.io", "deviceclasses") => &resource::DeviceClasses,
        ("resource.k8s.io", "devicetaintrules") => &resource::DeviceTaintRules,
        ("resource.k8s.io", "resourceclaims") => &resource::ResourceClaims,
        ("resource.k8s.io", "resourceclaimtemplates") => &resource::ResourceClaimTemplates,
        ("resource.k8s.io", "resourceslices") => &resource::ResourceSlices,
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => &flowcontrol::FlowSchemas,
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations") => &flowcontrol::PriorityLevelConfigurations,
        _ => &Plain,
    }
}

/// What a change of metadata is held to again by the kind itself; and whether it is by the rules that upstream's core shares.
pub(crate) fn metadata_again(group: &str, plural: &str) -> (&'static [Again], bool) {
    use Again::{Change, Whole};
    match (group, plural) {
        ("", "events") | ("policy", "poddisruptionbudgets") => (&[], false),
        ("internal.apiserver.k8s.io", "storageversions") => (&[], true),
        ("coordination.k8s.io", _) | ("apiextensions.k8s.io", "customresourcedefinitions") => (&[Change], false),
        ("admissionregistration.k8s.io", _) => (&[Whole], false),
        ("apiregistration.k8s.io", "apiservices") => (&[Change, Whole], false),
        ("node.k8s.io", "runtimeclasses") => (&[Whole, Change], false),
        ("", "limitranges")
        | ("discovery.k8s.io", "endpointslices")
        | ("flowcontrol.apiserver.k8s.io", _)
        | ("storage.k8s.io", "volumeattachments" | "csinodes") => (&[Whole], true),
        ("", "configmaps" | "endpoints" | "serviceaccounts" | "secrets" | "pods" | "persistentvolumeclaims")
        | ("apps", "controllerrevisions")
        | ("networking.k8s.io", "ingresses" | "ingressclasses")
        | ("storage.k8s.io", "volumeattributesclasses") => (&[Change, Whole], true),
        ("", "namespaces" | "nodes")
        | ("batch", "jobs")
        | ("networking.k8s.io", "ipaddresses")
        | ("storage.k8s.io", "storageclasses" | "csistoragecapacities")
        | ("rbac.authorization.k8s.io", _)
        | ("resource.k8s.io", "resourceclaims" | "resourceclaimtemplates") => (&[Whole, Change], true),
        ("", "persistentvolumes") => (&[Whole, Whole], true),
        ("certificates.k8s.io", "certificatesigningrequests") | ("resource.k8s.io", "deviceclasses") => {
            (&[Change, Change], true)
        }
        _ => (&[Change], true),
    }
}

/// A PUT to one of these says which version of the object it replaces.
pub(crate) fn needs_version(group: &str, plural: &str) -> bool {
    match group {
        "admissionregistration.k8s.io"
        | "apiregistration.k8s.io"
        | "coordination.k8s.io"
        | "node.k8s.io"
        | "policy" => true,
        "storagemigration.k8s.io" | "internal.apiserver.k8s.io" => true,
        "storage.k8s.io" => matches!(plural, "csidrivers" | "csinodes" | "csistoragecapacities" | "volumeattachments"),
        "certificates.k8s.io" => matches!(plural, "clustertrustbundles" | "podcertificaterequests"),
        "resource.k8s.io" => plural == "resourcepoolstatusrequests",
        _ => false,
    }
}

/// The answer to a deletion is the object as it last was, not a word of success.
pub(crate) fn returns_deleted(group: &str, plural: &str) -> bool {
    match group {
        "" => matches!(
            plural,
            "namespaces"
                | "persistentvolumeclaims"
                | "persistentvolumes"
                | "pods"
                | "podtemplates"
                | "resourcequotas"
                | "serviceaccounts"
                | "services"
        ),
        "resource.k8s.io" => true,
        "storage.k8s.io" => plural != "csistoragecapacities",
        _ => false,
    }
}

/// Counts a change of which nothing may be left once it is prepared.
fn count(new: &mut Object, old: &Object) {
    let before = old.at(&["metadata", "generation"]).and_then(Value::as_i64).unwrap_or(0);
    new.metadata().insert("generation".into(), (before + 1).into());
}

/// Sets `path` to `value` where nothing is set.
fn set_default(object: &mut Object, path: &[&str], value: impl Into<Value>) {
    if let Some((last, parents)) = path.split_last() {
        let map = object.at_mut(parents);
        if !map.contains_key(*last) {
            map.insert((*last).to_owned(), value.into());
        }
    }
}

/// The objects of a list field.
fn items_mut<'a>(object: &'a mut Object, key: &str) -> impl Iterator<Item = &'a mut Object> {
    object.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn items<'a>(object: &'a Object, path: &[&str]) -> Vec<&'a Object> {
    let list = object.at(path).and_then(Value::as_array);
    list.map(|items| items.iter().filter_map(Value::as_object).collect()).unwrap_or_default()
}

/// The fields named, which may not change.
fn fixed(new: &Object, old: &Object, names: &[&str]) -> Vec<FieldError> {
    names.iter().flat_map(|name| fixed_at(new, old, &[name])).collect()
}

/// What is at `path`, of upstream's type `kind`, which may not change.
fn fixed_as(kind: &str, new: &Object, old: &Object, path: &[&str]) -> Vec<FieldError> {
    if new.at(path) == old.at(path) {
        return Vec::new();
    }
    let place = path.iter().fold(Path::default(), |place, name| place.child(name));
    vec![internal::invalid(kind, &place, new.at(path).unwrap_or(&Value::Null), "field is immutable")]
}

/// What is at `path`, which may not change.
fn fixed_at(new: &Object, old: &Object, path: &[&str]) -> Vec<FieldError> {
    if new.at(path) == old.at(path) {
        return Vec::new();
    }
    let value = new.at(path).cloned().unwrap_or_default();
    vec![FieldError::invalid(path.join("."), value, "field is immutable")]
}

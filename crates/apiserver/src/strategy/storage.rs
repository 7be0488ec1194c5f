//! Volumes, claims, and the classes and drivers behind them.

mod claim;
mod volume;

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldError, Path};
use api::validation::{is_qualified_name, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

pub(super) use self::claim::{PersistentVolumeClaims, claim_spec};
pub(super) use self::volume::PersistentVolumes;
use super::check::{At, check, unique};
use super::volume_sources::driver_name;
use super::{Strategy, count, fixed, internal, set_default};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];
/// A value that is none of those allowed is told about its list, not its place in it.
fn one_of_each(list: &At<'_>, allowed: &[&str]) {
    for item in list.items() {
        item.called(list.path().clone()).one_of(allowed);
    }
}

/// The modes that a volume can be mounted in. One that only a single pod may have goes with no other.
fn access_modes(modes: &At<'_>) {
    one_of_each(modes, &ACCESS_MODES);
    let known = || modes.items().into_iter().filter(|mode| ACCESS_MODES.contains(&mode.text()));
    let singles = known().filter(|mode| mode.text() == "ReadWriteOncePod").count();
    if singles > 0 && singles < known().count() {
        modes.forbidden("may not use ReadWriteOncePod with other access modes");
    }
}

/// An amount that is less than nothing is shown as a number.
fn not_negative(at: &At<'_>) {
    let amount = at.quantity().map(|amount| amount.value());
    if let Some(amount) = amount.filter(|amount| *amount < 0) {
        at.complain(FieldError::invalid(at.path(), amount, "must be a valid resource quantity"));
    }
}

fn positive(at: &At<'_>) {
    if at.quantity().is_some_and(|amount| !amount.is_positive()) {
        at.invalid("must be greater than zero");
    }
}

pub(super) struct StorageClasses;

impl Strategy for StorageClasses {
    fn default(&self, object: &mut Object) {
        set_default(object, &["reclaimPolicy"], "Delete");
        set_default(object, &["volumeBindingMode"], "Immediate");
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            provisioner(&at.field("provisioner"));
            parameters(&at.field("parameters"));
            if !at.field("reclaimPolicy").is_empty() {
                at.field("reclaimPolicy").one_of(&["Delete", "Retain"]);
            }
            let mode = at.field("volumeBindingMode");
            if mode.exists() {
                mode.one_of(&["Immediate", "WaitForFirstConsumer"])
            } else {
                mode.required("")
            }
            topologies(&at.field("allowedTopologies"));
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed(new, old, &["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"])
    }
}

/// What a volume of a class may be near; no two may be the same.
fn topologies(at: &At<'_>) {
    let terms = at.items();
    // Upstream begins with as many empty ones as there are, so that an empty one is the same as each of these.
    let mut before: Vec<BTreeMap<&str, BTreeSet<&str>>> = vec![BTreeMap::new(); terms.len()];
    for term in terms {
        let mut known = BTreeMap::new();
        for expression in term.each("matchLabelExpressions") {
            let (key, values) = (expression.field("key"), expression.field("values"));
            values.needed();
            unique(values.items());
            key.named(is_qualified_name);
            if known.contains_key(key.text()) {
                key.duplicate();
            }
            known.insert(key.text(), values.items().iter().map(At::text).collect());
        }
        let list = term.field("matchLabelExpressions");
        for _ in before.iter().filter(|other| **other == known) {
            list.complain(FieldError::duplicate(list.path(), ""));
        }
        before.push(known);
    }
}

/// A driver or provisioner: a qualified name, whatever its case.
fn provisioner(at: &At<'_>) {
    if at.needed() {
        let lower = at.text().to_lowercase();
        is_qualified_name(&lower).into_iter().for_each(|why| at.invalid_shown(lower.as_str(), &why));
    }
}

fn parameters(at: &At<'_>) {
    const MAX_BYTES: usize = 256 << 10;
    const MAX_COUNT: usize = 512;
    let entries = at.entries();
    if entries.len() > MAX_COUNT {
        return at.complain(FieldError::too_long(at.path(), MAX_COUNT));
    }
    if entries.iter().any(|(key, _)| key.is_empty()) {
        at.invalid_shown("", "field can not be empty.");
    }
    at_most(at, MAX_BYTES);
}

/// The texts of a map, and their names, have so many bytes together.
fn at_most(at: &At<'_>, bytes: usize) {
    if at.entries().iter().map(|(key, value)| key.len() + value.text().len()).sum::<usize>() > bytes {
        at.complain(FieldError::too_long(at.path(), bytes));
    }
}

pub(super) struct VolumeAttributesClasses;

impl Strategy for VolumeAttributesClasses {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            provisioner(&at.field("driverName"));
            let given = at.field("parameters");
            parameters(&given);
            if given.is_empty() {
                given.required("must contain at least one key/value pair");
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let changed = ["driverName", "parameters"].into_iter().filter(|name| new.get(*name) != old.get(*name));
        let told = |name: &str| FieldError::forbidden(name, format!("updates to {name} are forbidden."));
        changed.map(told).chain(self.validate_create(new)).collect()
    }
}

const IN_SECRETS: &str = "serviceAccountTokenInSecrets";
/// Behind a gate that is closed.
const MISSING: &str = "preventPodSchedulingIfMissing";

pub(super) struct CsiDrivers;

impl Strategy for CsiDrivers {
    fn default(&self, object: &mut Object) {
        for (field, value) in [
            ("attachRequired", json!(true)),
            ("podInfoOnMount", json!(false)),
            ("storageCapacity", json!(false)),
            ("fsGroupPolicy", json!("ReadWriteOnceWithFSType")),
            ("requiresRepublish", json!(false)),
            ("seLinuxMount", json!(false)),
        ] {
            set_default(object, &["spec", field], value);
        }
        if object.at(&["spec", "volumeLifecycleModes"]).and_then(Value::as_array).is_none_or(Vec::is_empty) {
            object.at_mut(&["spec"]).insert("volumeLifecycleModes".into(), json!(["Persistent"]));
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.remove_at(&["spec", MISSING]);
    }

    /// Changes are counted, but who is new has no count.
    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        if old.at(&["spec", MISSING]).is_none() {
            new.remove_at(&["spec", MISSING]);
        }
        if new.get("spec") != old.get("spec") {
            count(new, old);
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            spec.field("fsGroupPolicy").one_of_if_set(&["File", "None", "ReadWriteOnceWithFSType"]);
            let requests = spec.each("tokenRequests");
            unique(requests.iter().map(|request| request.field("audience")));
            // Upstream stops at the first of an audience.
            let mut seen = Vec::new();
            for request in &requests {
                let (audience, seconds) = (request.field("audience"), request.field("expirationSeconds"));
                if seen.contains(&audience.text()) {
                    continue;
                }
                seen.push(audience.text());
                if seconds.number().is_some_and(|seconds| seconds < 600) {
                    seconds.invalid("may not specify a duration less than 10 minutes");
                }
                if seconds.number().is_some_and(|seconds| seconds > 1 << 32) {
                    seconds.invalid("may not specify a duration larger than 2^32 seconds");
                }
            }
            one_of_each(&spec.field("volumeLifecycleModes"), &["Persistent", "Ephemeral"]);
            let period = spec.field("nodeAllocatableUpdatePeriodSeconds");
            if period.number().is_some_and(|seconds| seconds < 10) {
                period.invalid("must be greater than or equal to 10 seconds");
            }
            let in_secrets = spec.field(IN_SECRETS);
            if in_secrets.exists() && requests.is_empty() {
                in_secrets.invalid("serviceAccountTokenInSecrets is set but no tokenRequests are specified");
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for (name, called) in [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")]
        {
            let (is, was) = (new.at(&["spec", name]), old.at(&["spec", name]));
            if is != was {
                let path = Path::new("spec").child(called);
                errors.push(FieldError::invalid(&path, is.cloned().unwrap_or_default(), "field is immutable"));
            }
        }
        errors
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let asks = |object: &Object| object.at(&["spec", "tokenRequests"]).is_some_and(|list| *list != json!([]));
        let why = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";
        let is_open = asks(object) && object.at(&["spec", IN_SECRETS]).is_none();
        is_open.then(|| why.to_owned()).into_iter().collect()
    }

    fn warnings_on_update(&self, _: &str, new: &Object, old: &Object) -> Vec<String> {
        let asked = |object: &Object| object.at(&["spec", "tokenRequests"]).cloned();
        if asked(new) == asked(old) { Vec::new() } else { self.warnings(new) }
    }
}

const NODE_ID_MAX: usize = 256;

pub(super) struct CsiNodes;

impl Strategy for CsiNodes {
    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let mut names = Vec::new();
            for driver in at.at(&["spec", "drivers"]).items() {
                let (name, id) = (driver.field("name"), driver.field("nodeID"));
                driver_name(&name);
                if id.needed() && id.text().len() > NODE_ID_MAX {
                    id.invalid(format!("must be {NODE_ID_MAX} characters or less"));
                }
                driver.at(&["allocatable", "count"]).not_negative();
                if names.contains(&name.text()) {
                    name.duplicate();
                }
                names.push(name.text());
                let mut seen = Vec::new();
                for key in driver.each("topologyKeys") {
                    let key = key.called(driver.path().clone());
                    if key.text().is_empty() {
                        key.required("");
                    }
                    if seen.contains(&key.text()) {
                        key.duplicate();
                    }
                    seen.push(key.text());
                    key.named(is_qualified_name);
                }
            }
        })
    }

    /// A driver that stays keeps what it said, but for how many volumes it can attach.
    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let drivers = |object: &Object| -> Vec<Object> {
            let list = super::items(object, &["spec", "drivers"]).into_iter().cloned();
            list.map(|mut driver| {
                driver.remove("allocatable");
                driver
            })
            .collect()
        };
        let (mut errors, now) = (Vec::new(), drivers(new));
        for before in drivers(old) {
            let same_name = now.iter().filter(|driver| driver.get("name") == before.get("name"));
            for driver in same_name.filter(|driver| **driver != before) {
                let shown = Value::Object(driver.clone());
                let path = Path::new("spec").child("drivers");
                errors.push(internal::invalid("CSINodeDriver", &path, &shown, "field is immutable"));
            }
        }
        errors
    }
}

pub(super) struct VolumeAttachments;

impl Strategy for VolumeAttachments {
    fn default(&self, object: &mut Object) {
        let source = object.get_mut("spec").and_then(|spec| spec.get_mut("source"));
        if let Some(Value::Object(spec)) = source.and_then(|source| source.get_mut("inlineVolumeSpec")) {
            volume::source_defaults(spec);
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| attachment(&at))
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let (is, was) = (new.get("spec"), old.get("spec"));
        let value = is.cloned().unwrap_or_default();
        let changed = (is != was)
            .then(|| internal::invalid("VolumeAttachmentSpec", &Path::new("spec"), &value, "field is immutable"));
        changed.into_iter().collect()
    }

    fn validate_status(&self, new: &Object, _: &Object) -> Vec<FieldError> {
        check(new, |at| attachment(&at))
    }
}

fn attachment(at: &At<'_>) {
    const EXACTLY: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    const METADATA_MAX: usize = 256 << 10;
    const MESSAGE_MAX: usize = 1024;
    let (spec, status) = (at.field("spec"), at.field("status"));
    driver_name(&spec.field("attacher"));
    let source = spec.field("source");
    let (inline, name) = (source.field("inlineVolumeSpec"), source.field("persistentVolumeName"));
    match (inline.exists(), name.exists()) {
        (false, false) => source.required(EXACTLY),
        (true, true) => source.forbidden(EXACTLY),
        (false, true) if name.text().is_empty() => name.required("must specify non empty persistentVolumeName"),
        (false, true) => (),
        (true, false) => volume::inline_spec(&inline),
    }
    spec.field("nodeName").named(is_subdomain);
    at_most(&status.field("attachmentMetadata"), METADATA_MAX);
    for error in [status.field("attachError"), status.field("detachError")] {
        let (message, code) = (error.field("message"), error.field("errorCode"));
        if message.text().len() > MESSAGE_MAX {
            // Upstream names the limit of something else.
            message.complain(FieldError::too_long(message.path(), METADATA_MAX));
        }
        code.between(0, i64::from(i32::MAX));
    }
    if name.exists() {
        name.named(is_subdomain);
    }
}

pub(super) struct CsiStorageCapacities;

impl Strategy for CsiStorageCapacities {
    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            at.field("nodeTopology").selector();
            at.field("storageClassName").named(is_subdomain);
            at.field("capacity").quantity_not_negative();
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if new.get("nodeTopology") != old.get("nodeTopology") {
            let value = new.get("nodeTopology").cloned().unwrap_or_default();
            errors.push(internal::invalid("*LabelSelector", &Path::new("nodeTopology"), &value, "field is immutable"));
        }
        errors.extend(fixed(new, old, &["storageClassName"]));
        errors
    }
}

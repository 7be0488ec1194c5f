//! Taints of devices, and the rules by which an administrator adds them.

use api::field::FieldError;
use api::validation::{is_label, is_label_value, is_qualified_name};
use api::{Object, ObjectExt as _};

use super::{driver, pool};
use crate::handlers::now;
use crate::strategy::check::{At, check};
use crate::strategy::conditions::conditions;
use crate::strategy::{Strategy, set_default};

const MOST_CONDITIONS: usize = 8;
pub(super) const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

pub(in crate::strategy) struct DeviceTaintRules;

impl Strategy for DeviceTaintRules {
    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        set_default(object, &["spec", "taint", "timeAdded"], now());
    }

    /// The time is that of the effect, unless the client has its own idea of it.
    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        let same = |field: &str| new.at(&["spec", "taint", field]) == old.at(&["spec", "taint", field]);
        if !same("effect") && same("timeAdded") {
            new.at_mut(&["spec", "taint"]).insert("timeAdded".into(), now().into());
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let selector = at.at(&["spec", "deviceSelector"]);
            if selector.field("driver").exists() {
                driver(&selector.field("driver"));
            }
            if selector.field("pool").exists() {
                pool(&selector.field("pool"));
            }
            if selector.field("device").exists() {
                selector.field("device").named(is_label);
            }
            taint(&at.at(&["spec", "taint"]));
        })
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| {
            let list = at.at(&["status", "conditions"]);
            conditions(&list);
            if list.count() > MOST_CONDITIONS {
                list.complain(FieldError::too_many(list.path(), list.count(), MOST_CONDITIONS));
            }
        })
    }
}

pub(super) fn taint(at: &At<'_>) {
    at.field("key").named(is_qualified_name);
    at.field("value").named_if_set(is_label_value);
    at.field("effect").needed_one_of(&EFFECTS);
}

//! The ranges that services get their addresses from, and each address that is taken.

use api::addresses::Range;
use api::field::FieldError;
use api::validation::{NameRule, is_path_segment, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::json;

use crate::strategy::check::{At, check, shown};
use crate::strategy::{Strategy, fixed_at};

pub(in crate::strategy) struct ServiceCidrs;

impl Strategy for ServiceCidrs {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| ranges(&at.at(&["spec", "cidrs"])))
    }

    /// A second range, of the other family, may come later.
    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        check(new, |at| {
            check(old, |before| {
                let (now, before) = (at.at(&["spec", "cidrs"]), before.at(&["spec", "cidrs"]));
                let (count, known) = (now.count(), before.count());
                if count != known && (known, count) != (1, 2) {
                    now.immutable(&before);
                    return;
                }
                for (now, before) in now.items().iter().zip(before.items()) {
                    now.immutable(&before);
                }
                if count != known {
                    ranges(&now);
                }
            });
        })
    }
}

fn ranges(at: &At<'_>) {
    if at.is_empty() {
        at.required("at least one CIDR required");
        return;
    }
    if at.count() > 2 {
        let shown = json!({"CIDRs": at.value()});
        at.complain(FieldError::invalid(at.path(), shown, "may only hold up to 2 values"));
        return;
    }
    let items = at.items();
    for range in &items {
        // Nothing is allowed here that older fields put up with.
        let canonical = Range::lenient(range.text()).map(|range| range.masked().to_string()).unwrap_or_default();
        if range.cidr() && canonical != range.text() {
            range.invalid(format!("must be in canonical form (\"{canonical}\")"));
        }
    }
    let families: Vec<bool> =
        items.iter().filter_map(|range| Some(Range::lenient(range.text())?.address.is_ipv4())).collect();
    if matches!(families.as_slice(), [one, other] if one == other) {
        at.invalid("may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64");
    }
}

/// A reference to who has an address, as upstream keeps it.
const PARENT: [(&str, &str, &str); 4] = [
    ("Group", "group", "\"\""),
    ("Resource", "resource", "\"\""),
    ("Namespace", "namespace", "\"\""),
    ("Name", "name", "\"\""),
];

pub(in crate::strategy) struct IpAddresses;

impl Strategy for IpAddresses {
    fn name_rule(&self) -> NameRule {
        NameRule::IpAddress
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let parent = at.at(&["spec", "parentRef"]);
            if !parent.exists() {
                parent.required("");
                return;
            }
            parent.field("group").named_if_set(is_subdomain);
            parent.field("resource").needed_named(is_path_segment);
            parent.field("name").needed_named(is_path_segment);
            parent.field("namespace").named_if_set(is_path_segment);
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = self.validate_create(new);
        let parent = new.at(&["spec", "parentRef"]);
        errors.extend(fixed_at(new, old, &["spec", "parentRef"]).into_iter().map(|error| match parent {
            Some(parent) => FieldError { value: shown(parent, &PARENT), ..error },
            None => error,
        }));
        errors
    }
}

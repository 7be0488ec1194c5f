//! Network policies.

use api::addresses::{Range, range_warnings};
use api::field::FieldError;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use crate::strategy::check::{At, check};
use crate::strategy::{Strategy, items_mut, set_default};

/// Each direction with what it calls those at the other end.
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

pub(in crate::strategy) struct NetworkPolicies;

impl Strategy for NetworkPolicies {
    fn counts_empties(&self) -> Option<&'static str> {
        Some("spec")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        if object.at(&["spec", "policyTypes"]).and_then(Value::as_array).is_none_or(Vec::is_empty) {
            let egress =
                object.at(&["spec", "egress"]).and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
            let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            object.at_mut(&["spec"]).insert("policyTypes".into(), types);
        }
        for (direction, _) in DIRECTIONS {
            for rule in items_mut(object.at_mut(&["spec"]), direction) {
                items_mut(rule, "ports").for_each(|port| set_default(port, &["protocol"], "TCP"));
            }
        }
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| rules(&at.field("spec"), &[]))
    }

    /// Any range that the policy had may be what older servers allowed.
    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut known = Vec::new();
        check(old, |at| {
            for block in blocks(&at.field("spec")) {
                known.push(block.field("cidr").value().clone());
                known.extend(block.each("except").iter().map(|part| part.value().clone()));
            }
        });
        check(new, |at| rules(&at.field("spec"), &known))
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let mut told = Vec::new();
        check(object, |at| {
            for block in blocks(&at.field("spec")) {
                for range in std::iter::once(block.field("cidr")).chain(block.each("except")) {
                    told.extend(range_warnings(&String::from(range.path()), range.text()));
                }
            }
        });
        told
    }

    fn warnings_on_update(&self, _subresource: &str, new: &Object, _old: &Object) -> Vec<String> {
        self.warnings(new)
    }
}

/// All blocks of addresses that a policy names.
fn blocks<'a>(spec: &At<'a>) -> Vec<At<'a>> {
    let mut found = Vec::new();
    for (direction, peers) in DIRECTIONS {
        for rule in spec.each(direction) {
            found.extend(rule.each(peers).iter().map(|peer| peer.field("ipBlock")).filter(At::exists));
        }
    }
    found
}

fn rules(spec: &At<'_>, known: &[Value]) {
    spec.field("podSelector").selector();
    for (direction, peers) in DIRECTIONS {
        for rule in spec.each(direction) {
            rule.each("ports").iter().for_each(port);
            rule.each(peers).iter().for_each(|at| peer(at, known));
        }
    }
    let types = spec.field("policyTypes");
    if types.count() > 2 {
        types.invalid("may not specify more than two policyTypes");
        return;
    }
    types.items().iter().for_each(|kind| kind.one_of(&["Ingress", "Egress"]));
}

fn port(at: &At<'_>) {
    at.field("protocol").one_of_if_set(&["TCP", "UDP", "SCTP"]);
    let (port, end) = (at.field("port"), at.field("endPort"));
    match port.value() {
        Value::Null if end.exists() => end.invalid("may not be specified when `port` is not specified"),
        Value::Null => (),
        Value::String(_) => {
            if end.exists() {
                end.invalid("may not be specified when `port` is non-numeric");
            }
            port.port();
        }
        _ => {
            port.port_number();
            let number = port.number().unwrap_or(0);
            if end.number().is_some_and(|last| last < number) {
                end.complain(FieldError::invalid(end.path(), number, "must be greater than or equal to `port`"));
            }
            if end.exists() {
                end.port_number();
            }
        }
    }
}

fn peer(at: &At<'_>, known: &[Value]) {
    let selectors: Vec<At<'_>> =
        ["podSelector", "namespaceSelector"].map(|name| at.field(name)).into_iter().filter(At::exists).collect();
    selectors.iter().for_each(At::selector);
    let block = at.field("ipBlock");
    if block.exists() {
        ip_block(&block, known);
    }
    match (selectors.len(), block.exists()) {
        (0, false) => at.required("must specify a peer"),
        (1.., true) => at.forbidden("may not specify both ipBlock and another peer"),
        _ => (),
    }
}

fn ip_block(at: &At<'_>, known: &[Value]) {
    let whole = at.field("cidr");
    if !whole.needed() {
        return;
    }
    whole.cidr_unless(known);
    let Some(outer) = Range::lenient(whole.text()) else { return };
    for part in at.each("except") {
        part.cidr_unless(known);
        let inner = Range::lenient(part.text());
        if inner.is_some_and(|inner| !outer.contains(inner.network()) || outer.bits >= inner.bits) {
            part.invalid("must be a strict subset of `cidr`");
        }
    }
}

//! Endpoints, and slices of them.

use api::addresses::{complaint, lenient, strict_complaint, warning};
use api::field::FieldError;
use api::validation::{is_label, is_label_value, is_qualified_name, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::Value;

use crate::strategy::check::{At, PROTOCOLS, check};
use crate::strategy::{Strategy, count, fixed, items, items_mut, set_default};

const MOST_ENDPOINTS: usize = 1000;
const MOST_PORTS: usize = 20000;
const MOST_ADDRESSES: usize = 100;
const MOST_HINTS: usize = 8;
const HOST_NAME: &str = "kubernetes.io/hostname";

pub(in crate::strategy) struct EndpointSlices;

impl Strategy for EndpointSlices {
    fn counts_generation(&self) -> bool {
        true
    }

    fn counts_labels(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        for port in items_mut(object, "ports") {
            set_default(port, &["name"], "");
            set_default(port, &["protocol"], "TCP");
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        drop_topology(object, &[]);
    }

    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        let is_none = items(new, &["endpoints"]).is_empty() && items(old, &["endpoints"]).is_empty();
        if is_none || new.get("endpoints") == old.get("endpoints") {
            return;
        }
        count(new, old);
        let nodes: Vec<Value> = items(old, &["endpoints"])
            .iter()
            .filter_map(|endpoint| endpoint.get("deprecatedTopology")?.get(HOST_NAME).cloned())
            .collect();
        drop_topology(new, &nodes);
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            at.field("addressType").needed_one_of(&["FQDN", "IPv4", "IPv6"]);
            ports(&at.field("ports"));
        })
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| endpoints(&at.field("endpoints"), object.text(&["addressType"])))
    }

    /// Endpoints that stay as they were may be what older servers allowed.
    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let unchanged = new.get("endpoints") == old.get("endpoints");
        let mut errors = if unchanged { Vec::new() } else { self.validate_create(new) };
        let is_fixed = fixed(new, old, &["addressType"]);
        errors.extend(
            is_fixed
                .into_iter()
                .map(|error| FieldError { value: format!("{:?}", new.text(&["addressType"])), ..error }),
        );
        errors
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let mut told = Vec::new();
        if object.text(&["addressType"]) == "FQDN" {
            told.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        }
        told.extend(odd_addresses(object));
        told
    }

    fn warnings_on_update(&self, _subresource: &str, new: &Object, _old: &Object) -> Vec<String> {
        odd_addresses(new)
    }
}

/// Nobody writes it any more; a node that only it named is kept.
fn drop_topology(slice: &mut Object, nodes: &[Value]) {
    for endpoint in items_mut(slice, "endpoints") {
        let node = endpoint.remove("deprecatedTopology").and_then(|topology| topology.get(HOST_NAME).cloned());
        let Some(node) = node.filter(|node| nodes.contains(node)) else { continue };
        if endpoint.get("nodeName").is_none() && node.as_str().is_some_and(|name| is_subdomain(name).is_empty()) {
            endpoint.insert("nodeName".into(), node);
        }
    }
}

fn odd_addresses(slice: &Object) -> Vec<String> {
    let keeper = slice.text(&["metadata", "labels", "endpointslice.kubernetes.io/managed-by"]);
    if matches!(keeper, "endpointslice-controller.k8s.io" | "endpointslicemirroring-controller.k8s.io") {
        return Vec::new();
    }
    let mut told = Vec::new();
    check(slice, |at| {
        for address in at.each("endpoints").iter().flat_map(|endpoint| endpoint.each("addresses")) {
            told.extend(warning(&String::from(address.path()), address.text()));
        }
    });
    told
}

fn ports(at: &At<'_>) {
    if at.count() > MOST_PORTS {
        at.complain(FieldError::too_many(at.path(), at.count(), MOST_PORTS));
        return;
    }
    let mut names = Vec::new();
    for port in at.items() {
        let name = port.field("name");
        name.named_if_set(is_label);
        match names.contains(&name.text()) {
            true => name.duplicate(),
            false => names.push(name.text()),
        }
        let protocol = port.field("protocol");
        if protocol.exists() {
            protocol.one_of(&PROTOCOLS)
        } else {
            protocol.required("")
        }
        if port.field("appProtocol").exists() {
            port.field("appProtocol").named(is_qualified_name);
        }
    }
}

fn endpoints(at: &At<'_>, kind: &str) {
    match at.count() {
        count if count > MOST_ENDPOINTS => at.complain(FieldError::too_many(at.path(), count, MOST_ENDPOINTS)),
        _ => at.items().iter().for_each(|endpoint| slice_endpoint(endpoint, kind)),
    }
}

fn slice_endpoint(at: &At<'_>, kind: &str) {
    let addresses = at.field("addresses");
    match addresses.count() {
        0 => addresses.required("must contain at least 1 address"),
        count if count > MOST_ADDRESSES => {
            addresses.complain(FieldError::too_many(addresses.path(), count, MOST_ADDRESSES));
        }
        _ => (),
    }
    for address in addresses.items() {
        match kind {
            "IPv4" | "IPv6" => slice_address(&address, &addresses, kind),
            "FQDN" => domain(&address),
            _ => (),
        }
    }
    if at.field("nodeName").exists() {
        at.field("nodeName").named(is_subdomain);
    }
    if at.field("hostname").exists() {
        at.field("hostname").named(is_label);
    }
    hints(&at.field("hints"));
}

/// Only the newer family is held to one way of writing.
fn slice_address(address: &At<'_>, all: &At<'_>, kind: &str) {
    let wrong = match kind {
        "IPv6" => strict_complaint(address.text()),
        _ => complaint(address.text()).map(str::to_owned),
    };
    if let Some(detail) = wrong {
        address.invalid(detail);
        return;
    }
    let Some(found) = lenient(address.text()) else { return };
    if found.is_ipv4() != (kind == "IPv4") {
        address.called(all.path().clone()).invalid(format!("must be an {kind} address"));
    }
    address.endpoint_ip();
}

/// A host name of several parts.
fn domain(at: &At<'_>) {
    let name = at.text().strip_suffix('.').unwrap_or(at.text());
    let wrong = |value: &str, detail: String| at.complain(FieldError::invalid(at.path(), value, detail));
    if at.text().is_empty() {
        return at.required("");
    }
    let details = is_subdomain(name);
    if !details.is_empty() {
        wrong(name, details.join(","));
    } else if !name.contains('.') {
        wrong(name, "should be a domain with at least two segments separated by dots".to_owned());
    } else if let Some(label) = name.split('.').find(|label| !is_label(label).is_empty()) {
        wrong(label, is_label(label).join(","));
    }
}

/// For whom the endpoint is meant.
fn hints(at: &At<'_>) {
    for (field, rule) in [("forZones", is_label_value as fn(&str) -> Vec<String>), ("forNodes", is_subdomain)] {
        let list = at.field(field);
        if list.count() > MOST_HINTS {
            list.complain(FieldError::too_many(list.path(), list.count(), MOST_HINTS));
            return;
        }
        let mut names = Vec::new();
        for name in list.items().iter().map(|hint| hint.field("name")) {
            match names.contains(&name.text()) {
                true => name.duplicate(),
                false => names.push(name.text()),
            }
            name.named(rule);
        }
    }
}

pub(in crate::strategy) struct Endpoints;

impl Strategy for Endpoints {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        for subset in items_mut(object, "subsets") {
            items_mut(subset, "ports").for_each(|port| set_default(port, &["protocol"], "TCP"));
        }
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| at.each("subsets").iter().for_each(subset))
    }

    /// Subsets that stay as they were may be what older servers allowed.
    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        if new.get("subsets") == old.get("subsets") { Vec::new() } else { self.validate_create(new) }
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let keeper = object.text(&["metadata", "labels", "endpoints.kubernetes.io/managed-by"]);
        let mut told = Vec::new();
        check(object, |at| {
            for subset in at.each("subsets").iter().filter(|_| keeper != "endpoint-controller") {
                for address in subset.each("addresses").iter().chain(&subset.each("notReadyAddresses")) {
                    let address = address.field("ip");
                    told.extend(warning(&String::from(address.path()), address.text()));
                }
            }
        });
        told
    }

    fn warnings_on_update(&self, _subresource: &str, new: &Object, _old: &Object) -> Vec<String> {
        self.warnings(new)
    }
}

fn subset(at: &At<'_>) {
    let (ready, waiting) = (at.field("addresses"), at.field("notReadyAddresses"));
    if ready.is_empty() && waiting.is_empty() {
        at.required("must specify `addresses` or `notReadyAddresses`");
    }
    for address in ready.items().iter().chain(&waiting.items()) {
        endpoint_address(address);
    }
    let many = at.field("ports").count() > 1;
    for port in at.each("ports") {
        let name = port.field("name");
        match (name.is_empty(), many) {
            (true, true) => name.required(""),
            (false, _) => name.named(is_label),
            _ => (),
        }
        port.field("port").port_number();
        port.field("protocol").needed_one_of(&PROTOCOLS);
        if port.field("appProtocol").exists() {
            port.field("appProtocol").named(is_qualified_name);
        }
    }
}

fn endpoint_address(at: &At<'_>) {
    let address = at.field("ip");
    address.ip();
    at.field("hostname").named_if_set(is_label);
    if at.field("nodeName").exists() {
        at.field("nodeName").named(is_subdomain);
    }
    address.endpoint_ip();
}

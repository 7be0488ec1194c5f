//! Ingresses, network policies, and what names addresses: endpoints, slices, ranges.

use std::net::IpAddr;

use api::field::FieldError;
use api::validation::{NameRule, is_label, is_label_value, is_qualified_name, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::check::{At, PROTOCOLS, check, is_cidr, unique};
use super::{Strategy, items_mut, set_default};

pub(super) struct Ingresses;

impl Strategy for Ingresses {
    fn counts_generation(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            if spec.field("rules").is_empty() && !spec.field("defaultBackend").exists() {
                let detail = "either `defaultBackend` or `rules` must be specified";
                spec.complain(FieldError::invalid(spec.path(), Value::Null, detail));
            }
            if spec.field("defaultBackend").exists() {
                backend(&spec.field("defaultBackend"));
            }
            for rule in spec.each("rules") {
                host(&rule.field("host"));
                let http = rule.field("http");
                if http.exists() && http.field("paths").is_empty() {
                    http.field("paths").required("");
                }
                http.each("paths").iter().for_each(ingress_path);
            }
            for tls in spec.each("tls") {
                for name in tls.each("hosts") {
                    name.named(if name.text().contains('*') { is_wildcard } else { is_subdomain });
                }
                tls.field("secretName").named_if_set(is_subdomain);
            }
            if spec.field("ingressClassName").exists() {
                spec.field("ingressClassName").named(is_subdomain);
            }
        })
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| load_balancer(&at.at(&["status", "loadBalancer"])))
    }
}

/// The addresses a load balancer answers at.
pub(super) fn load_balancer(at: &At<'_>) {
    for ingress in at.each("ingress") {
        if !ingress.field("ip").is_empty() {
            ingress.field("ip").ip();
        }
        let name = ingress.field("hostname");
        if !name.is_empty() {
            name.named(is_subdomain);
            not_an_address(&name);
        }
    }
}

fn not_an_address(at: &At<'_>) {
    if at.text().parse::<IpAddr>().is_ok() {
        at.invalid("must be a DNS name, not an IP address");
    }
}

fn host(at: &At<'_>) {
    if at.is_empty() {
        return;
    }
    not_an_address(at);
    at.named(if at.text().contains('*') { is_wildcard } else { is_subdomain });
}

fn is_wildcard(text: &str) -> Vec<String> {
    const MESSAGE: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    match text.strip_prefix("*.") {
        Some(rest) if is_subdomain(rest).is_empty() => Vec::new(),
        _ => vec![MESSAGE.to_owned()],
    }
}

fn ingress_path(at: &At<'_>) {
    let (path, kind) = (at.field("path"), at.field("pathType"));
    match kind.text() {
        _ if !kind.exists() => kind.required("pathType must be specified"),
        "Exact" | "Prefix" => {
            if !path.text().starts_with('/') {
                path.complain(FieldError::invalid(path.path(), path.text(), "must be an absolute path"));
            }
            if !path.text().is_empty() {
                for sequence in ["//", "/./", "/../", "%2f", "%2F"] {
                    if path.text().contains(sequence) {
                        path.invalid(format!("must not contain '{sequence}'"));
                    }
                }
                for end in ["/..", "/."] {
                    if path.text().ends_with(end) {
                        path.invalid(format!("cannot end with '{end}'"));
                    }
                }
            }
        }
        "ImplementationSpecific" => {
            if !path.text().is_empty() && !path.text().starts_with('/') {
                path.invalid("must be an absolute path");
            }
        }
        _ => kind.one_of(&["Exact", "ImplementationSpecific", "Prefix"]),
    }
    backend(&at.field("backend"));
}

fn backend(at: &At<'_>) {
    let (service, resource) = (at.field("service"), at.field("resource"));
    match (service.exists(), resource.exists()) {
        (true, true) => {
            at.complain(FieldError::invalid(at.path(), "", "cannot set both resource and service backends"));
        }
        (false, true) => {
            resource.field("kind").needed();
            resource.field("name").needed();
        }
        (false, false) => at.complain(FieldError::invalid(at.path(), "", "resource or service backend is required")),
        (true, false) => {
            let name = service.field("name");
            match name.text() {
                "" => name.required(""),
                _ => name.named(is_label),
            }
            let port = service.field("port");
            let (number, called) = (port.field("number"), port.field("name"));
            match (called.text().is_empty(), number.number().unwrap_or(0)) {
                (true, 0) => at.required("port name or number is required"),
                (false, 0) => {
                    called.called(service.path().child("port").child("name")).named(api::validation::is_port_name)
                }
                (false, _) => {
                    at.complain(FieldError::invalid(at.path(), "", "cannot set both port name & port number"))
                }
                (true, _) => number.port_number(),
            }
        }
    }
}

pub(super) struct IngressClasses;

impl Strategy for IngressClasses {
    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        if object.at(&["spec", "parameters"]).is_some() {
            set_default(object, &["spec", "parameters", "scope"], "Cluster");
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let controller = at.at(&["spec", "controller"]);
            if controller.text().len() > 250 {
                controller.complain(FieldError::too_long(controller.path(), 250));
            }
            domain_path(&controller);
            let parameters = at.at(&["spec", "parameters"]);
            if !parameters.exists() {
                return;
            }
            parameters.field("kind").needed();
            parameters.field("name").needed();
            let (scope, namespace) = (parameters.field("scope"), parameters.field("namespace"));
            match scope.text() {
                "" => scope.required(""),
                "Namespace" if namespace.is_empty() => {
                    namespace.required("`parameters.scope` is set to 'Namespace'");
                }
                "Cluster" if namespace.exists() => {
                    namespace.forbidden("`parameters.scope` is set to 'Cluster'");
                }
                _ => scope.one_of(&["Cluster", "Namespace"]),
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        super::fixed_at(new, old, &["spec", "controller"])
    }
}

/// `acme.io/foo`
pub(super) fn domain_path(at: &At<'_>) {
    match at.text().split_once('/') {
        _ if at.is_empty() => at.required(""),
        Some((domain, path)) if !path.is_empty() => {
            for detail in is_subdomain(domain) {
                at.complain(FieldError::invalid(at.path(), domain, detail));
            }
        }
        _ => at.invalid("must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
}

pub(super) struct NetworkPolicies;

impl Strategy for NetworkPolicies {
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
        for direction in ["ingress", "egress"] {
            for rule in items_mut(object.at_mut(&["spec"]), direction) {
                items_mut(rule, "ports").for_each(|port| set_default(port, &["protocol"], "TCP"));
            }
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            spec.field("podSelector").selector();
            for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
                for rule in spec.each(direction) {
                    rule.each("ports").iter().for_each(policy_port);
                    rule.each(peers).iter().for_each(policy_peer);
                }
            }
            let types = spec.field("policyTypes");
            if types.count() > 2 {
                types.invalid("may not specify more than two policyTypes");
                return;
            }
            types.items().iter().for_each(|kind| kind.one_of(&["Ingress", "Egress"]));
        })
    }
}

fn policy_port(at: &At<'_>) {
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

fn policy_peer(at: &At<'_>) {
    let selectors: Vec<At<'_>> =
        ["podSelector", "namespaceSelector"].map(|name| at.field(name)).into_iter().filter(At::exists).collect();
    selectors.iter().for_each(At::selector);
    let block = at.field("ipBlock");
    if block.exists() {
        ip_block(&block);
    }
    match (selectors.len(), block.exists()) {
        (0, false) => at.required("must specify a peer"),
        (1.., true) => at.forbidden("may not specify both ipBlock and another peer"),
        _ => (),
    }
}

fn ip_block(at: &At<'_>) {
    let whole = at.field("cidr");
    if !whole.needed() || !whole.cidr() {
        return;
    }
    for part in at.each("except") {
        if part.cidr() && !is_strict_subset(part.text(), whole.text()) {
            part.invalid("must be a strict subset of `cidr`");
        }
    }
}

fn is_strict_subset(part: &str, whole: &str) -> bool {
    let parse = |text: &str| {
        let (address, bits) = text.split_once('/')?;
        let address = match address.parse::<IpAddr>().ok()? {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, 4),
            IpAddr::V6(v6) => (u128::from(v6), 6),
        };
        Some((address, bits.parse::<u32>().ok()?))
    };
    let (Some(((inner, family), longer)), Some(((outer, of), shorter))) = (parse(part), parse(whole)) else {
        return false;
    };
    let mask = if shorter == 0 { 0 } else { u128::MAX << (128 - shorter.min(128)) };
    family == of && longer > shorter && inner & mask == outer & mask
}

pub(super) struct ServiceCidrs;

impl Strategy for ServiceCidrs {
    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let ranges = at.at(&["spec", "cidrs"]);
            if ranges.is_empty() {
                ranges.required("at least one CIDR required");
                return;
            }
            if ranges.count() > 2 {
                let shown = json!({"CIDRs": ranges.value()});
                ranges.complain(FieldError::invalid(ranges.path(), shown, "may only hold up to 2 values"));
                return;
            }
            for range in ranges.items() {
                if range.cidr() && !is_canonical(range.text()) {
                    range.invalid(format!("must be in canonical form ({:?})", canonical(range.text())));
                }
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        check(new, |at| {
            check(old, |before| {
                let (now, then) = (at.at(&["spec", "cidrs"]), before.at(&["spec", "cidrs"]));
                for (now, then) in now.items().iter().zip(then.items()) {
                    now.immutable(&then);
                }
            });
        })
    }
}

/// The range with nothing set beyond its prefix.
fn canonical(text: &str) -> String {
    let Some((address, bits)) = text.split_once('/') else { return text.to_owned() };
    let count: u32 = bits.parse().unwrap_or(0);
    match address.parse() {
        Ok(IpAddr::V4(v4)) => {
            let mask = if count == 0 { 0 } else { u32::MAX << (32 - count.min(32)) };
            format!("{}/{count}", std::net::Ipv4Addr::from(u32::from(v4) & mask))
        }
        Ok(IpAddr::V6(v6)) => {
            let mask = if count == 0 { 0 } else { u128::MAX << (128 - count.min(128)) };
            format!("{}/{count}", std::net::Ipv6Addr::from(u128::from(v6) & mask))
        }
        Err(_) => text.to_owned(),
    }
}

fn is_canonical(text: &str) -> bool {
    is_cidr(text) && canonical(text) == text
}

pub(super) struct IpAddresses;

impl Strategy for IpAddresses {
    fn name_rule(&self) -> NameRule {
        NameRule::IpAddress
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let parent = at.at(&["spec", "parentRef"]);
            if !parent.exists() {
                parent.required("");
                return;
            }
            parent.field("resource").needed_named(api::validation::is_path_segment);
            parent.field("name").needed_named(api::validation::is_path_segment);
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = super::fixed_at(new, old, &["spec", "parentRef"]);
        // Shown as upstream keeps it.
        for error in &mut errors {
            let part = |name: &str| new.text(&["spec", "parentRef", name]).to_owned();
            let (group, resource, namespace, name) = (part("group"), part("resource"), part("namespace"), part("name"));
            error.value =
                json!({"Group": group, "Resource": resource, "Namespace": namespace, "Name": name}).to_string();
        }
        errors
    }
}

pub(super) struct EndpointSlices;

impl Strategy for EndpointSlices {
    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        for port in items_mut(object, "ports") {
            set_default(port, &["name"], "");
            set_default(port, &["protocol"], "TCP");
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            at.field("addressType").needed_one_of(&["FQDN", "IPv4", "IPv6"]);
            for port in at.each("ports") {
                port.field("name").named_if_set(is_label);
            }
            unique(at.each("ports").iter().map(|port| port.field("name")));
            for port in at.each("ports") {
                port.field("protocol").needed_one_of(&PROTOCOLS);
                if port.field("appProtocol").exists() {
                    port.field("appProtocol").named(is_qualified_name);
                }
            }
        })
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        let kind = object.text(&["addressType"]);
        check(object, |at| at.each("endpoints").iter().for_each(|endpoint| slice_endpoint(endpoint, kind)))
    }

    /// Endpoints that stay as they were may be what older servers allowed.
    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let unchanged = new.get("endpoints") == old.get("endpoints");
        let mut errors = if unchanged { Vec::new() } else { self.validate_create(new) };
        errors.extend(super::fixed(new, old, &["addressType"]));
        errors
    }
}

fn slice_endpoint(at: &At<'_>, kind: &str) {
    let addresses = at.field("addresses");
    match addresses.count() {
        0 => addresses.required("must contain at least 1 address"),
        count if count > 100 => addresses.complain(FieldError::too_many(addresses.path(), count, 100)),
        _ => (),
    }
    for address in addresses.items() {
        let of_list = address.called(addresses.path().clone());
        match kind {
            "IPv4" | "IPv6" => {
                let found = address.text().parse::<IpAddr>().ok();
                match (kind, found) {
                    ("IPv4", Some(IpAddr::V6(_))) => of_list.invalid("must be an IPv4 address"),
                    ("IPv6", Some(IpAddr::V4(_))) => of_list.invalid("must be an IPv6 address"),
                    _ => (),
                }
                address.reachable_ip();
            }
            "FQDN" => address.named(is_subdomain),
            _ => (),
        }
    }
    if at.field("nodeName").exists() {
        at.field("nodeName").named(is_subdomain);
    }
    let topology = at.field("deprecatedTopology");
    topology.labels();
    if topology.field("kubernetes.io/hostname").exists() {
        topology.field("kubernetes.io/hostname").forbidden("use nodeName instead");
    }
    if at.field("hostname").exists() {
        at.field("hostname").named(is_label);
    }
    for zone in at.at(&["hints", "forZones"]).items() {
        zone.field("name").named(is_label_value);
    }
}

pub(super) struct Endpoints;

impl Strategy for Endpoints {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        for subset in items_mut(object, "subsets") {
            items_mut(subset, "ports").for_each(|port| set_default(port, &["protocol"], "TCP"));
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            for subset in at.each("subsets") {
                let (ready, waiting) = (subset.field("addresses"), subset.field("notReadyAddresses"));
                if ready.is_empty() && waiting.is_empty() {
                    subset.required("must specify `addresses` or `notReadyAddresses`");
                }
                for address in ready.items().iter().chain(&waiting.items()) {
                    endpoint_address(address);
                }
                let many = subset.field("ports").count() > 1;
                for port in subset.each("ports") {
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
        })
    }
}

fn endpoint_address(at: &At<'_>) {
    let address = at.field("ip");
    if address.text().parse::<IpAddr>().is_err() {
        address.ip();
        address.invalid("must be a valid IP address");
    } else {
        address.reachable_ip();
    }
    at.field("hostname").named_if_set(is_label);
    if at.field("nodeName").exists() {
        at.field("nodeName").named(is_subdomain);
    }
}

pub(super) struct Leases;

impl Strategy for Leases {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            spec.field("leaseDurationSeconds").positive();
            spec.field("leaseTransitions").not_negative();
            if spec.field("preferredHolder").exists() && !spec.field("strategy").exists() {
                spec.field("preferredHolder").forbidden("may only be set if strategy is set");
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_are_strict() {
        for (part, whole, wanted) in [
            ("10.1.0.0/16", "10.0.0.0/8", true),
            ("10.0.0.0/8", "10.0.0.0/8", false),
            ("11.0.0.0/16", "10.0.0.0/8", false),
            ("10.0.0.0/16", "::/0", false),
            ("fd00:1::/32", "fd00::/16", true),
            ("1.2.3.4/32", "0.0.0.0/0", true),
        ] {
            assert_eq!(is_strict_subset(part, whole), wanted, "{part} in {whole}");
        }
    }

    #[test]
    fn ranges_have_one_form() {
        for (text, wanted) in
            [("10.97.0.1/24", "10.97.0.0/24"), ("fd00::1/64", "fd00::/64"), ("1.2.3.4/0", "0.0.0.0/0")]
        {
            assert_eq!(canonical(text), wanted);
        }
    }
}

//! The columns of ingresses, policies and addresses.

use std::collections::BTreeSet;

use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::{AGE, Column, NAME, list, or, selector_at, storage, strings, text};

/// Longer lists of addresses are cut.
const ADDRESS_WIDTH: usize = 16;
const MAX_HOSTS: usize = 3;

pub(super) static INGRESSES: [Column; 6] = [
    NAME,
    text("Class", |o| or(o, &["spec", "ingressClassName"], "<none>")),
    text("Hosts", hosts),
    text("Address", address),
    text("Ports", |o| if list(o, &["spec", "tls"]).is_empty() { "80" } else { "80, 443" }.into()),
    AGE,
];

pub(super) static INGRESS_CLASSES: [Column; 4] = [
    text("Name", |o| storage::with_default(o, "ingressclass.kubernetes.io/is-default-class")),
    text("Controller", |o| or(o, &["spec", "controller"], "")),
    text("Parameters", |o| {
        let part = |key: &str| o.text(&["spec", "parameters", key]);
        match (part("kind"), part("apiGroup")) {
            ("", _) => "<none>".into(),
            (kind, "") => format!("{kind}/{}", part("name")).into(),
            (kind, group) => format!("{kind}.{group}/{}", part("name")).into(),
        }
    }),
    AGE,
];

pub(super) static NETWORK_POLICIES: [Column; 3] =
    [NAME, text("Pod-Selector", |o| selector_at(o, &["spec", "podSelector"])), AGE];

pub(super) static SERVICE_CIDRS: [Column; 3] =
    [NAME, text("CIDRs", |o| strings(o, &["spec", "cidrs"]).join(",").into()), AGE];

pub(super) static IP_ADDRESSES: [Column; 2] = [NAME, text("ParentRef", parent)];

fn hosts(object: &Object) -> Value {
    let rules = list(object, &["spec", "rules"]);
    let named: Vec<&str> = rules.iter().map(|rule| rule.text(&["host"])).filter(|host| !host.is_empty()).collect();
    let shown = named.iter().take(MAX_HOSTS).copied().collect::<Vec<_>>().join(",");
    match (shown.is_empty(), named.len() > MAX_HOSTS) {
        (true, _) => "*".into(),
        (_, true) => format!("{shown} + {} more...", rules.len() - MAX_HOSTS).into(),
        _ => shown.into(),
    }
}

fn address(object: &Object) -> Value {
    let points = list(object, &["status", "loadBalancer", "ingress"]);
    let all: BTreeSet<&str> = points
        .into_iter()
        .map(|point| match point.text(&["ip"]) {
            "" => point.text(&["hostname"]),
            ip => ip,
        })
        .filter(|address| !address.is_empty())
        .collect();
    let joined = all.into_iter().collect::<Vec<_>>().join(",");
    match joined.get(..ADDRESS_WIDTH - 3) {
        Some(head) if joined.len() > ADDRESS_WIDTH => format!("{head}...").into(),
        _ => joined.into(),
    }
}

fn parent(object: &Object) -> Value {
    let part = |key: &str| object.text(&["spec", "parentRef", key]);
    let group = if part("group").is_empty() { String::new() } else { format!(".{}", part("group")) };
    let namespace = if part("namespace").is_empty() { String::new() } else { format!("/{}", part("namespace")) };
    match part("resource") {
        "" => "<none>".into(),
        resource => format!("{}{namespace}/{}", format!("{resource}{group}").to_lowercase(), part("name")).into(),
    }
}

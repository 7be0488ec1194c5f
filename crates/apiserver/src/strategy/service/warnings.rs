//! What is worth telling of a service that is valid.

use api::addresses::{range_warnings, warning};
use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::{kind, listed};

pub(super) fn of(service: &Object) -> Vec<String> {
    let text = |field: &str| service.text(&["spec", field]);
    let texts = |field: &'static str| listed(service, field).iter().filter_map(Value::as_str).enumerate();
    let odd = |field: &'static str| {
        texts(field).filter_map(move |(index, text)| warning(&format!("spec.{field}[{index}]"), text))
    };
    let mut told = Vec::new();
    let mut tell = |holds: bool, what: &str| {
        if holds {
            told.push(what.to_owned());
        }
    };
    let outside = !listed(service, "externalIPs").is_empty();
    let elsewhere = kind(service) == "ExternalName";
    let headless = kind(service) == "ClusterIP" && text("clusterIP") == "None";
    let hints = service.at(&["metadata", "annotations", "service.kubernetes.io/topology-aware-hints"]).is_some();
    tell(
        hints,
        "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
    );
    if !matches!(text("clusterIP"), "" | "None") {
        odd("clusterIPs").for_each(|what| tell(true, &what));
    }
    tell(headless && !text("loadBalancerIP").is_empty(), "spec.loadBalancerIP is ignored for headless services");
    tell(headless && outside, "spec.externalIPs is ignored for headless services");
    tell(headless && text("sessionAffinity") != "None", "spec.SessionAffinity is ignored for headless services");
    odd("externalIPs").for_each(|what| tell(true, &what));
    tell(
        outside && !headless && !elsewhere,
        "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
    );
    if let Some(what) = warning("spec.loadBalancerIP", text("loadBalancerIP")) {
        tell(true, &what);
    }
    for (index, range) in texts("loadBalancerSourceRanges") {
        let path = format!("spec.loadBalancerSourceRanges[{index}]");
        range_warnings(&path, range).iter().for_each(|what| tell(true, what));
    }
    tell(outside && elsewhere, "spec.externalIPs is ignored when spec.type is \"ExternalName\"");
    tell(
        !elsewhere && !text("externalName").is_empty(),
        "spec.externalName is ignored when spec.type is not \"ExternalName\"",
    );
    tell(
        text("trafficDistribution") == "PreferClose",
        "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
    );
    told
}

pub(super) fn of_status(service: &Object) -> Vec<String> {
    let balancers = super::items(service, &["status", "loadBalancer", "ingress"]);
    let odd = |(index, balancer): (usize, &&Object)| {
        warning(&format!("status.loadBalancer.ingress[{index}]"), balancer.text(&["ip"]))
    };
    balancers.iter().enumerate().filter_map(odd).collect()
}

//! Ingresses, network policies, and what names addresses: endpoints, slices, ranges.

mod endpoints;
mod ingress;
mod network_policy;
mod ranges;

pub(super) use self::endpoints::{EndpointSlices, Endpoints};
pub(super) use self::ingress::{IngressClasses, Ingresses, domain_path};
pub(super) use self::network_policy::NetworkPolicies;
pub(super) use self::ranges::{IpAddresses, ServiceCidrs};

//! Gives every node its own range of pod addresses: `spec.podCIDR`, cut from the cluster's.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use async_trait::async_trait;
use client::{Informer, Key, Next, ReconcileError, Reconciler, Recorder, WorkQueue, reference};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;

use crate::controller::{Context, Controller};
use crate::meta;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeCidrs {
    base: u128,
    is_v6: bool,
    cluster_bits: u8,
    node_bits: u8,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cluster_cidr:?} with a node mask of /{mask} is not a range that can be cut into node ranges")]
pub struct CidrError {
    cluster_cidr: String,
    mask: u8,
}

impl NodeCidrs {
    pub(crate) fn parse(cluster_cidr: &str, mask: u8) -> Result<Self, CidrError> {
        let wrong = || CidrError { cluster_cidr: cluster_cidr.to_owned(), mask };
        let (address, bits) = cluster_cidr.split_once('/').ok_or_else(wrong)?;
        let (address, cluster_bits) =
            (address.parse::<IpAddr>().map_err(|_| wrong())?, bits.parse::<u8>().map_err(|_| wrong())?);
        let (base, width) = match address {
            IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
            IpAddr::V6(address) => (u128::from(address), 128),
        };
        // More than 16 bits of nodes is beyond what upstream accepts, too.
        if cluster_bits > mask || mask > width || mask - cluster_bits > 16 {
            return Err(wrong());
        }
        Ok(Self { base, is_v6: address.is_ipv6(), cluster_bits, node_bits: mask })
    }

    fn count(&self) -> u32 {
        1 << (self.node_bits - self.cluster_bits)
    }

    fn get(&self, index: u32) -> String {
        let width = if self.is_v6 { 128 } else { 32 };
        let address = self.base + (u128::from(index) << (width - self.node_bits));
        let address = match self.is_v6 {
            true => IpAddr::V6(Ipv6Addr::from(address)),
            false => IpAddr::V4(Ipv4Addr::from(u32::try_from(address).unwrap_or(0))),
        };
        format!("{address}/{}", self.node_bits)
    }

    /// The lowest range nobody has.
    fn first_free(&self, taken: impl Fn(&str) -> bool) -> Option<String> {
        (0..self.count()).map(|index| self.get(index)).find(|cidr| !taken(cidr))
    }
}

pub(crate) struct NodeIpam {
    client: kube::Client,
    nodes: Informer<Node>,
    cidrs: NodeCidrs,
    /// Given out by this process, by node: the cache may not show it yet.
    given: Mutex<HashMap<String, String>>,
    recorder: Recorder,
}

impl Controller for NodeIpam {
    // One at a time, or two nodes could be given the same range.
    const ACCOUNT: &'static str = "node-controller";
    const WORKERS: usize = 1;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let nodes = context.informers.of::<Node>();
        nodes.subscribe(move |change| queue.add(Key::of(&**change.object())));
        let recorder = context.recorder("cidrAllocator");
        Self { client: context.client.clone(), nodes, cidrs: context.node_cidrs, given: Mutex::default(), recorder }
    }
}

fn cidr_of(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.pod_cidr.as_deref().filter(|cidr| !cidr.is_empty())
}

#[async_trait]
impl Reconciler for NodeIpam {
    const NAME: &'static str = "node-ipam";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(node) = self.nodes.get(key).filter(|node| !meta::is_deleting(&**node)) else {
            self.given.lock().remove(&key.name);
            return Ok(Next::OnChange);
        };
        if cidr_of(&node).is_some() {
            return Ok(Next::OnChange);
        }
        let all = self.nodes.list();
        let cidr = {
            let mut given = self.given.lock();
            let taken = |cidr: &str| {
                all.iter().any(|node| cidr_of(node) == Some(cidr)) || given.values().any(|known| known == cidr)
            };
            let cidr = given.get(&key.name).cloned().or_else(|| self.cidrs.first_free(taken));
            let Some(cidr) = cidr else {
                let message = format!("Node {} status is now: CIDRNotAvailable", key.name);
                self.recorder.normal(&reference(&*node), "CIDRNotAvailable", message);
                return Err(ReconcileError::Other("no node range is free in the cluster range".into()));
            };
            given.insert(key.name.clone(), cidr.clone());
            cidr
        };
        let patch = json!({ "spec": { "podCIDR": cidr, "podCIDRs": [cidr] } });
        let api = Api::<Node>::all(self.client.clone());
        match api.patch(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Next::OnChange),
            other => Ok(other.map(|_| Next::OnChange)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_given_from_the_first_and_never_twice() {
        let cidrs = NodeCidrs::parse("10.244.0.0/16", 24).unwrap();
        assert_eq!(cidrs.first_free(|_| false).as_deref(), Some("10.244.0.0/24"));
        assert_eq!(cidrs.first_free(|cidr| cidr == "10.244.0.0/24").as_deref(), Some("10.244.1.0/24"));
        assert_eq!(cidrs.first_free(|_| true), None);
        assert_eq!(cidrs.get(255), "10.244.255.0/24");
        let v6 = NodeCidrs::parse("fd00::/48", 64).unwrap();
        assert_eq!(v6.get(1), "fd00:0:0:1::/64");
    }

    #[test]
    fn ranges_that_cannot_be_cut_are_refused() {
        for (cidr, mask) in
            [("10.244.0.0", 24), ("10.244.0.0/25", 24), ("10.0.0.0/7", 24), ("x/8", 24), ("10.0.0.0/16", 33)]
        {
            assert!(NodeCidrs::parse(cidr, mask).is_err(), "{cidr} {mask}");
        }
    }
}

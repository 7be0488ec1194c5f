//! Whether a node gives signs of life, and what its conditions say when it does not.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::Instant;

/// The kubelet's own conditions; others belong to whoever writes them.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The times a live node keeps changing: of its Ready condition and of its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sign(Option<Timestamp>, Option<Timestamp>);

pub(super) fn sign_of_life(node: &Node, lease: Option<&Lease>) -> Sign {
    let heartbeat = ready(node).and_then(|ready| ready.last_heartbeat_time.as_ref()).map(|time| time.0);
    let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref()).map(|time| time.0);
    Sign(heartbeat, renewed)
}

pub(super) struct Health {
    pub(super) sign: Sign,
    pub(super) ready: bool,
    since: Instant,
}

impl Health {
    pub(super) fn new(sign: Sign, now: Instant) -> Self {
        Self { sign, ready: false, since: now }
    }

    pub(super) fn see(&mut self, sign: Sign, now: Instant) {
        if self.sign != sign {
            self.sign = sign;
            self.since = now;
        }
    }

    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        now.duration_since(self.since)
    }
}

pub(super) fn ready(node: &Node) -> Option<&NodeCondition> {
    node.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == "Ready")
}

pub(super) fn is_ready(node: &Node) -> bool {
    ready(node).is_some_and(|ready| ready.status == "True")
}

/// The node with all that its kubelet used to say called Unknown.
pub(super) fn unknown(node: &Node, now: Timestamp) -> Node {
    let mut node = node.clone();
    let created = node.metadata.creation_timestamp.clone();
    let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
    for kind in KUBELET_CONDITIONS {
        match conditions.iter_mut().find(|condition| condition.type_ == kind) {
            None => conditions.push(NodeCondition {
                type_: kind.into(),
                status: "Unknown".into(),
                reason: Some("NodeStatusNeverUpdated".into()),
                message: Some("Kubelet never posted node status.".into()),
                last_heartbeat_time: created.clone(),
                last_transition_time: Some(Time(now)),
            }),
            Some(condition) if condition.status != "Unknown" => {
                condition.status = "Unknown".into();
                condition.reason = Some("NodeStatusUnknown".into());
                condition.message = Some("Kubelet stopped posting node status.".into());
                condition.last_transition_time = Some(Time(now));
            }
            Some(_) => (),
        }
    }
    node
}

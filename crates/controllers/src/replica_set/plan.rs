//! Decides how many pods to create, or which to delete.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::rank;

/// More than this is done in further passes, so that one huge set does not starve the others.
const BURST_REPLICAS: usize = 500;

#[derive(Debug)]
pub(super) enum Action {
    Nothing,
    Create(usize),
    Delete(Vec<Arc<Pod>>),
}

/// `related` are the pods of all sets under the same owner, this one's included.
pub(super) fn plan(replicas: i32, active: &[Arc<Pod>], related: &[Arc<Pod>], now: Timestamp) -> Action {
    let wanted = usize::try_from(replicas).unwrap_or(0);
    match active.len() {
        have if have < wanted => Action::Create((wanted - have).min(BURST_REPLICAS)),
        have if have > wanted => {
            let mut victims = active.to_vec();
            // All of them go: no need to rank.
            if wanted > 0 {
                rank::cheapest_first(&mut victims, related, now);
            }
            victims.truncate((have - wanted).min(BURST_REPLICAS));
            Action::Delete(victims)
        }
        _ => Action::Nothing,
    }
}

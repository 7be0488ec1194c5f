//! Prefers nodes that already have the pod's images, less so for images that most nodes lack (or all nodes would crowd there).

use std::collections::HashMap;
use std::sync::Arc;

use crate::framework::{Cycle, MAX_NODE_SCORE, Plugin, Score, Snapshot};
use crate::node_info::{NodeInfo, PodInfo};
use crate::queue::Event;

const MIB: i64 = 1024 * 1024;
const MIN_THRESHOLD: i64 = 23 * MIB;
const MAX_CONTAINER_THRESHOLD: i64 = 1000 * MIB;

pub(crate) struct ImageLocality;

/// On how many nodes each of the pod's images is, and how many nodes there are.
struct Spread {
    nodes_with: HashMap<String, i64>,
    nodes: i64,
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn is_helped_by(&self, _: Event) -> bool {
        false
    }
}

impl Score for ImageLocality {
    fn weight(&self) -> i64 {
        1
    }

    fn pre_score(&self, cycle: &mut Cycle, pod: &PodInfo, _: &[Arc<NodeInfo>], snapshot: &Snapshot) {
        let count = |image: &String| snapshot.nodes.iter().filter(|node| size_on(node, image).is_some()).count() as i64;
        let nodes_with = images(pod).map(|image| (image.clone(), count(&image))).collect();
        cycle.set(Spread { nodes_with, nodes: snapshot.nodes.len() as i64 });
    }

    fn score(&self, cycle: &Cycle, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let Some(spread) = cycle.get::<Spread>().filter(|spread| spread.nodes > 0) else { return 0 };
        let here = images(pod).filter_map(|image| {
            let with = spread.nodes_with.get(&image).copied().unwrap_or(0);
            size_on(node, &image).map(|size| size * with / spread.nodes)
        });
        let sum: i64 = here.sum();
        let max = MAX_CONTAINER_THRESHOLD * images(pod).count().max(1) as i64;
        MAX_NODE_SCORE * (sum.clamp(MIN_THRESHOLD, max) - MIN_THRESHOLD) / (max - MIN_THRESHOLD)
    }
}

fn images(pod: &PodInfo) -> impl Iterator<Item = String> {
    let containers =
        pod.spec().into_iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    containers.filter_map(|container| container.image.as_deref()).map(normalized)
}

/// Nodes report images with their tag.
fn normalized(image: &str) -> String {
    let after_slash = image.rsplit('/').next().unwrap_or(image);
    if after_slash.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

fn size_on(node: &NodeInfo, image: &str) -> Option<i64> {
    let known = node.node.as_ref()?.status.as_ref()?.images.as_ref()?;
    let found = known.iter().find(|known| known.names.iter().flatten().any(|name| name == image))?;
    found.size_bytes
}

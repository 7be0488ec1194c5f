//! Important pods first, then first come, first served.

use std::cmp::Ordering;

use crate::framework::{Plugin, QueueKey, QueueSort};
use crate::queue::Event;

pub(crate) struct PrioritySort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        "PrioritySort"
    }

    fn is_helped_by(&self, _: Event) -> bool {
        false
    }
}

impl QueueSort for PrioritySort {
    fn before(&self, a: &QueueKey, b: &QueueKey) -> Ordering {
        b.priority.cmp(&a.priority).then(a.added.cmp(&b.added)).then(a.sequence.cmp(&b.sequence))
    }
}

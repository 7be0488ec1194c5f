//! Whether a transaction's condition holds.

use std::cmp::Ordering;

use super::State;
use crate::{Compare, KeyValue, Keys, Order, Target};

impl State {
    pub(crate) fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::ModRevision { key, is } => self.keys.get(key.as_ref()).map_or(0, |kv| kv.mod_revision) == *is,
            Compare::Where { key, end, target, order } => {
                let keys = Keys::new(key.clone(), end.clone());
                let found = keys.bounds().map(|bounds| self.keys.range::<_, [u8]>(bounds));
                let mut found = found.into_iter().flatten().map(|(_, kv)| kv.as_ref()).peekable();
                match found.peek() {
                    // As in etcd: no key is a key of zeros, except that it has no value to compare.
                    None => !matches!(target, Target::Value(_)) && stands(&KeyValue::default(), target, *order),
                    Some(_) => found.all(|kv| stands(kv, target, *order)),
                }
            }
        }
    }
}

fn stands(kv: &KeyValue, target: &Target, order: Order) -> bool {
    let ordering = match target {
        Target::Version(version) => kv.version.cmp(version),
        Target::CreateRevision(revision) => kv.create_revision.cmp(revision),
        Target::ModRevision(revision) => kv.mod_revision.cmp(revision),
        Target::Value(value) => kv.value.cmp(value),
        Target::Lease(lease) => kv.lease.cmp(lease),
    };
    match order {
        Order::Equal => ordering == Ordering::Equal,
        Order::NotEqual => ordering != Ordering::Equal,
        Order::Greater => ordering == Ordering::Greater,
        Order::Less => ordering == Ordering::Less,
    }
}

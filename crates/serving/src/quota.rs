//! How many connections there may be, in all and from one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// The places of a port. An address that has none left is refused while others still get one.
#[derive(Clone)]
pub struct Quota {
    all: usize,
    of_address: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A connection's place, free again once dropped.
pub(crate) struct Place {
    quota: Quota,
    address: IpAddr,
}

impl Quota {
    pub fn new(all: usize, of_address: usize) -> Self {
        Self { all, of_address, taken: Arc::default() }
    }

    /// For a port whose requests are limited by other means.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX, usize::MAX)
    }

    pub(crate) fn take(&self, address: IpAddr) -> Option<Place> {
        let address = address.to_canonical();
        let mut taken = self.taken.lock();
        if taken.all >= self.all {
            return None;
        }
        let own = taken.by_address.entry(address).or_default();
        if *own >= self.of_address {
            return None;
        }
        *own += 1;
        taken.all += 1;
        Some(Place { quota: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.quota.taken.lock();
        taken.all -= 1;
        if let Some(own) = taken.by_address.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_cannot_take_the_places_of_others() {
        let quota = Quota::new(3, 2);
        let [a, b]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().expect("an address"));
        let mapped = "::ffff:10.0.0.1".parse().expect("an address");
        let first = quota.take(a).expect("a place");
        let _second = quota.take(mapped).expect("a place");
        assert!(quota.take(a).is_none());
        let _other = quota.take(b).expect("a place");
        assert!(quota.take(b).is_none(), "all are taken");
        drop(first);
        assert!(quota.take(a).is_some());
        assert_eq!(quota.taken.lock().by_address.len(), 2);
    }
}

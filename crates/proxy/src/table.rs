//! The whole service table, and what changed since the kernel was last told.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddrV4;

use client::Key;

use crate::slot::{Scope, ServiceKey, Slot, Value};

/// What all services need. A slot that several services claim is with one of them; when that one lets go, the oldest of the others gets it.
#[derive(Default)]
pub struct Table {
    services: HashMap<Key, Entry>,
    slots: HashMap<Slot, Claims>,
    /// For each slot touched since the last transaction, what the kernel has there.
    before: HashMap<Slot, Option<Value>>,
    /// Services are numbered as they come.
    last_id: u64,
}

struct Entry {
    id: u64,
    plan: Vec<(Slot, Value)>,
}

struct Claims {
    holder: u64,
    value: Value,
    waiting: BTreeMap<u64, Value>,
}

/// Elements to take out of the kernel's maps, then elements to put in.
#[derive(Debug, Default, PartialEq)]
pub struct Transaction {
    pub remove: Vec<(Slot, Value)>,
    pub add: Vec<(Slot, Value)>,
}

impl Transaction {
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }

    /// Services over UDP whose endpoints are not what they were.
    pub fn udp_services(&self) -> HashSet<ServiceKey> {
        const UDP: u8 = 17;
        let key = |(slot, _): &(Slot, Value)| match slot {
            Slot::Service(_, key) | Slot::Endpoint(_, key, _) | Slot::Reject(key) => Some(*key),
            _ => None,
        };
        self.remove.iter().chain(&self.add).filter_map(key).filter(|key| key.protocol == UDP).collect()
    }
}

impl Table {
    /// Replaces what a service needs; an empty plan is a service that is gone.
    pub fn set(&mut self, service: &Key, mut plan: Vec<(Slot, Value)>) {
        // Two ports of a service may share an endpoint's address.
        plan.sort_unstable();
        plan.dedup_by_key(|(slot, _)| *slot);
        let old = self.services.remove(service);
        if old.as_ref().is_some_and(|old| old.plan == plan) {
            self.services.extend(old.map(|old| (service.clone(), old)));
            return;
        }
        let id = old.as_ref().map_or(self.last_id + 1, |old| old.id);
        self.last_id = self.last_id.max(id);
        for (slot, _) in old.into_iter().flat_map(|old| old.plan) {
            self.release(id, slot);
        }
        for (slot, value) in &plan {
            self.claim(id, *slot, *value);
        }
        if !plan.is_empty() {
            self.services.insert(service.clone(), Entry { id, plan });
        }
    }

    fn release(&mut self, id: u64, slot: Slot) {
        self.touch(slot);
        let Some(claims) = self.slots.get_mut(&slot) else { return };
        if claims.holder != id {
            claims.waiting.remove(&id);
        } else if let Some((holder, value)) = claims.waiting.pop_first() {
            (claims.holder, claims.value) = (holder, value);
        } else {
            self.slots.remove(&slot);
        }
    }

    fn claim(&mut self, id: u64, slot: Slot, value: Value) {
        self.touch(slot);
        match self.slots.get_mut(&slot) {
            Some(claims) => drop(claims.waiting.insert(id, value)),
            None => drop(self.slots.insert(slot, Claims { holder: id, value, waiting: BTreeMap::new() })),
        }
    }

    fn touch(&mut self, slot: Slot) {
        let value = self.value(&slot);
        self.before.entry(slot).or_insert(value);
    }

    fn value(&self, slot: &Slot) -> Option<Value> {
        self.slots.get(slot).map(|claims| claims.value)
    }

    /// What changed since the last call; the kernel is taken to have it afterwards.
    pub fn take_changes(&mut self) -> Transaction {
        let mut transaction = Transaction::default();
        for (slot, before) in std::mem::take(&mut self.before) {
            let now = self.value(&slot);
            if before == now {
                continue;
            }
            transaction.remove.extend(before.map(|value| (slot, value)));
            transaction.add.extend(now.map(|value| (slot, value)));
        }
        transaction.remove.sort_unstable();
        transaction.add.sort_unstable();
        transaction
    }

    /// Where a service's packets may go by now.
    pub fn endpoints(&self, key: &ServiceKey) -> HashSet<SocketAddrV4> {
        let scopes = [Scope::Cluster, Scope::ExternalLocal];
        let of = |scope| (0..).map_while(move |index| self.value(&Slot::Endpoint(scope, *key, index)));
        let to = |value| if let Value::To(to) = value { Some(to) } else { None };
        scopes.into_iter().flat_map(of).filter_map(to).collect()
    }

    /// Everything, for a kernel that has nothing; it is taken to have it all afterwards.
    pub fn take_all(&mut self) -> Transaction {
        self.before.clear();
        let mut add: Vec<_> = self.slots.iter().map(|(slot, claims)| (*slot, claims.value)).collect();
        add.sort_unstable();
        Transaction { remove: Vec::new(), add }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn plan(address: u8, endpoints: &[u8]) -> Vec<(Slot, Value)> {
        let key = ServiceKey { address: Ipv4Addr::new(10, 96, 0, address), protocol: 6, port: 80 };
        let to = |last: u8| SocketAddrV4::new(Ipv4Addr::new(10, 244, 0, last), 8080);
        let class = Value::Class { endpoints: endpoints.len() as u32, affinity_s: 0 };
        let mut plan = vec![(Slot::Service(Scope::Cluster, key), class)];
        plan.extend(
            (0..).zip(endpoints).map(|(n, last)| (Slot::Endpoint(Scope::Cluster, key, n), Value::To(to(*last)))),
        );
        plan.extend(endpoints.iter().map(|last| (Slot::Hairpin(*to(*last).ip()), Value::Present)));
        plan
    }

    /// Removed and added elements.
    #[track_caller]
    fn check(table: &mut Table, want: (usize, usize)) {
        let transaction = table.take_changes();
        assert_eq!((transaction.remove.len(), transaction.add.len()), want, "{transaction:?}");
        assert!(table.take_changes().is_empty());
    }

    #[test]
    fn a_change_to_one_service_is_a_few_elements() {
        let mut table = Table::default();
        for n in 0..100 {
            table.set(&Key::new("d", n.to_string()), plan(n, &[1, 2]));
        }
        check(&mut table, (0, 302));
        let web = Key::new("d", "7");
        table.set(&web, plan(7, &[1, 2, 3]));
        check(&mut table, (1, 3));
        table.set(&web, plan(7, &[1, 2, 3]));
        check(&mut table, (0, 0));
        table.set(&web, plan(7, &[1, 2]));
        table.set(&web, plan(7, &[1, 2, 3]));
        check(&mut table, (0, 0));
        table.set(&web, Vec::new());
        check(&mut table, (5, 0));
        assert_eq!(table.take_all().add.len(), 299);
    }

    #[test]
    fn a_slot_claimed_twice_stays_with_the_first_and_passes_on() {
        let mut table = Table::default();
        let (first, second) = (Key::new("d", "first"), Key::new("d", "second"));
        table.set(&first, plan(1, &[1]));
        table.set(&second, plan(1, &[2]));
        let transaction = table.take_changes();
        assert!(transaction.add.iter().any(|(slot, value)| {
            matches!(slot, Slot::Endpoint(..)) && *value == Value::To("10.244.0.1:8080".parse().unwrap())
        }));
        table.set(&first, Vec::new());
        // The endpoint is replaced, the first's hairpin goes; the class is the same.
        check(&mut table, (2, 1));
    }
}

//! Admission policies: expressions that judge or change what is written.
//!
//! [`Policies`] keeps them compiled and follows their changes; [`validating`] and [`mutating`] put requests to them.

pub(super) mod definition;
pub(super) mod evaluate;
pub(crate) mod mutating;
mod params;
pub(super) mod request;
pub(crate) mod validating;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Object, ObjectExt as _};
use parking_lot::RwLock;

use self::definition::{Binding, Policy};
use crate::registry::Registry;
use crate::storage::{Follower, Step, Stored};

pub(crate) const GROUP: &str = "admissionregistration.k8s.io";

/// The policies of one kind with their bindings, by name.
pub(crate) struct Policies {
    mutating: bool,
    state: RwLock<State>,
}

struct State {
    followers: Vec<(bool, Follower)>,
    known: Known,
    hooks: Arc<[Hook]>,
}

#[derive(Default)]
struct Known {
    policies: BTreeMap<String, Arc<Policy>>,
    bindings: BTreeMap<String, Arc<Binding>>,
}

/// A policy and what puts it into force. One that nothing does has no hook.
#[derive(Clone)]
pub(crate) struct Hook {
    pub(crate) policy: Arc<Policy>,
    pub(crate) bindings: Vec<Arc<Binding>>,
}

impl Policies {
    pub(crate) fn validating(registry: &Registry) -> Self {
        Self::new(registry, ["validatingadmissionpolicies", "validatingadmissionpolicybindings"], false)
    }

    pub(crate) fn mutating(registry: &Registry) -> Self {
        Self::new(registry, ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"], true)
    }

    fn new(registry: &Registry, [policies, bindings]: [&str; 2], mutating: bool) -> Self {
        let follower = |plural: &str, is_policy: bool| {
            let cache = registry.stored(GROUP, plural)?.cache.clone()?;
            Some((is_policy, Follower::new(cache)))
        };
        let followers = [follower(policies, true), follower(bindings, false)].into_iter().flatten().collect();
        let state = State { followers, known: Known::default(), hooks: Arc::new([]) };
        Self { mutating, state: RwLock::new(state) }
    }

    /// What is in force now.
    pub(crate) fn hooks(&self) -> Arc<[Hook]> {
        {
            let state = self.state.read();
            if state.followers.iter().all(|(_, follower)| follower.is_current()) {
                return state.hooks.clone();
            }
        }
        let mut state = self.state.write();
        let State { followers, known, hooks } = &mut *state;
        let mut changed = false;
        for (is_policy, follower) in followers {
            follower.catch_up(|step| {
                changed = true;
                match step {
                    Step::Reset(snapshot) => {
                        known.forget(*is_policy);
                        snapshot.objects.values().for_each(|stored| known.put(*is_policy, self.mutating, stored));
                    }
                    Step::Changed(change) if change.deleted => known.remove(*is_policy, &change.object.key),
                    Step::Changed(change) => known.put(*is_policy, self.mutating, &change.object),
                }
            });
        }
        if changed {
            *hooks = known.hooks();
        }
        hooks.clone()
    }
}

impl Known {
    fn forget(&mut self, is_policy: bool) {
        if is_policy { self.policies.clear() } else { self.bindings.clear() }
    }

    fn remove(&mut self, is_policy: bool, key: &str) {
        if is_policy {
            self.policies.remove(key);
        } else {
            self.bindings.remove(key);
        }
    }

    fn put(&mut self, is_policy: bool, mutating: bool, stored: &Stored) {
        let object = stored.decode();
        let key = stored.key.to_string();
        if !is_policy {
            self.bindings.insert(key, Arc::new(Binding::of(&object)));
            return;
        }
        // A status that is written does not change what a policy means.
        let generation = generation(&object);
        if self.policies.get(&key).is_none_or(|known| known.uid != object.uid() || known.generation != generation) {
            self.policies.insert(key, Arc::new(Policy::of(&object, mutating)));
        }
    }

    fn hooks(&self) -> Arc<[Hook]> {
        let hooks = self.policies.values().filter_map(|policy| {
            let bindings: Vec<Arc<Binding>> =
                self.bindings.values().filter(|binding| binding.policy == policy.name).cloned().collect();
            (!bindings.is_empty()).then(|| Hook { policy: policy.clone(), bindings })
        });
        hooks.collect()
    }
}

fn generation(object: &Object) -> i64 {
    object.at(&["metadata", "generation"]).and_then(serde_json::Value::as_i64).unwrap_or_default()
}

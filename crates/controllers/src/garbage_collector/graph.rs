//! Who owns whom: every object the server has, by uid, and what is to be done about one of them. No I/O.

use std::collections::{HashMap, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";

/// An object, as far as ownership is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// Which of the discovered resources it is.
    pub(super) resource: usize,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) owners: Vec<Owner>,
    pub(super) deleting: bool,
    pub(super) foreground: bool,
    pub(super) orphan: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) blocks: bool,
}

impl Item {
    pub(super) fn new(resource: usize, meta: &ObjectMeta) -> Self {
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|known| known == finalizer);
        let owner = |owner: &OwnerReference| Owner {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            blocks: owner.block_owner_deletion == Some(true),
        };
        Self {
            resource,
            namespace: meta.namespace.clone().filter(|namespace| !namespace.is_empty()),
            name: meta.name.clone().unwrap_or_default(),
            owners: meta.owner_references.iter().flatten().map(owner).collect(),
            deleting: meta.deletion_timestamp.is_some(),
            foreground: has(FOREGROUND),
            orphan: has(ORPHAN),
        }
    }

    fn waits_for_dependents(&self) -> bool {
        self.deleting && self.foreground
    }
}

#[derive(Default)]
pub(super) struct Graph {
    items: HashMap<String, Item>,
    dependents: HashMap<String, HashSet<String>>,
}

impl Graph {
    /// Takes in an object; gives the uids that need a look because of it.
    pub(super) fn set(&mut self, uid: &str, item: Item) -> Vec<String> {
        if self.items.get(uid) == Some(&item) {
            return Vec::new();
        }
        self.unlink(uid);
        for owner in &item.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.to_owned());
        }
        // An owner that waits for this one may wait no longer, also because it is none any more.
        let owners = self.items.get(uid).into_iter().flat_map(|before| &before.owners).chain(&item.owners);
        let owners: HashSet<&String> = owners.map(|owner| &owner.uid).collect();
        let mut look: Vec<String> = owners.into_iter().filter(|owner| self.is_waiting(owner)).cloned().collect();
        if item.waits_for_dependents() {
            look.extend(self.dependents_of(uid));
        }
        if !item.owners.is_empty() || item.deleting {
            look.push(uid.to_owned());
        }
        self.items.insert(uid.to_owned(), item);
        look
    }

    pub(super) fn remove(&mut self, uid: &str) -> Vec<String> {
        let Some(item) = self.items.get(uid).cloned() else { return Vec::new() };
        self.unlink(uid);
        self.items.remove(uid);
        let mut look = self.dependents_of(uid);
        look.extend(item.owners.into_iter().map(|owner| owner.uid).filter(|owner| self.is_waiting(owner)));
        look
    }

    /// After a list: what is known of `resource` and was not in it is gone.
    pub(super) fn retain(&mut self, resource: usize, listed: &HashSet<String>) -> Vec<String> {
        let gone = |(uid, item): &(&String, &Item)| item.resource == resource && !listed.contains(*uid);
        let gone: Vec<String> = self.items.iter().filter(gone).map(|(uid, _)| uid.clone()).collect();
        gone.iter().flat_map(|uid| self.remove(uid)).collect()
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Item> {
        self.items.get(uid)
    }

    pub(super) fn dependents_of(&self, uid: &str) -> Vec<String> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }

    fn is_waiting(&self, uid: &str) -> bool {
        self.items.get(uid).is_some_and(Item::waits_for_dependents)
    }

    fn unlink(&mut self, uid: &str) {
        let Some(item) = self.items.get(uid) else { return };
        for owner in &item.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
    }

    /// What this object needs. Owners that are not in the graph are left for a live look.
    pub(super) fn plan(&self, uid: &str) -> Plan {
        let Some(item) = self.items.get(uid) else { return Plan::Nothing };
        if item.deleting && item.orphan {
            return Plan::OrphanDependents(self.dependents_of(uid));
        }
        if item.waits_for_dependents() {
            let blocks = |dependent: &&String| {
                let owners = self.items.get(*dependent).map(|item| item.owners.as_slice()).unwrap_or_default();
                owners.iter().any(|owner| owner.uid == uid && owner.blocks)
            };
            let dependents = self.dependents_of(uid);
            return if dependents.iter().any(|dependent| blocks(&dependent)) {
                Plan::DeleteDependentsFirst(dependents)
            } else {
                Plan::RemoveFinalizer(FOREGROUND)
            };
        }
        if item.deleting || item.owners.is_empty() {
            return Plan::Nothing;
        }
        let mut owners = Owners::default();
        for owner in &item.owners {
            match self.items.get(&owner.uid) {
                None => owners.unknown.push(owner.clone()),
                Some(known) if known.waits_for_dependents() && owner.blocks => owners.waiting.push(owner.uid.clone()),
                Some(_) => owners.solid = true,
            }
        }
        Plan::CheckOwners(owners)
    }

    /// How an object whose last owner is gone is to be deleted: so that its own dependents keep the order its owner asked for.
    pub(super) fn propagation(&self, uid: &str, waiting: bool) -> Propagation {
        let Some(item) = self.items.get(uid) else { return Propagation::Background };
        let has_dependents = self.dependents.contains_key(uid);
        match () {
            () if item.orphan => Propagation::Orphan,
            () if item.foreground || (waiting && has_dependents) => Propagation::Foreground,
            () => Propagation::Background,
        }
    }

    /// Two objects that wait for each other would wait for ever.
    pub(super) fn is_in_circle(&self, uid: &str) -> bool {
        self.dependents_of(uid).iter().any(|dependent| self.is_waiting(dependent))
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    Nothing,
    CheckOwners(Owners),
    OrphanDependents(Vec<String>),
    DeleteDependentsFirst(Vec<String>),
    RemoveFinalizer(&'static str),
}

/// The owners of an object, by what is known of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Owners {
    /// At least one is there to stay.
    pub(super) solid: bool,
    /// Being deleted in the foreground: they wait for this object.
    pub(super) waiting: Vec<String>,
    pub(super) unknown: Vec<Owner>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "uid<owner,owner!flags": `!` after an owner blocks it; flags `d` deleting, `f` foreground, `o` orphan.
    fn graph(text: &str) -> Graph {
        let mut graph = Graph::default();
        for word in text.split_whitespace() {
            let (uid, rest) = word.split_once('<').unwrap_or((word, ""));
            let (uid, flags) = uid.split_once(':').unwrap_or((uid, ""));
            let owner = |text: &str| Owner {
                api_version: "v1".into(),
                kind: "K".into(),
                name: text.trim_end_matches('!').into(),
                uid: text.trim_end_matches('!').into(),
                blocks: text.ends_with('!'),
            };
            let item = Item {
                resource: 0,
                namespace: None,
                name: uid.into(),
                owners: rest.split(',').filter(|owner| !owner.is_empty()).map(owner).collect(),
                deleting: flags.contains('d'),
                foreground: flags.contains('f'),
                orphan: flags.contains('o'),
            };
            graph.set(uid, item);
        }
        graph
    }

    #[track_caller]
    fn check(text: &str, uid: &str, want: &str) {
        let plan = match graph(text).plan(uid) {
            Plan::Nothing => "nothing".to_owned(),
            Plan::CheckOwners(owners) => format!(
                "solid={} waiting={} unknown={}",
                owners.solid,
                owners.waiting.join(","),
                owners.unknown.iter().map(|owner| owner.uid.as_str()).collect::<Vec<_>>().join(",")
            ),
            Plan::OrphanDependents(mut all) => {
                all.sort();
                format!("orphan {}", all.join(","))
            }
            Plan::DeleteDependentsFirst(mut all) => {
                all.sort();
                format!("first {}", all.join(","))
            }
            Plan::RemoveFinalizer(finalizer) => format!("remove {finalizer}"),
        };
        assert_eq!(plan, want, "{text}: {uid}");
    }

    #[test]
    fn owners_decide_who_lives() {
        check("d", "d", "nothing");
        check("d rs<d!", "rs", "solid=true waiting= unknown=");
        check("rs<d!", "rs", "solid=false waiting= unknown=d");
        check("d e pod<d,e", "pod", "solid=true waiting= unknown=");
        check("e pod<d,e", "pod", "solid=true waiting= unknown=d");
        check("pod:d<d", "pod", "nothing");
    }

    #[test]
    fn foreground_waits_for_those_that_block() {
        check("d:df rs<d!", "d", "first rs");
        check("d:df rs<d!", "rs", "solid=false waiting=d unknown=");
        check("d:df rs<d", "d", "remove foregroundDeletion");
        check("d:df", "d", "remove foregroundDeletion");
        check("d:do rs<d! pod<rs!", "d", "orphan rs");
    }

    #[test]
    fn the_end_of_an_object_wakes_its_dependents_and_those_who_wait_for_it() {
        let mut all = graph("d rs<d! pod<rs!");
        assert_eq!(all.remove("d"), ["rs"]);
        let mut all = graph("d:df rs<d!");
        assert_eq!(all.remove("rs"), ["d"]);
        assert_eq!(all.plan("d"), Plan::RemoveFinalizer(FOREGROUND));
        let mut all = graph("d rs<d!");
        assert_eq!(all.retain(0, &HashSet::from(["rs".to_owned()])), ["rs"]);
    }

    /// Whoever is no dependent any more is not waited for, whichever of the last ones it is.
    #[test]
    fn the_end_of_a_reference_wakes_who_waited_for_it() {
        for (now, want) in [("pod<e", vec!["d", "pod"]), ("pod", vec!["d"])] {
            let mut all = graph("d:df e pod<d!,e");
            let item = graph(now).items.remove("pod").unwrap();
            assert_eq!(all.set("pod", item), want);
            assert_eq!(all.plan("d"), Plan::RemoveFinalizer(FOREGROUND));
        }
    }

    #[test]
    fn dependents_are_deleted_the_way_their_owner_was() {
        let all = graph("d:df rs<d! pod<rs!");
        assert_eq!(all.propagation("rs", true), Propagation::Foreground);
        assert_eq!(all.propagation("rs", false), Propagation::Background);
        assert_eq!(all.propagation("pod", true), Propagation::Background);
        assert!(graph("a:df<b! b<a!").is_in_circle("b"));
    }
}

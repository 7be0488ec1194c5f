//! The Node authorizer: a kubelet may do what its own node and the pods bound to it need, and no more.

mod graph;
pub(crate) mod references;

use api::UserInfo;
use parking_lot::RwLock;

use self::graph::{Graph, Kind};
use super::rule::{Rule, rules_of};
use super::{Access, Decision};
use crate::registry::Registry;
use crate::storage::{Follower, Step};

const LEASES: &str = "kube-node-lease";

pub(crate) struct NodeAuthorizer {
    state: RwLock<State>,
    /// What all nodes may alike: the role `system:node`.
    rules: Vec<Rule>,
}

struct State {
    followers: Vec<(Kind, Follower)>,
    graph: Graph,
}

/// The node a user is; an empty name is a node that cannot be told.
pub(crate) fn identity(user: &UserInfo) -> Option<&str> {
    user.name.strip_prefix("system:node:").filter(|_| user.in_group("system:nodes"))
}

impl NodeAuthorizer {
    pub(crate) fn new(registry: &Registry) -> Self {
        let sources = [
            ("", "pods", Kind::Pod),
            ("", "persistentvolumes", Kind::Volume),
            ("storage.k8s.io", "volumeattachments", Kind::VolumeAttachment),
            ("resource.k8s.io", "resourceslices", Kind::ResourceSlice),
        ];
        let follower = |(group, plural, kind): (&str, &str, Kind)| {
            Some((kind, Follower::new(registry.stored(group, plural)?.cache.clone()?)))
        };
        let followers = sources.into_iter().filter_map(follower).collect();
        let rules = rules_of(crate::bootstrap::role("system:node").as_ref());
        Self { state: RwLock::new(State { followers, graph: Graph::default() }), rules }
    }

    pub(crate) fn decide(&self, user: &UserInfo, access: &Access<'_>) -> Decision {
        match identity(user) {
            None => Decision::no_opinion(""),
            Some("") => Decision::no_opinion(format!("unknown node for user {:?}", user.name)),
            Some(node) => match self.may(node, access) {
                Ok(()) => Decision::allow(""),
                Err(why) => Decision::no_opinion(why),
            },
        }
    }

    fn may(&self, node: &str, access: &Access<'_>) -> Result<(), String> {
        if access.is_resource {
            match (access.group, access.resource) {
                ("", "secrets") => return self.read(node, Kind::Secret, access),
                ("", "configmaps") => return self.read(node, Kind::ConfigMap, access),
                ("", "persistentvolumeclaims") if access.subresource == "status" => {
                    return self.claim_status(node, access);
                }
                ("", "persistentvolumeclaims") => return self.get(node, Kind::VolumeClaim, access),
                ("", "persistentvolumes") => return self.get(node, Kind::Volume, access),
                ("resource.k8s.io", "resourceclaims") => return self.get(node, Kind::ResourceClaim, access),
                ("storage.k8s.io", "volumeattachments") => return self.get(node, Kind::VolumeAttachment, access),
                ("", "serviceaccounts") => return self.service_account(node, access),
                ("coordination.k8s.io", "leases") => return lease(node, access),
                ("storage.k8s.io", "csinodes") => return csi_node(node, access),
                ("resource.k8s.io", "resourceslices") => return self.resource_slice(node, access),
                ("", "nodes") => return own_node(node, access),
                ("", "pods") => return self.pod(node, access),
                _ => (),
            }
        }
        if self.rules.iter().any(|rule| rule.allows(access)) { Ok(()) } else { Err(String::new()) }
    }

    fn related(&self, node: &str, kind: Kind, access: &Access<'_>) -> Result<(), String> {
        if access.name.is_empty() {
            return Err("No Object name found".into());
        }
        if self.connects(node, kind, access) {
            return Ok(());
        }
        Err(format!("no relationship found between node '{node}' and this object"))
    }

    fn connects(&self, node: &str, kind: Kind, access: &Access<'_>) -> bool {
        let key = match access.namespace {
            "" => access.name.to_owned(),
            namespace => format!("{namespace}/{}", access.name),
        };
        {
            let state = self.state.read();
            if state.followers.iter().all(|(_, follower)| follower.is_current()) {
                return state.graph.connects(node, kind, key);
            }
        }
        let mut state = self.state.write();
        let State { followers, graph } = &mut *state;
        for (kind, follower) in followers {
            follower.catch_up(|step| match step {
                Step::Reset(snapshot) => {
                    graph.clear(*kind);
                    snapshot.objects.values().for_each(|stored| graph.put(*kind, &stored.key, &stored.decode()));
                }
                Step::Changed(change) if change.deleted => graph.remove(*kind, &change.object.key),
                Step::Changed(change) => graph.put(*kind, &change.object.key, &change.object.decode()),
            });
        }
        graph.connects(node, kind, key)
    }

    fn get(&self, node: &str, kind: Kind, access: &Access<'_>) -> Result<(), String> {
        match (access.verb, access.subresource) {
            ("get", "") => self.related(node, kind, access),
            ("get", _) => Err("cannot get subresource".into()),
            _ => Err("can only get individual resources of this type".into()),
        }
    }

    fn read(&self, node: &str, kind: Kind, access: &Access<'_>) -> Result<(), String> {
        if !matches!(access.verb, "get" | "list" | "watch") {
            return Err("can only read resources of this type".into());
        }
        if !access.subresource.is_empty() {
            return Err("cannot read subresource".into());
        }
        if access.namespace.is_empty() {
            return Err("can only read namespaced object of this type".into());
        }
        self.related(node, kind, access)
    }

    fn claim_status(&self, node: &str, access: &Access<'_>) -> Result<(), String> {
        match access.verb {
            "update" | "patch" => self.related(node, Kind::VolumeClaim, access),
            _ => Err("can only get/update/patch this type".into()),
        }
    }

    fn service_account(&self, node: &str, access: &Access<'_>) -> Result<(), String> {
        if access.verb == "get" && access.subresource.is_empty() {
            return self.read(node, Kind::ServiceAccount, access);
        }
        if access.verb != "create" || access.name.is_empty() {
            return Err("can only create tokens for individual service accounts".into());
        }
        if access.subresource != "token" {
            return Err("can only create token subresource of serviceaccount".into());
        }
        self.related(node, Kind::ServiceAccount, access)
    }

    fn resource_slice(&self, node: &str, access: &Access<'_>) -> Result<(), String> {
        if !access.subresource.is_empty() {
            return Err("cannot authorize ResourceSlice subresources".into());
        }
        match access.verb {
            // Whose it is, admission sees.
            "create" => Ok(()),
            "get" | "update" | "patch" | "delete" => self.related(node, Kind::ResourceSlice, access),
            "watch" | "list" | "deletecollection" if access.selects("spec.nodeName", node) => Ok(()),
            "watch" | "list" | "deletecollection" => {
                Err("can only list/watch/deletecollection resourceslices with nodeName field selector".into())
            }
            _ => Err(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, \
                      delete, deletecollection"
                    .into(),
            ),
        }
    }

    fn pod(&self, node: &str, access: &Access<'_>) -> Result<(), String> {
        match (access.subresource, access.verb) {
            ("", "get") => self.get(node, Kind::Pod, access),
            ("", "list" | "watch") if access.selects("spec.nodeName", node) => Ok(()),
            ("", "list" | "watch") if !access.name.is_empty() => self.related(node, Kind::Pod, access),
            ("", "list" | "watch") => Err("can only list/watch pods with spec.nodeName field selector".into()),
            // Whose they are, admission sees.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
            _ => Err(String::new()),
        }
    }
}

fn own_node(node: &str, access: &Access<'_>) -> Result<(), String> {
    match (access.subresource, access.verb) {
        // Whose it is, admission sees.
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") => match access.name {
            name if name == node => Ok(()),
            "" => Err(format!("node '{node}' cannot read all nodes, only its own Node object")),
            other => Err(format!("node '{node}' cannot read '{other}', only its own Node object")),
        },
        _ => Err(String::new()),
    }
}

fn lease(node: &str, access: &Access<'_>) -> Result<(), String> {
    if !matches!(access.verb, "get" | "create" | "update" | "patch" | "delete") {
        return Err("can only get, create, update, patch, or delete a node lease".into());
    }
    if access.namespace != LEASES {
        return Err(format!("can only access leases in the {LEASES:?} system namespace"));
    }
    // The name of a new one is in its body, which admission sees.
    if access.verb != "create" && access.name != node {
        return Err("can only access node lease with the same name as the requesting node".into());
    }
    Ok(())
}

fn csi_node(node: &str, access: &Access<'_>) -> Result<(), String> {
    if !matches!(access.verb, "get" | "create" | "update" | "patch" | "delete") {
        return Err("can only get, create, update, patch, or delete a CSINode".into());
    }
    if !access.subresource.is_empty() {
        return Err("cannot authorize CSINode subresources".into());
    }
    if access.verb != "create" && access.name != node {
        return Err("can only access CSINode with the same name as the requesting node".into());
    }
    Ok(())
}

//! Nobody gives away what they do not have: writes of roles and bindings, checked as upstream's storage does.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _, UserInfo};

use super::rbac::GROUP;
use super::rule::{Rule, missing, rules_of};
use super::{Access, decide};
use crate::admission::Attributes;
use crate::server::{ApiServer, store_error};

/// Refuses a role or binding that grants more than its writer has, unless they may `escalate` or `bind`.
pub(crate) async fn check(server: &Arc<ApiServer>, attributes: &Attributes<'_>, new: &Object) -> Result<(), ApiError> {
    let (info, old) = (&attributes.served.info, attributes.old);
    let Some(context) = attributes.context else { return Ok(()) };
    if info.group != GROUP || context.user.in_group("system:masters") || old.is_some_and(|old| is_for_gc(new, old)) {
        return Ok(());
    }
    // What was granted a moment ago counts.
    server.feed.current().await.map_err(store_error)?;
    let user = &context.user;
    match info.plural.as_str() {
        "roles" | "clusterroles" => role(server, attributes, user, new).await,
        _ => binding(server, attributes, user, new).await,
    }
}

async fn role(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    user: &UserInfo,
    new: &Object,
) -> Result<(), ApiError> {
    let plural = attributes.served.info.plural.as_str();
    // As the request names it: not at all where it creates.
    let name = attributes.context.map(|context| context.info.name.as_str()).unwrap_or_default();
    let escalate = access("escalate", plural, name, attributes.namespace);
    if decide(server, user, &escalate).await.is_allowed() {
        return Ok(());
    }
    confirm(server, attributes, user, &rules_of(new.get("rules")))?;
    let aggregates = |role: &Object| {
        let selectors = role.at(&["aggregationRule", "clusterRoleSelectors"]).and_then(|list| list.as_array());
        selectors.is_some_and(|list| !list.is_empty())
    };
    if plural == "clusterroles" && (aggregates(new) || attributes.old.is_some_and(aggregates)) {
        let all = || vec!["*".to_owned()];
        let everything = [
            Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
            Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
        ];
        let refused = |_| attributes.forbidden("must have cluster-admin privileges to use the aggregationRule");
        confirm(server, attributes, user, &everything).map_err(refused)?;
    }
    Ok(())
}

async fn binding(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    user: &UserInfo,
    new: &Object,
) -> Result<(), ApiError> {
    let (kind, name) = (new.text(&["roleRef", "kind"]), new.text(&["roleRef", "name"]));
    let (plural, key) = match kind {
        "ClusterRole" => ("clusterroles", name.to_owned()),
        "Role" => ("roles", format!("{}/{name}", attributes.namespace)),
        // Upstream fails before it validates.
        _ => return Err(ApiError::new(500, "", format!("unsupported role reference kind: {kind:?}"))),
    };
    if decide(server, user, &access("bind", plural, name, attributes.namespace)).await.is_allowed() {
        return Ok(());
    }
    // Upstream tells the role's name as one of the resource that is asked for.
    let missing = || ApiError::not_found(attributes.served.group_resource(), name);
    let rules = server.rbac.role(&key).ok_or_else(missing)?;
    confirm(server, attributes, user, &rules)
}

fn confirm(server: &ApiServer, attributes: &Attributes<'_>, user: &UserInfo, wanted: &[Rule]) -> Result<(), ApiError> {
    let owned = server.rbac.rules_for(user, attributes.namespace);
    let Some(missing) = missing(&owned, wanted) else { return Ok(()) };
    let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
    Err(attributes.forbidden(format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{missing}",
        user.name,
        groups.join(" ")
    )))
}

fn access<'a>(verb: &'a str, resource: &'a str, name: &'a str, namespace: &'a str) -> Access<'a> {
    Access { is_resource: true, verb, group: GROUP, version: "*", resource, name, namespace, ..Access::default() }
}

/// Only what the garbage collector must change differs.
pub(crate) fn is_for_gc(new: &Object, old: &Object) -> bool {
    let rest = |object: &Object| {
        let mut rest = object.clone();
        for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
            rest.metadata().remove(field);
        }
        rest
    };
    rest(new) == rest(old)
}

//! The parameters a binding refers to.

use std::sync::Arc;

use api::selector::Selector;
use api::{Object, ObjectExt as _};

use super::definition::{Binding, Policy};
use crate::convert;
use crate::registry::Served;
use crate::server::ApiServer;
use crate::storage::{Cache, Stored};

/// Why a policy cannot be used at all: nothing serves the kind of its parameters.
pub(super) fn unknown_kind(server: &ApiServer, policy: &Policy) -> Option<String> {
    let (api_version, kind) = policy.param_kind.as_ref()?;
    match find(server, api_version, kind) {
        Some(_) => None,
        None => Some(format!("failed to find resource referenced by paramKind: '{api_version}, Kind={kind}'")),
    }
}

fn find(server: &ApiServer, api_version: &str, kind: &str) -> Option<(Arc<Served>, Arc<Cache>)> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let is_it = |info: &api::resources::Resource| info.group == group && info.version == version && info.kind == kind;
    let all = server.all_served();
    let found = all.iter().find(|served| is_it(&served.info) && served.cache.is_some())?;
    Some((found.clone(), found.cache.clone()?))
}

/// The objects a policy is to be evaluated with, once each; `None` stands for an evaluation without one.
pub(super) fn collect(
    server: &ApiServer,
    policy: &Policy,
    binding: &Binding,
    namespace: &str,
) -> Result<Vec<Option<Object>>, String> {
    let (Some((api_version, kind)), Some(reference)) = (&policy.param_kind, &binding.params) else {
        return Ok(vec![None]);
    };
    let Some((served, cache)) = find(server, api_version, kind) else {
        return Err(format!("paramKind kind `&ParamKind{{APIVersion:{api_version},Kind:{kind},}}` not known"));
    };
    let own = reference.text(&["namespace"]);
    let namespace = match (served.info.namespaced, own) {
        (false, "") => "",
        (false, _) => return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned()),
        (true, "") if namespace.is_empty() => {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned()
            );
        }
        (true, "") => namespace,
        (true, own) => own,
    };
    let seen = |stored: &Stored| Some(convert::seen(&served, stored));
    let name = reference.text(&["name"]);
    let params: Vec<Option<Object>> = if name.is_empty() {
        let selector = reference.get("selector").and_then(|selector| serde_json::from_value(selector.clone()).ok());
        let selector = Selector::from_label_selector(selector.as_ref()).map_err(|error| error.to_string())?;
        let snapshot = cache.snapshot();
        let all = snapshot.objects.values();
        let chosen = all.filter(|stored| !served.info.namespaced || stored.namespace() == namespace);
        chosen.filter(|stored| selector.matches_by(|key| stored.label(key))).map(|stored| seen(stored)).collect()
    } else {
        cache.get(&served.key(namespace, name)).map(|stored| seen(&stored)).into_iter().collect()
    };
    if params.is_empty() && reference.text(&["parameterNotFoundAction"]) == "Deny" {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(params)
}

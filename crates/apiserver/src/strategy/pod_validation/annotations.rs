//! The rules of what a pod says in annotations, from before there were fields for it.

use api::field::FieldError;
use api::{Object, ObjectExt as _};

use super::super::check::{At, check};
use super::super::node::tolerations;
use super::super::volume_sources::descending;
use super::all_containers;

const MIRROR: &str = "kubernetes.io/config.mirror";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

pub(in super::super) fn rules(annotations: &At<'_>, spec: &At<'_>) {
    let said = |key: &str| {
        let value = annotations.field(key);
        value.exists().then(|| value.called(annotations.path().key(key)))
    };
    if let Some(mirror) = said(MIRROR).filter(|_| spec.field("nodeName").is_empty()) {
        mirror.invalid("must set spec.nodeName if mirror pod annotation is set");
    }
    if let Some(listed) = said(TOLERATIONS).filter(|listed| !listed.is_empty()) {
        tolerations_of(annotations, listed.text());
    }
    if let Some(cost) = said(DELETION_COST).filter(|cost| !is_cost(cost.text())) {
        cost.invalid("must be a 32bit integer");
    }
    if let Some(profile) = said(SECCOMP_POD) {
        seccomp(&profile.called(annotations.path().child(SECCOMP_POD)));
    }
    for (key, value) in annotations.entries() {
        if key.starts_with(SECCOMP_CONTAINER) {
            seccomp(&value.called(annotations.path().child(key)));
        }
    }
    for (key, value) in annotations.entries() {
        let Some(name) = key.strip_prefix(APPARMOR) else { continue };
        if !all_containers(spec).iter().any(|container| container.field("name").text() == name) {
            value.complain(FieldError::invalid(value.path(), name, "container not found"));
        }
        let profile = value.text();
        if !matches!(profile, "" | "runtime/default" | "unconfined") && !profile.starts_with("localhost/") {
            value.invalid(format!("invalid AppArmor profile name: {profile:?}"));
        }
    }
}

/// An integer as upstream's parser reads one, without the forms in which it could be mistaken for another.
fn is_cost(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = digits == "0" || !digits.starts_with('0');
    !text.starts_with('+') && plain && text != "-0" && text.parse::<i32>().is_ok()
}

fn tolerations_of(annotations: &At<'_>, text: &str) {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(list) if list.is_array() => {
            let holder: Object = [("list".to_owned(), list)].into_iter().collect();
            let path = annotations.path().child(TOLERATIONS);
            annotations.extend(check(&holder, |at| tolerations(&at.field("list").called(path))));
        }
        _ => {
            let detail = "invalid character in the list of tolerations";
            annotations.complain(FieldError::invalid(annotations.path(), TOLERATIONS, detail));
        }
    }
}

fn seccomp(at: &At<'_>) {
    match at.text() {
        "runtime/default" | "docker/default" | "unconfined" => (),
        text => match text.strip_prefix("localhost/") {
            Some(_) => local(at),
            None => at.invalid("must be a valid seccomp profile"),
        },
    }
}

/// The path behind the prefix leads down.
fn local(at: &At<'_>) {
    let path = at.text().strip_prefix("localhost/").unwrap_or_default();
    let holder: Object = [("path".to_owned(), path.into())].into_iter().collect();
    at.extend(check(&holder, |holder| descending(&holder.field("path").called(at.path().clone()))));
}

/// What a new pod says twice, it says alike.
pub(in super::super) fn on_create(annotations: &At<'_>, spec: &At<'_>) {
    const SECCOMP: [&str; 2] = ["securityContext", "seccompProfile"];
    const PROFILE: [&str; 2] = ["securityContext", "appArmorProfile"];
    let said = |prefix: &str, container: &At<'_>| {
        let key = format!("{prefix}{}", container.field("name").text());
        annotations.field(&key).value().as_str()
    };
    if let Some(said) = annotations.field(SECCOMP_POD).value().as_str() {
        alike(&spec.at(&SECCOMP), said, "seccomp");
    }
    for container in all_containers(spec) {
        if let Some(said) = said(SECCOMP_CONTAINER, &container) {
            alike(&container.at(&SECCOMP), said, "seccomp");
        }
    }
    if spec.at(&["os", "name"]).text() == "windows" {
        return;
    }
    for container in all_containers(spec) {
        let own = container.at(&PROFILE);
        let profile = if own.exists() { own.clone() } else { spec.at(&PROFILE) };
        if let Some(said) = said(APPARMOR, &container) {
            alike(&profile.called(own.path().clone()), said, "apparmor");
        }
    }
}

fn alike(profile: &At<'_>, said: &str, called: &str) {
    let kind = profile.field("type");
    let path = said.strip_prefix("localhost/");
    let same = match kind.text() {
        "Unconfined" => said == "unconfined",
        "RuntimeDefault" => said == "runtime/default" || (called == "seccomp" && said == "docker/default"),
        "Localhost" => path.is_some(),
        _ => return,
    };
    if !same {
        kind.forbidden(format!("{called} type in annotation and field must match"));
    } else if let Some(path) = path.filter(|_| kind.text() == "Localhost") {
        let own = profile.field("localhostProfile");
        if !own.exists() || own.text() != path {
            own.forbidden(format!("{called} profile in annotation and field must match"));
        }
    }
}

/// What was said of AppArmor and mirrors stays said, and the rules of all annotations are told again.
pub(in super::super) fn on_update(new: &Object, old: &Object) -> Vec<FieldError> {
    let of = |object: &Object| object.at(&["metadata", "annotations"]).and_then(|all| all.as_object().cloned());
    let (now, before) = (of(new).unwrap_or_default(), of(old).unwrap_or_default());
    check(new, |pod| {
        let place = pod.at(&["metadata", "annotations"]);
        let tell = |key: &str, what: &str| {
            place.complain(FieldError::forbidden(&place.path().key(key), format!("may not {what}")));
        };
        for (key, _) in before.iter().filter(|(key, value)| now.get(*key) != Some(value)) {
            if key.starts_with(APPARMOR) {
                tell(key, "remove or update AppArmor annotations");
            }
            if key == MIRROR {
                tell(key, "remove or update mirror pod annotation");
            }
        }
        for key in now.keys().filter(|key| !before.contains_key(*key)) {
            if key.starts_with(APPARMOR) {
                tell(key, "add AppArmor annotations");
            }
            if key == MIRROR {
                tell(key, "add mirror pod annotation");
            }
        }
        rules(&place, &pod.field("spec"));
    })
}

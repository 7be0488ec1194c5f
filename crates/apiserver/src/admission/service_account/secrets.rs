//! Which secrets a pod may name, where its account says that only those it lists are.

use api::{Object, ObjectExt as _};
use serde_json::Value;

fn list<'a>(object: &'a Object, path: &[&str]) -> impl Iterator<Item = &'a Object> + use<'a> {
    object.at(path).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

fn names<'a>(account: &'a Object, field: &str) -> Vec<&'a str> {
    list(account, &[field]).map(|reference| reference.text(&["name"])).collect()
}

/// Why the pod names a secret that its account does not list.
pub(super) fn unlisted(account: &Object, pod: &Object) -> Option<String> {
    let (mountable, of) = (names(account, "secrets"), account.name());
    for volume in list(pod, &["spec", "volumes"]).filter(|volume| volume.contains_key("secret")) {
        let secret = volume.text(&["secret", "secretName"]);
        if !mountable.contains(&secret) {
            return Some(format!(
                "volume with secret.secretName=\"{secret}\" is not allowed because service account {of} does not reference that secret"
            ));
        }
    }
    let environment = environment(&mountable, of, pod, "initContainers", "init container")
        .or_else(|| environment(&mountable, of, pod, "containers", "container"));
    if environment.is_some() {
        return environment;
    }
    let pull = names(account, "imagePullSecrets");
    let mut asked = list(pod, &["spec", "imagePullSecrets"]).map(|reference| reference.text(&["name"])).enumerate();
    let (index, name) = asked.find(|(_, name)| !pull.contains(name))?;
    Some(format!(
        "imagePullSecrets[{index}].name=\"{name}\" is not allowed because service account {of} does not reference that imagePullSecret"
    ))
}

/// The same of containers that come later.
pub(super) fn unlisted_ephemeral(account: &Object, pod: &Object) -> Option<String> {
    environment(&names(account, "secrets"), account.name(), pod, "ephemeralContainers", "ephemeral container")
}

fn environment(mountable: &[&str], account: &str, pod: &Object, field: &str, what: &str) -> Option<String> {
    for container in list(pod, &["spec", field]) {
        let refused = |how: &str, secret: &str| {
            format!(
                "{what} {} with {how} referencing secret.secretName=\"{secret}\" is not allowed because service account {account} does not reference that secret",
                container.text(&["name"])
            )
        };
        for env in list(container, &["env"]) {
            let secret = env.text(&["valueFrom", "secretKeyRef", "name"]);
            if !secret.is_empty() && !mountable.contains(&secret) {
                return Some(refused(&format!("envVar {}", env.text(&["name"])), secret));
            }
        }
        for env in list(container, &["envFrom"]).filter(|env| env.contains_key("secretRef")) {
            let secret = env.text(&["secretRef", "name"]);
            if !mountable.contains(&secret) {
                return Some(refused("envFrom", secret));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(spec: Value, want: Option<&str>) {
        let account =
            json!({"metadata": {"name": "sa"}, "secrets": [{"name": "a"}], "imagePullSecrets": [{"name": "p"}]});
        let pod = json!({"spec": spec});
        assert_eq!(unlisted(account.as_object().unwrap(), pod.as_object().unwrap()).as_deref(), want);
    }

    #[test]
    fn only_listed_secrets_are_mounted() {
        check(json!({"volumes": [{"secret": {"secretName": "a"}}], "imagePullSecrets": [{"name": "p"}]}), None);
        check(
            json!({"volumes": [{"secret": {"secretName": "b"}}]}),
            Some(
                "volume with secret.secretName=\"b\" is not allowed because service account sa does not reference that secret",
            ),
        );
        check(
            json!({"containers": [{"name": "c", "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "b"}}}]}]}),
            Some(
                "container c with envVar X referencing secret.secretName=\"b\" is not allowed because service account sa does not reference that secret",
            ),
        );
        check(
            json!({"imagePullSecrets": [{"name": "q"}]}),
            Some(
                "imagePullSecrets[0].name=\"q\" is not allowed because service account sa does not reference that imagePullSecret",
            ),
        );
    }
}

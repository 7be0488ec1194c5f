//! The rules of what is told of a pod that runs.

use std::net::IpAddr;

use api::Object;
use api::field::FieldError;
use api::validation::{is_label, is_qualified_name, is_subdomain};
use serde_json::Value;

use super::super::check::{At, check};
use super::super::pod_validation;

const CONTAINERS: [(&str, &str); 3] = [
    ("containerStatuses", "containers"),
    ("initContainerStatuses", "initContainers"),
    ("ephemeralContainerStatuses", ""),
];

pub(super) fn validate(new: &Object, old: &Object) -> Vec<FieldError> {
    let mut errors = pod_validation::annotations_on_update(new, old);
    errors.extend(check(new, |pod| {
        // Nothing is told of the old one, which is only read.
        check(old, |old| rules(&pod, &old));
    }));
    errors
}

fn rules(pod: &At<'_>, old: &At<'_>) {
    let (status, before, spec) = (pod.field("status"), old.field("status"), pod.field("spec"));
    conditions(&status.field("conditions"));
    let nominated = status.field("nominatedNodeName");
    if !nominated.is_empty() && nominated.text() != before.field("nominatedNodeName").text() {
        nominated.named(is_subdomain);
        if !old.at(&["spec", "nodeName"]).is_empty() {
            nominated.forbidden("may not be set on pods that are already bound to a node");
        }
    }
    natural(&status.field("observedGeneration"));
    let class = status.field("qosClass");
    if class.text() != before.field("qosClass").text() {
        class.complain(FieldError::invalid(class.path(), class.text(), "field is immutable"));
    }
    let old_spec = old.field("spec");
    for (list, containers) in CONTAINERS {
        transitions(&status.field(list), &before.field(list), containers, &old_spec);
    }
    claims(&status.field("resourceClaimStatuses"), &spec);
    extended(&status.field("extendedResourceClaimStatus"), &spec);
    addresses(&status.field("podIPs"), &before.field("podIPs"));
    let hosts = status.field("hostIPs");
    if let Some(first) = hosts.items().first().map(|host| host.field("ip")) {
        if first.text() != status.field("hostIP").text() {
            first.complain(FieldError::invalid(first.path(), first.text(), "must be equal to `hostIP`"));
        }
        addresses(&hosts, &before.field("hostIPs"));
    }
    for (list, _) in CONTAINERS {
        users(&status.field(list), &spec);
    }
    for (list, containers) in CONTAINERS {
        health(&status.field(list), &spec, containers);
    }
}

fn natural(at: &At<'_>) {
    if at.number().is_some_and(|number| number < 0) {
        at.invalid("must be a non-negative integer");
    }
}

fn conditions(list: &At<'_>) {
    for condition in list.items() {
        natural(&condition.field("observedGeneration"));
        let kind = condition.field("type").called(condition.path().child("Type"));
        if !matches!(kind.text(), "PodScheduled" | "Ready" | "Initialized") {
            kind.named(is_qualified_name);
        }
    }
}

/// What has ended stays ended, unless its policy starts it again.
fn transitions(new: &At<'_>, old: &At<'_>, containers: &str, spec: &At<'_>) {
    let restarts_all = |container: &At<'_>| {
        container.each("restartPolicyRules").iter().any(|rule| rule.field("action").text() == "RestartAllContainers")
    };
    let any = ["initContainers", "containers"].iter().flat_map(|list| spec.each(list)).any(|c| restarts_all(&c));
    if !containers.is_empty() && any {
        return;
    }
    for (index, before) in old.items().iter().enumerate() {
        let ended = before.at(&["state", "terminated"]);
        let name = before.field("name").text();
        let now = new
            .items()
            .into_iter()
            .find(|status| status.field("name").text() == name && !status.at(&["state", "terminated"]).exists());
        if !ended.exists() || now.is_none() {
            continue;
        }
        let code = ended.field("exitCode").number().unwrap_or(0);
        let container = spec.each(containers).into_iter().find(|container| container.field("name").text() == name);
        if !container.is_some_and(|container| restarts(&container, spec, code)) {
            let place = new.path().index(index).child("state");
            new.complain(FieldError::forbidden(&place, "may not be transitioned to non-terminated state"));
        }
    }
}

fn restarts(container: &At<'_>, spec: &At<'_>, code: i64) -> bool {
    let own = container.field("restartPolicy");
    let matches = |rule: &At<'_>| {
        let codes = rule.field("exitCodes");
        let listed = codes.each("values").iter().any(|value| value.number() == Some(code));
        match codes.field("operator").text() {
            "In" => listed,
            "NotIn" => codes.exists() && !listed,
            _ => false,
        }
    };
    if own.exists() && container.each("restartPolicyRules").iter().any(matches) {
        return true;
    }
    match if own.exists() { own.text() } else { spec.field("restartPolicy").text() } {
        "OnFailure" => code != 0,
        "Never" => false,
        _ => true,
    }
}

fn claims(list: &At<'_>, spec: &At<'_>) {
    let known = spec.each("resourceClaims");
    let mut seen = Vec::new();
    for status in list.items() {
        let (name, claim) = (status.field("name"), status.field("resourceClaimName"));
        if !known.iter().any(|claim| claim.field("name").text() == name.text()) {
            let detail = "must match the name of an entry in `spec.resourceClaims`";
            name.complain(FieldError::invalid(name.path(), name.text(), detail));
        }
        if seen.contains(&name.text()) {
            name.complain(FieldError::duplicate(name.path(), name.text()));
        }
        seen.push(name.text());
        if claim.exists() {
            claim.named(is_subdomain);
        }
    }
}

fn extended(at: &At<'_>, spec: &At<'_>) {
    if !at.exists() {
        return;
    }
    let mappings = at.field("requestMappings");
    if mappings.is_empty() {
        mappings.required("at least one request mapping is required");
    }
    let containers: Vec<At<'_>> = ["initContainers", "containers"].iter().flat_map(|list| spec.each(list)).collect();
    let mut seen = Vec::new();
    for mapping in mappings.items() {
        let fields = ["containerName", "resourceName", "requestName"].map(|name| mapping.field(name));
        let [container, resource, request] = &fields;
        let tell = |at: &At<'_>, detail: &str| at.complain(FieldError::invalid(at.path(), at.text(), detail));
        match containers.iter().rev().find(|known| known.field("name").text() == container.text()) {
            Some(known) if !known.at(&["resources", "requests", resource.text()]).exists() => tell(
                resource,
                "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests",
            ),
            Some(_) => (),
            None => {
                tell(container, "must match the name of an entry in spec.initContainers.name or spec.containers.name")
            }
        }
        // Upstream tells of the status here, not of the mapping.
        request.called(at.path().child("requestName")).named(is_label);
        let key = fields.each_ref().map(|field| field.text());
        if seen.contains(&key) {
            fields.iter().for_each(|field| field.complain(FieldError::duplicate(field.path(), field.text())));
        }
        seen.push(key);
    }
    at.field("resourceClaimName").needed_named(is_subdomain);
}

/// One address of each family at most; those that were there are not judged again.
fn addresses(list: &At<'_>, old: &At<'_>) {
    let texts =
        |list: &At<'_>| -> Vec<String> { list.items().iter().map(|item| item.field("ip").text().to_owned()).collect() };
    let (all, before) = (texts(list), texts(old));
    for item in list.items() {
        let address = item.field("ip").called(item.path().clone());
        if !before.iter().any(|known| known == address.text()) {
            // One that is missing is told as an empty one.
            match address.exists() {
                true => drop(address.ip()),
                false => address.complain(FieldError::invalid(address.path(), "", NOT_AN_ADDRESS)),
            }
        }
    }
    if all.len() < 2 {
        return;
    }
    let parsed: Vec<Option<IpAddr>> = all.iter().map(|text| text.parse().ok()).collect();
    if let Some(index) = parsed.iter().position(Option::is_none) {
        let text = all.get(index).map_or("", String::as_str);
        let detail = format!("failed to check for dual stack with error:invalid IP[{index}]: {text}");
        list.complain(FieldError::internal(list.path(), detail));
    }
    let families = |is: fn(&IpAddr) -> bool| parsed.iter().flatten().any(is);
    let dual = parsed.iter().all(Option::is_some) && families(IpAddr::is_ipv4) && families(IpAddr::is_ipv6);
    if !dual || all.len() > 2 {
        let shown: Vec<Value> = all.iter().map(|text| serde_json::json!({"IP": text})).collect();
        let detail = "may specify no more than one IP for each IP family";
        list.complain(FieldError::invalid(list.path(), shown, detail));
    }
}

const NOT_AN_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

fn users(list: &At<'_>, spec: &At<'_>) {
    let os = if spec.field("os").exists() { spec.at(&["os", "name"]).text() } else { "linux" };
    for linux in list.items().iter().map(|status| status.at(&["user", "linux"])).filter(At::exists) {
        match os {
            "windows" => linux.forbidden("cannot be set for a windows pod"),
            "linux" => {
                let groups = linux.each("supplementalGroups");
                for id in [linux.field("uid"), linux.field("gid")].into_iter().chain(groups) {
                    id.between(0, i64::from(i32::MAX));
                }
            }
            _ => (),
        }
    }
}

/// What is told of the devices of a container.
fn health(list: &At<'_>, spec: &At<'_>, containers: &str) {
    const CLAIM: &str = "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty";
    const MESSAGE_MAX: usize = 1024;
    for status in list.items() {
        let told = status.field("allocatedResourcesStatus");
        if containers.is_empty() {
            if !told.is_empty() {
                told.forbidden("must not be specified in container status");
            }
            continue;
        }
        let own = status.field("name").text();
        let container = spec.each(containers).into_iter().find(|container| container.field("name").text() == own);
        for resource in told.items() {
            let name = resource.field("name");
            if let Some(resources) = container.as_ref().map(|container| container.field("resources")) {
                let (known, detail) = match name.text().strip_prefix("claim:") {
                    Some(claim) => (is_claimed(&resources, claim), CLAIM),
                    None => {
                        let known = resources.at(&["requests", name.text()]).exists();
                        (known, "must match one of the container's resource requests")
                    }
                };
                if !known {
                    name.complain(FieldError::invalid(name.path(), name.text(), detail));
                }
            }
            let mut seen = Vec::new();
            for device in resource.each("resources") {
                device.field("health").one_of(&["Healthy", "Unhealthy", "Unknown"]);
                let message = device.field("message");
                if message.exists() && message.is_empty() {
                    message.required("must be non-empty if specified");
                } else if message.text().len() > MESSAGE_MAX {
                    message.complain(FieldError::too_long(message.path(), MESSAGE_MAX));
                }
                let id = device.field("resourceID");
                if seen.contains(&id.text()) {
                    id.complain(FieldError::duplicate(id.path(), id.text()));
                }
                seen.push(id.text());
            }
        }
    }
}

fn is_claimed(resources: &At<'_>, told: &str) -> bool {
    resources.each("claims").iter().any(|claim| match claim.field("request").text() {
        "" => claim.field("name").text() == told,
        request => format!("{}/{request}", claim.field("name").text()) == told,
    })
}

/// What to tell of a status that is valid.
pub(super) fn warnings(pod: &Object) -> Vec<String> {
    let mut told = Vec::new();
    for list in ["podIPs", "hostIPs"] {
        check(pod, |at| {
            for address in at.at(&["status", list]).items() {
                super::super::warnings::address(&address.field("ip"), &mut told);
            }
        });
    }
    told
}

//! The columns of each resource.

use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::{
    AGE, CREATED, Column, NAME, age, age::since, cluster, condition, count, flag, labels, list, name, networking,
    number, or, or_none, pod, selector_at, storage, strings, text, versions, wide,
};

/// Every other resource: its name, and when it was made.
static PLAIN: [Column; 2] = [NAME, CREATED];
static NAMED: [Column; 2] = [NAME, AGE];

static PODS: [Column; 9] = [
    NAME,
    text("Ready", pod::ready),
    text("Status", pod::status),
    text("Restarts", pod::restarts),
    AGE,
    wide("IP", |o| or_none(o, &["status", "podIP"])),
    wide("Node", |o| or_none(o, &["spec", "nodeName"])),
    wide("Nominated Node", |o| or_none(o, &["status", "nominatedNodeName"])),
    wide("Readiness Gates", readiness_gates),
];

static DEPLOYMENTS: [Column; 8] = [
    NAME,
    text("Ready", |o| format!("{}/{}", count(o, &["status", "readyReplicas"]), count(o, &["spec", "replicas"])).into()),
    text("Up-to-date", |o| count(o, &["status", "updatedReplicas"]).into()),
    text("Available", |o| count(o, &["status", "availableReplicas"]).into()),
    AGE,
    wide("Containers", |o| containers(o, "name")),
    wide("Images", |o| containers(o, "image")),
    wide("Selector", selector),
];

static REPLICA_SETS: [Column; 8] = [
    NAME,
    number("Desired", |o| count(o, &["spec", "replicas"]).into()),
    number("Current", |o| count(o, &["status", "replicas"]).into()),
    number("Ready", |o| count(o, &["status", "readyReplicas"]).into()),
    AGE,
    wide("Containers", |o| containers(o, "name")),
    wide("Images", |o| containers(o, "image")),
    wide("Selector", selector),
];

static DAEMON_SETS: [Column; 11] = [
    NAME,
    number("Desired", |o| count(o, &["status", "desiredNumberScheduled"]).into()),
    number("Current", |o| count(o, &["status", "currentNumberScheduled"]).into()),
    number("Ready", |o| count(o, &["status", "numberReady"]).into()),
    number("Up-to-date", |o| count(o, &["status", "updatedNumberScheduled"]).into()),
    number("Available", |o| count(o, &["status", "numberAvailable"]).into()),
    text("Node Selector", |o| labels(o.at(&["spec", "template", "spec", "nodeSelector"]))),
    AGE,
    wide("Containers", |o| containers(o, "name")),
    wide("Images", |o| containers(o, "image")),
    wide("Selector", selector),
];

static STATEFUL_SETS: [Column; 5] = [
    NAME,
    text("Ready", |o| format!("{}/{}", count(o, &["status", "readyReplicas"]), count(o, &["spec", "replicas"])).into()),
    AGE,
    wide("Containers", |o| containers(o, "name")),
    wide("Images", |o| containers(o, "image")),
];

static JOBS: [Column; 8] = [
    NAME,
    text("Status", job_status),
    text("Completions", |o| {
        format!(
            "{}/{}",
            count(o, &["status", "succeeded"]),
            o.at(&["spec", "completions"]).and_then(Value::as_i64).unwrap_or(1)
        )
        .into()
    }),
    text("Duration", job_duration),
    AGE,
    wide("Containers", |o| containers(o, "name")),
    wide("Images", |o| containers(o, "image")),
    wide("Selector", selector),
];

static CRON_JOBS: [Column; 10] = [
    NAME,
    text("Schedule", |o| o.text(&["spec", "schedule"]).into()),
    text("Timezone", |o| or_none(o, &["spec", "timeZone"])),
    flag("Suspend", |o| if o.at(&["spec", "suspend"]) == Some(&Value::Bool(true)) { "True" } else { "False" }.into()),
    number("Active", |o| list(o, &["status", "active"]).len().into()),
    text("Last Schedule", |o| match o.text(&["status", "lastScheduleTime"]) {
        "" => "<none>".into(),
        at => since(at).into(),
    }),
    AGE,
    wide("Containers", |o| job_containers(o, "name")),
    wide("Images", |o| job_containers(o, "image")),
    wide("Selector", |o| selector_at(o, &["spec", "jobTemplate", "spec", "selector"])),
];

static SERVICES: [Column; 7] = [
    NAME,
    text("Type", |o| o.text(&["spec", "type"]).into()),
    text("Cluster-IP", |o| or_none(o, &["spec", "clusterIP"])),
    text("External-IP", external_ip),
    text("Port(s)", service_ports),
    AGE,
    wide("Selector", |o| labels(o.at(&["spec", "selector"]))),
];

static ENDPOINTS: [Column; 3] = [NAME, text("Endpoints", endpoints), AGE];

static ENDPOINT_SLICES: [Column; 5] = [
    NAME,
    text("AddressType", |o| o.text(&["addressType"]).into()),
    text("Ports", slice_ports),
    text("Endpoints", |o| {
        let all = list(o, &["endpoints"]).into_iter().flat_map(|e| strings(e, &["addresses"])).collect::<Vec<_>>();
        limited(all, 3)
    }),
    AGE,
];

static NODES: [Column; 10] = [
    NAME,
    text("Status", node_status),
    text("Roles", node_roles),
    AGE,
    text("Version", |o| o.text(&["status", "nodeInfo", "kubeletVersion"]).into()),
    wide("Internal-IP", |o| node_address(o, "InternalIP")),
    wide("External-IP", |o| node_address(o, "ExternalIP")),
    wide("OS-Image", |o| or(o, &["status", "nodeInfo", "osImage"], "<unknown>")),
    wide("Kernel-Version", |o| {
        let version = or(o, &["status", "nodeInfo", "kernelVersion"], "<unknown>");
        match o.text(&["status", "nodeInfo", "architecture"]) {
            "" => version,
            architecture => format!("{} ({architecture})", version.as_str().unwrap_or_default()).into(),
        }
    }),
    wide("Container-Runtime", |o| or(o, &["status", "nodeInfo", "containerRuntimeVersion"], "<unknown>")),
];

static NAMESPACES: [Column; 3] = [NAME, text("Status", |o| o.text(&["status", "phase"]).into()), AGE];

static EVENTS: [Column; 10] = [
    text("Last Seen", |o| since(event_time(o)).into()),
    text("Type", |o| o.text(&["type"]).into()),
    text("Reason", |o| o.text(&["reason"]).into()),
    text("Object", |o| format!("{}/{}", event_object(o, "kind").to_lowercase(), event_object(o, "name")).into()),
    wide("Subobject", |o| event_object(o, "fieldPath").into()),
    wide("Source", |o| event_source(o).into()),
    text("Message", |o| {
        match o.text(&["message"]) {
            "" => o.text(&["note"]),
            text => text,
        }
        .trim()
        .into()
    }),
    wide("First Seen", |o| {
        since(match o.text(&["firstTimestamp"]) {
            "" => event_time(o),
            at => at,
        })
        .into()
    }),
    wide("Count", |o| count(o, &["count"]).max(count(o, &["deprecatedCount"])).max(1).into()),
    wide("Name", name),
];

static SECRETS: [Column; 4] =
    [NAME, text("Type", |o| o.text(&["type"]).into()), text("Data", |o| keys(o, "data").into()), AGE];
static CONFIG_MAPS: [Column; 3] = [NAME, text("Data", |o| (keys(o, "data") + keys(o, "binaryData")).into()), AGE];
static LEASES: [Column; 3] = [NAME, text("Holder", |o| o.text(&["spec", "holderIdentity"]).into()), AGE];
static PRIORITY_CLASSES: [Column; 5] = [
    NAME,
    number("Value", |o| count(o, &["value"]).into()),
    flag("Global-Default", |o| (o.get("globalDefault") == Some(&Value::Bool(true))).into()),
    AGE,
    text("PreemptionPolicy", |o| o.text(&["preemptionPolicy"]).into()),
];
static COMPONENT_STATUSES: [Column; 4] = [
    NAME,
    text("Status", |o| {
        if condition(o, &["conditions"], "Healthy", "status") == "True" { "Healthy" } else { "Unhealthy" }.into()
    }),
    text("Message", |o| condition(o, &["conditions"], "Healthy", "message").into()),
    text("Error", |o| condition(o, &["conditions"], "Healthy", "error").into()),
];

pub(super) fn of(group: &str, plural: &str) -> &'static [Column] {
    match (group, plural) {
        ("", "pods") => &PODS,
        ("apps", "deployments") => &DEPLOYMENTS,
        ("apps", "replicasets") | ("", "replicationcontrollers") => &REPLICA_SETS,
        ("apps", "daemonsets") => &DAEMON_SETS,
        ("apps", "statefulsets") => &STATEFUL_SETS,
        ("batch", "jobs") => &JOBS,
        ("batch", "cronjobs") => &CRON_JOBS,
        ("", "services") => &SERVICES,
        ("", "endpoints") => &ENDPOINTS,
        ("discovery.k8s.io", "endpointslices") => &ENDPOINT_SLICES,
        ("", "nodes") => &NODES,
        ("", "namespaces") => &NAMESPACES,
        (_, "events") => &EVENTS,
        ("", "secrets") => &SECRETS,
        ("", "configmaps") => &CONFIG_MAPS,
        ("", "persistentvolumes") => &storage::PERSISTENT_VOLUMES,
        ("", "persistentvolumeclaims") => &storage::PERSISTENT_VOLUME_CLAIMS,
        ("storage.k8s.io", "storageclasses") => &storage::STORAGE_CLASSES,
        ("storage.k8s.io", "csidrivers") => &storage::CSI_DRIVERS,
        ("storage.k8s.io", "csinodes") => &storage::CSI_NODES,
        ("storage.k8s.io", "volumeattachments") => &storage::VOLUME_ATTACHMENTS,
        ("storage.k8s.io", "volumeattributesclasses") => &storage::VOLUME_ATTRIBUTES_CLASSES,
        ("networking.k8s.io", "ingresses") => &networking::INGRESSES,
        ("networking.k8s.io", "ingressclasses") => &networking::INGRESS_CLASSES,
        ("networking.k8s.io", "networkpolicies") => &networking::NETWORK_POLICIES,
        ("networking.k8s.io", "servicecidrs") => &networking::SERVICE_CIDRS,
        ("networking.k8s.io", "ipaddresses") => &networking::IP_ADDRESSES,
        ("", "resourcequotas") => &cluster::RESOURCE_QUOTAS,
        ("", "podtemplates") => &cluster::POD_TEMPLATES,
        ("apps", "controllerrevisions") => &cluster::CONTROLLER_REVISIONS,
        ("autoscaling", "horizontalpodautoscalers") => &cluster::AUTOSCALERS,
        ("policy", "poddisruptionbudgets") => &cluster::DISRUPTION_BUDGETS,
        ("certificates.k8s.io", "certificatesigningrequests") => &cluster::SIGNING_REQUESTS,
        ("apiregistration.k8s.io", "apiservices") => &cluster::API_SERVICES,
        (_, "mutatingwebhookconfigurations" | "validatingwebhookconfigurations") => &cluster::WEBHOOKS,
        (_, "mutatingadmissionpolicies") => &cluster::MUTATING_POLICIES,
        (_, "validatingadmissionpolicies") => &cluster::VALIDATING_POLICIES,
        (_, "mutatingadmissionpolicybindings" | "validatingadmissionpolicybindings") => &cluster::POLICY_BINDINGS,
        ("node.k8s.io", "runtimeclasses") => &cluster::RUNTIME_CLASSES,
        ("resource.k8s.io", "resourceclaims") => &cluster::RESOURCE_CLAIMS,
        ("resource.k8s.io", "resourceslices") => &cluster::RESOURCE_SLICES,
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => &cluster::FLOW_SCHEMAS,
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations") => &cluster::PRIORITY_LEVELS,
        ("", "componentstatuses") => &COMPONENT_STATUSES,
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => &cluster::BINDINGS,
        ("coordination.k8s.io", "leases") => &LEASES,
        ("coordination.k8s.io", "leasecandidates") => &versions::LEASE_CANDIDATES,
        ("internal.apiserver.k8s.io", "storageversions") => &versions::STORAGE_VERSIONS,
        ("resource.k8s.io", "devicetaintrules") => &versions::DEVICE_TAINT_RULES,
        ("resource.k8s.io", "resourcepoolstatusrequests") => &versions::POOL_STATUS_REQUESTS,
        ("scheduling.k8s.io", "priorityclasses") => &PRIORITY_CLASSES,
        ("", "serviceaccounts") | ("resource.k8s.io", "deviceclasses" | "resourceclaimtemplates") => &NAMED,
        _ => &PLAIN,
    }
}

fn keys(object: &Object, field: &str) -> usize {
    object.get(field).and_then(Value::as_object).map_or(0, Object::len)
}

/// `a,b,c + 4 more...`
pub(super) fn limited(all: Vec<&str>, max: usize) -> Value {
    if all.is_empty() {
        return "<unset>".into();
    }
    let more = all.len().saturating_sub(max);
    let shown = all.into_iter().take(max).collect::<Vec<_>>().join(",");
    if more > 0 { format!("{shown} + {more} more...").into() } else { shown.into() }
}

fn selector(object: &Object) -> Value {
    selector_at(object, &["spec", "selector"])
}

fn containers(object: &Object, field: &str) -> Value {
    let all = list(object, &["spec", "template", "spec", "containers"]);
    all.into_iter().map(|c| c.text(&[field])).collect::<Vec<_>>().join(",").into()
}

fn job_containers(object: &Object, field: &str) -> Value {
    let all = list(object, &["spec", "jobTemplate", "spec", "template", "spec", "containers"]);
    all.into_iter().map(|c| c.text(&[field])).collect::<Vec<_>>().join(",").into()
}

fn readiness_gates(object: &Object) -> Value {
    let gates = list(object, &["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".into();
    }
    let met = gates
        .iter()
        .filter(|gate| condition(object, &["status", "conditions"], gate.text(&["conditionType"]), "status") == "True");
    format!("{}/{}", met.count(), gates.len()).into()
}

fn job_status(object: &Object) -> Value {
    let is = |kind: &str| condition(object, &["status", "conditions"], kind, "status") == "True";
    let known = [
        ("Complete", "Complete"),
        ("Failed", "Failed"),
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ];
    match known.into_iter().find(|(kind, _)| is(kind)) {
        _ if object.is_terminating() => "Terminating".into(),
        Some((_, word)) => word.into(),
        None => "Running".into(),
    }
}

fn job_duration(object: &Object) -> Value {
    let parse = |field: &str| object.text(&["status", field]).parse::<jiff::Timestamp>().ok();
    let Some(start) = parse("startTime") else { return "".into() };
    let end = parse("completionTime").unwrap_or_else(jiff::Timestamp::now);
    age::human(end.duration_since(start).as_secs()).into()
}

fn external_ip(object: &Object) -> Value {
    let mut all: Vec<&str> = list(object, &["status", "loadBalancer", "ingress"])
        .into_iter()
        .map(|i| match i.text(&["ip"]) {
            "" => i.text(&["hostname"]),
            ip => ip,
        })
        .collect();
    all.extend(strings(object, &["spec", "externalIPs"]));
    match (object.text(&["spec", "type"]), all.is_empty()) {
        ("ExternalName", _) => object.text(&["spec", "externalName"]).into(),
        ("LoadBalancer", true) => "<pending>".into(),
        (_, true) => "<none>".into(),
        _ => all.join(",").into(),
    }
}

fn service_ports(object: &Object) -> Value {
    let ports = list(object, &["spec", "ports"]);
    let text = ports.into_iter().map(|port| {
        let (number, protocol) = (count(port, &["port"]), port.text(&["protocol"]));
        match count(port, &["nodePort"]) {
            0 => format!("{number}/{protocol}"),
            node => format!("{number}:{node}/{protocol}"),
        }
    });
    let text = text.collect::<Vec<_>>().join(",");
    if text.is_empty() { "<none>".into() } else { text.into() }
}

fn endpoints(object: &Object) -> Value {
    let mut all = Vec::new();
    for subset in list(object, &["subsets"]) {
        for port in list(subset, &["ports"]) {
            let addresses = list(subset, &["addresses"]).into_iter();
            let places = addresses.map(|a| match a.text(&["ip"]) {
                six if six.contains(':') => format!("[{six}]:{}", count(port, &["port"])),
                four => format!("{four}:{}", count(port, &["port"])),
            });
            all.extend(places);
        }
    }
    if all.is_empty() { "<none>".into() } else { limited(all.iter().map(String::as_str).collect(), 3) }
}

fn slice_ports(object: &Object) -> Value {
    let ports: Vec<String> = list(object, &["ports"]).into_iter().map(|p| count(p, &["port"]).to_string()).collect();
    limited(ports.iter().map(String::as_str).collect(), 3)
}

fn node_status(object: &Object) -> Value {
    let word = match condition(object, &["status", "conditions"], "Ready", "status") {
        "True" => "Ready",
        "" => "Unknown",
        _ => "NotReady",
    };
    let held = object.at(&["spec", "unschedulable"]) == Some(&Value::Bool(true));
    if held { format!("{word},SchedulingDisabled").into() } else { word.into() }
}

fn node_roles(object: &Object) -> Value {
    let labels = object.at(&["metadata", "labels"]).and_then(Value::as_object);
    let roles = labels.into_iter().flatten().filter_map(|(k, _)| k.strip_prefix("node-role.kubernetes.io/"));
    let text = roles.collect::<Vec<_>>().join(",");
    if text.is_empty() { "<none>".into() } else { text.into() }
}

fn node_address(object: &Object, kind: &str) -> Value {
    let found = list(object, &["status", "addresses"]).into_iter().find(|a| a.text(&["type"]) == kind);
    found.map_or("<none>", |a| a.text(&["address"])).into()
}

fn event_time(object: &Object) -> &str {
    let paths: [&[&str]; 5] = [
        &["series", "lastObservedTime"],
        &["lastTimestamp"],
        &["deprecatedLastTimestamp"],
        &["eventTime"],
        &["firstTimestamp"],
    ];
    paths.into_iter().map(|path| object.text(path)).find(|text| !text.is_empty()).unwrap_or_default()
}

fn event_object<'a>(object: &'a Object, field: &str) -> &'a str {
    match object.text(&["involvedObject", field]) {
        "" => object.text(&["regarding", field]),
        text => text,
    }
}

fn event_source(object: &Object) -> String {
    // The newer version names the same things otherwise.
    let first = |paths: [&[&str]; 4]| {
        let found = paths.into_iter().map(|path| object.text(path)).find(|text| !text.is_empty());
        found.unwrap_or_default()
    };
    let component = first([
        &["source", "component"],
        &["deprecatedSource", "component"],
        &["reportingComponent"],
        &["reportingController"],
    ]);
    let instance =
        first([&["source", "host"], &["deprecatedSource", "host"], &["reportingInstance"], &["reportingInstance"]]);
    match (component, instance) {
        (component, "") => component.to_owned(),
        (component, instance) => format!("{component}, {instance}"),
    }
}

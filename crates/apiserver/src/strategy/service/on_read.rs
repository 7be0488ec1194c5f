//! What old services lack. Those from before there were two families, and before addresses were a list, are shown, judged and
//! changed as if they had always had both.

use api::addresses::{family, lenient};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::{is_addressed, listed, selects};

/// Only what says its families is sure to be whole.
const FAMILIES: &[u8] = b"\"ipFamilies\":[";

/// The service with what it lacks, if it lacks anything.
pub(crate) fn default_on_read(bytes: &[u8], usual: &str) -> Result<Option<Vec<u8>>, serde_json::Error> {
    if bytes.windows(FAMILIES.len()).any(|window| window == FAMILIES) {
        return Ok(None);
    }
    let mut service: Object = serde_json::from_slice(bytes)?;
    let is_changed = complete(&mut service, usual);
    Ok(is_changed.then(|| api::object::canonical(&service)))
}

fn complete(service: &mut Object, usual: &str) -> bool {
    if !is_addressed(service) {
        // Upstream stores it, but shows it to nobody.
        return service.at_mut(&["spec"]).remove("internalTrafficPolicy").is_some();
    }
    let one = service.text(&["spec", "clusterIP"]).to_owned();
    let is_alone = !one.is_empty() && listed(service, "clusterIPs").is_empty();
    if is_alone {
        service.at_mut(&["spec"]).insert("clusterIPs".into(), json!([one]));
    }
    if !listed(service, "ipFamilies").is_empty() {
        return is_alone;
    }
    let families = match (one.as_str(), selects(service)) {
        ("None", true) => vec![usual],
        // Whoever writes its endpoints may have any.
        ("None", false) => vec![usual, if usual == "IPv4" { "IPv6" } else { "IPv4" }],
        _ => {
            let addresses = listed(service, "clusterIPs").iter().filter_map(Value::as_str);
            addresses.map(|address| lenient(address).map_or("IPv4", family)).collect()
        }
    };
    let policy = match families.len() {
        0 => return is_alone,
        1 => "SingleStack",
        _ => "RequireDualStack",
    };
    let families = json!(families);
    let spec = service.at_mut(&["spec"]);
    spec.insert("ipFamilyPolicy".into(), policy.into());
    spec.insert("ipFamilies".into(), families);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_services_are_completed() {
        check(json!({"type": "ClusterIP", "clusterIP": "10.96.0.7"}), "10.96.0.7 IPv4 SingleStack");
        check(json!({"type": "NodePort", "clusterIP": "fd00::7"}), "fd00::7 IPv6 SingleStack");
        check(
            json!({"type": "ClusterIP", "clusterIP": "fd00::7", "clusterIPs": ["fd00::7", "10.96.0.7"]}),
            "fd00::7,10.96.0.7 IPv6,IPv4 RequireDualStack",
        );
        check(json!({"type": "ClusterIP", "clusterIP": "None"}), "None IPv6,IPv4 RequireDualStack");
        check(json!({"type": "ClusterIP", "clusterIP": "None", "selector": {"a": "b"}}), "None IPv6 SingleStack");
        check(json!({"type": "ClusterIP"}), "whole");
        check(json!({"type": "ExternalName"}), "whole");
        check(json!({"type": "ExternalName", "internalTrafficPolicy": "Cluster"}), "  ");
        check(json!({"type": "ClusterIP", "clusterIP": "10.96.0.7", "ipFamilies": ["IPv4"]}), "whole");
    }

    #[track_caller]
    fn check(spec: Value, want: &str) {
        let service = json!({"metadata": {"name": "a"}, "spec": spec}).to_string();
        let got = default_on_read(service.as_bytes(), "IPv6").unwrap().map_or("whole".into(), |bytes| {
            let service: Object = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(service.at(&["spec", "internalTrafficPolicy"]), None);
            let list = |field| listed(&service, field).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",");
            format!("{} {} {}", list("clusterIPs"), list("ipFamilies"), service.text(&["spec", "ipFamilyPolicy"]))
        });
        assert_eq!(got, want, "{service}");
    }
}

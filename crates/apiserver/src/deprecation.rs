//! Kinds that clients should no longer ask for, and what they are told when they do.

/// Group and version, kind, the release that deprecated it, the one that no longer has it, and what to use instead.
const DEPRECATED: [(&str, &str, &str, &str, &str); 19] = [
    ("v1", "ComponentStatus", "1.19", "", ""),
    ("v1", "Endpoints", "1.33", "", "discovery.k8s.io/v1 EndpointSlice"),
    ("admissionregistration.k8s.io/v1alpha1", "MutatingAdmissionPolicy", "1.35", "1.38", ""),
    ("admissionregistration.k8s.io/v1alpha1", "MutatingAdmissionPolicyBinding", "1.35", "1.38", ""),
    ("certificates.k8s.io/v1alpha1", "ClusterTrustBundle", "1.34", "1.37", ""),
    ("coordination.k8s.io/v1alpha2", "LeaseCandidate", "1.35", "1.38", ""),
    ("coordination.k8s.io/v1beta1", "LeaseCandidate", "1.36", "1.39", ""),
    ("networking.k8s.io/v1beta1", "IPAddress", "1.34", "1.37", ""),
    ("networking.k8s.io/v1beta1", "ServiceCIDR", "1.34", "1.37", ""),
    ("resource.k8s.io/v1alpha3", "DeviceTaintRule", "1.36", "1.39", ""),
    ("resource.k8s.io/v1beta1", "DeviceClass", "1.35", "1.38", ""),
    ("resource.k8s.io/v1beta1", "ResourceClaim", "1.35", "1.38", ""),
    ("resource.k8s.io/v1beta1", "ResourceClaimTemplate", "1.35", "1.38", ""),
    ("resource.k8s.io/v1beta1", "ResourceSlice", "1.35", "1.38", ""),
    ("resource.k8s.io/v1beta2", "DeviceClass", "1.36", "1.39", ""),
    ("resource.k8s.io/v1beta2", "ResourceClaim", "1.36", "1.39", ""),
    ("resource.k8s.io/v1beta2", "ResourceClaimTemplate", "1.36", "1.39", ""),
    ("resource.k8s.io/v1beta2", "ResourceSlice", "1.36", "1.39", ""),
    ("storage.k8s.io/v1beta1", "VolumeAttributesClass", "1.34", "1.37", "storage.k8s.io/v1 VolumeAttributesClass"),
];

/// What whoever asks for the kind is warned of.
pub(crate) fn warning(version: &str, kind: &str) -> Option<String> {
    let (.., since, until, instead) = DEPRECATED.iter().find(|(v, k, ..)| *v == version && *k == kind)?;
    let mut text = format!("{version} {kind} is deprecated in v{since}+");
    if !until.is_empty() {
        text += &format!(", unavailable in v{until}+");
    }
    if !instead.is_empty() {
        text += &format!("; use {instead}");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_that_is_named_is_there() {
        let known = api::resources::builtin();
        for (version, kind, ..) in DEPRECATED {
            assert!(known.iter().any(|r| r.api_version() == version && r.kind == kind), "{version} {kind}");
        }
        assert_eq!(
            warning("v1", "Endpoints").as_deref(),
            Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        );
    }
}

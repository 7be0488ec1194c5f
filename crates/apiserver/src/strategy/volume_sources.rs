//! The rules of what a volume is made of, shared by the volumes of pods and persistent ones.
//!
//! A caller says under which name complaints are told: upstream does not call every source as the field is called.

use api::field::FieldError;
use api::validation::{is_label, is_subdomain};

use super::check::At;

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const ISCSI_NAME: &str = "must be valid format";
pub(super) const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
/// What each source must say, where there is no more to it.
const NEEDED: [(&str, &[&str]); 11] = [
    ("persistentVolumeClaim", &["claimName"]),
    ("glusterfs", &["endpoints", "path"]),
    ("rbd", &["monitors", "image"]),
    ("cephfs", &["monitors"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
];

/// The rules of the source `kind`, as a pod has it or, where it is `persistent`, as a persistent volume has it.
pub(super) fn source(kind: &str, at: &At<'_>, persistent: bool) {
    for (_, names) in NEEDED.iter().filter(|(of, _)| *of == kind) {
        for name in *names {
            at.field(name).needed();
        }
    }
    match kind {
        "hostPath" => host_path(at),
        // Upstream's message leaves out the zero that it lets pass.
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            let partition = at.field("partition");
            if partition.number().is_some_and(|number| !(0..=255).contains(&number)) {
                partition.invalid("must be between 1 and 255, inclusive");
            }
        }
        "gitRepo" => {
            at.field("repository").needed();
            descending(&at.field("directory"));
        }
        "nfs" => {
            let path = at.field("path");
            at.field("server").needed();
            path.needed();
            if !path.text().starts_with('/') {
                path.complain(FieldError::invalid(path.path(), path.text(), "must be an absolute path"));
            }
        }
        "iscsi" => iscsi(at, persistent),
        "fc" => fibre_channel(at),
        "quobyte" => quobyte(at),
        "flocker" => flocker(at),
        "glusterfs" if persistent && at.field("endpointsNamespace").exists() => {
            let namespace = at.field("endpointsNamespace");
            match namespace.text() {
                "" => namespace.invalid("if the endpointnamespace is set, it must be a valid namespace name"),
                _ => namespace.named(is_label),
            }
        }
        "azureFile" if persistent && at.field("secretNamespace").exists() => {
            at.field("secretNamespace").needed();
        }
        "azureDisk" => azure_disk(at),
        "cinder" => {
            at.field("volumeID").needed();
            secret_ref(at, persistent);
        }
        "flexVolume" => flex(at),
        "storageos" => {
            at.field("volumeName").needed_named(is_label);
            at.field("volumeNamespace").named_if_set(is_label);
            secret_ref(at, persistent);
        }
        "local" if at.field("path").needed() => no_backsteps(&at.field("path")),
        "csi" => csi(at, persistent),
        _ => (),
    }
}

fn secret_ref(at: &At<'_>, persistent: bool) {
    let secret = at.field("secretRef");
    if secret.exists() {
        secret.field("name").needed();
        if persistent {
            secret.field("namespace").needed();
        }
    }
}

fn host_path(at: &At<'_>) {
    if at.field("path").needed() {
        no_backsteps(&at.field("path"));
        at.field("type").one_of_if_set(&HOST_PATH_TYPES);
    }
}

fn iscsi(at: &At<'_>, persistent: bool) {
    at.field("targetPortal").needed();
    let prefixed = if persistent { ISCSI_NAME } else { "must be valid format starting with iqn, eui, or naa" };
    let name = |place: &At<'_>| {
        let known = ["iqn", "eui", "naa"].iter().any(|prefix| place.text().starts_with(prefix));
        let detail = if known { ISCSI_NAME } else { prefixed };
        if !known || !is_iscsi_name(place.text()) {
            place.complain(FieldError::invalid(place.path(), place.text(), detail));
        }
    };
    if at.field("iqn").needed() {
        name(&at.field("iqn"));
    }
    at.field("lun").between(0, 255);
    let secret = at.field("secretRef");
    if (at.field("chapAuthDiscovery").is_true() || at.field("chapAuthSession").is_true()) && !secret.exists() {
        secret.required("");
    }
    if persistent && secret.exists() {
        secret.field("name").needed();
    }
    let initiator = at.field("initiatorName");
    if initiator.exists() {
        name(&initiator.called(at.path().child("initiatorname")));
    }
}

/// A name that no rule of its volume allows to be longer, together with where the disk is.
pub(super) fn is_long_iscsi(at: &At<'_>, volume: &str) -> bool {
    const MOST: usize = 64;
    at.field("initiatorName").exists() && volume.len() + 1 + at.field("targetPortal").text().len() > MOST
}

pub(super) const LONG_ISCSI: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";

fn is_iscsi_name(name: &str) -> bool {
    let exactly = |text: Option<&str>, count: usize| {
        let rest = text.and_then(|text| text.char_indices().nth(1).and_then(|(at, _)| text.get(at..)));
        rest.is_some_and(|rest| rest.len() == count && rest.bytes().all(|b| b.is_ascii_alphanumeric()))
    };
    match name.get(..3) {
        // Upstream looks for such a name anywhere in the text.
        Some("iqn") => name.match_indices("iqn.").any(|(at, _)| name.get(at + 4..).is_some_and(is_qualified_iscsi)),
        Some("eui") => exactly(name.get(3..), 16),
        Some("naa") => exactly(name.get(3..), 32),
        _ => false,
    }
}

/// `2001-04.com.example:storage`: since when somebody has a domain, the domain, and what they call the disk.
fn is_qualified_iscsi(text: &str) -> bool {
    let Some((authority, own)) = text.split_once(':') else { return false };
    let Some((date, domain)) = authority.split_once('.') else { return false };
    let digits = |text: &str, count: usize| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    date.split_once('-').is_some_and(|(year, month)| digits(year, 4) && digits(month, 2))
        && !domain.is_empty()
        && domain.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
        && !own.is_empty()
        && !own.contains([',', ';', '*', '&', '$', '|', ' ', '\t', '\n', '\r', '\x0c'])
}

fn fibre_channel(at: &At<'_>) {
    let (names, ids, lun) = (at.field("targetWWNs"), at.field("wwids"), at.field("lun"));
    if names.is_empty() && ids.is_empty() {
        names.required("must specify either targetWWNs or wwids, but not both");
    }
    if names.is_empty() {
        return;
    }
    if !ids.is_empty() {
        names.invalid("targetWWNs and wwids can not be specified simultaneously");
    }
    match lun.exists() {
        true => lun.between(0, 255),
        false => lun.required("lun is required if targetWWNs is specified"),
    }
}

fn quobyte(at: &At<'_>) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    const TENANT_MAX: usize = 64;
    let (registry, tenant) = (at.field("registry"), at.field("tenant"));
    if registry.is_empty() {
        registry.required(PAIRS);
    } else if tenant.text().len() > TENANT_MAX {
        tenant.required("must be a UUID and may not exceed a length of 64 characters");
    } else {
        registry.text().split(',').filter(|pair| !is_host_and_port(pair)).for_each(|_| registry.invalid(PAIRS));
    }
    at.field("volume").needed();
}

fn is_host_and_port(pair: &str) -> bool {
    let Some((host, port)) = pair.rsplit_once(':') else { return false };
    let host = match host.strip_prefix('[') {
        Some(rest) => match rest.strip_suffix(']') {
            Some(inner) => inner,
            None => return false,
        },
        None if host.contains(':') => return false,
        None => host,
    };
    ![host, port].iter().any(|part| part.contains(['[', ']']))
}

fn flocker(at: &At<'_>) {
    let (name, id) = (at.field("datasetName"), at.field("datasetUUID"));
    match (name.is_empty(), id.is_empty()) {
        (true, true) => at.required("one of datasetName and datasetUUID is required"),
        (false, false) => at.complain(FieldError::invalid(
            at.path(),
            "resource",
            "datasetName and datasetUUID can not be specified simultaneously",
        )),
        _ => (),
    }
    if name.text().contains('/') {
        name.invalid("must not contain '/'");
    }
}

fn azure_disk(at: &At<'_>) {
    const MANAGED: &str =
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    let (kind, uri) = (at.field("kind"), at.field("diskURI"));
    at.field("diskName").needed();
    uri.needed();
    at.field("cachingMode").one_of_if_set(&["None", "ReadOnly", "ReadWrite"]);
    kind.one_of_if_set(&["Dedicated", "Managed", "Shared"]);
    let (prefix, shape) = if kind.text() == "Managed" { ("/subscriptions/", MANAGED) } else { ("https://", BLOB) };
    if kind.exists() && !uri.text().starts_with(prefix) {
        uri.complain(FieldError::not_supported(uri.path(), uri.text(), &[shape]));
    }
}

fn flex(at: &At<'_>) {
    at.field("driver").needed();
    for (key, option) in at.field("options").entries() {
        let namespace = key.split_once('/').map_or(key, |(namespace, _)| namespace).to_lowercase();
        let reserved = |domain: &str| namespace == domain || namespace.ends_with(&format!(".{domain}"));
        if reserved("kubernetes.io") || reserved("k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            option.complain(FieldError::invalid(option.path(), key, detail));
        }
    }
}

fn csi(at: &At<'_>, persistent: bool) {
    driver_name(&at.field("driver"));
    let secrets: &[&str] = match persistent {
        true => {
            at.field("volumeHandle").needed();
            &["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"]
        }
        false => &["nodePublishSecretRef"],
    };
    for secret in secrets.iter().map(|name| at.field(name)).filter(At::exists) {
        let name = secret.field("name");
        if persistent {
            name.needed_named(is_subdomain);
            secret.field("namespace").needed_named(is_label);
        } else if name.needed() {
            // Upstream leaves the reference out of the place.
            name.called(at.path().child("name")).named(is_subdomain);
        }
    }
}

/// The name of a driver: a domain, whatever its case.
pub(super) fn driver_name(at: &At<'_>) {
    const DRIVER_MAX: usize = 63;
    if !at.needed() {
        return;
    }
    if at.text().len() > DRIVER_MAX {
        at.complain(FieldError::too_long(at.path(), DRIVER_MAX));
    }
    for detail in is_subdomain(&at.text().to_lowercase()) {
        at.invalid(detail);
    }
}

/// The permissions of a file.
pub(super) fn mode(at: &At<'_>) {
    if at.number().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        at.invalid(MODE);
    }
}

pub(super) fn no_backsteps(at: &At<'_>) {
    if at.text().split('/').any(|part| part == "..") {
        at.invalid("must not contain '..'");
    }
}

/// A path below a directory.
pub(super) fn descending(at: &At<'_>) {
    if at.text().starts_with('/') {
        at.invalid("must be a relative path");
    }
    no_backsteps(at);
}

/// A path below a volume, where names that begin with two dots are its own.
pub(super) fn non_reserved(at: &At<'_>) {
    descending(at);
    if at.text().starts_with("..") && !at.text().starts_with("../") {
        at.invalid("must not start with '..'");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_named_as_their_protocol_names_them() {
        for name in
            ["iqn.2001-04.com.example:storage:a", "eui.0123456789abcdef", "naa.0123456789abcdef0123456789abcdef"]
        {
            assert!(is_iscsi_name(name), "{name}");
        }
        for name in ["iqn.2001-4.com:a", "iqn.2001-04.com", "iqn.2001-04.com:a b", "eui.012", "naa.", "x", ""] {
            assert!(!is_iscsi_name(name), "{name}");
        }
    }

    #[test]
    fn a_registry_has_a_host_and_a_port() {
        assert!(["a:1", ":", "[::1]:2", "1.2.3.4:5"].iter().all(|pair| is_host_and_port(pair)));
        assert!(!["a", "::1:2", "[::1:2", "a]:2", ""].iter().any(|pair| is_host_and_port(pair)));
    }
}

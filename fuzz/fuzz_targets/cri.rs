//! A request to create a container, as bytes on the runtime's socket: its specification gives no more than was asked for.
#![no_main]

use std::path::{Component, Path};
use std::sync::OnceLock;

use cri::v1::CreateContainerRequest;
use libfuzzer_sys::fuzz_target;
use oci_spec::runtime::Spec;
use prost::Message as _;
use runtime::ProcessConfig;

fuzz_target!(|bytes: &[u8]| {
    static SANDBOX: OnceLock<tempfile::TempDir> = OnceLock::new();
    let sandbox = SANDBOX.get_or_init(|| tempfile::tempdir().expect("a folder")).path();
    let Ok(request) = CreateContainerRequest::decode(bytes) else { return };
    let (mut container, pod) = (request.config.unwrap_or_default(), request.sandbox_config.unwrap_or_default());
    // Sources that are missing would be made on this machine.
    for mount in &mut container.mounts {
        mount.host_path = sandbox.display().to_string();
    }
    let image = ProcessConfig { user: Some(container.log_path.clone()), ..ProcessConfig::default() };
    let Ok(spec) = runtime::fuzzing::specification(sandbox, &pod, &container, &image) else { return };
    let spec: Spec = serde_json::from_value(spec).expect("a specification that the shim can read");
    let user = spec.process().as_ref().expect("a process").user();
    assert!(i32::try_from(user.uid()).is_ok() && i32::try_from(user.gid()).is_ok(), "{user:?}");
    for mount in spec.mounts().iter().flatten() {
        let path = mount.destination();
        assert!(path.is_absolute() && !path.components().any(|part| part == Component::ParentDir), "{path:?}");
    }
    let security = container.linux.and_then(|linux| linux.security_context).unwrap_or_default();
    if security.privileged {
        return;
    }
    let linux = spec.linux().as_ref().expect("a Linux part");
    for masked in &security.masked_paths {
        assert!(linux.masked_paths().iter().flatten().any(|path| path == masked), "{masked} is not masked");
    }
    let rules = linux.resources().as_ref().and_then(|resources| resources.devices().as_ref());
    let all = |rule: &&oci_spec::runtime::LinuxDeviceCgroup| rule.allow() && rule.major().is_none();
    assert!(rules.is_some_and(|rules| !rules.iter().any(|rule| all(&rule))), "all devices are allowed");
    let sysfs = spec.mounts().iter().flatten().find(|mount| mount.destination() == Path::new("/sys"));
    let options = sysfs.and_then(|mount| mount.options().as_ref()).expect("a mount of sysfs");
    assert!(options.iter().any(|option| option == "ro"), "sysfs can be written");
});

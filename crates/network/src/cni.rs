//! The same network as a CNI plugin, so that any runtime (containerd, CRI-O) can put its pods on it.
//!
//! The contract is the CNI specification 1.0.0: the verb and the container in the environment, the configuration on standard input, the
//! result or the error as JSON on standard output.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Attachment, Config, Ipv4Prefix, NetworkError, PodNetwork, PortMapping, netns};

const VERSIONS: [&str; 3] = ["0.3.1", "0.4.0", "1.0.0"];
const LATEST: &str = "1.0.0";

/// The network configuration, as an administrator writes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NetConf {
    cni_version: String,
    #[serde(default)]
    bridge: Option<String>,
    pod_cidr: String,
    #[serde(default)]
    cluster_cidr: Option<String>,
    #[serde(default)]
    service_cidr: Option<String>,
    #[serde(default)]
    state_dir: Option<PathBuf>,
    #[serde(default)]
    mtu: Option<u32>,
    #[serde(default)]
    runtime_config: RuntimeConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuntimeConfig {
    #[serde(default)]
    port_mappings: Vec<PortMapping>,
}

/// CNI's error object. Codes below 100 are the specification's.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Failure {
    cni_version: String,
    code: u32,
    msg: String,
    details: String,
}

/// More than any network configuration; one that is cut off there is malformed.
const MAX_INPUT: u64 = 1 << 20;
/// The kernel's names of interfaces are shorter than 16 bytes.
const MAX_INTERFACE_NAME: usize = 15;

const INCOMPATIBLE_VERSION: u32 = 1;
const INVALID_ENVIRONMENT: u32 = 4;
const IO_FAILURE: u32 = 5;
const DECODE_FAILURE: u32 = 6;
const INVALID_CONFIG: u32 = 7;
const NETWORK_FAILURE: u32 = 100;

/// Runs one plugin call and gives the exit code. `env` looks up an environment variable.
pub fn main(env: impl Fn(&str) -> Option<String>, mut stdin: impl Read, mut stdout: impl Write) -> i32 {
    let mut input = String::new();
    let read = (&mut stdin).take(MAX_INPUT).read_to_string(&mut input);
    let read = read.map_err(|error| failure(IO_FAILURE, "cannot read standard input", &error));
    let (output, code) = match read.and_then(|_| call(&env, &input)) {
        Ok(None) => return 0,
        Ok(Some(result)) => (result, 0),
        Err(failure) => (json!(failure), 1),
    };
    match writeln!(stdout, "{output}") {
        Ok(()) => code,
        Err(_) => 1,
    }
}

fn failure(code: u32, msg: &str, details: &dyn std::fmt::Display) -> Failure {
    Failure { cni_version: LATEST.into(), code, msg: msg.into(), details: details.to_string() }
}

fn call(env: &impl Fn(&str) -> Option<String>, input: &str) -> Result<Option<Value>, Failure> {
    let wanted = |name: &str| {
        let missing = || failure(INVALID_ENVIRONMENT, "missing environment variable", &name);
        env(name).filter(|value| !value.is_empty()).ok_or_else(missing)
    };
    let command = wanted("CNI_COMMAND")?;
    if command == "VERSION" {
        return Ok(Some(json!({ "cniVersion": LATEST, "supportedVersions": VERSIONS })));
    }
    if is_loopback(input) {
        return loopback(&command, &wanted);
    }
    let conf: NetConf = serde_json::from_str(input)
        .map_err(|error| failure(DECODE_FAILURE, "cannot decode network configuration", &error))?;
    if !VERSIONS.contains(&conf.cni_version.as_str()) {
        return Err(failure(INCOMPATIBLE_VERSION, "unsupported CNI version", &conf.cni_version));
    }
    let version = conf.cni_version.clone();
    let (id, interface) = (wanted("CNI_CONTAINERID")?, wanted("CNI_IFNAME")?);
    if !is_container_id(&id) {
        return Err(failure(INVALID_ENVIRONMENT, "invalid CNI_CONTAINERID", &id));
    }
    if !is_interface_name(&interface) {
        return Err(failure(INVALID_ENVIRONMENT, "invalid CNI_IFNAME", &interface));
    }
    let ports = conf.runtime_config.port_mappings.clone();
    let config = config(conf)?;
    match command.as_str() {
        "ADD" => {
            let netns = PathBuf::from(wanted("CNI_NETNS")?);
            let attachment = run(config, async move |network| network.attach_as(&id, &netns, &interface, &ports).await);
            attachment.map(|attachment| Some(result(&version, &attachment, env("CNI_NETNS"))))
        }
        // By the specification the namespace may be gone.
        "DEL" => run(config, async move |network| network.detach(&id, "".as_ref()).await).map(|()| None),
        "CHECK" => {
            let netns = PathBuf::from(wanted("CNI_NETNS")?);
            run(config, async move |network| network.check(&id, &netns, &interface).await).map(|_| None)
        }
        _ => Err(failure(INVALID_ENVIRONMENT, "unknown CNI_COMMAND", &command)),
    }
}

/// As the specification has it: a letter or digit, then these and `_`, `.`, `-`.
fn is_container_id(id: &str) -> bool {
    id.starts_with(|first: char| first.is_ascii_alphanumeric())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

/// Names become parts of paths below `/proc/sys`.
fn is_interface_name(name: &str) -> bool {
    let is_odd = |byte: u8| byte == b'/' || byte == b':' || byte.is_ascii_whitespace() || byte.is_ascii_control();
    (1..=MAX_INTERFACE_NAME).contains(&name.len())
        && !matches!(name, "." | ".." | "all" | "default")
        && !name.bytes().any(is_odd)
}

/// Runtimes call a plugin named `loopback` before the real one; installed under that name, ours serves as both.
fn is_loopback(input: &str) -> bool {
    let conf: Option<Value> = serde_json::from_str(input).ok();
    conf.is_some_and(|conf| conf.get("type").is_some_and(|kind| kind == "loopback"))
}

fn loopback(command: &str, wanted: &impl Fn(&str) -> Result<String, Failure>) -> Result<Option<Value>, Failure> {
    if command != "ADD" {
        return Ok(None); // The interface goes with its namespace.
    }
    let path = PathBuf::from(wanted("CNI_NETNS")?);
    let sandbox = path.display().to_string();
    blocking(async move || netns::inside(&path, netns::open(&path)?, async |links| links.up("lo").await).await)?;
    Ok(Some(json!({
        "cniVersion": LATEST,
        "interfaces": [{ "name": "lo", "mac": "00:00:00:00:00:00", "sandbox": sandbox }],
        "ips": [{ "address": "127.0.0.1/8", "interface": 0 }],
        "dns": {},
    })))
}

fn config(conf: NetConf) -> Result<Config, Failure> {
    let prefix =
        |text: &str| text.parse::<Ipv4Prefix>().map_err(|error| failure(INVALID_CONFIG, "invalid network", &error));
    let state_dir = conf.state_dir.unwrap_or_else(|| PathBuf::from("/var/lib/cni/ferry"));
    let mut config = Config::new(prefix(&conf.pod_cidr)?, state_dir);
    config.bridge = conf.bridge.unwrap_or(config.bridge);
    if !is_interface_name(&config.bridge) {
        return Err(failure(INVALID_CONFIG, "invalid name of the bridge", &config.bridge));
    }
    config.cluster_cidr = conf.cluster_cidr.as_deref().map(prefix).transpose()?;
    config.service_cidr = conf.service_cidr.as_deref().map(prefix).transpose()?;
    config.mtu = conf.mtu;
    Ok(config)
}

fn run<T: Send>(
    config: Config,
    work: impl AsyncFnOnce(&PodNetwork) -> Result<T, NetworkError> + Send,
) -> Result<T, Failure> {
    blocking(async move || work(&PodNetwork::open(config).await?).await)
}

/// On a thread of its own: the caller may have an async runtime already.
fn blocking<T: Send>(work: impl AsyncFnOnce() -> Result<T, NetworkError> + Send) -> Result<T, Failure> {
    let run = || {
        let started = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = started.map_err(|error| failure(IO_FAILURE, "cannot start", &error))?;
        let outcome = runtime.block_on(work());
        outcome.map_err(|error| failure(NETWORK_FAILURE, &error.to_string(), &causes(&error)))
    };
    let panicked = |_| Err(failure(NETWORK_FAILURE, "the plugin panicked", &""));
    std::thread::scope(|scope| scope.spawn(run).join().unwrap_or_else(panicked))
}

fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn result(version: &str, attachment: &Attachment, netns: Option<String>) -> Value {
    let ips: Vec<_> = attachment
        .ips
        .iter()
        .filter(|ip| matches!(ip, IpAddr::V4(_)))
        .map(|ip| {
            let version = (version != LATEST).then_some("4");
            json!({ "version": version, "address": format!("{ip}/32"), "gateway": attachment.gateway, "interface": 1 })
        })
        .collect();
    json!({
        "cniVersion": version,
        "interfaces": [
            { "name": attachment.host_interface },
            { "name": attachment.interface, "mac": attachment.mac, "sandbox": netns },
        ],
        "ips": ips,
        "routes": [{ "dst": "0.0.0.0/0", "gw": attachment.gateway }],
        "dns": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a call answers, without touching any network.
    #[track_caller]
    fn check(env: &[(&str, &str)], input: &str, want_code: i32, want: &str) {
        let look_up = |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        let mut output = Vec::new();
        let code = main(look_up, input.as_bytes(), &mut output);
        let output = String::from_utf8(output).unwrap();
        assert_eq!(code, want_code, "{output}");
        assert!(output.contains(want), "{output}");
    }

    #[test]
    fn versions_are_told() {
        check(&[("CNI_COMMAND", "VERSION")], "{}", 0, r#""supportedVersions":["0.3.1","0.4.0","1.0.0"]"#);
    }

    #[test]
    fn bad_calls_get_the_codes_of_the_specification() {
        let add = [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "a"), ("CNI_IFNAME", "eth0")];
        let conf = r#"{ "cniVersion": "1.0.0", "name": "pods", "type": "ferry", "podCidr": "10.9.0.0/24" }"#;
        check(&[], conf, 1, r#""code":4"#);
        check(&[("CNI_COMMAND", "ADD")], conf, 1, "CNI_CONTAINERID");
        check(&add, conf, 1, "CNI_NETNS");
        check(&add, "{", 1, r#""code":6"#);
        check(&add, &conf.replace("1.0.0", "9.0.0"), 1, r#""code":1"#);
        check(&add, &conf.replace("/24", "/99"), 1, r#""code":7"#);
        check(&[("CNI_COMMAND", "DANCE"), add[1], add[2]], conf, 1, "DANCE");
        for name in ["../../ip", "a b", "a\nb", "..", "all", "sixteen-letters-"] {
            let quoted = json!(name);
            let bridge = conf.replace("\"name\"", &format!("\"bridge\": {quoted}, \"name\""));
            check(&[("CNI_COMMAND", "DANCE"), add[1], add[2]], &bridge, 1, r#""code":7"#);
            check(&[("CNI_COMMAND", "DANCE"), add[1], ("CNI_IFNAME", name)], conf, 1, "invalid CNI_IFNAME");
        }
        for id in ["../a", ".a", "a/b", "a b"] {
            check(&[("CNI_COMMAND", "DANCE"), ("CNI_CONTAINERID", id), add[2]], conf, 1, "invalid CNI_CONTAINERID");
        }
        check(&add, &" ".repeat(2 << 20), 1, r#""code":6"#);
    }
}

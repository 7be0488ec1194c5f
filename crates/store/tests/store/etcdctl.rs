//! `etcdctl` on our server: what people type, and what it must print.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
};

use store::{Embedded, Options, etcd::Listener};
use tokio::net::TcpListener;

use crate::etcd::{Served, tool};

struct Ctl {
    binary: PathBuf,
    endpoint: String,
}

impl Ctl {
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(["--endpoints", &self.endpoint]).args(line.split_whitespace());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, line: &str, input: &str) -> String {
        let mut child = self.command(line).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        let text = if out.status.success() { out.stdout } else { out.stderr };
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The lines that are not empty, with ` / ` between them.
    #[track_caller]
    fn check(&self, line: &str, want: &str) {
        let got = self.run(line, "");
        let got = got.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" / ");
        assert_eq!(got, want, "etcdctl {line}");
    }

    #[track_caller]
    fn check_holds(&self, line: &str, want: &str) {
        let got = self.run(line, "");
        assert!(got.contains(want), "etcdctl {line}: {got}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_works_on_our_server() {
    let Some(binary) = tool("etcdctl") else { return };
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Embedded::open(&dir.path().join("data"), Options::default()).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let served = Served::with(dir.path(), store, Listener::Tcp(listener));
    let ctl = Ctl { binary, endpoint };
    tokio::task::spawn_blocking(move || {
        keys(&ctl);
        watches(&ctl);
        leases(&ctl);
        compaction(&ctl);
        about(&ctl);
    })
    .await
    .unwrap();
    served.stop().await;
}

fn keys(ctl: &Ctl) {
    ctl.check("put /a 1", "OK");
    ctl.check("put /a 2 --prev-kv", "OK / /a / 1");
    ctl.check("put /b 1", "OK");
    ctl.check("put /c 3", "OK");
    ctl.check("get /a", "/a / 2");
    ctl.check("get /a --rev=2", "/a / 1");
    ctl.check("get / --prefix --keys-only", "/a / /b / /c");
    ctl.check("get / --prefix --keys-only --limit=2", "/a / /b");
    ctl.check("get /b --from-key --print-value-only", "1 / 3");
    ctl.check("get / --prefix --sort-by=VALUE --order=DESCEND --print-value-only", "3 / 2 / 1");
    ctl.check_holds("get / --prefix --count-only --write-out=fields", "\"Count\" : 3");
    ctl.check("put /a --ignore-value", "OK");
    ctl.check("get /a --print-value-only", "2");
    ctl.check_holds("put /x --ignore-value", "etcdserver: key not found");
    ctl.check("del /c --prev-kv", "1 / /c / 3");
    ctl.check("del /c", "0");
    let txn = |text: &str| ctl.run("txn", text).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(txn("mod(\"/t\") = \"0\"\n\nput /t new\n\nget /t\n\n"), "SUCCESS OK");
    assert_eq!(txn("mod(\"/t\") = \"0\"\n\nput /t new\n\nget /t\n\n"), "FAILURE /t new");
    assert_eq!(txn("value(\"/t\") = \"new\"\n\ndel /t\nget /t\n\n\n"), "SUCCESS 1");
    assert!(ctl.run("txn", "\nput /d 1\nput /d 2\n\n\n").contains("duplicate key given in txn request"));
    let large = ctl.run("put /large", &"x".repeat(1600 << 10));
    assert!(large.contains("etcdserver: request is too large"), "{large}");
}

fn watches(ctl: &Ctl) {
    let mut watch = ctl.command("watch /a --rev=2 --prev-kv").spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    let past: Vec<_> = lines.by_ref().filter(|line| !line.is_empty()).take(13).collect();
    assert_eq!(past.join(" "), "PUT /a 1 PUT /a 1 /a 2 PUT /a 2 /a 2");
    ctl.check("del /a", "1");
    let live: Vec<_> = lines.by_ref().filter(|line| !line.is_empty()).take(4).collect();
    assert_eq!(live.join(" "), "DELETE /a 2 /a");
    watch.kill().unwrap();
    watch.wait().unwrap();
}

fn leases(ctl: &Ctl) {
    let granted = ctl.run("lease grant 600", "");
    let id = granted.split_whitespace().nth(1).unwrap();
    assert_eq!(granted.trim(), format!("lease {id} granted with TTL(600s)"));
    ctl.check(&format!("put /leased 1 --lease={id}"), "OK");
    ctl.check_holds(&format!("lease timetolive {id} --keys"), "attached keys([/leased])");
    ctl.check("lease list", &format!("found 1 leases / {id}"));
    ctl.check(&format!("lease keep-alive {id} --once"), &format!("lease {id} keepalived with TTL(600)"));
    ctl.check(&format!("lease revoke {id}"), &format!("lease {id} revoked"));
    ctl.check("get /leased", "");
    ctl.check_holds(&format!("lease timetolive {id}"), "already expired");
    ctl.check_holds(&format!("lease revoke {id}"), "etcdserver: requested lease not found");
    ctl.check_holds("put /leased 1 --lease=77", "etcdserver: requested lease not found");
}

fn compaction(ctl: &Ctl) {
    ctl.check("compaction 5", "compacted revision 5");
    ctl.check_holds("compaction 5", "etcdserver: mvcc: required revision has been compacted");
    ctl.check_holds("compaction 5000", "etcdserver: mvcc: required revision is a future revision");
    ctl.check_holds("get /b --rev=2", "etcdserver: mvcc: required revision has been compacted");
    ctl.check_holds("watch /b --rev=2", "etcdserver: mvcc: required revision has been compacted");
    ctl.check("get /b --rev=5 --print-value-only", "1");
}

fn about(ctl: &Ctl) {
    let status = ctl.run("endpoint status --write-out=json", "");
    for part in ["\"version\":\"3.5.", "\"leader\":", "\"raftTerm\":1", "\"dbSize\":"] {
        assert!(status.contains(part), "{part}: {status}");
    }
    let health = ctl.command("endpoint health").output().unwrap();
    assert!(health.status.success(), "{health:?}");
    ctl.check_holds("endpoint hashkv --write-out=json", "\"hash\":");
    ctl.check_holds("endpoint status --cluster", &ctl.endpoint);
    ctl.check_holds("member list", "started, ferry, ");
    ctl.check("alarm list", "");
    ctl.check_holds("defrag", "Finished defragmenting");
    ctl.check_holds("auth status", "Authentication Status: false");
    ctl.check_holds("auth disable", "etcdserver: authentication is not enabled");
    ctl.check_holds("snapshot save /nowhere/snapshot", "Error");
}

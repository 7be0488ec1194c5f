//! A cluster's state as its owner handles it: saved while it runs, restored, moved to etcd and back.
//!
//! The control plane alone is enough: `ferry server` on its embedded store, as `ferry up` has it.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{EtcdCluster, Process, Server, etcd_tool, eventually, ferry_binary, free_ports, output, run, start_servers};

fn ferry(arguments: &[&str]) -> Result<String> {
    run(&ferry_binary().display().to_string(), arguments)
}

/// What ferry says when it refuses.
fn ferry_refuses(arguments: &[&str]) -> Result<String> {
    let done = output(&ferry_binary().display().to_string(), arguments)?;
    ensure!(!done.status.success(), "ferry {} should have failed", arguments.join(" "));
    Ok(String::from_utf8_lossy(&done.stderr).into_owned())
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A server on the embedded store in its data directory.
fn embedded(dir: &Path) -> Result<Server> {
    Ok(start_servers(dir, 1, "", &[])?.remove(0))
}

fn stop(server: &mut Server) {
    server.process = None;
}

/// Names, values and resource versions of what a user made.
fn made(server: &Server) -> Result<String> {
    let path = "jsonpath={range .items[*]}{.metadata.name}={.data.key}@{.metadata.resourceVersion} {end}";
    server.kubectl(&["get", "configmaps", "-l", "made=here", "-o", path])
}

fn make(server: &Server, names: &[&str]) -> Result<()> {
    let one = |name: &&str| {
        format!(
            "---\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, labels: {{made: here}}}}, data: {{key: of-{name}}}}}\n"
        )
    };
    server.apply("made", &names.iter().map(one).collect::<String>()).map(drop)
}

fn resource_version(server: &Server) -> Result<i64> {
    let list: serde_json::Value = serde_json::from_str(&server.kubectl(&["get", "--raw", "/api/v1/configmaps"])?)?;
    Ok(list["metadata"]["resourceVersion"].as_str().unwrap_or_default().parse()?)
}

#[test]
fn a_cluster_is_saved_restored_and_goes_on_above_its_old_revisions() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let mut server = embedded(dir.path())?;
    make(&server, &["a", "b"])?;
    // While it runs, and when it does not.
    let (saved, running) = (dir.path().join("saved"), dir.path().join("running"));
    let said = ferry(&["snapshot", "save", &text(&running), "--data-dir", &text(&server.dir)])?;
    ensure!(said.contains("Saved"), "{said}");
    stop(&mut server);
    ferry(&["snapshot", "save", &text(&saved), "--data-dir", &text(&server.dir)])?;
    ensure!(ferry(&["snapshot", "status", &text(&running)])?.contains("TOTAL KEYS"), "whole");
    let told: serde_json::Value = serde_json::from_str(&ferry(&["snapshot", "status", &text(&saved), "-o", "json"])?)?;
    let table = ferry(&["snapshot", "status", &text(&saved)])?;
    let short = &told["hash"].as_str().unwrap_or_default()[..8];
    ensure!(table.contains("TOTAL KEYS") && table.contains(short), "{table}");

    // What comes after the snapshot is lost, and its revisions are not given again.
    server.start()?;
    server.ready()?;
    make(&server, &["lost"])?;
    let (after, watched) = (made(&server)?, resource_version(&server)?);
    stop(&mut server);
    let complaint = ferry_refuses(&["snapshot", "restore", &text(&saved), "--data-dir", &text(&server.dir)])?;
    ensure!(complaint.contains("is not empty"), "{complaint}");
    std::fs::rename(server.dir.join("store"), dir.path().join("old-store"))?;
    refuses_what_is_not_whole(dir.path(), &saved, &server.dir)?;
    let said = ferry(&["snapshot", "restore", &text(&saved), "--data-dir", &text(&server.dir)])?;
    ensure!(said.contains("Restored"), "{said}");
    server.start()?;
    server.ready()?;
    let restored = made(&server)?;
    ensure!(
        restored.starts_with("a=of-a@") && restored.contains("b=of-b@") && !restored.contains("lost"),
        "{restored}"
    );
    ensure!(after.starts_with(restored.trim_end()), "what was saved keeps its revisions: {after} {restored}");
    ensure!(resource_version(&server)? > watched, "revisions go on above those that were seen");
    let complaint = server.kubectl(&[
        "get",
        "--raw",
        &format!("/api/v1/configmaps?watch=1&resourceVersion={watched}&timeoutSeconds=5"),
    ]);
    ensure!(format!("{complaint:?}").contains("too old resource version"), "{complaint:?}");
    make(&server, &["c"])
}

fn refuses_what_is_not_whole(dir: &Path, saved: &Path, data: &Path) -> Result<()> {
    let whole = std::fs::read(saved)?;
    let broken = dir.join("broken");
    let mut flipped = whole.clone();
    flipped[700] ^= 1;
    let etcd = EtcdCluster::start(&dir.join("of-etcd"), 1)?;
    let of_etcd = dir.join("etcd.db");
    run(&text(&etcd_tool("etcdctl")?), &["--endpoints", &etcd.urls(), "snapshot", "save", &text(&of_etcd)])?;
    let cases: [(Vec<u8>, &str); 4] = [
        (whole[..whole.len() / 2].to_vec(), "cut off"),
        (flipped, "damaged"),
        (vec![7; 4096], "not a snapshot"),
        (std::fs::read(of_etcd)?, "ferry migrate --to embedded"),
    ];
    for (bytes, want) in cases {
        std::fs::write(&broken, bytes)?;
        for arguments in [vec!["snapshot", "status", "FILE"], vec!["snapshot", "restore", "FILE", "--data-dir", "DIR"]]
        {
            let arguments: Vec<String> =
                arguments.iter().map(|word| word.replace("FILE", &text(&broken)).replace("DIR", &text(data))).collect();
            let complaint = ferry_refuses(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
            ensure!(complaint.contains(want), "{want}: {complaint}");
        }
        ensure!(!data.join("store").exists(), "nothing is written");
    }
    Ok(())
}

/// `ferry store` serves the state of a cluster; ferry and etcdctl save the same from it.
#[test]
fn a_store_is_saved_through_its_etcd_api() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let mut server = embedded(dir.path())?;
    make(&server, &["a"])?;
    stop(&mut server);
    let url = format!("http://127.0.0.1:{}", free_ports(&["127.0.0.1"], 1)?[0]);
    let socket = dir.path().join("etcd.sock");
    let listen = format!("{url},unix://{}", text(&socket));
    let arguments = ["store", "--data-dir", &text(&server.dir.join("store")), "--listen-client-urls", &listen];
    let _store = Process::ferry(&arguments, &dir.path().join("store.log"))?;
    eventually("the store listens", Duration::from_secs(20), || Ok(socket.exists().then_some(())))?;
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    ferry(&["snapshot", "save", &text(&ours), "--endpoints", &format!("unix://{}", text(&socket))])?;
    let ctl = text(&etcd_tool("etcdctl")?);
    eventually("etcdctl saves", Duration::from_secs(20), || {
        Ok(run(&ctl, &["--endpoints", &url, "snapshot", "save", &text(&theirs)]).ok())
    })?;
    for (name, file) in [("from-ours", &ours), ("from-theirs", &theirs)] {
        let data = dir.path().join(name).join("server-0");
        ferry(&["snapshot", "restore", &text(file), "--data-dir", &text(&data)])?;
        let mut restored = embedded(&dir.path().join(name))?;
        ensure!(made(&restored)?.starts_with("a=of-a@"), "{name}");
        stop(&mut restored);
    }
    Ok(())
}

/// Kills a move half-way. Revisions are far up first, so that raising etcd's takes a while.
fn interrupt(server: &Server, to_etcd: &[&str], etcd: &EtcdCluster) -> Result<()> {
    let (data, saved) = (text(&server.dir), text(&server.dir.join("saved")));
    ferry(&["snapshot", "save", &saved, "--data-dir", &data])?;
    std::fs::rename(server.dir.join("store"), server.dir.join("store-before"))?;
    ferry(&["snapshot", "restore", &saved, "--data-dir", &data, "--bump-revision", "30000"])?;
    let moving = Process::ferry(to_etcd, &server.dir.join("migrate.log"))?;
    eventually("the move has begun", Duration::from_secs(30), || {
        let marker = etcd.ctl(&["get", "/ferry/migration", "-w", "fields"])?;
        Ok(marker.contains("\"Version\"").then_some(()))
    })?;
    moving.kill()?;
    let complaint = ferry_refuses(&[
        "migrate",
        "--to",
        "etcd",
        "--data-dir",
        &text(&server.dir.join("none")),
        to_etcd[5],
        to_etcd[6],
    ])?;
    ensure!(complaint.contains("there is no store"), "{complaint}");
    Ok(())
}

#[test]
fn a_cluster_moves_to_etcd_and_back() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let etcd = EtcdCluster::start(dir.path(), 1)?;
    let urls = etcd.urls();
    let mut server = embedded(dir.path())?;
    make(&server, &["a", "b", "c"])?;
    let (before, revision) = (made(&server)?, resource_version(&server)?);
    let data = text(&server.dir);
    let to_etcd = ["migrate", "--to", "etcd", "--data-dir", &data, "--etcd-servers", &urls];
    let complaint = ferry_refuses(&to_etcd)?;
    ensure!(complaint.contains("in use by process"), "{complaint}");
    stop(&mut server);
    // Somebody else's data is not touched.
    etcd.ctl(&["put", "mine", "1"])?;
    let complaint = ferry_refuses(&to_etcd)?;
    ensure!(complaint.contains("not empty"), "{complaint}");
    etcd.ctl(&["del", "mine"])?;
    interrupt(&server, &to_etcd, &etcd)?;
    let said = ferry(&to_etcd)?;
    ensure!(said.contains("Going on") && said.contains("holds the same, by hash"), "{said}");
    let dump = |prefix: &str| etcd.ctl(&["get", prefix, "--prefix"]);
    let whole = dump("")?;
    ensure!(ferry_refuses(&to_etcd)?.contains("not empty"), "a second time is refused");
    ensure!(whole.contains("of-a") && !whole.contains("/ferry/migration"), "{whole}");

    // Three servers would do as well; the keys of the cluster came with the data directory.
    let on_etcd = start_servers(dir.path(), 1, &urls, &[])?.remove(0);
    let moved = made(&on_etcd)?;
    let names = |text: &str| {
        text.split(' ').map(|one| one.split('@').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    ensure!(names(&moved) == names(&before), "{moved} {before}");
    ensure!(resource_version(&on_etcd)? > revision, "resource versions never go back");
    make(&on_etcd, &["d"])?;
    let complaint = ferry_refuses(&[
        "migrate",
        "--to",
        "embedded",
        "--data-dir",
        &text(&dir.path().join("back")),
        "--etcd-servers",
        &urls,
    ])?;
    ensure!(complaint.contains("API servers still run on this etcd (192.0.2.11)"), "{complaint}");
    let expected = made(&on_etcd)?;
    drop(on_etcd);
    let to_embedded = ["migrate", "--to", "embedded", "--data-dir", &data, "--etcd-servers", &urls];
    ensure!(ferry_refuses(&to_embedded)?.contains("is not empty"), "the old store is still there");
    std::fs::rename(server.dir.join("store"), dir.path().join("old-store"))?;
    ferry(&to_embedded)?;
    let server = embedded(dir.path())?;
    ensure!(made(&server)? == expected, "object for object, at their revisions: {expected}");
    make(&server, &["e"])
}

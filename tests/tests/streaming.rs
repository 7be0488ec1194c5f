//! Exec, attach, copy and port-forward with the real kubectl, as a WebSocket and as SPDY.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{Cluster, eventually, http_get};

/// The tools of this machine in a pod whose image has none.
const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: talker}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: usr, hostPath: {path: /usr}}
  - {name: lib, hostPath: {path: /usr/lib}}
  - {name: lib64, hostPath: {path: /usr/lib64}}
  containers:
  - name: a
    image: "ferry.local/ferry:0.1.0"
    command: [/ferry, hello]
    volumeMounts: &tools
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: lib, mountPath: /lib, readOnly: true}
    - {name: lib64, mountPath: /lib64, readOnly: true}
  - {name: cat, image: "ferry.local/ferry:0.1.0", command: [/usr/bin/cat], stdin: true, volumeMounts: *tools}
"#;

/// kubectl with one of the two ways to stream.
struct Kubectl<'a> {
    cluster: &'a Cluster,
    websockets: &'static str,
}

impl Kubectl<'_> {
    fn spawn(&self, arguments: &[&str]) -> Result<Child> {
        let mut kubectl = self.cluster.kubectl_command();
        Ok(kubectl
            .args(arguments)
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", self.websockets)
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", self.websockets)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?)
    }

    /// Answers the exit code and both outputs.
    fn run(&self, arguments: &[&str], input: &[u8]) -> Result<(i32, String, String)> {
        let mut child = self.spawn(arguments)?;
        child.stdin.take().context("stdin")?.write_all(input)?;
        let output = child.wait_with_output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.code().context("no exit code")?, text(&output.stdout), text(&output.stderr)))
    }
}

#[test]
fn streams_reach_pods_in_both_framings() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let cluster = Cluster::start(dir.path())?;
    ensure!(cluster.apply(POD)?.status.success());
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/talker", "--timeout=30s"])?;
    for websockets in ["true", "false"] {
        let kubectl = Kubectl { cluster: &cluster, websockets };
        exec(&kubectl).with_context(|| format!("exec, WebSockets {websockets}"))?;
        copy(&kubectl).with_context(|| format!("cp, WebSockets {websockets}"))?;
        attach(&kubectl).with_context(|| format!("attach, WebSockets {websockets}"))?;
        port_forward(&kubectl).with_context(|| format!("port-forward, WebSockets {websockets}"))?;
    }
    cluster.kubectl(&["delete", "pod", "talker", "--timeout=60s"])?;
    cluster.stop()
}

fn exec(kubectl: &Kubectl<'_>) -> Result<()> {
    let sh = |script: &str, input: &[u8]| {
        kubectl.run(&["exec", "-i", "talker", "-c", "a", "--", "/usr/bin/sh", "-c", script], input)
    };
    let (code, out, err) = sh("read word; echo out $word; echo err >&2; exit 7", b"hello\n")?;
    ensure!(code == 7 && out == "out hello\n", "{code} {out:?} {err:?}");
    ensure!(err == "err\ncommand terminated with exit code 7\n", "{err:?}");
    // Far more than any buffer on the way, and its end.
    let (code, out, err) = sh("cat | wc -c; head -c 3000000 /dev/zero", &vec![b'x'; 3_000_000])?;
    ensure!(code == 0 && out.len() == 3_000_008 && out.starts_with("3000000\n"), "{code} {} {err}", out.len());
    let (code, _, err) = kubectl.run(&["exec", "talker", "-c", "a", "--", "/nonsense"], b"")?;
    ensure!(code != 0 && err.contains("no such file or directory"), "{code} {err}");
    Ok(())
}

fn copy(kubectl: &Kubectl<'_>) -> Result<()> {
    let (from, to) = (kubectl.cluster.dir.join("from"), kubectl.cluster.dir.join("to"));
    std::fs::write(&from, vec![b'y'; 100_000])?;
    for (from, to) in [(from.to_str(), Some("talker:/copied")), (Some("talker:/copied"), to.to_str())] {
        let (code, _, err) = kubectl.run(&["cp", "-c", "a", from.context("from")?, to.context("to")?], b"")?;
        ensure!(code == 0, "{err}");
    }
    ensure!(std::fs::read(to)? == std::fs::read(from)?);
    Ok(())
}

fn attach(kubectl: &Kubectl<'_>) -> Result<()> {
    let mut child = kubectl.spawn(&["attach", "-i", "talker", "-c", "cat"])?;
    child.stdin.as_mut().context("stdin")?.write_all(b"attached\n")?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("stdout")?).read_line(&mut line)?;
    child.kill()?;
    child.wait()?;
    ensure!(line == "attached\n", "{line:?}");
    Ok(())
}

fn port_forward(kubectl: &Kubectl<'_>) -> Result<()> {
    let mut child = kubectl.spawn(&["port-forward", "--address=127.0.0.1", "pod/talker", ":8080", ":9"])?;
    let mut lines = BufReader::new(child.stdout.take().context("stdout")?);
    let (open, closed) = (next_address(&mut lines)?, next_address(&mut lines)?);
    let get = || -> Result<()> {
        let text = http_get(open)?;
        ensure!(text.contains("Hello from talker"), "{text}");
        Ok(())
    };
    get()?;
    // A connection that says nothing does not hold up those beside it.
    let silent = std::net::TcpStream::connect(open)?;
    let both = [(); 2].map(|()| std::thread::spawn(move || http_get(open)));
    for one in both {
        one.join().map_err(|_| anyhow::anyhow!("panicked"))??;
    }
    drop(silent);
    get()?;
    // kubectl itself gives up after the first connection that is refused, so this comes last.
    ensure!(http_get(closed).is_err(), "nothing listens there");
    eventually("kubectl ends", Duration::from_secs(10), || Ok(child.try_wait()?))?;
    let mut complaint = String::new();
    child.stderr.take().context("stderr")?.read_to_string(&mut complaint)?;
    for wanted in ["-> 9: error forwarding port 9 to pod", "dial tcp4 127.0.0.1:9: connect: connection refused"] {
        ensure!(complaint.contains(wanted), "no {wanted:?} in {complaint}");
    }
    Ok(())
}

/// `Forwarding from 127.0.0.1:40001 -> 8080`
fn next_address(lines: &mut BufReader<ChildStdout>) -> Result<SocketAddr> {
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let address = line.split(' ').nth(2).with_context(|| format!("no address in {line:?}"))?;
    Ok(address.parse()?)
}

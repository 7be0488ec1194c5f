//! A cluster started with `ferry up`, and what its user does with it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::kubectl;
use crate::processes::succeed;

const START_LIMIT: Duration = Duration::from_secs(60);

/// The release binary: where `FERRY` says, or where cargo put it.
pub fn ferry_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("FERRY") {
        return path.into();
    }
    let own = std::env::current_exe().unwrap_or_default();
    // target/TRIPLE/debug/deps/test → target/TRIPLE/release/ferry
    let triple = own.ancestors().nth(3).unwrap_or(Path::new("target"));
    triple.join("release/ferry")
}

#[derive(Clone, Default)]
pub struct Options {
    pub arguments: Vec<String>,
}

pub struct Cluster {
    child: Child,
    pub dir: PathBuf,
    /// From the start of the process to its word that the cluster is up.
    pub took: Duration,
    stderr: mpsc::Receiver<String>,
}

impl Cluster {
    /// Starts a cluster in a data directory and waits until it says that it is up.
    pub fn start(dir: &Path) -> Result<Self> {
        Self::start_with(dir, &Options::default())
    }

    pub fn start_with(dir: &Path, options: &Options) -> Result<Self> {
        let begun = Instant::now();
        let mut child = Command::new(ferry_binary())
            .arg("up")
            .arg("--data-dir")
            .arg(dir.join("data"))
            .arg("--kubeconfig")
            .arg(dir.join("kubeconfig"))
            .args(&options.arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} (build it with `cargo build --release`)", ferry_binary().display()))?;
        let stderr = child.stderr.take().context("stderr")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                // The test may be over; the pipe is still read so that ferry never blocks on it.
                let _ = sender.send(line);
            }
        });
        let mut seen = String::new();
        loop {
            match lines.recv_timeout(START_LIMIT.saturating_sub(begun.elapsed())) {
                Ok(line) if line.contains("The cluster is up") => break,
                Ok(line) => seen.push_str(&format!("{line}\n")),
                Err(_) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    bail!("ferry up did not come up:\n{seen}");
                }
            }
        }
        Ok(Self { child, dir: dir.to_owned(), took: begun.elapsed(), stderr: lines })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kubectl_command(&self) -> Command {
        kubectl(&self.dir.join("kubeconfig"))
    }

    /// Runs kubectl, whatever comes of it.
    pub fn kubectl_output(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.kubectl_command().args(arguments).output()?)
    }

    /// Runs kubectl, which must succeed; answers what it printed.
    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        succeed(self.kubectl_command().args(arguments))
    }

    /// Runs kubectl, which must fail; answers its complaint.
    pub fn kubectl_fails(&self, arguments: &[&str]) -> Result<String> {
        let output = self.kubectl_output(arguments)?;
        ensure!(!output.status.success(), "kubectl {} should have failed", arguments.join(" "));
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Starts kubectl and leaves it running.
    pub fn kubectl_spawn(&self, arguments: &[&str]) -> Result<Child> {
        Ok(self
            .kubectl_command()
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?)
    }

    /// `kubectl apply -f -`
    pub fn apply(&self, manifest: &str) -> Result<Output> {
        let mut child = self.kubectl_spawn(&["apply", "-f", "-"])?;
        // Without the marker kubectl would take YAML in braces for JSON.
        let manifest = format!("---\n{manifest}");
        std::io::Write::write_all(&mut child.stdin.take().context("stdin")?, manifest.as_bytes())?;
        Ok(child.wait_with_output()?)
    }

    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        Ok(serde_json::from_str(&self.kubectl(&all)?)?)
    }

    pub fn jsonpath(&self, what: &str, path: &str) -> Result<String> {
        let mut words: Vec<&str> = vec!["get"];
        words.extend(what.split(' '));
        let template = format!("jsonpath={path}");
        words.extend(["-o", &template]);
        self.kubectl(&words)
    }

    /// Ctrl-C, as a user stops it; the process must end by itself and cleanly.
    pub fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGINT)?;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            if let Some(status) = self.child.try_wait()? {
                let said: Vec<String> = self.stderr.try_iter().collect();
                ensure!(status.success(), "ferry ended with {status}:\n{}", said.join("\n"));
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("ferry did not stop within a minute")
    }

    /// `kill -9`; the data directory is left as it was at that moment.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A test that failed half-way must leave nothing running behind it.
        if self.child.try_wait().ok().flatten().is_none() {
            let _ = kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(0)), Signal::SIGINT);
            for _ in 0..3000 {
                if self.child.try_wait().ok().flatten().is_some() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = self.child.kill();
        }
    }
}

/// Reads what a child printed so far without waiting for its end.
pub fn read_some(child: &mut Child, enough: impl Fn(&str) -> bool) -> Result<String> {
    let mut out = child.stdout.take().context("stdout")?;
    let mut text = String::new();
    let mut buffer = [0_u8; 4096];
    while !enough(&text) {
        let count = out.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        text.push_str(&String::from_utf8_lossy(buffer.get(..count).unwrap_or_default()));
    }
    child.stdout = Some(out);
    Ok(text)
}

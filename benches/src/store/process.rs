//! A server that is measured: a child process, ended with this.

use std::{
    fs,
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::client::Client;

/// Longer than any of them needs to start.
const START: Duration = Duration::from_secs(60);

pub(crate) struct Process {
    child: Child,
    pub(crate) url: String,
}

impl Process {
    pub(crate) fn spawn(mut command: Command, url: String) -> Result<Process> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Process { child: child.with_context(|| format!("{command:?}"))?, url })
    }

    /// Starts a store and waits until it answers.
    pub(super) async fn start(command: Command, url: String) -> Result<Process> {
        let said = format!("{command:?}");
        let process = Process::spawn(command, url)?;
        let begun = Instant::now();
        while answers(&process.url).await.is_err() {
            ensure!(begun.elapsed() < START, "{said} does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(process)
    }

    /// How long its threads have run so far. Unlike a rate, this does not depend on what else the machine does.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let mut total = Duration::ZERO;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let stat = fs::read_to_string(task?.path().join("schedstat"))?;
            total += Duration::from_nanos(stat.split(' ').next().context("an empty schedstat")?.parse()?);
        }
        Ok(total)
    }

    /// What it holds in memory.
    pub(crate) fn resident_bytes(&self) -> Result<u64> {
        Ok(self.number("status", "VmRSS:")? * 1024)
    }

    /// The most it held since it was last forgotten.
    pub(crate) fn peak_bytes(&self) -> Result<u64> {
        Ok(self.number("status", "VmHWM:")? * 1024)
    }

    pub(crate) fn forget_peak(&self) -> Result<()> {
        Ok(fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5")?)
    }

    /// What it has written to disk so far.
    pub(super) fn written_bytes(&self) -> Result<u64> {
        self.number("io", "write_bytes:")
    }

    /// How often a thread of it went to sleep so far, and so was woken.
    pub(super) fn sleeps(&self) -> Result<u64> {
        let mut sleeps = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let status = fs::read_to_string(task?.path().join("status"))?;
            sleeps += number_after(&status, "voluntary_ctxt_switches:")?;
        }
        Ok(sleeps)
    }

    fn number(&self, file: &str, name: &str) -> Result<u64> {
        number_after(&fs::read_to_string(format!("/proc/{}/{file}", self.child.id()))?, name)
    }
}

async fn answers(url: &str) -> Result<i64> {
    Client::connect(url).await?.revision().await
}

fn number_after(text: &str, name: &str) -> Result<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    Ok(value.trim().trim_end_matches(" kB").parse()?)
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A URL on a port that is free now.
pub(crate) fn free_url() -> Result<String> {
    Ok(format!("http://{}", TcpListener::bind("127.0.0.1:0")?.local_addr()?))
}

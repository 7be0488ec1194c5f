//! Components started one by one, as their user would, and ended with the test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::ferry_binary;

/// A process that is asked to end when dropped, and made to if it does not.
pub struct Process {
    child: Child,
    pub log: PathBuf,
    pub paused: bool,
}

impl Process {
    /// Starts a program with its output in a file of its own.
    pub fn start(program: &Path, arguments: &[&str], log: &Path) -> Result<Self> {
        let file = std::fs::File::create(log)?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| program.display().to_string())?;
        Ok(Self { child, log: log.to_owned(), paused: false })
    }

    pub fn ferry(arguments: &[&str], log: &Path) -> Result<Self> {
        Self::start(&ferry_binary(), arguments, log)
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?)
    }

    /// Stops it in its tracks: its connections stay open, and nobody answers.
    pub fn pause(&mut self) -> Result<()> {
        self.paused = true;
        self.signal(Signal::SIGSTOP)
    }

    pub fn resume(&mut self) -> Result<()> {
        self.paused = false;
        self.signal(Signal::SIGCONT)
    }

    /// `kill -9`
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Fails with the process's own words if it has ended.
    pub fn is_running(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!("{status}: {}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let _ = self.signal(Signal::SIGTERM);
        // One that was paused hears it only now.
        let _ = self.signal(Signal::SIGCONT);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that must succeed; answers what it printed.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    succeed(Command::new(program).args(arguments).stdin(Stdio::null()))
}

/// The same, of a command that was made elsewhere.
pub(crate) fn succeed(command: &mut Command) -> Result<String> {
    let output = finish(command)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{command:?}: {text}{complaint}");
    Ok(text)
}

/// Runs a command, whatever comes of it.
pub fn output(program: &str, arguments: &[&str]) -> Result<Output> {
    finish(Command::new(program).args(arguments).stdin(Stdio::null()))
}

fn finish(command: &mut Command) -> Result<Output> {
    command.output().with_context(|| format!("{}: install it", command.get_program().display()))
}

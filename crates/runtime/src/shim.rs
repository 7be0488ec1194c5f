//! The process that stands beside each pod, so that neither the runtime nor the kubelet need to live for the pod to live.
//!
//! It is this binary again, started as `<binary> shim <sandbox directory>`: single-threaded, a session leader and
//! subreaper, owner of the containers' stdio, logs and exit status. Its state is on disk; it answers requests on `shim.sock` in that
//! directory and pushes exits to whoever is connected. libcontainer is called only in children it forks: what libcontainer changes
//! about its caller (dumpable, OOM score, working directory) is gone with them.

mod attached;
mod complaints;
mod executor;
pub(crate) mod link;
mod logs;
mod namespaces;
mod process;
pub(crate) mod program;
pub(crate) mod protocol;
mod seccomp;
mod server;
mod targets;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use nix::unistd::{ForkResult, fork, setsid};

/// What the shim's log calls a failure on the way up.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("usage: shim <sandbox directory>")]
    Usage,
    #[error("cannot detach: {0}")]
    Detach(#[source] std::io::Error),
    #[error("cannot make the pod's namespaces: {0}")]
    Namespaces(#[from] namespaces::NamespaceError),
    #[error(transparent)]
    Server(#[from] server::ServerError),
}

/// Runs the shim for the sandbox directory in `args` and never returns. Must be called before any thread exists.
///
/// The calling process only waits until its child serves (or failed: the reason is on its stderr), then exits; the child is
/// a daemon in a session of its own, so no signal to the runtime's group reaches it.
pub fn shim_main(args: impl IntoIterator<Item = OsString>) -> ! {
    let code = match start(args) {
        Ok(()) => 0,
        Err(error) => {
            // Here stderr is the channel back to the runtime.
            let _ = writeln!(std::io::stderr(), "{error}");
            1
        }
    };
    std::process::exit(code)
}

fn start(args: impl IntoIterator<Item = OsString>) -> Result<(), StartError> {
    let directory = args.into_iter().next().map(PathBuf::from).ok_or(StartError::Usage)?;
    // Whatever the runtime's process left open by mistake must not live as long as the pod.
    namespaces::close_all_but_stdio();
    let (mut ready, told) = std::io::pipe().map_err(StartError::Detach)?;
    // SAFETY: the process has one thread, so the child may go on as an ordinary process.
    match unsafe { fork() }.map_err(|e| StartError::Detach(e.into()))? {
        ForkResult::Parent { .. } => {
            drop(told);
            let mut outcome = String::new();
            ready.read_to_string(&mut outcome).map_err(StartError::Detach)?;
            match outcome.as_str() {
                "ready" => Ok(()),
                reason => Err(StartError::Detach(std::io::Error::other(reason.to_owned()))),
            }
        }
        ForkResult::Child => {
            drop(ready);
            let served = serve(&directory, told);
            std::process::exit(i32::from(served.is_err()))
        }
    }
}

fn serve(directory: &Path, mut told: std::io::PipeWriter) -> Result<(), StartError> {
    let up = detach(directory).and_then(|()| {
        namespaces::set_up(directory)?;
        Ok(server::Server::bind(directory)?)
    });
    let mut server = match up {
        Ok(server) => server,
        Err(error) => {
            let _ = write!(told, "{error}");
            return Err(error);
        }
    };
    told.write_all(b"ready").map_err(StartError::Detach)?;
    drop(told);
    server.run()?;
    Ok(())
}

/// Cuts every tie to the runtime's process: session, directory, stdio.
fn detach(directory: &Path) -> Result<(), StartError> {
    let detach = || -> std::io::Result<()> {
        setsid()?;
        // It was executed by a descriptor, whose number would be its name.
        nix::sys::prctl::set_name(c"ferry-shim")?;
        std::env::set_current_dir("/")?;
        nix::sys::prctl::set_child_subreaper(true)?;
        nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
        let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
        let log = std::fs::File::options().create(true).append(true).open(directory.join("shim.log"))?;
        nix::unistd::dup2_stdin(&null)?;
        nix::unistd::dup2_stdout(&null)?;
        nix::unistd::dup2_stderr(&log)?;
        Ok(())
    };
    detach().map_err(StartError::Detach)
}

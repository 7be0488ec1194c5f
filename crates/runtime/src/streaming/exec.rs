//! Exec and attach sessions, and the exec that is awaited as a whole.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use cri::v1::{AttachRequest, ExecRequest, ExecSyncResponse};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tonic::Status;

use super::channels::{
    Client, Process, Reader, STDERR, STDOUT, StreamError, Writer, exit_status, failure, pump_in, pump_out,
};
use super::terminal::Terminal;
use crate::Runtime;
use crate::container::Container;
use crate::shim::protocol::Request;

/// A command's background children may hold its output open; after its end they are not waited for longer than this.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(2);
/// More output of a stream than this is cut: the answer is one message, held whole.
/// Probes and hooks read 10 KiB of it; a container must not make the node hold more.
const MAX_SYNC_BYTES: u64 = 256 << 10;

/// Output beyond [`MAX_SYNC_BYTES`] is dropped at 16 MB/s: a pipe's worth at a time.
const DROPPED_BYTES: usize = 64 << 10;
const DROPPED_PACE: Duration = Duration::from_millis(4);

fn null() -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open("/dev/null")?.into())
}

/// Our end and the process's end of an output that is wanted, or nothing and /dev/null.
fn output(wanted: bool) -> io::Result<(Option<pipe::Receiver>, OwnedFd)> {
    if !wanted {
        return Ok((None, null()?));
    }
    let (sender, receiver) = pipe::pipe()?;
    Ok((Some(receiver), sender.into_blocking_fd()?))
}

pub(super) async fn serve_exec(runtime: &Runtime, client: Client, request: ExecRequest) -> Result<(), StreamError> {
    let Client { incoming, outbox, writer } = client;
    match start_exec(runtime, &request).await {
        Ok((process, exit)) => {
            let outputs: Vec<_> = process
                .outputs
                .into_iter()
                .map(|(channel, from)| tokio::spawn(pump_out(from, channel, outbox.clone())))
                .collect();
            let input = tokio::spawn(pump_in(incoming, process.stdin, process.terminal));
            let code = exit.await.unwrap_or(255);
            let _ = tokio::time::timeout(OUTPUT_PATIENCE, futures::future::join_all(outputs)).await;
            outbox.status(&exit_status(code)).await;
            // Aborting drops stdin.
            input.abort();
            let _ = input.await;
        }
        Err(error) => outbox.status(&failure(&error.to_string())).await,
    }
    drop(outbox);
    let _ = tokio::time::timeout(OUTPUT_PATIENCE, writer).await;
    Ok(())
}

async fn start_exec(
    runtime: &Runtime,
    request: &ExecRequest,
) -> Result<(Process, tokio::sync::oneshot::Receiver<i32>), StreamError> {
    let container = find(runtime, &request.container_id)?;
    let refused = |error: crate::container::ContainerError| StreamError::Refused(error.to_string());
    if request.tty {
        let exec = runtime.exec_in(&container, &request.cmd, None).await.map_err(refused)?;
        let fd = exec.terminal.ok_or_else(|| StreamError::Refused("the terminal did not arrive".to_owned()))?;
        let terminal = Terminal::new(fd)?;
        let stdin = request.stdin.then(|| Box::new(terminal.clone()) as Writer);
        let outputs = vec![(STDOUT, Box::new(terminal.clone()) as Reader)];
        return Ok((Process { stdin, terminal: Some(terminal), outputs }, exec.exit));
    }
    let (stdin, stdin_child) = match request.stdin {
        true => {
            let (sender, receiver) = pipe::pipe()?;
            (Some(Box::new(sender) as Writer), receiver.into_blocking_fd()?)
        }
        false => (None, null()?),
    };
    let (stdout, stdout_child) = output(request.stdout)?;
    let (stderr, stderr_child) = output(request.stderr)?;
    let fds = [stdin_child, stdout_child, stderr_child];
    let exec = runtime.exec_in(&container, &request.cmd, Some(fds)).await.map_err(refused)?;
    let outputs = [(STDOUT, stdout), (STDERR, stderr)];
    let outputs =
        outputs.into_iter().filter_map(|(channel, from)| Some((channel, Box::new(from?) as Reader))).collect();
    Ok((Process { stdin, terminal: None, outputs }, exec.exit))
}

pub(super) async fn serve_attach(runtime: &Runtime, client: Client, request: AttachRequest) -> Result<(), StreamError> {
    let Client { incoming, outbox, writer } = client;
    match start_attach(runtime, &request).await {
        Ok(process) => {
            let outputs: Vec<_> = process
                .outputs
                .into_iter()
                .map(|(channel, from)| tokio::spawn(pump_out(from, channel, outbox.clone())))
                .collect();
            let mut input = tokio::spawn(pump_in(incoming, process.stdin, process.terminal));
            tokio::select! {
                // The container ended.
                _ = futures::future::join_all(outputs) => {
                    outbox.status(&exit_status(0)).await;
                    input.abort();
                    let _ = input.await;
                }
                // The client detached; its end of stdin is dropped with the task's answer.
                _ = &mut input => (),
            }
            close_stdin_if_once(runtime, &request).await;
        }
        Err(error) => outbox.status(&failure(&error.to_string())).await,
    }
    drop(outbox);
    let _ = tokio::time::timeout(OUTPUT_PATIENCE, writer).await;
    Ok(())
}

async fn start_attach(runtime: &Runtime, request: &AttachRequest) -> Result<Process, StreamError> {
    let container = find(runtime, &request.container_id)?;
    let config = container.record().config.0;
    let sandbox =
        runtime.sandbox(&container.sandbox).ok_or_else(|| StreamError::Refused("the pod is gone".to_owned()))?;
    let refused = |error: crate::shim::link::LinkError| StreamError::Refused(error.to_string());
    let link = sandbox.link().map_err(refused)?;
    let stdin = request.stdin && config.stdin;
    let asked = Request::Attach {
        container: container.id.clone(),
        stdin,
        stdout: request.stdout,
        stderr: request.stderr && !config.tty,
    };
    let (_, fds) = link.call(asked, &[]).await.map_err(refused)?;
    let mut fds = fds.into_iter();
    let mut process = Process { stdin: None, terminal: None, outputs: Vec::new() };
    if config.tty {
        let terminal = Terminal::new(fds.next().ok_or_else(missing)?)?;
        process.stdin = stdin.then(|| Box::new(terminal.clone()) as Writer);
        process.terminal = Some(terminal);
    } else if stdin {
        process.stdin = Some(Box::new(pipe::Sender::from_owned_fd(fds.next().ok_or_else(missing)?)?));
    }
    for (wanted, channel) in [(request.stdout, STDOUT), (request.stderr && !config.tty, STDERR)] {
        if wanted {
            let fd = fds.next().ok_or_else(missing)?;
            process.outputs.push((channel, Box::new(pipe::Receiver::from_owned_fd(fd)?)));
        }
    }
    Ok(process)
}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the shim sent too few descriptors")
}

/// A container with `stdinOnce` sees the end of its input when its first client leaves.
async fn close_stdin_if_once(runtime: &Runtime, request: &AttachRequest) {
    let Some(container) =
        runtime.container(&request.container_id).filter(|c| request.stdin && c.record().config.0.stdin_once)
    else {
        return;
    };
    if let Some(link) = runtime.sandbox(&container.sandbox).and_then(|sandbox| sandbox.link().ok()) {
        let _ = link.tell(Request::CloseStdin { container: container.id.clone() }).await;
    }
}

fn find(runtime: &Runtime, id: &str) -> Result<std::sync::Arc<Container>, StreamError> {
    runtime.container(id).ok_or_else(|| StreamError::Refused(format!("container {id} not found")))
}

/// Runs a command to its end and answers all of its output. A command over time is killed.
pub(crate) async fn exec_sync(
    runtime: &Runtime,
    container: &Container,
    command: &[String],
    timeout: Option<Duration>,
) -> Result<ExecSyncResponse, Status> {
    let broken = |error: io::Error| Status::internal(error.to_string());
    let (stdout, stdout_child) = output(true).map_err(broken)?;
    let (stderr, stderr_child) = output(true).map_err(broken)?;
    let exec = runtime.exec_in(container, command, Some([null().map_err(broken)?, stdout_child, stderr_child])).await?;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = {
        let streams = async {
            tokio::join!(read_bounded(stdout, &mut out), read_bounded(stderr, &mut err));
        };
        tokio::pin!(streams);
        let mut finished = false;
        let whole = async {
            let mut exit = exec.exit;
            let code = loop {
                tokio::select! {
                    code = &mut exit => break code.unwrap_or(255),
                    () = &mut streams, if !finished => finished = true,
                }
            };
            if !finished {
                let _ = tokio::time::timeout(OUTPUT_PATIENCE, &mut streams).await;
            }
            code
        };
        match timeout {
            Some(limit) => tokio::time::timeout(limit, whole).await,
            None => Ok(whole.await),
        }
    };
    match outcome {
        Ok(exit_code) => Ok(ExecSyncResponse { stdout: out, stderr: err, exit_code }),
        Err(_) => {
            if let Some(link) = runtime.sandbox(&container.sandbox).and_then(|sandbox| sandbox.link().ok()) {
                let _ = link.tell(Request::KillExec { exec: exec.id.clone() }).await;
            }
            let limit = timeout.unwrap_or_default().as_secs();
            Err(Status::deadline_exceeded(format!("command {command:?} timed out after {limit}s")))
        }
    }
}

async fn read_bounded(from: Option<pipe::Receiver>, into: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let _ = (&mut from).take(MAX_SYNC_BYTES).read_to_end(into).await;
    // The rest is read and dropped, so that the command can end: slowly, as a command that writes without end must not keep a
    // processor of the node busy beside its own.
    let mut dropped = vec![0; DROPPED_BYTES];
    while let Ok(1..) = from.read(&mut dropped).await {
        tokio::time::sleep(DROPPED_PACE).await;
    }
}

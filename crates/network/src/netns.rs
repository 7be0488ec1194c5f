//! Runs code inside a pod's network namespace.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::sched::{CloneFlags, setns};
use tokio::sync::oneshot;

use crate::NetworkError;
use crate::link::Links;

/// `work` runs on a thread of its own that enters `namespace` and then ends: the callers' threads never change namespace.
pub(crate) async fn inside<T, W>(path: &Path, namespace: File, work: W) -> Result<T, NetworkError>
where
    T: Send + 'static,
    W: AsyncFnOnce(Links) -> Result<T, NetworkError> + Send + 'static,
{
    let failed = |source| NetworkError::Namespace { path: path.to_owned(), source };
    let (done, outcome) = oneshot::channel();
    let owned = path.to_owned();
    let run = move || {
        let failed = |source| NetworkError::Namespace { path: owned.clone(), source };
        setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| failed(errno.into()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        runtime.block_on(async { work(Links::open()?).await })
    };
    std::thread::Builder::new()
        .name("pod-netns".into())
        // The caller may have gone away; then nobody wants the outcome.
        .spawn(move || drop(done.send(run())))
        .map_err(failed)?;
    outcome.await.map_err(|_| failed(io::Error::other("the thread inside it panicked")))?
}

pub(crate) fn open(path: &Path) -> Result<File, NetworkError> {
    File::open(path).map_err(|source| NetworkError::Namespace { path: path.to_owned(), source })
}

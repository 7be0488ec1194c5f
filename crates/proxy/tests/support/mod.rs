//! Network namespaces for tests: a node of one's own, and pods in it.

use std::future::Future;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

/// Runs `test` with a network namespace that stands for a node; it goes away with the thread.
pub(crate) fn on_node<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send) {
    std::thread::scope(|scope| {
        let run = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("these tests run as root");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(test());
        };
        scope.spawn(run).join().expect("the test panicked, see above");
    });
}

/// A pod's network namespace, held by a bind mount as a container runtime does.
pub(crate) struct Pod {
    pub(crate) netns: PathBuf,
}

impl Pod {
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        let netns = directory.join(name);
        std::fs::write(&netns, "").expect("a mount point");
        let target = netns.clone();
        let bind = move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
            let own = "/proc/thread-self/ns/net";
            mount(Some(own), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("a bind mount");
        };
        std::thread::spawn(bind).join().expect("the pod's thread panicked");
        Self { netns }
    }

    /// Runs `work` inside the pod.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let netns = std::fs::File::open(&self.netns).expect("the pod's namespace");
        std::thread::spawn(move || {
            setns(netns, CloneFlags::CLONE_NEWNET).expect("entering the pod");
            work()
        })
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        umount2(&self.netns, MntFlags::MNT_DETACH).expect("unmounting the namespace");
    }
}

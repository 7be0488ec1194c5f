//! Bounds on what a pod makes the kubelet build from small parts: references that expand to other references, or one ConfigMap
//! in a thousand places.

/// So many bytes, shared by everything of one kind.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
    exceeded: Exceeded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Exceeded {
    #[error(
        "argument list too long: command, arguments and environment take more than the 6 MiB that the kernel allows"
    )]
    Process,
    #[error("the files of the pod's ConfigMap, Secret, downward API and projected volumes take more than 32 MiB")]
    Files,
}

impl Budget {
    /// For a process's arguments and environment together. The kernel starts no process with more, whatever the limit of its stack is.
    pub(crate) fn of_process() -> Self {
        Self { left: 6 << 20, exceeded: Exceeded::Process }
    }

    /// For the files that the kubelet writes into a pod's volumes.
    pub(crate) fn of_files() -> Self {
        Self { left: 32 << 20, exceeded: Exceeded::Files }
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Exceeded> {
        self.left = self.left.checked_sub(bytes).ok_or(self.exceeded)?;
        Ok(())
    }
}

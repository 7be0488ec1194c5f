//! The shim's program as it is executed: through a detached, read-only mount of its file.
//!
//! A process in a container can find the program of a process that enters the container, by `/proc/PID/exe`, and open it to write.
//! What it finds there is the file as it was executed, so this one belongs to a mount on which nothing can be written.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

/// The attributes a mount can have are numbered by the kernel's `linux/mount.h`.
const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

/// A program to execute. The mount costs no memory, and what is executed stays the same file if the one at its path is replaced.
pub(crate) struct Program {
    mount: OwnedFd,
    name: OsString,
}

impl Program {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mount = open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
        // SAFETY: all zeroes is a valid request that changes nothing.
        let mut attributes: libc::mount_attr = unsafe { std::mem::zeroed() };
        attributes.attr_set = READ_ONLY;
        // SAFETY: the descriptor is open, the path an empty string, and the size that of the request.
        let changed = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                mount.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                &raw const attributes,
                size_of::<libc::mount_attr>(),
            )
        };
        match changed {
            0 => Ok(Self { mount, name: path.as_os_str().to_owned() }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// A command that executes it; valid while `self` lives.
    pub(crate) fn command(&self) -> tokio::process::Command {
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.mount.as_raw_fd()));
        let mut command = tokio::process::Command::new(path);
        command.arg0(&self.name);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_is_executed_by_the_link_to_itself() {
        let program = Program::open("/proc/self/exe".as_ref()).expect("a mount");
        let listed = program.command().arg("--list").output().await.expect("it runs");
        assert!(String::from_utf8_lossy(&listed.stdout).contains("a_program_is_executed_by_the_link_to_itself"));
    }
}

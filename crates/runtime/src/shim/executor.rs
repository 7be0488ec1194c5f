//! The last steps before the container's program runs: system call filter, capabilities, then `execve`.
//!
//! libcontainer is given no capabilities and no filter. A filter without `no_new_privs` may only be installed with
//! CAP_SYS_ADMIN, so it must come before capabilities are dropped, and libcontainer (without its C library) cannot do that.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use libcontainer::capabilities;
use libcontainer::syscall::syscall::create_syscall;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use oci_spec::runtime::Spec;

use super::protocol::ProcessSetup;
use super::seccomp;

#[derive(Clone)]
pub(super) struct Exec {
    pub setup: ProcessSetup,
}

impl Executor for Exec {
    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        find_program(spec).map(drop).map_err(ExecutorValidationError::ArgValidationError)
    }

    fn setup_envs(&self, envs: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        // `execve` takes the specification's environment as it is. libcontainer only adds HOME, found in the image's passwd file.
        if let Some(home) = envs.get("HOME") {
            // SAFETY: this process has one thread.
            unsafe { std::env::set_var("HOME", home) };
        }
        Ok(())
    }

    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let failed = |step: &str, error: &dyn std::fmt::Display| {
            use std::io::Write;
            let message = format!("{step}: {error}");
            // Nobody else can be told any more: the container has started.
            let _ = writeln!(std::io::stderr(), "{message}");
            ExecutorError::Other(message)
        };
        if self.setup.seccomp {
            seccomp::apply(&self.setup.capabilities)
                .map_err(|e| failed("cannot install the system call filter", &e))?;
        }
        capabilities::drop_privileges(&self.setup.capabilities, create_syscall().as_ref())
            .map_err(|e| failed("cannot set capabilities", &e))?;
        let program = find_program(spec).map_err(|e| failed("cannot start", &e))?;
        let process = spec.process().as_ref().ok_or(ExecutorError::InvalidArg)?;
        let strings = |list: &Option<Vec<String>>| -> Result<Vec<CString>, ExecutorError> {
            list.iter().flatten().map(|s| CString::new(s.as_str()).map_err(|_| ExecutorError::InvalidArg)).collect()
        };
        let mut environment = strings(process.env())?;
        if !environment.iter().any(|entry| entry.as_bytes().starts_with(b"HOME="))
            && let Ok(home) = std::env::var("HOME")
        {
            environment.push(CString::new(format!("HOME={home}")).map_err(|_| ExecutorError::InvalidArg)?);
        }
        let path =
            CString::new(program.into_os_string().into_encoded_bytes()).map_err(|_| ExecutorError::InvalidArg)?;
        let Err(error) = nix::unistd::execve(&path, &strings(process.args())?, &environment);
        Err(failed(&format!("exec {path:?}"), &error.desc()))
    }
}

/// What the first argument means in this root, by the container's own PATH. The words of the error are those users search for.
fn find_program(spec: &Spec) -> Result<PathBuf, String> {
    let process = spec.process().as_ref().ok_or("no process to run")?;
    let name = process.args().iter().flatten().next().filter(|name| !name.is_empty()).ok_or("no command to run")?;
    let runnable = |path: &Path| match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err("is a directory"),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => Err("permission denied"),
        Ok(_) => Ok(()),
        Err(_) => Err("no such file or directory"),
    };
    if name.contains('/') {
        let path = if name.starts_with('/') { PathBuf::from(name) } else { process.cwd().join(name) };
        return runnable(&path).map(|()| path).map_err(|reason| format!("exec: {name:?}: stat {name}: {reason}"));
    }
    let search = process.env().iter().flatten().find_map(|e| e.strip_prefix("PATH=")).unwrap_or_default();
    search
        .split(':')
        .map(|directory| Path::new(if directory.is_empty() { "." } else { directory }).join(name))
        .find(|path| runnable(path).is_ok())
        .ok_or_else(|| format!("exec: {name:?}: executable file not found in $PATH"))
}

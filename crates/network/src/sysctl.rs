//! Kernel settings of the calling thread's network namespace.

use std::path::PathBuf;

use crate::NetworkError;

/// Writes only what differs, so that a read-only `/proc/sys` does no harm when all is set already.
pub(crate) fn set(name: &str, value: &str) -> Result<(), NetworkError> {
    let path = PathBuf::from("/proc/sys/net").join(name);
    if std::fs::read_to_string(&path).is_ok_and(|current| current.trim() == value) {
        return Ok(());
    }
    std::fs::write(&path, value).map_err(|source| NetworkError::Sysctl { path, source })
}

//! A certificate with its key in one file of a folder, as upstream keeps it: `NAME-current.pem` leads to the newest.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot read {path}: {error}")]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot write {path}: {error}")]
    Write { path: PathBuf, error: io::Error },
}

#[derive(Clone, Debug)]
pub struct CertificateStore {
    folder: PathBuf,
    name: &'static str,
}

impl CertificateStore {
    /// The certificate that the kubelet shows to the API server.
    pub fn client(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), name: "kubelet-client" }
    }

    /// The one that it shows to those who call it.
    pub fn server(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), name: "kubelet-server" }
    }

    /// Always leads to the newest.
    pub fn current_path(&self) -> PathBuf {
        self.path("current.pem")
    }

    /// Holds a key while nothing is issued for it, so that a kubelet that starts again does not ask for another certificate.
    pub(super) fn key_path(&self) -> PathBuf {
        self.folder.join(format!("{}.key.tmp", self.name))
    }

    fn path(&self, what: &str) -> PathBuf {
        self.folder.join(format!("{}-{what}", self.name))
    }

    /// Chain and key, in PEM.
    ///
    /// # Errors
    /// There is one and it cannot be read.
    pub fn current(&self) -> Result<Option<String>, StoreError> {
        read(&self.current_path())
    }

    /// Chain and key are there from now on, after a crash too.
    ///
    /// # Errors
    /// They could not be written; what was there before still is.
    pub fn update(&self, pem: &str, now: Timestamp) -> Result<(), StoreError> {
        let file = self.path(&now.strftime("%Y-%m-%d-%H-%M-%S.pem").to_string());
        self.write(&file, pem)?;
        let (link, current) = (self.path("updated.pem"), self.current_path());
        let linked = match std::fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => std::path::absolute(&file).and_then(|file| symlink(file, &link)),
        };
        linked
            .and_then(|()| std::fs::rename(&link, &current))
            .map_err(|error| StoreError::Write { path: current, error })
    }

    /// Whole or not at all, and for its owner alone.
    pub(super) fn write(&self, path: &Path, text: &str) -> Result<(), StoreError> {
        let written = || {
            std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.folder)?;
            let temporary = path.with_extension("new");
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)
        };
        written().map_err(|error| StoreError::Write { path: path.to_owned(), error })
    }
}

pub(super) fn read(path: &Path) -> Result<Option<String>, StoreError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::Read { path: path.to_owned(), error }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_newest_is_current_and_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let store = CertificateStore::client(&folder.path().join("pki"));
        assert_eq!(store.current().unwrap(), None);
        let at = |second| Timestamp::from_second(second).unwrap();
        store.update("one", at(0)).unwrap();
        // Within the same second, as when a clock stands still.
        store.update("two", at(0)).unwrap();
        assert_eq!(store.current().unwrap().as_deref(), Some("two"));
        store.update("three", at(90)).unwrap();
        assert_eq!(store.current().unwrap().as_deref(), Some("three"));
        let current = store.current_path();
        assert_eq!(current.file_name().unwrap(), "kubelet-client-current.pem");
        let file = std::fs::read_link(&current).unwrap();
        assert_eq!(file.file_name().unwrap(), "kubelet-client-1970-01-01-00-01-30.pem");
        assert_eq!(std::fs::metadata(&current).unwrap().permissions().mode() & 0o777, 0o600);
        let left: Vec<_> = std::fs::read_dir(folder.path().join("pki")).unwrap().collect();
        assert_eq!(left.len(), 3, "nothing that was only on the way: {left:?}");
    }
}

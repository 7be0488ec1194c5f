//! Small files that must be whole, and directories that must be gone.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Writes through a neighbour and a rename: readers see the old bytes or the new ones, never half.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    let mut file = fs::File::create(&fresh)?;
    file.write_all(bytes)?;
    fs::rename(&fresh, path)
}

/// Removes everything in a directory, but not the directory.
pub(crate) fn empty(directory: &Path) -> io::Result<()> {
    prune(directory, |_| false)
}

/// Removes the entries of a directory whose name `keep` does not want.
pub(crate) fn prune(directory: &Path, keep: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(&keep) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a file or a tree; something that is already gone is fine.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

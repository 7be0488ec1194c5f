//! Writes a set of files so that a reader sees all of the old or all of the new ones.
//!
//! Files live in a time-stamped folder; `..data` points to the current one and is replaced by a rename. What the container sees are
//! links through `..data`, so that one rename changes them all.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Component, Path};

use rand::Rng;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) data: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) owner: Option<u32>,
}

/// Files by their path below the volume.
pub(crate) type Payload = BTreeMap<String, File>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum AtomicError {
    #[error("invalid path {0:?}: must be relative, without \"..\", and not start with \"..\"")]
    Path(String),
    #[error("cannot {step}")]
    Io { step: &'static str, source: io::Error },
}

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

fn io(step: &'static str) -> impl FnOnce(io::Error) -> AtomicError {
    move |source| AtomicError::Io { step, source }
}

/// Brings the folder to `payload`; returns whether anything was written. `finish` sees the new files before they are visible.
pub(crate) fn write(
    folder: &Path,
    payload: &Payload,
    finish: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<bool, AtomicError> {
    for path in payload.keys() {
        let escapes = Path::new(path).components().any(|part| !matches!(part, Component::Normal(_)));
        if path.is_empty() || path.starts_with("..") || escapes {
            return Err(AtomicError::Path(path.clone()));
        }
    }
    let current = std::fs::read_link(folder.join(DATA)).ok().map(|target| folder.join(target));
    let old = current.as_deref().map(read_files).transpose().map_err(io("read the current files"))?;
    if old.as_ref().is_some_and(|old| same(old, payload)) {
        link(folder, payload)?;
        return Ok(false);
    }
    let stamp = jiff::Timestamp::now().strftime("..%Y_%m_%d_%H_%M_%S.").to_string();
    let name = format!("{stamp}{}", rand::rng().random_range(1_000_000_000_u64..10_000_000_000));
    let fresh = folder.join(&name);
    std::fs::create_dir(&fresh).map_err(io("make a folder"))?;
    set_mode(&fresh, 0o755)?;
    write_files(&fresh, payload)?;
    finish(&fresh).map_err(io("set ownership"))?;
    let staged = folder.join(NEW_DATA);
    let _ = std::fs::remove_file(&staged);
    symlink(&name, &staged).map_err(io("link the new files"))?;
    std::fs::rename(&staged, folder.join(DATA)).map_err(io("switch to the new files"))?;
    link(folder, payload)?;
    unlink_stale(folder, payload)?;
    if let Some(current) = current {
        std::fs::remove_dir_all(current).map_err(io("remove the old files"))?;
    }
    Ok(true)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), AtomicError> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(io("set a mode"))
}

fn write_files(folder: &Path, payload: &Payload) -> Result<(), AtomicError> {
    for (path, file) in payload {
        let target = folder.join(path);
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(io("make a folder"))?;
        }
        std::fs::write(&target, &file.data).map_err(io("write a file"))?;
        set_mode(&target, file.mode)?;
        if let Some(owner) = file.owner {
            chown(&target, Some(owner), None).map_err(io("set an owner"))?;
        }
    }
    Ok(())
}

/// What the container sees: the first part of each path, as a link through `..data`.
fn names(payload: &Payload) -> BTreeSet<&str> {
    payload.keys().filter_map(|path| path.split('/').next()).collect()
}

fn link(folder: &Path, payload: &Payload) -> Result<(), AtomicError> {
    for name in names(payload) {
        match symlink(format!("{DATA}/{name}"), folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io("link a file")(error)),
            _ => (),
        }
    }
    Ok(())
}

fn unlink_stale(folder: &Path, payload: &Payload) -> Result<(), AtomicError> {
    let keep = names(payload);
    for entry in std::fs::read_dir(folder).map_err(io("list the volume"))?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("..") && !keep.contains(name.as_ref()) {
            std::fs::remove_file(entry.path()).map_err(io("remove a stale link"))?;
        }
    }
    Ok(())
}

fn read_files(folder: &Path) -> io::Result<Payload> {
    let mut found = Payload::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(path) = pending.pop() {
        for entry in std::fs::read_dir(&path)?.flatten() {
            let kind = entry.file_type()?;
            if kind.is_dir() {
                pending.push(entry.path());
            } else {
                let meta = entry.metadata()?;
                let name =
                    entry.path().strip_prefix(folder).map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
                let file =
                    File { data: std::fs::read(entry.path())?, mode: meta.mode() & 0o777, owner: Some(meta.uid()) };
                found.insert(name, file);
            }
        }
    }
    Ok(found)
}

/// Modes may have been widened for a group, so only content and the bits asked for are compared.
fn same(old: &Payload, new: &Payload) -> bool {
    old.len() == new.len()
        && old.iter().zip(new).all(|((old_path, old), (path, file))| {
            old_path == path && old.data == file.data && old.mode & file.mode == file.mode & 0o777
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |data: &str| File { data: data.into(), mode: 0o644, owner: None };
        files.iter().map(|(path, data)| ((*path).to_owned(), file(data))).collect()
    }

    fn write_all(folder: &Path, files: &[(&str, &str)]) -> bool {
        write(folder, &payload(files), |_| Ok(())).expect("written")
    }

    #[test]
    fn a_change_switches_all_files_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).ok();
        assert!(write_all(folder.path(), &[("a", "1"), ("dir/b", "2")]));
        assert_eq!((read("a"), read("dir/b")), (Some("1".into()), Some("2".into())));
        assert!(!write_all(folder.path(), &[("a", "1"), ("dir/b", "2")]), "nothing changed");
        assert!(write_all(folder.path(), &[("a", "3"), ("c", "4")]));
        assert_eq!((read("a"), read("c"), read("dir/b")), (Some("3".into()), Some("4".into()), None));
        let stamped = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("..2");
        let folders = std::fs::read_dir(folder.path()).expect("a listing").flatten().filter(stamped).count();
        assert_eq!(folders, 1, "the old folder is gone");
        assert!(write_all(folder.path(), &[]));
        assert_eq!(read("a"), None);
    }

    #[test]
    fn a_path_cannot_leave_the_volume() {
        let folder = tempfile::tempdir().expect("a folder");
        for path in ["../x", "/x", "a/../../x", "..data", ""] {
            assert!(write(folder.path(), &payload(&[(path, "")]), |_| Ok(())).is_err(), "{path}");
        }
    }
}

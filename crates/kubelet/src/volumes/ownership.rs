//! `fsGroup`: gives a volume's files to the pod's group, with the modes the group needs.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

const READ_WRITE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
const EXECUTE: u32 = 0o110;
const SET_GID: u32 = 0o2000;

/// New files in a folder inherit its group through the set-gid bit.
pub(crate) fn give_to_group(path: &Path, group: u32, read_only: bool, recurse: bool) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    lchown(path, None, Some(group))?;
    if meta.is_symlink() {
        return Ok(());
    }
    let mut mask = if read_only { READ_ONLY } else { READ_WRITE };
    if meta.is_dir() {
        mask |= SET_GID | EXECUTE;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode((meta.mode() | mask) & 0o7777))?;
    if meta.is_dir() && recurse {
        for entry in std::fs::read_dir(path)? {
            give_to_group(&entry?.path(), group, read_only, true)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_get_the_group_and_its_bits() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("a mode");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).expect("a mode");
        give_to_group(folder.path(), 4321, false, true).expect("given");
        let look = |path: &Path| std::fs::metadata(path).map(|meta| (meta.gid(), meta.mode() & 0o7777)).expect("there");
        assert_eq!(look(&file), (4321, 0o660));
        assert_eq!(look(folder.path()), (4321, 0o2770));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("a mode");
        give_to_group(&file, 4321, true, true).expect("given");
        assert_eq!(look(&file), (4321, 0o640));
    }
}

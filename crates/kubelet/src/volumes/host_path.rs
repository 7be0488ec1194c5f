//! `hostPath` volumes: the type check, and making what `…OrCreate` asks for.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use k8s_openapi::api::core::v1::HostPathVolumeSource;

#[derive(Debug, thiserror::Error)]
pub(crate) enum HostPathError {
    #[error("hostPath type check failed: {path} is not a {wanted}")]
    Type { path: String, wanted: &'static str },
    #[error("cannot create {path}: {source}")]
    Create { path: String, source: std::io::Error },
}

pub(crate) fn check(source: &HostPathVolumeSource) -> Result<(), HostPathError> {
    let path = Path::new(&source.path);
    let wanted = match source.type_.as_deref().unwrap_or_default() {
        "DirectoryOrCreate" if !path.exists() => {
            let made = std::fs::create_dir_all(path);
            let made = made.and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)));
            return made.map_err(|error| HostPathError::Create { path: source.path.clone(), source: error });
        }
        "FileOrCreate" if !path.exists() => {
            let made = std::fs::File::create(path).map(drop);
            let made = made.and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)));
            return made.map_err(|error| HostPathError::Create { path: source.path.clone(), source: error });
        }
        "Directory" | "DirectoryOrCreate" => "directory",
        "File" | "FileOrCreate" => "file",
        "Socket" => "socket file",
        "CharDevice" => "character device",
        "BlockDevice" => "block device",
        _ => return Ok(()),
    };
    let kind = std::fs::metadata(path).ok().map(|meta| meta.file_type());
    let fits = kind.is_some_and(|kind| match wanted {
        "directory" => kind.is_dir(),
        "file" => kind.is_file(),
        "socket file" => kind.is_socket(),
        "character device" => kind.is_char_device(),
        _ => kind.is_block_device(),
    });
    if fits { Ok(()) } else { Err(HostPathError::Type { path: source.path.clone(), wanted }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn try_type(path: &Path, type_: &str, want: bool) {
        let source = HostPathVolumeSource { path: path.display().to_string(), type_: Some(type_.to_owned()) };
        assert_eq!(check(&source).is_ok(), want, "{type_} {}", path.display());
    }

    #[test]
    fn types_are_checked_or_created() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = folder.path().join("missing");
        try_type(&missing, "", true);
        try_type(&missing, "Directory", false);
        try_type(&missing, "File", false);
        try_type(&missing, "DirectoryOrCreate", true);
        try_type(&missing, "Directory", true);
        try_type(&missing, "FileOrCreate", false);
        try_type(&folder.path().join("file"), "FileOrCreate", true);
        try_type(&folder.path().join("file"), "File", true);
        try_type(Path::new("/dev/null"), "CharDevice", true);
        try_type(Path::new("/dev/null"), "BlockDevice", false);
    }
}

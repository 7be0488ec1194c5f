//! Refuses a root filesystem whose links would redirect what is mounted into it.
//!
//! libcontainer keeps every mount inside the root, but it writes device links through `/dev` by path, and mounts whatever the
//! specification names over a path that a link turned into one below `/proc`. An image is not to be trusted with either.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use oci_spec::runtime::{Mount, Spec};
use rustix::fs::{FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstat, openat2, readlinkat, statfs};
use rustix::io::Errno;

/// Where the runtime mounts its own filesystems, before anything else.
const OWN: [&str; 3] = ["proc", "sys", "dev"];
/// Files of `/proc` that may be replaced by others, as other runtimes allow it: they only report figures.
const REPLACEABLE: [&str; 11] = [
    "proc/cpuinfo",
    "proc/diskstats",
    "proc/loadavg",
    "proc/meminfo",
    "proc/net/dev",
    "proc/slabinfo",
    "proc/stat",
    "proc/swaps",
    "proc/sys/crypto/fips_enabled",
    "proc/sys/kernel/ns_last_pid",
    "proc/uptime",
];

/// As many as the kernel follows.
const MAX_LINKS: u32 = 40;

#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error(
        "the image's /{directory} is a {found}: a container's /{directory} must be a directory. Use an image that has one, or none"
    )]
    NotADirectory { directory: &'static str, found: &'static str },
    #[error("mount path {} leads to /{} in this image: only files that report figures may be replaced in /proc", .path.display(), .at.display())]
    InProc { path: PathBuf, at: PathBuf },
    #[error("cannot follow mount path {} in the image: {source}", .path.display())]
    Unresolved { path: PathBuf, source: io::Error },
    #[error("cannot read the container's specification: {0}")]
    Spec(String),
}

/// Checks every mount target of the bundle in `directory` against the mounted, not yet running, root filesystem.
pub(crate) fn check(root: &Path, directory: &Path) -> Result<(), TargetError> {
    let spec = Spec::load(directory.join("config.json")).map_err(|error| TargetError::Spec(error.to_string()))?;
    let root = Root::open(root).map_err(|source| TargetError::Unresolved { path: "/".into(), source })?;
    OWN.into_iter().try_for_each(|name| root.check_own(name))?;
    spec.mounts().iter().flatten().filter(|mount| !is_own(mount)).try_for_each(|mount| root.check_mount(mount))
}

/// The mounts that the runtime makes itself. Nothing below them is of the image.
fn is_own(mount: &Mount) -> bool {
    mount.typ().as_deref() != Some("bind")
}

struct Root(OwnedFd);

impl Root {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(File::open(path)?.into()))
    }

    /// A directory that the runtime mounts over. One that is absent will be made.
    fn check_own(&self, name: &'static str) -> Result<(), TargetError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let kind = match openat2(&self.0, name, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
            Ok(found) => fstat(found).map(|stat| FileType::from_raw_mode(stat.st_mode)),
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => Err(error),
        };
        let found = match kind {
            Ok(FileType::Directory) => return Ok(()),
            Ok(FileType::Symlink) => "symbolic link",
            Ok(FileType::RegularFile) => "file",
            Ok(_) => "special file",
            Err(error) => return Err(TargetError::Unresolved { path: name.into(), source: error.into() }),
        };
        Err(TargetError::NotADirectory { directory: name, found })
    }

    /// A volume or file of the pod: it may not cover what the kernel reports about processes.
    fn check_mount(&self, mount: &Mount) -> Result<(), TargetError> {
        let path = mount.destination();
        let at = self.resolve(path).map_err(|source| TargetError::Unresolved { path: path.clone(), source })?;
        let source_is_proc = || {
            let source = mount.source().as_ref()?;
            statfs(source).ok().map(|found| found.f_type == PROC_SUPER_MAGIC)
        };
        let is_allowed = !at.starts_with("proc")
            || REPLACEABLE.iter().any(|file| at == Path::new(file))
            || at == Path::new("proc") && source_is_proc() == Some(true);
        if is_allowed { Ok(()) } else { Err(TargetError::InProc { path: path.clone(), at }) }
    }

    /// Where a path leads once the links of the root are followed, relative to the root. Parts that do not exist stay as they are:
    /// what a link names below `/proc` is there once that is mounted. Nothing runs in the root yet that could change it meanwhile.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let parts = |path: &Path| path.components().rev().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
        let mut left = parts(path);
        let mut at = PathBuf::new();
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == "/" {
                at.clear();
            } else if part == ".." {
                at.pop();
            } else if part != "." {
                at.push(part);
                let link = match readlinkat(&self.0, &at, Vec::new()) {
                    Ok(link) => PathBuf::from(OsString::from_vec(link.into_bytes())),
                    Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => continue,
                    Err(error) => return Err(error.into()),
                };
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                at.pop();
                left.extend(parts(&link));
            }
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A root with each of these: a name that ends with a slash is a directory, `a -> b` a link.
    fn root(entries: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for entry in entries {
            match entry.split_once(" -> ") {
                Some((link, to)) => symlink(to, folder.path().join(link)).expect("a link"),
                None if entry.ends_with('/') => fs::create_dir_all(folder.path().join(entry)).expect("a directory"),
                None => fs::write(folder.path().join(entry), "").expect("a file"),
            }
        }
        folder
    }

    #[test]
    fn proc_sys_and_dev_are_directories_or_absent() {
        for name in OWN {
            let check = |entry: &str| Root::open(root(&[entry]).path()).expect("a root").check_own(name);
            assert!(check("etc/").is_ok() && check(&format!("{name}/")).is_ok());
            assert!(check(name).is_err_and(|error| error.to_string().contains("is a file")));
            for to in ["/etc", "etc", "../../etc", "nowhere", name] {
                let refused = check(&format!("{name} -> {to}")).map_err(|error| error.to_string());
                assert!(refused.is_err_and(|reason| reason.contains("is a symbolic link")), "{name} -> {to}");
            }
        }
    }

    #[test]
    fn paths_are_followed_inside_the_root() {
        let folder =
            root(&["etc/", "proc/", "a -> /etc", "b -> ../../../../etc", "c -> /nowhere", "d -> proc", "e -> e"]);
        let root = Root::open(folder.path()).expect("a root");
        let check = |path: &str, want: &str| assert_eq!(root.resolve(path.as_ref()).expect(path), Path::new(want));
        check("/etc", "etc");
        check("/a/hosts", "etc/hosts");
        check("/b/hosts", "etc/hosts");
        check("/c", "nowhere");
        check("/etc/../a/./x", "etc/x");
        check("/d/sys/kernel", "proc/sys/kernel");
        check("/", "");
        assert!(root.resolve("/e".as_ref()).is_err());
    }

    #[test]
    fn nothing_is_mounted_over_proc() {
        let folder = root(&["proc/", "data -> /proc/sys", "self -> proc"]);
        let root = Root::open(folder.path()).expect("a root");
        let check = |path: &str, source: &str| {
            let mut mount = Mount::default();
            mount.set_destination(path.into()).set_source(Some(source.into()));
            root.check_mount(&mount).is_ok()
        };
        for refused in ["/proc", "/proc/self", "/proc/sys/kernel", "/data", "/data/x", "/self", "/self/1/attr"] {
            assert!(!check(refused, "/etc"), "{refused}");
        }
        assert!(check("/proc/uptime", "/etc/hostname") && check("/process", "/etc") && check("/data2", "/etc"));
        assert!(check("/proc", "/proc"));
    }
}

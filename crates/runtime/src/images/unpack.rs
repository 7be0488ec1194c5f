//! Unpacks a layer archive onto the layers below it.
//!
//! A layer is extracted through an overlay mount of its parents, in a mount namespace of its own thread: the kernel then
//! makes the whiteouts, copies up what a hard link needs, and resolves directories that are symbolic links in a lower layer. Every
//! name is resolved with `RESOLVE_IN_ROOT`, so no `..`, absolute path or symbolic link leads out of the layer.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{self as rfs, AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timestamps, Uid, XattrFlags};
use tar::{Archive, Entry, EntryType};

use super::digest::{Digest, Hashing};
use super::limits::{ImageLimits, LimitError, Meter, Metered};
use crate::{disk, overlay};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
const XATTR: &str = "SCHILY.xattr.";
/// Content under these headers is not the file's: the archive reader does not know them, and what it reads would be wrong.
const PAX_SPARSE: &str = "GNU.sparse.";

#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("cannot prepare the layer directory: {0}")]
    Prepare(#[source] io::Error),
    #[error("cannot read the layer archive: {0}")]
    Archive(#[source] io::Error),
    #[error("layer entry {path:?}: {source}")]
    Entry { path: PathBuf, source: io::Error },
    #[error("the layer's content is {actual}, its configuration says {expected}")]
    DiffId { expected: Digest, actual: Digest },
    #[error(transparent)]
    Limit(#[from] LimitError),
}

impl UnpackError {
    fn archive(error: io::Error) -> Self {
        LimitError::of(&error).map_or(Self::Archive(error), Self::Limit)
    }

    fn entry(path: PathBuf, source: io::Error) -> Self {
        LimitError::of(&source).map_or(Self::Entry { path, source }, Self::Limit)
    }
}

/// Unpacks `archive` (tar, gzip or zstd) into `target/fs`, on top of `lower` (topmost first), and checks its content digest.
/// Returns the bytes of its files. Blocks; `target` is the caller's to remove on failure.
pub(crate) fn unpack(
    archive: impl Read + Send,
    expected: &Digest,
    lower: &[PathBuf],
    target: &Path,
    limits: ImageLimits,
) -> Result<u64, UnpackError> {
    let joined = std::thread::scope(|scope| scope.spawn(|| unpack_here(archive, lower, target, limits)).join());
    let (actual, bytes) =
        joined.unwrap_or_else(|_| Err(UnpackError::Prepare(io::Error::other("unpacking panicked"))))?;
    match actual == *expected {
        true => Ok(bytes),
        false => Err(UnpackError::DiffId { expected: expected.clone(), actual }),
    }
}

/// The same with the digest as a result, for a thread that may get a mount namespace of its own.
pub(crate) fn unpack_here(
    archive: impl Read,
    lower: &[PathBuf],
    target: &Path,
    limits: ImageLimits,
) -> Result<(Digest, u64), UnpackError> {
    let root = open_root(lower, target).map_err(UnpackError::Prepare)?;
    let meter = Meter::new(limits);
    let mut tree =
        Tree { root, meter: meter.clone(), made: HashSet::new(), directory_times: Vec::new(), parent: None, bytes: 0 };
    let digest = walk(archive, &meter, |path, entry| tree.apply(path, entry))?;
    tree.finish_times().map_err(UnpackError::Prepare)?;
    Ok((digest, tree.bytes))
}

type Plain<'a> = Hashing<Metered<Box<dyn Read + 'a>>>;

/// Calls `visit` with every entry of an archive (tar, gzip or zstd) that is within the limits, and returns the digest of its
/// uncompressed bytes up to the very last.
pub(crate) fn walk<'a>(
    archive: impl Read + 'a,
    meter: &Meter,
    mut visit: impl FnMut(&Path, &mut Entry<'_, Plain<'a>>) -> io::Result<()>,
) -> Result<Digest, UnpackError> {
    let plain = decompress(archive).map_err(UnpackError::archive)?;
    let mut archive = Archive::new(Hashing::new(Metered::new(plain, meter.clone())));
    let mut entries = archive.entries().map_err(UnpackError::archive)?;
    loop {
        // The contents before were read to their end, so what the reader takes now is what it keeps in memory.
        meter.begin_headers();
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(UnpackError::archive)?;
        meter.end_headers();
        meter.entry(entry.size())?;
        let path = PathBuf::from(OsStr::from_bytes(&entry.path_bytes()));
        visit(&path, &mut entry).map_err(|source| UnpackError::entry(path, source))?;
        io::copy(&mut entry, &mut io::sink()).map_err(UnpackError::archive)?;
    }
    meter.end_headers();
    Ok(archive.into_inner().finish().map_err(UnpackError::archive)?.0)
}

/// `target/fs` itself for the lowest layer, else an overlay of it on its parents that only this thread can see.
fn open_root(lower: &[PathBuf], target: &Path) -> io::Result<OwnedFd> {
    let upper = target.join("fs");
    fs::create_dir_all(&upper)?;
    let mut root = upper.clone();
    if !lower.is_empty() {
        let (work, merged) = (target.join("work"), target.join("merged"));
        fs::create_dir_all(&work)?;
        fs::create_dir_all(&merged)?;
        overlay::private_mount_namespace()?;
        overlay::mount_overlay(lower, &upper, &work, &merged)?;
        root = merged;
    }
    Ok(rfs::open(&root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Recognised by content: media types in archives are not to be trusted.
pub(crate) fn decompress<'a>(archive: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut buffered = BufReader::with_capacity(1 << 17, archive);
    let start = buffered.fill_buf()?;
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(buffered)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::stream::read::Decoder::with_buffer(buffered)?),
        _ => Box::new(buffered),
    })
}

struct Tree {
    root: OwnedFd,
    meter: Meter,
    /// Every path this layer made; an opaque marker removes only what is older.
    made: HashSet<PathBuf>,
    /// Set last: making an entry touches its directory.
    directory_times: Vec<(PathBuf, Timestamps)>,
    /// The directory of the entry before: archives list siblings together.
    parent: Option<(PathBuf, OwnedFd)>,
    bytes: u64,
}

impl Tree {
    fn apply<R: Read>(&mut self, raw: &Path, entry: &mut Entry<'_, R>) -> io::Result<()> {
        let path = inside(raw)?;
        let Some(name) = path.file_name().map(OsStr::to_owned) else {
            return self.apply_root(entry);
        };
        let parent_path = path.parent().unwrap_or(Path::new("")).to_owned();
        let parent = self.open_parent(&parent_path)?;
        if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) {
            self.parent = None;
            return match name.as_bytes() {
                OPAQUE => self.remove_older(&parent, &parent_path),
                // Other names of this form are bookkeeping of an old union filesystem.
                other if other.starts_with(b".wh..wh.") => Ok(()),
                _ if matches!(hidden, b"" | b"." | b"..") => {
                    Err(invalid("a whiteout must name an entry of its own directory"))
                }
                _ => remove(&parent, OsStr::from_bytes(hidden)),
            };
        }
        self.make(&parent, &name, &path, entry)?;
        self.remember(path)?;
        self.parent = Some((parent_path, parent));
        Ok(())
    }

    fn apply_root<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> io::Result<()> {
        if entry.header().entry_type() == EntryType::Directory {
            let root =
                rfs::openat(&self.root, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            adorn(&root, entry)?;
        }
        Ok(())
    }

    fn make<R: Read>(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        path: &Path,
        entry: &mut Entry<'_, R>,
    ) -> io::Result<()> {
        let kind = entry.header().entry_type();
        match kind {
            EntryType::Directory => {
                if !is_directory(parent, name)? {
                    remove(parent, name)?;
                    rfs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                adorn(&rfs::openat(parent, name, flags, Mode::empty())?, entry)?;
                self.meter.name(path)?;
                self.directory_times.push((path.to_owned(), times(entry)?));
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                remove(parent, name)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut file = fs::File::from(rfs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?);
                self.bytes += io::copy(entry, &mut file)?;
                adorn(&file, entry)?;
                rfs::futimens(&file, &times(entry)?)?;
            }
            EntryType::Symlink => {
                let target =
                    entry.link_name_bytes().ok_or_else(|| invalid("a symbolic link without target"))?.into_owned();
                remove(parent, name)?;
                rfs::symlinkat(OsStr::from_bytes(&target), parent, name)?;
                own(parent, name, entry)?;
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().ok_or_else(|| invalid("a hard link without target"))?.into_owned();
                let target = inside(Path::new(OsStr::from_bytes(&target)))?;
                let target_name = target.file_name().ok_or_else(|| invalid("a hard link to the root"))?;
                let target_parent = self.open_directory(target.parent().unwrap_or(Path::new("")))?;
                remove(parent, name)?;
                rfs::linkat(&target_parent, target_name, parent, name, AtFlags::empty())?;
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                let header = entry.header();
                let device = rfs::makedev(header.device_major()?.unwrap_or(0), header.device_minor()?.unwrap_or(0));
                let kind = match kind {
                    EntryType::Char => FileType::CharacterDevice,
                    EntryType::Block => FileType::BlockDevice,
                    _ => FileType::Fifo,
                };
                // A character device 0:0 is overlayfs' own whiteout.
                if kind == FileType::CharacterDevice && device == 0 {
                    return Err(invalid("a character device with number 0:0"));
                }
                remove(parent, name)?;
                rfs::mknodat(parent, name, kind, Mode::from_raw_mode(entry.header().mode()? & 0o7777), device)?;
                own(parent, name, entry)?;
                rfs::chmodat(parent, name, Mode::from_raw_mode(entry.header().mode()? & 0o7777), AtFlags::empty())?;
            }
            // Extended headers were consumed by the archive reader.
            _ => (),
        }
        if matches!(kind, EntryType::Symlink | EntryType::Link) {
            self.parent = None;
        }
        Ok(())
    }

    fn open_directory(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rfs::openat2(&self.root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
    }

    /// Opens the directory `path`, making what is missing of it.
    fn open_parent(&mut self, path: &Path) -> io::Result<OwnedFd> {
        if let Some((cached, fd)) = self.parent.take()
            && cached == path
        {
            return Ok(fd);
        }
        match self.open_directory(path) {
            Ok(fd) => return Ok(fd),
            Err(rustix::io::Errno::NOENT) => (),
            Err(error) => return Err(error.into()),
        }
        let name = path.file_name().ok_or_else(|| invalid("no such directory"))?;
        let parent = self.open_parent(path.parent().unwrap_or(Path::new("")))?;
        rfs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
        self.meter.inode()?;
        self.remember(path.to_owned())?;
        Ok(self.open_directory(path)?)
    }

    fn remember(&mut self, path: PathBuf) -> io::Result<()> {
        self.meter.name(&path)?;
        self.made.insert(path);
        Ok(())
    }

    /// Removes what lower layers put into a directory, and keeps what this layer made.
    fn remove_older(&self, directory: &OwnedFd, path: &Path) -> io::Result<()> {
        for entry in fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))? {
            let entry = entry?;
            let child = path.join(entry.file_name());
            if !self.made.contains(&child) {
                remove(directory, &entry.file_name())?;
            } else if entry.file_type()?.is_dir() {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let inner = rfs::openat(directory, entry.file_name(), flags, Mode::empty())?;
                self.remove_older(&inner, &child)?;
            }
        }
        Ok(())
    }

    fn finish_times(&self) -> io::Result<()> {
        for (path, times) in self.directory_times.iter().rev() {
            // A later entry may have replaced or removed it.
            if let Ok(directory) = self.open_directory(path) {
                rfs::utimensat(&directory, "", times, AtFlags::EMPTY_PATH).or_else(|error| match error {
                    rustix::io::Errno::INVAL | rustix::io::Errno::NOENT => Ok(()),
                    other => Err(other),
                })?;
            }
        }
        Ok(())
    }
}

/// The path relative to the layer's root; `..` is not a name an archive may use.
fn inside(path: &Path) -> io::Result<PathBuf> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => clean.push(part),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => (),
            Component::ParentDir => return Err(invalid("the path leads out of the layer")),
        }
    }
    Ok(clean)
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn is_directory(parent: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    match rfs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes an entry of any kind; a missing one is fine. Never the directory itself or one above it, whatever the name.
fn remove(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    if Path::new(name).file_name() != Some(name) || name.as_bytes().contains(&b'/') {
        return Err(invalid("only an entry of a directory can be removed from it"));
    }
    disk::remove_at(parent, Path::new(name))
}

fn ids<R: Read>(entry: &Entry<'_, R>) -> io::Result<(Uid, Gid)> {
    let narrow = |id: u64| u32::try_from(id).map_err(|_| invalid("an owner beyond 32 bits"));
    Ok((Uid::from_raw(narrow(entry.header().uid()?)?), Gid::from_raw(narrow(entry.header().gid()?)?)))
}

fn times<R: Read>(entry: &Entry<'_, R>) -> io::Result<Timestamps> {
    let seconds = entry.header().mtime()?.min(i64::MAX as u64) as i64;
    let time = rfs::Timespec { tv_sec: seconds, tv_nsec: 0 };
    Ok(Timestamps { last_access: time, last_modification: time })
}

/// Owner first (it clears set-id bits and capabilities), then mode, then extended attributes.
fn adorn<R: Read>(file: &impl AsFd, entry: &mut Entry<'_, R>) -> io::Result<()> {
    let (uid, gid) = ids(entry)?;
    rfs::fchown(file, Some(uid), Some(gid))?;
    rfs::fchmod(file, Mode::from_raw_mode(entry.header().mode()? & 0o7777))?;
    for (name, value) in xattrs(entry)? {
        match rfs::fsetxattr(file, name.as_str(), &value, XattrFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => (),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// File capabilities and user attributes. Others, above all `trusted.overlay.*`, would let an image speak to the kernel.
fn xattrs<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<Vec<(String, Vec<u8>)>> {
    let Some(extensions) = entry.pax_extensions()? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for extension in extensions {
        let extension = extension?;
        let key = extension.key().unwrap_or_default();
        if key.starts_with(PAX_SPARSE) {
            return Err(invalid("a sparse file in PAX format, which is not supported"));
        }
        let Some(name) = key.strip_prefix(XATTR) else { continue };
        if name == "security.capability" || name.starts_with("user.") {
            found.push((name.to_owned(), extension.value_bytes().to_vec()));
        }
    }
    Ok(found)
}

fn own<R: Read>(parent: &OwnedFd, name: &OsStr, entry: &Entry<'_, R>) -> io::Result<()> {
    let (uid, gid) = ids(entry)?;
    rfs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    rfs::utimensat(parent, name, &times(entry)?, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_entry_of_the_directory_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        for path in ["parent/child/grandchild", "parent/..sibling", "parent/.../deep", "beside"] {
            fs::create_dir_all(folder.path().join(path)).expect("made");
        }
        let open = || rfs::open(folder.path().join("parent"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let parent = open().expect("opened");
        for name in ["", ".", "..", "/", "./", "child/", "child/grandchild", "../beside", "child/..", "/tmp"] {
            assert!(remove(&parent, OsStr::new(name)).is_err(), "{name:?}");
        }
        assert!(folder.path().join("parent/child/grandchild").exists() && folder.path().join("beside").exists());
        for name in ["child", "..sibling", "...", "missing"] {
            remove(&parent, OsStr::new(name)).expect(name);
        }
        assert_eq!(fs::read_dir(folder.path().join("parent")).expect("read").count(), 0);
    }
}

//! The file operations the engine stands on, as a trait so that tests can make them fail.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read},
    os::unix::fs::{DirBuilderExt as _, FileExt, PermissionsExt as _},
    path::Path,
};

/// A directory's files. Paths are whole.
pub trait Disk: Send + Sync + 'static {
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// File names, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    fn read(&self, path: &Path) -> io::Result<Box<dyn Read>>;
    /// A new, empty file; an old one of that name is emptied.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// An existing file, cut to `len`, to be appended to.
    fn reopen(&self, path: &Path, len: u64) -> io::Result<Box<dyn DiskFile>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    fn space(&self, dir: &Path) -> io::Result<Space>;
    /// A file of `bytes` zeros whose blocks are allocated, so that overwriting them needs no space. One that exists already is
    /// brought to that size. After an error there is no such file.
    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()>;
    /// An existing file, to be overwritten from its beginning.
    fn overwrite(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
}

/// The size of the file system that a directory is on, and the bytes that can still be written to it.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    pub free: u64,
    pub total: u64,
}

/// Whether `error` means that the disk, or the quota on it, is used up. Nothing but space is missing then.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub trait DiskFile: Send {
    /// All of `data`, at the end. After an error any part of it may have been written.
    fn append(&mut self, data: &[u8]) -> io::Result<()>;
    /// Zeros behind what is appended, up to `len`, to be overwritten by the next appends: a sync then need not also make a new
    /// length durable, which takes a file system as long as the data. After an error the file is as long as before.
    fn prepare(&mut self, len: u64) -> io::Result<()>;
    /// How far the file is prepared.
    fn prepared(&self) -> u64;
    /// Makes all appended data durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Takes back what was appended behind `len`, durably.
    fn rewind(&mut self, len: u64) -> io::Result<()>;
}

/// The operating system's files.
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        // Secrets are in it.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        match fs::metadata(dir)?.permissions().mode() & 0o077 {
            0 => Ok(()),
            _ => fs::set_permissions(dir, fs::Permissions::from_mode(0o700)),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn Read>> {
        Ok(Box::new(BufReader::with_capacity(1 << 18, File::open(path)?)))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        Ok(Box::new(RealFile { file, end: 0, prepared: 0 }))
    }

    fn reopen(&self, path: &Path, len: u64) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(len)?;
        Ok(Box::new(RealFile { file, end: len, prepared: len }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        let stat = rustix::fs::statvfs(dir)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Space { free: bytes(stat.f_bavail), total: bytes(stat.f_blocks) })
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let allocated = allocate(path, bytes);
        if allocated.is_err() {
            let _ = fs::remove_file(path);
        }
        allocated
    }

    fn overwrite(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).open(path)?;
        let prepared = file.metadata()?.len();
        Ok(Box::new(RealFile { file, end: 0, prepared }))
    }
}

fn allocate(path: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.set_len(bytes)?;
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(&file, 0, bytes),
        Err(error) => Err(error.into()),
    }
}

fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut at = from;
    while at < to {
        let count = usize::try_from(to - at).unwrap_or(usize::MAX).min(ZEROS.len());
        file.write_all_at(ZEROS.get(..count).unwrap_or_default(), at)?;
        at += count as u64;
    }
    Ok(())
}

struct RealFile {
    file: File,
    /// Where the next data goes.
    end: u64,
    /// Where the zeros behind it end.
    prepared: u64,
}

impl DiskFile for RealFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, self.end)?;
        self.end += data.len() as u64;
        self.prepared = self.prepared.max(self.end);
        Ok(())
    }

    fn prepare(&mut self, len: u64) -> io::Result<()> {
        if let Err(error) = write_zeros(&self.file, self.prepared, len) {
            self.file.set_len(self.prepared)?;
            return Err(error);
        }
        self.prepared = self.prepared.max(len);
        Ok(())
    }

    fn prepared(&self) -> u64 {
        self.prepared
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn rewind(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        (self.end, self.prepared) = (len, len);
        self.file.sync_data()
    }
}

/// The zeros are given back when no more is to come. If that is lost, they are read as the end all the same.
impl Drop for RealFile {
    fn drop(&mut self) {
        let _ = self.file.set_len(self.end);
    }
}

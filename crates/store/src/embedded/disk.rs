//! The file operations the engine stands on, as a trait so that tests can make them fail.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read},
    os::unix::fs::FileExt,
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
    /// Bytes that can still be written.
    fn free(&self, dir: &Path) -> io::Result<u64>;
}

pub trait DiskFile: Send {
    /// All of `data`, at the end. After an error any part of it may have been written.
    fn append(&mut self, data: &[u8]) -> io::Result<()>;
    /// Zeros behind what is appended, to be overwritten by what comes: a sync then need not also make a new length durable, which
    /// takes a file system as long as the data.
    fn prepare(&mut self, bytes: usize) -> io::Result<()>;
    /// Makes all appended data durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// The operating system's files.
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn Read>> {
        Ok(Box::new(BufReader::with_capacity(1 << 18, File::open(path)?)))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        Ok(Box::new(RealFile { file, end: 0 }))
    }

    fn reopen(&self, path: &Path, len: u64) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(len)?;
        Ok(Box::new(RealFile { file, end: len }))
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

    fn free(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

struct RealFile {
    file: File,
    /// Where the next data goes; there may be zeros behind it.
    end: u64,
}

impl DiskFile for RealFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, self.end)?;
        self.end += data.len() as u64;
        Ok(())
    }

    fn prepare(&mut self, bytes: usize) -> io::Result<()> {
        self.file.write_all_at(&vec![0; bytes], self.end)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// The zeros are given back when no more is to come. If that is lost, they are read as the end all the same.
impl Drop for RealFile {
    fn drop(&mut self) {
        let _ = self.file.set_len(self.end);
    }
}

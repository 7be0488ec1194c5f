//! A small ext4 file system in a file, for tests that fill it. Needs root: it mounts.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Mounted until dropped. The mount is detached even where a process still uses it.
pub struct SmallDisk {
    image: PathBuf,
    mounted: PathBuf,
}

impl SmallDisk {
    /// A file system of `bytes` in `dir`, with as many inodes as mkfs chooses or as given.
    ///
    /// # Errors
    /// It cannot be made or mounted.
    pub fn new(dir: &Path, bytes: u64, inodes: Option<u64>) -> io::Result<Self> {
        let disk = Self { image: dir.join("small-disk.image"), mounted: dir.join("small-disk") };
        File::create(&disk.image)?.set_len(bytes)?;
        fs::create_dir(&disk.mounted)?;
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-m", "0"]);
        if let Some(inodes) = inodes {
            mkfs.arg("-N").arg(inodes.to_string());
        }
        run(mkfs.arg(&disk.image))?;
        run(Command::new("mount").args(["-o", "loop"]).args([&disk.image, &disk.mounted]))?;
        Ok(disk)
    }

    pub fn path(&self) -> &Path {
        &self.mounted
    }

    /// Writes until nothing more fits.
    ///
    /// # Errors
    /// The file that takes the space cannot be opened.
    pub fn fill(&self) -> io::Result<()> {
        let mut ballast = File::options().append(true).create(true).open(self.ballast())?;
        for size in [1 << 20, 4096, 1] {
            while ballast.write_all(&vec![1; size]).is_ok() {}
        }
        Ok(())
    }

    /// Frees what [`SmallDisk::fill`] took.
    pub fn free(&self) {
        let _ = fs::remove_file(self.ballast());
    }

    fn ballast(&self) -> PathBuf {
        self.mounted.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg("--lazy").arg(&self.mounted));
        let _ = fs::remove_file(&self.image);
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}

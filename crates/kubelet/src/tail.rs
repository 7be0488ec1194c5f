//! The ends of files that containers write: read from the end, never more than is used.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The last bytes of a file, at most so many, and whether the file begins before them.
///
/// # Errors
/// When it cannot be read, or is something other than a regular file.
pub(crate) fn read(path: &Path, at_most: u64) -> io::Result<(Vec<u8>, bool)> {
    // Neither waits for the writer of a pipe nor follows a link that a container may have made.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let from = metadata.len().saturating_sub(at_most);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(at_most).read_to_end(&mut bytes)?;
    Ok((bytes, from > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_file_costs_no_more_than_its_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("message");
        let file = File::create(&path).expect("created");
        file.set_len(12 << 30).expect("sparse");
        let (bytes, cut) = read(&path, 4096).expect("read");
        assert_eq!((bytes.len(), cut), (4096, true));
        assert!(bytes.capacity() < 64 << 10);
        std::fs::write(&path, "short").expect("written");
        assert_eq!(read(&path, 4096).expect("read"), (b"short".to_vec(), false));
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RWXU, 0).expect("made");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).expect("linked");
        for path in [fifo, link, folder.path().to_owned(), "/dev/zero".into()] {
            assert!(read(&path, 10).is_err(), "{}", path.display());
        }
    }
}

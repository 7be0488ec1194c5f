//! How much of an image is taken in: what is fetched is not trusted to be of a sane size.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::rc::Rc;

/// A manifest, index or configuration; what registries accept at least.
pub(crate) const DOCUMENT_MAX_BYTES: u64 = 4 << 20;
/// Layers of one image. Their directories are named in the options of one mount, which the kernel limits to a page.
pub(crate) const MAX_LAYERS: usize = 200;
/// Everything an archive says of one entry before its content: its header, long names, extended headers, the map of a sparse
/// file. Go's archive/tar allows 1 MiB for each of the first.
pub(crate) const ENTRY_HEADERS_MAX_BYTES: u64 = (1 << 20) + (16 << 10);
/// The paths of a layer's entries together: they are kept while it is unpacked.
const NAMES_MAX_BYTES: u64 = 256 << 20;

/// Bounds that the operator can raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Bytes of one layer, both as an uncompressed archive and as files.
    pub layer_max_bytes: u64,
    /// Entries of one layer, with the directories that are made for them.
    pub layer_max_entries: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { layer_max_bytes: 32 << 30, layer_max_entries: 1_000_000 }
    }
}

/// Which bound an image exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    #[error("the layer is larger than {0} bytes uncompressed; --image-layer-max-size raises this limit")]
    LayerSize(u64),
    #[error("the layer has more than {0} entries; --image-layer-max-entries raises this limit")]
    LayerEntries(u64),
    #[error("the headers of one archive entry are larger than {ENTRY_HEADERS_MAX_BYTES} bytes")]
    EntryHeaders,
    #[error("the paths of the layer's entries are longer than {NAMES_MAX_BYTES} bytes together")]
    Names,
}

impl LimitError {
    /// The limit behind an error of a [`Metered`] reader, which archive readers pass on as it is.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        error.get_ref().and_then(|inner| inner.downcast_ref::<Self>()).copied()
    }
}

impl From<LimitError> for io::Error {
    fn from(limit: LimitError) -> Self {
        Self::new(io::ErrorKind::InvalidData, limit)
    }
}

/// Counts what is taken of one layer or archive, and refuses what is beyond the limits.
#[derive(Clone, Debug)]
pub(crate) struct Meter(Rc<Counts>);

#[derive(Debug)]
struct Counts {
    limits: ImageLimits,
    /// Delivered by the reader: headers, contents, and whatever is between and after them.
    read: Cell<u64>,
    /// Bytes that may still be read before the next entry's content begins; `None` while content is read.
    headers: Cell<Option<u64>>,
    /// Files as they are written, in which the holes of sparse files count.
    contents: Cell<u64>,
    entries: Cell<u64>,
    names: Cell<u64>,
}

impl Meter {
    pub(crate) fn new(limits: ImageLimits) -> Self {
        Self(Rc::new(Counts {
            limits,
            read: Cell::new(0),
            headers: Cell::new(None),
            contents: Cell::new(0),
            entries: Cell::new(0),
            names: Cell::new(0),
        }))
    }

    /// What comes next is the description of an entry.
    pub(crate) fn begin_headers(&self) {
        self.0.headers.set(Some(ENTRY_HEADERS_MAX_BYTES));
    }

    /// What comes next is a content, or the end of the archive.
    pub(crate) fn end_headers(&self) {
        self.0.headers.set(None);
    }

    /// An entry with so many bytes of content, before they are read.
    pub(crate) fn entry(&self, bytes: u64) -> Result<(), LimitError> {
        self.inode()?;
        add(&self.0.contents, bytes, self.0.limits.layer_max_bytes).map_err(LimitError::LayerSize)
    }

    /// A directory that is made although the archive does not list it counts as an entry.
    pub(crate) fn inode(&self) -> Result<(), LimitError> {
        add(&self.0.entries, 1, self.0.limits.layer_max_entries).map_err(LimitError::LayerEntries)
    }

    /// A path that is kept in memory.
    pub(crate) fn name(&self, path: &Path) -> Result<(), LimitError> {
        add(&self.0.names, path.as_os_str().len() as u64, NAMES_MAX_BYTES).map_err(|_| LimitError::Names)
    }

    fn read(&self, bytes: u64) -> Result<(), LimitError> {
        if let Some(left) = self.0.headers.get() {
            self.0.headers.set(Some(left.checked_sub(bytes).ok_or(LimitError::EntryHeaders)?));
        }
        add(&self.0.read, bytes, self.0.limits.layer_max_bytes).map_err(LimitError::LayerSize)
    }
}

/// Fails with the limit.
fn add(count: &Cell<u64>, more: u64, limit: u64) -> Result<(), u64> {
    count.set(count.get().saturating_add(more));
    if count.get() > limit { Err(limit) } else { Ok(()) }
}

/// A reader that fails once its meter does.
pub(crate) struct Metered<R> {
    inner: R,
    meter: Meter,
}

impl<R> Metered<R> {
    pub(crate) fn new(inner: R, meter: Meter) -> Self {
        Self { inner, meter }
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.meter.read(read as u64)?;
        Ok(read)
    }
}

impl<R: Seek> Seek for Metered<R> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.inner.seek(position)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tar::{Builder, EntryType, Header};

    use super::*;
    use crate::images::unpack::{UnpackError, walk};

    const LIMITS: ImageLimits = ImageLimits { layer_max_bytes: 8 << 20, layer_max_entries: 5 };
    const SIZE: Option<LimitError> = Some(LimitError::LayerSize(LIMITS.layer_max_bytes));

    #[test]
    fn an_archive_is_read_as_far_as_its_limits() {
        let file = |bytes: usize| archive(&[(EntryType::Regular, vec![0; bytes])]);
        check("an empty file", &file(0), None);
        // Two blocks of zeros end the archive, and one is the header.
        check("a file that just fits", &file((8 << 20) - 3 * 512), None);
        check("a file that does not", &file((8 << 20) - 2 * 512), SIZE);
        let entries = |count| archive(&vec![(EntryType::Directory, Vec::new()); count]);
        check("as many entries as there may be", &entries(5), None);
        check("one more", &entries(6), Some(LimitError::LayerEntries(5)));
    }

    #[test]
    fn names_and_extended_headers_are_bounded() {
        for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
            // Neither shorter than its content says nor well-formed within: it must be refused while it is read.
            let long = |bytes| archive(&[(kind, vec![b'a'; bytes]), (EntryType::Regular, Vec::new())]);
            check("a long name", &long(1 << 20), None);
            check("a longer one", &long(2 << 20), Some(LimitError::EntryHeaders));
        }
        // Nobody keeps this one in memory.
        check("a global header", &archive(&[(EntryType::XGlobalHeader, vec![b'a'; 2 << 20])]), None);
    }

    #[test]
    fn the_map_of_a_sparse_file_is_bounded() {
        let mut header = header(EntryType::GNUSparse, 0);
        let gnu = header.as_gnu_mut().expect("a GNU header");
        gnu.isextended = [1];
        gnu.realsize = *b"00000000000\0";
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        let mut extension = [0; 512];
        extension[504] = 1;
        for _ in 0..4096 {
            bytes.extend_from_slice(&extension);
        }
        bytes.resize(bytes.len() + 1536, 0);
        check("a map without end", &bytes, Some(LimitError::EntryHeaders));
    }

    #[test]
    fn the_holes_of_a_sparse_file_count() {
        for (hole, want) in [(4 << 20, None), (1u64 << 32, SIZE)] {
            let mut header = header(EntryType::GNUSparse, 0);
            let gnu = header.as_gnu_mut().expect("a GNU header");
            let place = format!("{hole:011o}\0");
            gnu.realsize.copy_from_slice(place.as_bytes());
            gnu.sparse[0].offset.copy_from_slice(place.as_bytes());
            gnu.sparse[0].numbytes = *b"00000000000\0";
            header.set_cksum();
            let bytes = [header.as_bytes().as_slice(), &[0; 1024]].concat();
            check(&format!("a hole of {hole} bytes"), &bytes, want);
        }
    }

    #[test]
    fn what_is_around_the_entries_counts() {
        let end = archive(&[]);
        check("padding", &[end.as_slice(), &vec![0; 1 << 20]].concat(), None);
        check("a bomb behind the end of the archive", &[end.as_slice(), &vec![0; 64 << 20]].concat(), SIZE);
        check("a bomb in an entry of an unknown kind", &archive(&[(EntryType::new(b'?'), vec![0; 64 << 20])]), SIZE);
    }

    /// A size in a header or an extended header is refused before anything of that size is read.
    #[test]
    fn a_size_is_believed_only_as_far_as_the_limit() {
        let mut huge = header(EntryType::Regular, 0);
        huge.set_size(u64::MAX >> 1);
        huge.set_cksum();
        check("a size in base 256", &[huge.as_bytes().as_slice(), &[0; 1024]].concat(), SIZE);
        let mut extended = Builder::new(Vec::new());
        extended.append_pax_extensions([("size", b"999999999999".as_slice())]).expect("appended");
        let bytes = [extended.into_inner().expect("built")[..1024].to_vec(), archive(&[(EntryType::Regular, vec![])])];
        check("a size in an extended header", &bytes.concat(), SIZE);
    }

    fn header(kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.as_gnu_mut().expect("a GNU header").name[0] = b'a';
        header.set_cksum();
        header
    }

    fn archive(entries: &[(EntryType, Vec<u8>)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (kind, content) in entries {
            builder.append(&header(*kind, content.len() as u64), content.as_slice()).expect("appended");
        }
        builder.into_inner().expect("built")
    }

    /// The limit that the archive exceeds, compressed and not.
    #[track_caller]
    fn check(case: &str, archive: &[u8], want: Option<LimitError>) {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(archive).expect("compressed");
        for bytes in [archive, &encoder.finish().expect("compressed")] {
            let got = match walk(bytes, &Meter::new(LIMITS), |_, _| Ok(())) {
                Ok(_) => None,
                Err(UnpackError::Limit(limit)) => Some(limit),
                Err(other) => panic!("{case}: {other}"),
            };
            assert_eq!(got, want, "{case}");
        }
    }
}

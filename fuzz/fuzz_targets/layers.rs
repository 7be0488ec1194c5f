//! Layer archives: unpacked within their limits and their directory, or refused.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use runtime::ImageLimits;

const BLOCK: usize = 512;
const LIMITS: ImageLimits = ImageLimits { layer_max_bytes: 1 << 20, layer_max_entries: 50 };

fuzz_target!(|bytes: &[u8]| {
    // In memory where that can be: a disk would be waited for most of the time.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    let target = folder.path().join("layer");
    std::fs::create_dir(&target).expect("made");
    let _ = runtime::fuzzing::unpack_layer(with_checksums(bytes).as_slice(), &target, LIMITS);
    assert_eq!(entries(folder.path()), ["layer"]);
    assert!(entries(&target).iter().all(|name| name == "fs"));
});

fn entries(directory: &Path) -> Vec<String> {
    let read = std::fs::read_dir(directory).expect("still there");
    read.map(|entry| entry.expect("read").file_name().to_string_lossy().into_owned()).collect()
}

/// Archives whose headers have the checksum that no change by chance would have; compressed ones as they are.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for block in bytes.chunks_exact_mut(BLOCK).filter(|block| block.get(257..262) == Some(b"ustar")) {
        if let Some(place) = block.get_mut(148..156) {
            place.fill(b' ');
        }
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        if let Some(place) = block.get_mut(148..156) {
            place.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    bytes
}

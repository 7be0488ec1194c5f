//! SPDY frames, as they come and cut in two.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = frames(&[bytes]);
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let cut = frames(&[first, second]);
    // Data may come in other pieces, but what comes whole does so either way.
    assert_eq!(whole.is_some(), cut.is_some());
});

/// How many frames there are; nothing where they cannot be read.
fn frames(pieces: &[&[u8]]) -> Option<usize> {
    let (mut decoder, mut buffer, mut count) = (spdy::Decoder::default(), BytesMut::new(), 0);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while decoder.decode(&mut buffer).ok()?.is_some() {
            count += 1;
        }
    }
    Some(count)
}

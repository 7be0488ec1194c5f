//! Frames: what the log is made of. One frame is one write and one sync: it is there whole, or not at all.
//!
//! Layout: magic (4 bytes), payload length (u32, little endian), CRC-32 of salt, length and payload (u32), payload. The salt is
//! drawn per file, so that neither a stored value nor an old file's remains can pass for a frame.

use std::io::{self, Read};

const MAGIC: [u8; 4] = *b"FRY\x01";
pub(crate) const HEADER: usize = 12;

/// Collects a frame's payload behind room for its header.
pub(crate) struct FrameBuffer(Vec<u8>);

impl FrameBuffer {
    pub(crate) fn new() -> FrameBuffer {
        FrameBuffer(vec![0; HEADER])
    }

    pub(crate) fn payload(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    pub(crate) fn payload_len(&self) -> usize {
        self.0.len() - HEADER
    }

    /// Fills in the header and returns the frame.
    pub(crate) fn seal(&mut self, salt: u32) -> io::Result<&[u8]> {
        let len = u32::try_from(self.payload_len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        if let Some((header, payload)) = self.0.split_first_chunk_mut::<HEADER>() {
            let crc = checksum(salt, len, payload);
            let fields = [MAGIC, len.to_le_bytes(), crc.to_le_bytes()];
            header.copy_from_slice(fields.as_flattened());
        }
        Ok(&self.0)
    }

    /// Empties the buffer, and gives back the memory of an unusually large frame.
    pub(crate) fn clear(&mut self) {
        self.0.truncate(HEADER);
        self.0.shrink_to(1 << 20);
    }
}

fn checksum(salt: u32, len: u32, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new_with_initial(salt);
    crc.update(&len.to_le_bytes());
    crc.update(payload);
    crc.finalize()
}

/// Reads frames one after the other.
pub(crate) struct FrameReader<R> {
    input: R,
    /// Where the next frame starts.
    pub(crate) offset: u64,
    pub(crate) salt: u32,
    payload: Vec<u8>,
}

pub(crate) enum Read1<'a> {
    Frame(&'a [u8]),
    /// The file ends where a frame ends.
    End,
    /// No whole frame at the offset.
    Broken(&'static str),
}

impl<R: Read> FrameReader<R> {
    pub(crate) fn new(input: R) -> FrameReader<R> {
        FrameReader { input, offset: 0, salt: 0, payload: Vec::new() }
    }

    pub(crate) fn next(&mut self) -> io::Result<Read1<'_>> {
        let mut header = Vec::with_capacity(HEADER);
        self.input.by_ref().take(HEADER as u64).read_to_end(&mut header)?;
        if header.is_empty() {
            return Ok(Read1::End);
        }
        let Some((len, crc)) = parse_header(&header) else {
            let short = header.len() < HEADER;
            return Ok(Read1::Broken(if short { "the frame's header is cut off" } else { "no frame starts here" }));
        };
        self.payload.clear();
        self.input.by_ref().take(u64::from(len)).read_to_end(&mut self.payload)?;
        if self.payload.len() < len as usize {
            return Ok(Read1::Broken("the frame is cut off"));
        }
        if checksum(self.salt, len, &self.payload) != crc {
            return Ok(Read1::Broken("the checksum does not match"));
        }
        self.offset += (HEADER + self.payload.len()) as u64;
        Ok(Read1::Frame(&self.payload))
    }
}

fn parse_header(bytes: &[u8]) -> Option<(u32, u32)> {
    let (fields, _) = bytes.get(..HEADER)?.as_chunks::<4>();
    match fields {
        [MAGIC, len, crc] => Some((u32::from_le_bytes(*len), u32::from_le_bytes(*crc))),
        _ => None,
    }
}

/// Whether a whole frame starts anywhere in `bytes`. After a broken frame this tells damage from a torn tail: a frame
/// is only ever written when the one before it is known to be durable.
pub(crate) fn holds_frame(bytes: &[u8], salt: u32) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        if let Some((len, crc)) = parse_header(rest)
            && let Some(payload) = rest.get(HEADER..HEADER + len as usize)
            && checksum(salt, len, payload) == crc
        {
            return true;
        }
        let next = rest.iter().skip(1).position(|byte| *byte == MAGIC[0]);
        rest = next.and_then(|at| rest.get(at + 1..)).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(salt: u32, payloads: &[&str]) -> Vec<u8> {
        let mut file = Vec::new();
        for payload in payloads {
            let mut frame = FrameBuffer::new();
            frame.payload().extend_from_slice(payload.as_bytes());
            file.extend_from_slice(frame.seal(salt).unwrap());
        }
        file
    }

    /// Reads all, and says how it ended: `one two end@39`.
    fn read(bytes: &[u8], salt: u32) -> String {
        let mut reader = FrameReader::new(bytes);
        reader.salt = salt;
        let mut said = String::new();
        loop {
            let end = match reader.next().unwrap() {
                Read1::Frame(payload) => {
                    said += &format!("{} ", String::from_utf8_lossy(payload));
                    continue;
                }
                Read1::End => "end",
                Read1::Broken(_) => "broken",
            };
            return format!("{said}{end}@{}", reader.offset);
        }
    }

    #[test]
    fn what_is_framed_is_read_back() {
        assert_eq!(read(&frames(7, &["one", "", "three"]), 7), "one  three end@44");
        assert_eq!(read(&[], 7), "end@0");
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let file = frames(7, &["one", "two"]);
        for len in 16..file.len() {
            assert_eq!(read(&file[..len], 7), "one broken@15", "cut at {len}");
        }
        for bit in 0..15 * 8 {
            let mut file = file.clone();
            file[15 + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&file, 7), "one broken@15", "bit {bit}");
        }
    }

    #[test]
    fn a_frame_behind_damage_is_found_but_not_one_with_another_salt() {
        let file = frames(7, &["one", "two"]);
        assert!(holds_frame(&file[1..], 7));
        assert!(!holds_frame(&file[16..], 7));
        assert!(!holds_frame(&file[1..], 8));
    }
}

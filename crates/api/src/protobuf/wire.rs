//! Writing protobuf's wire format: keys, varints, and messages whose length is known only afterwards.

use super::{BYTES, FIXED64, VARINT};

/// A message under construction.
pub trait Message {
    fn varint(&mut self, value: u64);
    fn key(&mut self, tag: u32, wire: u8);
    fn number(&mut self, tag: u32, value: u64);
    fn double(&mut self, tag: u32, value: f64);
    fn bytes(&mut self, tag: u32, bytes: &[u8]);
    /// Begins a message; [`Message::end`] puts its length before what was written since.
    fn begin(&mut self, tag: u32) -> usize;
    fn end(&mut self, start: usize);
    fn message(&mut self, tag: u32, write: impl FnOnce(&mut Self));
}

impl Message for Vec<u8> {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn key(&mut self, tag: u32, wire: u8) {
        self.varint(u64::from(tag) << 3 | u64::from(wire));
    }

    fn number(&mut self, tag: u32, value: u64) {
        self.key(tag, VARINT);
        self.varint(value);
    }

    fn double(&mut self, tag: u32, value: f64) {
        self.key(tag, FIXED64);
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, tag: u32, bytes: &[u8]) {
        self.key(tag, BYTES);
        self.varint(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }

    fn begin(&mut self, tag: u32) -> usize {
        self.key(tag, BYTES);
        // Most messages are shorter than 128 bytes, so one byte is set aside.
        self.push(0);
        self.len()
    }

    fn end(&mut self, start: usize) {
        let length = self.len().saturating_sub(start);
        let mut prefix = Vec::with_capacity(5);
        prefix.varint(length as u64);
        let missing = prefix.len() - 1;
        if missing > 0 {
            let end = self.len();
            self.resize(end + missing, 0);
            self.copy_within(start..end, start + missing);
        }
        let at = start - 1;
        if let Some(slot) = self.get_mut(at..at + prefix.len()) {
            slot.copy_from_slice(&prefix);
        }
    }

    fn message(&mut self, tag: u32, write: impl FnOnce(&mut Self)) {
        let start = self.begin(tag);
        write(self);
        self.end(start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_any_size_fit_in_front() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 3_000_000] {
            let mut out = vec![7];
            out.message(2, |inner| inner.resize(inner.len() + length, 9));
            let mut want = vec![7];
            want.bytes(2, &vec![9; length]);
            assert_eq!(out, want, "{length}");
        }
    }
}

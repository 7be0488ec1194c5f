//! Netlink's framing: messages and attributes, written and read.

/// Attributes nested in one another; lengths are filled in when a nesting closes.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

pub(crate) const HEADER: usize = 16;
const NESTED: u16 = 1 << 15;
const TYPE_MASK: u16 = 0x3fff;

impl Writer {
    /// One netlink message with the netfilter header; `fill` writes its attributes.
    pub(crate) fn message(
        &mut self,
        kind: u16,
        flags: u16,
        seq: u32,
        family: u8,
        res_id: u16,
        fill: impl FnOnce(&mut Self),
    ) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&seq.to_ne_bytes());
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(&[family, 0]);
        self.bytes.extend_from_slice(&res_id.to_be_bytes());
        fill(self);
        let length = (self.bytes.len() - start) as u32;
        self.patch(start, &length.to_ne_bytes());
    }

    pub(crate) fn attr(&mut self, kind: u16, value: &[u8]) {
        let length = (4 + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.attr(kind | NESTED, &[]);
        fill(self);
        let length = (self.bytes.len() - start) as u16;
        self.patch(start, &length.to_ne_bytes());
    }

    pub(crate) fn u32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, kind: u16, value: u64) {
        self.attr(kind, &value.to_be_bytes());
    }

    pub(crate) fn string(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes);
    }

    fn patch(&mut self, at: usize, value: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    }
}

/// A message as received: its type, sequence number and what follows the netlink header.
pub(crate) struct Received<'a> {
    pub(crate) kind: u16,
    pub(crate) seq: u32,
    pub(crate) payload: &'a [u8],
}

/// The messages of one datagram. A torn tail ends the iteration.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let message = bytes.get(..length).filter(|message| message.len() >= HEADER)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
        Some(Received { kind, seq: u32_at(message, 8)?, payload: message.get(HEADER..)? })
    })
}

/// What follows the netfilter header of a message.
pub(crate) fn body<'a>(message: &Received<'a>) -> &'a [u8] {
    message.payload.get(4..).unwrap_or_default()
}

/// Type and value of each attribute.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::default();
        writer.message(7, 1, 42, 2, 10, |writer| {
            writer.string(1, "abc");
            writer.nested(2, |writer| writer.u32(5, 9));
        });
        let received: Vec<_> = messages(&writer.bytes).collect();
        let [message] = &received[..] else { panic!("one message") };
        assert_eq!((message.kind, message.seq), (7, 42));
        let attributes = &message.payload[4..];
        assert_eq!(find(attributes, 1), Some(&b"abc\0"[..]));
        assert_eq!(find(find(attributes, 2).unwrap(), 5), Some(&[0, 0, 0, 9][..]));
    }

    #[test]
    fn torn_input_ends_quietly() {
        let mut writer = Writer::default();
        writer.message(7, 1, 42, 2, 10, |writer| writer.u32(1, 1));
        for length in 0..writer.bytes.len() {
            assert_eq!(messages(&writer.bytes[..length]).count(), 0);
        }
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[255, 255, 1, 0, 1]).count(), 0);
    }
}

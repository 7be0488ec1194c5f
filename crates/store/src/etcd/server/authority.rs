//! Makes the `:authority` of a request one that HTTP knows.
//!
//! etcd's Go client sends a unix socket's path there (`etcdctl --endpoints unix:///run/etcd.sock`), and that of 3.4 a whole URL when it
//! asks for maintenance. Our HTTP/2 library refuses both as malformed before anybody could look at them. So the bytes of a connection are followed frame by frame, and wherever a header
//! block spells out an authority, as many letters are put in its place. The length stays the same because both ends count
//! it: HPACK's dynamic table evicts by size. Everything else passes as it came.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The largest frame a peer may send unless it was told otherwise, and it is not.
const MAX_FRAME: usize = 1 << 14;
/// `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;
/// How many symbols of HPACK's Huffman code have each length in bits. The code is canonical, so this is all of it that
/// counting symbols takes. The end of string, the last of 30 bits, is none: it may not be spelled.
const CODES: [u32; 31] =
    [0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 3];

/// A connection whose incoming authorities are put right.
pub(super) struct Readdressed<S> {
    stream: S,
    frames: Frames,
    scratch: Box<[u8]>,
    out: Vec<u8>,
    given: usize,
}

impl<S> Readdressed<S> {
    pub(super) fn new(stream: S) -> Readdressed<S> {
        let scratch = vec![0; MAX_FRAME].into_boxed_slice();
        Readdressed { stream, frames: Frames::default(), scratch, out: Vec::new(), given: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Readdressed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.given == this.out.len() {
            this.out.clear();
            this.given = 0;
            let mut read = ReadBuf::new(&mut this.scratch);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                // Half a frame is nothing.
                return Poll::Ready(Ok(()));
            }
            this.frames.feed(read.filled(), &mut this.out);
        }
        let ready = this.out.get(this.given..).unwrap_or_default();
        let given = ready.len().min(buf.remaining());
        buf.put_slice(ready.get(..given).unwrap_or_default());
        this.given += given;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Readdressed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Where in the stream of frames we are.
enum Frames {
    /// So many bytes pass as they are.
    Pass(usize),
    /// So many bytes of a frame's header.
    Header([u8; FRAME_HEADER], usize),
    /// A frame that is a whole header block, as far as it has come.
    Block { flags: u8, stream: [u8; 4], len: usize, payload: Vec<u8> },
}

impl Default for Frames {
    fn default() -> Frames {
        Frames::Pass(PREFACE)
    }
}

impl Frames {
    fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            match self {
                Frames::Pass(0) => *self = Frames::Header([0; FRAME_HEADER], 0),
                Frames::Pass(left) => {
                    let passing = take(&mut input, *left);
                    *left -= passing.len();
                    out.extend_from_slice(passing);
                }
                Frames::Header(header, have) => {
                    let come = take(&mut input, FRAME_HEADER - *have);
                    header.iter_mut().skip(*have).zip(come).for_each(|(slot, byte)| *slot = *byte);
                    *have += come.len();
                    if *have == FRAME_HEADER {
                        *self = Frames::start(*header, out);
                    }
                }
                Frames::Block { flags, stream, len, payload } => {
                    payload.extend_from_slice(take(&mut input, *len - payload.len()));
                    if payload.len() == *len {
                        let block = readdress(*flags, payload).filter(|block| block.len() <= MAX_FRAME);
                        let block = block.as_ref().unwrap_or(payload);
                        let [_, len @ ..] = (block.len() as u32).to_be_bytes();
                        out.extend_from_slice(&len);
                        out.extend_from_slice(&[HEADERS, *flags]);
                        out.extend_from_slice(stream);
                        out.extend_from_slice(block);
                        *self = Frames::Pass(0);
                    }
                }
            }
        }
    }

    /// A header block in several frames is left alone: no authority is that long.
    fn start(header: [u8; FRAME_HEADER], out: &mut Vec<u8>) -> Frames {
        let [high, middle, low, kind, flags, stream @ ..] = header;
        let len = u32::from_be_bytes([0, high, middle, low]) as usize;
        if kind == HEADERS && flags & END_HEADERS != 0 && (1..=MAX_FRAME).contains(&len) {
            return Frames::Block { flags, stream, len, payload: Vec::with_capacity(len) };
        }
        out.extend_from_slice(&header);
        Frames::Pass(len)
    }
}

/// Takes at most `most` bytes off the front.
fn take<'a>(input: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at_checked(most).unwrap_or((input, &[]));
    *input = rest;
    taken
}

/// The payload of a header frame with its authorities replaced; `None` if it cannot be read.
fn readdress(flags: u8, payload: &[u8]) -> Option<Vec<u8>> {
    let padding = if flags & PADDED != 0 { usize::from(*payload.first()?) } else { 0 };
    let before = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let (front, rest) = payload.split_at_checked(before)?;
    let (mut block, padding) = rest.split_at_checked(rest.len().checked_sub(padding)?)?;
    let mut out = front.to_vec();
    while let Some(first) = block.first().copied() {
        let start = block;
        let name_bits = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let name = integer(&mut block, name_bits)?;
        let literal = name_bits == 6 || name_bits == 4;
        if literal && name == 0 {
            string(&mut block)?;
        }
        let value = block;
        let symbols = if literal { string(&mut block)? } else { 0 };
        if literal && name == AUTHORITY {
            out.extend_from_slice(start.get(..start.len() - value.len())?);
            put_length(symbols, &mut out);
            out.resize(out.len() + symbols, b'x');
        } else {
            out.extend_from_slice(start.get(..start.len() - block.len())?);
        }
    }
    out.extend_from_slice(padding);
    Some(out)
}

/// Takes an HPACK integer that starts in the low `bits` of a byte.
fn integer(input: &mut &[u8], bits: u32) -> Option<usize> {
    let full = (1 << bits) - 1;
    let (first, mut rest) = input.split_first()?;
    let mut number = usize::from(*first) & full;
    if number == full {
        // Three more bytes say more than a frame can hold.
        for shift in [0, 7, 14] {
            let (next, after) = rest.split_first()?;
            rest = after;
            number += usize::from(next & 0x7f) << shift;
            if *next < 0x80 {
                *input = rest;
                return Some(number);
            }
        }
        return None;
    }
    *input = rest;
    Some(number)
}

/// Takes an HPACK string and returns how long it is once decoded.
fn string(input: &mut &[u8]) -> Option<usize> {
    let huffman = *input.first()? & 0x80 != 0;
    let len = integer(input, 7)?;
    let (text, rest) = input.split_at_checked(len)?;
    *input = rest;
    if huffman { symbols(text) } else { Some(len) }
}

/// How many symbols a Huffman code spells.
fn symbols(text: &[u8]) -> Option<usize> {
    let (mut count, mut len, mut code, mut first) = (0, 0, 0, 0);
    for bit in text.iter().flat_map(|byte| (0..8).rev().map(move |shift| u32::from(byte >> shift & 1))) {
        (len, code, first) = (len + 1, code << 1 | bit, first << 1);
        let codes = CODES.get(len)?;
        if code - first < *codes {
            (count, len, code, first) = (count + 1, 0, 0, 0);
        } else {
            first += codes;
        }
    }
    Some(count)
}

/// The length of a plain string.
fn put_length(len: usize, out: &mut Vec<u8>) {
    let Some(mut rest) = len.checked_sub(0x7f) else {
        out.push(len as u8);
        return;
    };
    out.push(0x7f);
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `:method: POST`, then an authority, then `te: trailers` in plain.
    fn block(authority: &[u8]) -> Vec<u8> {
        [b"\x83\x41", authority, b"\x40\x02te\x08trailers"].concat()
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [_, len @ ..] = (payload.len() as u32).to_be_bytes();
        [&len[..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn through(input: &[u8], pieces: usize) -> Vec<u8> {
        let (mut frames, mut out) = (Frames::default(), Vec::new());
        input.chunks(pieces).for_each(|piece| frames.feed(piece, &mut out));
        out
    }

    #[track_caller]
    fn check(flags: u8, payload: Vec<u8>, want: Vec<u8>) {
        let around = |payload: &[u8]| {
            [&[b'p'; PREFACE][..], &frame(4, 0, &[]), &frame(HEADERS, flags, payload), &frame(0, 1, b"data")].concat()
        };
        let (input, want) = (around(&payload), around(&want));
        for pieces in [1, 2, 7, 1000] {
            assert_eq!(through(&input, pieces), want, "in pieces of {pieces}");
        }
    }

    #[test]
    fn an_authority_is_replaced_by_one_of_its_length() {
        check(END_HEADERS, block(b"\x05/sock"), block(b"\x05xxxxx"));
        // `/tmp/etcd-eng/s1`, as Go writes it.
        let huffman = b"\x8ca4\xd6\xc1RI\x16-S0\x80\xff";
        check(END_HEADERS, block(huffman), block(b"\x10xxxxxxxxxxxxxxxx"));
        let long = [b"\x7f\x49".as_slice(), &[b'/'; 200]].concat();
        check(END_HEADERS, block(&long), block(&[b"\x7f\x49".as_slice(), &[b'x'; 200]].concat()));
        let padded = |block: &[u8]| [&[2, 0, 0, 0, 0, 9], block, &[0, 0]].concat();
        check(END_HEADERS | PADDED | PRIORITY, padded(&block(b"\x02/s")), padded(&block(b"\x02xx")));
    }

    #[test]
    fn what_has_no_authority_or_cannot_be_read_passes_as_it_is() {
        for payload in [
            &b"\x83\x86\xc0\x3f\xe1\x1f"[..],
            b"\x41\x09cut",
            b"\x41",
            b"\x40\x01",
            b"\xff\xff\xff\xff\xff",
            b"\x41\x84\xff\xff\xff\xff",
        ] {
            check(END_HEADERS, payload.to_vec(), payload.to_vec());
        }
        // Not the end of the block.
        check(0, block(b"\x05/sock"), block(b"\x05/sock"));
        check(END_HEADERS | PADDED, vec![9, 0x83], vec![9, 0x83]);
    }

    proptest! {
        #[test]
        fn nothing_gets_lost_however_it_comes(bytes: Vec<u8>, pieces in 1..50usize) {
            let input = [&[0; PREFACE][..], &frame(HEADERS, END_HEADERS, &bytes)].concat();
            let whole = through(&input, input.len());
            prop_assert_eq!(&whole, &through(&input, pieces));
            prop_assert!(whole.len() >= PREFACE + FRAME_HEADER);
        }
    }
}

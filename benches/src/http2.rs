//! HTTP/2 as a client that costs next to nothing: frames are written as they go over the wire, and of those that come only what must be
//! known is looked at.
//!
//! A library's client takes as much of the machine as the server it asks, and both sides would be measured with it.

use anyhow::{Result, ensure};
use bytes::{Buf as _, BufMut as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How much may be sent to us, in all and on a stream, without a word: more than a run sends.
const OUR_WINDOW: u32 = i32::MAX as u32;
const OUR_FRAMES: u32 = 1 << 20;
/// What a side may send, and how long its frames are, before it is told otherwise.
pub(crate) const DEFAULT_WINDOW: u32 = 65_535;
pub(crate) const THEIR_FRAMES: usize = 16_384;
/// How much is read at once.
const READ_BYTES: usize = 256 << 10;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) struct Http2<S> {
    stream: S,
    read: BytesMut,
    /// What the server still takes on the connection.
    pub(crate) window: i64,
}

/// A frame of a request's stream.
pub(crate) struct Frame {
    pub(crate) stream: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) payload: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http2<S> {
    pub(crate) async fn connect(stream: S) -> Result<Http2<S>> {
        let mut connection = Http2 { stream, read: BytesMut::with_capacity(READ_BYTES), window: DEFAULT_WINDOW.into() };
        let mut hello = BytesMut::from(PREFACE);
        let mut settings = BytesMut::new();
        for (name, value) in [(1, 0), (4, OUR_WINDOW), (5, OUR_FRAMES)] {
            settings.put_u16(name);
            settings.put_u32(value);
        }
        frame(&mut hello, SETTINGS, 0, 0, &settings);
        frame(&mut hello, WINDOW_UPDATE, 0, 0, &(OUR_WINDOW - DEFAULT_WINDOW).to_be_bytes());
        connection.send(&hello).await?;
        Ok(connection)
    }

    pub(crate) async fn send(&mut self, frames: &[u8]) -> Result<()> {
        self.stream.write_all(frames).await?;
        Ok(self.stream.flush().await?)
    }

    /// The next frame of a request's stream, or nothing where it was one of the connection's, which is dealt with.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>> {
        while self.read.len() < 9 {
            self.more().await?;
        }
        let mut head = self.read.get(..9).unwrap_or_default();
        let len = usize::try_from(head.get_uint(3))?;
        let (kind, flags, stream) = (head.get_u8(), head.get_u8(), head.get_u32());
        self.read.advance(9);
        while self.read.len() < len {
            self.more().await?;
        }
        let mut payload = self.read.split_to(len);
        match kind {
            SETTINGS | PING if flags & ACK == 0 => {
                let mut answer = BytesMut::new();
                frame(&mut answer, kind, ACK, 0, if kind == PING { &payload } else { &[] });
                self.send(&answer).await?;
            }
            WINDOW_UPDATE if stream == 0 => self.window += i64::from(payload.get_u32()),
            RST_STREAM | GOAWAY => ensure!(false, "the server gave up"),
            DATA | HEADERS => return Ok(Some(Frame { stream, kind, flags, payload })),
            _ => {}
        }
        Ok(None)
    }

    async fn more(&mut self) -> Result<()> {
        self.read.reserve(READ_BYTES);
        ensure!(self.stream.read_buf(&mut self.read).await? > 0, "the connection ended");
        Ok(())
    }
}

pub(crate) fn frame(out: &mut BytesMut, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.put_uint(payload.len() as u64, 3);
    out.put_u8(kind);
    out.put_u8(flags);
    out.put_u32(stream);
    out.put_slice(payload);
}

/// A header's value as it stands; shorter than 127 bytes, all of them.
pub(crate) fn string(out: &mut BytesMut, text: &str) {
    out.put_u8(text.len() as u8);
    out.put_slice(text.as_bytes());
}

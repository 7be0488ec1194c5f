//! A gRPC client that costs next to nothing: one call at a time on an HTTP/2 connection of its own.
//!
//! A library's client takes as much of the machine as the server it asks, and both sides would be measured with it. This one writes
//! a request as it goes over the wire and reads the answer's frames; only what it must know of them is looked at.

use anyhow::{Context as _, Result, ensure};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How much may be sent to us, in all and on a stream, without a word: more than a run sends.
const OUR_WINDOW: u32 = i32::MAX as u32;
const OUR_FRAMES: u32 = 1 << 20;
/// What a side may send, and how long its frames are, before it is told otherwise.
const DEFAULT_WINDOW: u32 = 65_535;
const THEIR_FRAMES: usize = 16_384;
/// The longest answer head that makes sense.
const READ_BYTES: usize = 256 << 10;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

pub(super) struct Wire {
    stream: TcpStream,
    host: String,
    read: BytesMut,
    next_id: u32,
    /// What the server still takes on the connection.
    window: i64,
}

impl Wire {
    pub(super) async fn connect(url: &str) -> Result<Wire> {
        let host = url.strip_prefix("http://").context("the url is http://HOST:PORT")?.to_owned();
        let stream = TcpStream::connect(&host).await?;
        stream.set_nodelay(true)?;
        let mut wire =
            Wire { stream, host, read: BytesMut::with_capacity(READ_BYTES), next_id: 1, window: DEFAULT_WINDOW.into() };
        let mut hello = BytesMut::from(PREFACE);
        let mut settings = BytesMut::new();
        for (name, value) in [(1, 0), (4, OUR_WINDOW), (5, OUR_FRAMES)] {
            settings.put_u16(name);
            settings.put_u32(value);
        }
        frame(&mut hello, SETTINGS, 0, 0, &settings);
        frame(&mut hello, WINDOW_UPDATE, 0, 0, &(OUR_WINDOW - DEFAULT_WINDOW).to_be_bytes());
        wire.stream.write_all(&hello).await?;
        Ok(wire)
    }

    /// Asks, and returns the message that is answered, still encoded.
    pub(super) async fn call(&mut self, path: &str, request: &impl Message) -> Result<Bytes> {
        let id = self.next_id;
        self.next_id += 2;
        self.ask(id, path, request).await?;
        self.answer(id).await
    }

    async fn ask(&mut self, id: u32, path: &str, request: &impl Message) -> Result<()> {
        let mut headers = BytesMut::new();
        // Of the static table: POST and http whole, the others' names. Nothing is to be remembered.
        headers.put_slice(&[0x83, 0x86]);
        for (name, value) in [(&[0x04][..], path), (&[0x01], &self.host), (&[0x0f, 0x10], "application/grpc")] {
            headers.put_slice(name);
            string(&mut headers, value);
        }
        headers.put_u8(0);
        string(&mut headers, "te");
        string(&mut headers, "trailers");

        let mut message = BytesMut::with_capacity(request.encoded_len() + 5);
        message.put_u8(0);
        message.put_u32(u32::try_from(request.encoded_len())?);
        request.encode(&mut message)?;

        ensure!(message.len() <= DEFAULT_WINDOW as usize, "longer than a stream's first window");
        while self.window < message.len() as i64 {
            ensure!(self.next_frame(id).await?.is_none(), "an answer before the question");
        }
        self.window -= message.len() as i64;
        let mut out = BytesMut::with_capacity(message.len() + headers.len() + 64);
        frame(&mut out, HEADERS, END_HEADERS, id, &headers);
        let pieces = message.chunks(THEIR_FRAMES).count();
        for (index, piece) in message.chunks(THEIR_FRAMES).enumerate() {
            frame(&mut out, DATA, if index + 1 == pieces { END_STREAM } else { 0 }, id, piece);
        }
        self.stream.write_all(&out).await?;
        Ok(())
    }

    async fn answer(&mut self, id: u32) -> Result<Bytes> {
        let mut message = BytesMut::new();
        loop {
            let Some(frame) = self.next_frame(id).await? else { continue };
            if frame.kind == DATA {
                if message.is_empty() && frame.payload.len() >= 5 {
                    let len = u32::from_be_bytes(frame.payload.get(1..5).context("no length")?.try_into()?);
                    message.reserve(len as usize + 5);
                }
                message.extend_from_slice(&frame.payload);
            }
            if frame.flags & END_STREAM != 0 {
                // A refusal has no message.
                ensure!(message.len() > 5, "the call failed");
                message.advance(5);
                return Ok(message.freeze());
            }
        }
    }

    /// The next frame, if it is of our stream; all others are dealt with.
    async fn next_frame(&mut self, id: u32) -> Result<Option<Frame>> {
        while self.read.len() < 9 {
            self.more().await?;
        }
        let mut head = self.read.split_to(9);
        let len = usize::try_from(head.get_uint(3))?;
        let (kind, flags, stream) = (head.get_u8(), head.get_u8(), head.get_u32());
        while self.read.len() < len {
            self.more().await?;
        }
        let mut payload = self.read.split_to(len);
        match kind {
            SETTINGS | PING if flags & ACK == 0 => {
                let mut answer = BytesMut::new();
                frame(&mut answer, kind, ACK, 0, if kind == PING { &payload } else { &[] });
                self.stream.write_all(&answer).await?;
            }
            WINDOW_UPDATE if stream == 0 => self.window += i64::from(payload.get_u32()),
            RST_STREAM | GOAWAY => ensure!(false, "the server gave up"),
            DATA | HEADERS if stream == id => return Ok(Some(Frame { kind, flags, payload })),
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

struct Frame {
    kind: u8,
    flags: u8,
    payload: BytesMut,
}

fn frame(out: &mut BytesMut, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.put_uint(payload.len() as u64, 3);
    out.put_u8(kind);
    out.put_u8(flags);
    out.put_u32(stream);
    out.put_slice(payload);
}

/// Shorter than 127 bytes, all of them.
fn string(out: &mut BytesMut, text: &str) {
    out.put_u8(text.len() as u8);
    out.put_slice(text.as_bytes());
}

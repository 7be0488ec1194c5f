//! A gRPC client that costs next to nothing: one call at a time on an HTTP/2 connection of its own.

use anyhow::{Context as _, Result, ensure};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message;
use tokio::net::TcpStream;

use crate::http2::{DATA, DEFAULT_WINDOW, END_HEADERS, END_STREAM, Frame, HEADERS, Http2, THEIR_FRAMES, frame, string};

pub(super) struct Wire {
    connection: Http2<TcpStream>,
    host: String,
    next_id: u32,
}

impl Wire {
    pub(super) async fn connect(url: &str) -> Result<Wire> {
        let host = url.strip_prefix("http://").context("the url is http://HOST:PORT")?.to_owned();
        let stream = TcpStream::connect(&host).await?;
        stream.set_nodelay(true)?;
        Ok(Wire { connection: Http2::connect(stream).await?, host, next_id: 1 })
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
        while self.connection.window < message.len() as i64 {
            ensure!(self.next_frame(id).await?.is_none(), "an answer before the question");
        }
        self.connection.window -= message.len() as i64;
        let mut out = BytesMut::with_capacity(message.len() + headers.len() + 64);
        frame(&mut out, HEADERS, END_HEADERS, id, &headers);
        let pieces = message.chunks(THEIR_FRAMES).count();
        for (index, piece) in message.chunks(THEIR_FRAMES).enumerate() {
            frame(&mut out, DATA, if index + 1 == pieces { END_STREAM } else { 0 }, id, piece);
        }
        self.connection.send(&out).await
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

    async fn next_frame(&mut self, id: u32) -> Result<Option<Frame>> {
        Ok(self.connection.next().await?.filter(|frame| frame.stream == id))
    }
}

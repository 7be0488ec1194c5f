//! TLS 1.3 records by hand, once a connection is made: read from the kernel in large pieces, decrypted where they lie.
//!
//! A library asks for a few kilobytes at a time and copies them four times. Beside a server that says much to many, that would be most of
//! what is measured.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const HEADER: usize = 5;
const TAG: usize = 16;
const APPLICATION_DATA: u8 = 23;
const HANDSHAKE: u8 = 22;
const READ_AT_ONCE: usize = 256 << 10;

/// One direction of a connection.
struct Sealing {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Sealing {
    fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> io::Result<Self> {
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else { return Err(broken("another cipher")) };
        let key = UnboundKey::new(&AES_128_GCM, key.as_ref()).map_err(|_| broken("no key of this cipher"))?;
        let iv = iv.as_ref().try_into().map_err(|_| broken("no nonce of this cipher"))?;
        Ok(Self { key: LessSafeKey::new(key), iv, sequence })
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        nonce.iter_mut().skip(4).zip(self.sequence.to_be_bytes()).for_each(|(byte, count)| *byte ^= count);
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

pub(super) struct Records {
    stream: TcpStream,
    opening: Sealing,
    sealing: Sealing,
    sealed: BytesMut,
    /// Of the record at the beginning of `sealed`: where what was not handed out yet is, and where the record ends.
    opened: Option<(std::ops::Range<usize>, usize)>,
    outgoing: BytesMut,
}

impl Records {
    /// Takes a connection over from the library that made it, which must not have read ahead.
    pub(super) fn new(made: TlsStream<TcpStream>) -> io::Result<Self> {
        let (stream, connection) = made.into_inner();
        let secrets = connection.dangerous_extract_secrets().map_err(io::Error::other)?;
        let (opening, sealing) = (Sealing::new(secrets.rx)?, Sealing::new(secrets.tx)?);
        let sealed = BytesMut::with_capacity(2 * READ_AT_ONCE);
        Ok(Self { stream, opening, sealing, sealed, opened: None, outgoing: BytesMut::new() })
    }

    /// Decrypts the next record, if all of it is here.
    fn open(&mut self) -> io::Result<bool> {
        let Some((header, rest)) = self.sealed.split_first_chunk_mut::<HEADER>() else { return Ok(false) };
        let size = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let Some(record) = rest.get_mut(..size) else { return Ok(false) };
        let nonce = self.opening.nonce();
        let plain = self.opening.key.open_in_place(nonce, Aad::from(*header), record);
        let plain = plain.map_err(|_| broken("a record that cannot be read"))?;
        // Nobody pads: the last byte says what it is.
        match plain.split_last() {
            Some((&APPLICATION_DATA, data)) => self.opened = Some((HEADER..HEADER + data.len(), HEADER + size)),
            Some((&HANDSHAKE, _)) => self.sealed.advance(HEADER + size), // A ticket for the next time.
            _ => return Err(broken("the server ends the connection")),
        }
        Ok(true)
    }
}

fn broken(why: &str) -> io::Error {
    io::Error::other(why)
}

impl AsyncRead for Records {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        while buffer.remaining() > 0 {
            if let Some((data, end)) = &mut this.opened {
                let part = data.len().min(buffer.remaining());
                buffer.put_slice(this.sealed.get(data.start..data.start + part).unwrap_or_default());
                data.start += part;
                if data.start == data.end {
                    this.sealed.advance(*end);
                    this.opened = None;
                }
            } else if !this.open()? {
                if buffer.filled().len() > before {
                    break;
                }
                this.sealed.reserve(READ_AT_ONCE);
                if ready!(tokio_util::io::poll_read_buf(Pin::new(&mut this.stream), context, &mut this.sealed))? == 0 {
                    break;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Records {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut *this).poll_flush(context))?;
        let part = bytes.get(..bytes.len().min(16_000)).unwrap_or_default();
        let mut record = [part, &[APPLICATION_DATA]].concat();
        let size = u16::try_from(record.len() + TAG).map_err(io::Error::other)?.to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, size[0], size[1]];
        let nonce = this.sealing.nonce();
        let sealed = this.sealing.key.seal_in_place_append_tag(nonce, Aad::from(header), &mut record);
        sealed.map_err(|_| broken("a record that cannot be written"))?;
        this.outgoing.extend_from_slice(&header);
        this.outgoing.extend_from_slice(&record);
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while !this.outgoing.is_empty() {
            let written = ready!(Pin::new(&mut this.stream).poll_write(context, &this.outgoing))?;
            this.outgoing.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

//! The frames as bytes, and back.
//!
//! A control frame is decoded once it is whole, so its size is bounded. A data frame may be as large as the protocol lets
//! it, because it is handed on in the pieces in which it arrives and is never held whole.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::headers::{Deflater, Headers, Inflater};

/// A larger control frame is refused.
pub const MAX_CONTROL_BYTES: usize = 16 << 10;

const VERSION: u32 = 3;
const CONTROL: u32 = 1 << 31;
const HEAD_BYTES: usize = 8;
const MAX_LENGTH: u32 = (1 << 24) - 1;
const FIN: u8 = 1;

const SYN_STREAM: u32 = 1;
const SYN_REPLY: u32 = 2;
const RST_STREAM: u32 = 3;
const SETTINGS: u32 = 4;
const PING: u32 = 6;
const GO_AWAY: u32 = 7;
const HEADERS: u32 = 8;
const WINDOW_UPDATE: u32 = 9;

/// Stream numbers are 31 bits and never 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    SynStream {
        stream: u32,
        fin: bool,
        headers: Headers,
    },
    SynReply {
        stream: u32,
        fin: bool,
        headers: Headers,
    },
    Headers {
        stream: u32,
        fin: bool,
        headers: Headers,
    },
    RstStream {
        stream: u32,
        status: u32,
    },
    Data {
        stream: u32,
        fin: bool,
        data: Bytes,
    },
    Ping(u32),
    GoAway {
        last_good: u32,
        status: u32,
    },
    /// Nothing in the settings concerns us.
    Settings,
    WindowUpdate {
        stream: u32,
        delta: u32,
    },
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a control frame of {0} bytes is too large")]
    TooLarge(usize),
    #[error("a header block is too large")]
    HeadersTooLarge,
    #[error("a frame has a wrong length, or says what cannot be")]
    Malformed,
    #[error("frame of an unknown version or type")]
    Unknown,
    #[error("a header block cannot be inflated")]
    Compression,
}

/// What is still to come of a data frame.
struct Rest {
    stream: u32,
    fin: bool,
    left: usize,
}

pub struct Decoder {
    inflater: Inflater,
    rest: Option<Rest>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { inflater: Inflater::new(), rest: None }
    }
}

impl Decoder {
    /// Takes the next frame, or the next piece of a data frame, off the buffer; nothing if more bytes are needed.
    ///
    /// # Errors
    /// The connection cannot be used any more: the compression of both sides is no longer in step.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        if self.rest.is_none() {
            let Some(mut head) = buffer.get(..HEAD_BYTES) else { return Ok(None) };
            let (first, second) = (head.get_u32(), head.get_u32());
            let flags = second.to_be_bytes().first().copied().unwrap_or_default();
            let length = (second & MAX_LENGTH) as usize;
            if first & CONTROL != 0 {
                return self.control(first, flags, length, buffer);
            }
            if first == 0 {
                return Err(FrameError::Malformed);
            }
            buffer.advance(HEAD_BYTES);
            self.rest = Some(Rest { stream: first, fin: flags & FIN != 0, left: length });
        }
        let Some(rest) = &mut self.rest else { return Ok(None) };
        if buffer.is_empty() && rest.left > 0 {
            return Ok(None);
        }
        let data = buffer.split_to(rest.left.min(buffer.len())).freeze();
        rest.left -= data.len();
        let is_last = rest.left == 0;
        let frame = Frame::Data { stream: rest.stream, fin: rest.fin && is_last, data };
        if is_last {
            self.rest = None;
        }
        Ok(Some(frame))
    }

    fn control(
        &mut self,
        first: u32,
        flags: u8,
        length: usize,
        buffer: &mut BytesMut,
    ) -> Result<Option<Frame>, FrameError> {
        if (first & !CONTROL) >> 16 != VERSION {
            return Err(FrameError::Unknown);
        }
        if length > MAX_CONTROL_BYTES {
            return Err(FrameError::TooLarge(length));
        }
        if buffer.len() < HEAD_BYTES + length {
            return Ok(None);
        }
        buffer.advance(HEAD_BYTES);
        let mut body = buffer.split_to(length).freeze();
        let mut number = || body.try_get_u32().map(|number| number & !CONTROL).map_err(|_| FrameError::Malformed);
        let fin = flags & FIN != 0;
        let kind = first & 0xffff;
        let frame = match kind {
            SYN_STREAM => {
                // The associated stream, the priority and the slot mean nothing here.
                let (stream, _) = (number()?, number()?);
                let block = body.get(2..).ok_or(FrameError::Malformed)?;
                Frame::SynStream { stream, fin, headers: self.inflater.read(block)? }
            }
            SYN_REPLY => Frame::SynReply { stream: number()?, fin, headers: self.inflater.read(&body)? },
            HEADERS => Frame::Headers { stream: number()?, fin, headers: self.inflater.read(&body)? },
            RST_STREAM => Frame::RstStream { stream: number()?, status: number()? },
            SETTINGS => Frame::Settings,
            PING => Frame::Ping(body.try_get_u32().map_err(|_| FrameError::Malformed)?),
            GO_AWAY => Frame::GoAway { last_good: number()?, status: number()? },
            WINDOW_UPDATE => Frame::WindowUpdate { stream: number()?, delta: number()? },
            _ => return Err(FrameError::Unknown),
        };
        let is_nobodys = matches!(
            &frame,
            Frame::SynStream { stream: 0, .. }
                | Frame::SynReply { stream: 0, .. }
                | Frame::Headers { stream: 0, .. }
                | Frame::RstStream { stream: 0, .. }
                | Frame::Ping(0)
        );
        if is_nobodys { Err(FrameError::Malformed) } else { Ok(Some(frame)) }
    }
}

pub struct Encoder {
    deflater: Deflater,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { deflater: Deflater::new() }
    }
}

impl Encoder {
    /// Appends a frame to the buffer.
    ///
    /// # Errors
    /// When the frame is larger than the protocol, or our own bound, permits.
    pub fn encode(&mut self, frame: &Frame, buffer: &mut BytesMut) -> Result<(), FrameError> {
        let mut body = BytesMut::new();
        let (kind, flags) = match frame {
            Frame::Data { stream, fin, data } => {
                let length = u32::try_from(data.len()).ok().filter(|length| *length <= MAX_LENGTH);
                let length = length.ok_or(FrameError::TooLarge(data.len()))?;
                buffer.put_u32(*stream & !CONTROL);
                buffer.put_u32(u32::from(*fin) << 24 | length);
                buffer.extend_from_slice(data);
                return Ok(());
            }
            Frame::SynStream { stream, fin, headers } => {
                body.put_u32(*stream);
                body.put_bytes(0, 6);
                body.extend_from_slice(&self.deflater.write(headers)?);
                (SYN_STREAM, u32::from(*fin))
            }
            Frame::SynReply { stream, fin, headers } | Frame::Headers { stream, fin, headers } => {
                body.put_u32(*stream);
                body.extend_from_slice(&self.deflater.write(headers)?);
                (if matches!(frame, Frame::SynReply { .. }) { SYN_REPLY } else { HEADERS }, u32::from(*fin))
            }
            Frame::RstStream { stream: first, status: second }
            | Frame::GoAway { last_good: first, status: second }
            | Frame::WindowUpdate { stream: first, delta: second } => {
                body.put_u32(*first);
                body.put_u32(*second);
                let kind = match frame {
                    Frame::RstStream { .. } => RST_STREAM,
                    Frame::GoAway { .. } => GO_AWAY,
                    _ => WINDOW_UPDATE,
                };
                (kind, 0)
            }
            Frame::Ping(id) => {
                body.put_u32(*id);
                (PING, 0)
            }
            Frame::Settings => {
                body.put_u32(0);
                (SETTINGS, 0)
            }
        };
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        if body.len() > MAX_CONTROL_BYTES {
            return Err(FrameError::TooLarge(body.len()));
        }
        buffer.put_u32(CONTROL | VERSION << 16 | kind);
        buffer.put_u32(flags << 24 | length);
        buffer.extend_from_slice(&body);
        Ok(())
    }
}

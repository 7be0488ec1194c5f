//! Header blocks: name and value pairs, compressed with a state that lasts as long as the connection.

use bytes::{Buf, BufMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::dictionary::dictionary;
use crate::frame::FrameError;

/// Names in lower case, in the order of the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, String)>);

impl Headers {
    pub fn new(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// A block that inflates to more is refused: a few hundred bytes can stand for megabytes.
pub const MAX_HEADER_BYTES: usize = 64 << 10;
const CHUNK_BYTES: usize = 4 << 10;

pub(crate) struct Inflater(Decompress);

impl Inflater {
    pub(crate) fn new() -> Self {
        Self(Decompress::new(true))
    }

    pub(crate) fn read(&mut self, compressed: &[u8]) -> Result<Headers, FrameError> {
        parse(&self.inflate(compressed)?)
    }

    fn inflate(&mut self, mut input: &[u8]) -> Result<Vec<u8>, FrameError> {
        let mut output = Vec::new();
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            let before = (self.0.total_in(), self.0.total_out());
            let status = self.0.decompress(input, &mut chunk, FlushDecompress::Sync);
            let consumed = usize::try_from(self.0.total_in() - before.0).map_err(|_| FrameError::Compression)?;
            let produced = usize::try_from(self.0.total_out() - before.1).map_err(|_| FrameError::Compression)?;
            input = input.get(consumed..).ok_or(FrameError::Compression)?;
            output.extend_from_slice(chunk.get(..produced).ok_or(FrameError::Compression)?);
            if output.len() > MAX_HEADER_BYTES {
                return Err(FrameError::HeadersTooLarge);
            }
            match status {
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0.set_dictionary(&dictionary()).map_err(|_| FrameError::Compression)?;
                }
                Err(_) | Ok(Status::StreamEnd) => return Err(FrameError::Compression),
                Ok(_) if input.is_empty() && produced < CHUNK_BYTES => return Ok(output),
                Ok(_) if consumed == 0 && produced == 0 => return Err(FrameError::Compression),
                Ok(_) => (),
            }
        }
    }
}

fn parse(mut block: &[u8]) -> Result<Headers, FrameError> {
    let text = |block: &mut &[u8]| -> Result<String, FrameError> {
        let length = block.try_get_u32().map_err(|_| FrameError::Malformed)?;
        let length = usize::try_from(length).map_err(|_| FrameError::Malformed)?;
        let (text, rest) = block.split_at_checked(length).ok_or(FrameError::Malformed)?;
        *block = rest;
        Ok(String::from_utf8_lossy(text).into_owned())
    };
    let count = block.try_get_u32().map_err(|_| FrameError::Malformed)?;
    // Nothing is reserved by the count: it is the peer's word, the bytes are not.
    let mut pairs = Vec::new();
    for _ in 0..count {
        let name = text(&mut block)?.to_ascii_lowercase();
        pairs.push((name, text(&mut block)?));
    }
    if block.is_empty() { Ok(Headers(pairs)) } else { Err(FrameError::Malformed) }
}

pub(crate) struct Deflater(Option<Compress>);

impl Deflater {
    /// The compressor is made with the first block: a connection that only answers pings needs none.
    pub(crate) fn new() -> Self {
        Self(None)
    }

    pub(crate) fn write(&mut self, headers: &Headers) -> Result<Vec<u8>, FrameError> {
        let mut block = Vec::new();
        let length = |length: usize| u32::try_from(length).map_err(|_| FrameError::HeadersTooLarge);
        block.put_u32(length(headers.0.len())?);
        for text in headers.0.iter().flat_map(|(name, value)| [name, value]) {
            block.put_u32(length(text.len())?);
            block.extend_from_slice(text.as_bytes());
        }
        if block.len() > MAX_HEADER_BYTES {
            return Err(FrameError::HeadersTooLarge);
        }
        self.deflate(&block)
    }

    fn deflate(&mut self, mut input: &[u8]) -> Result<Vec<u8>, FrameError> {
        let compress = match &mut self.0 {
            Some(compress) => compress,
            none => {
                let mut compress = Compress::new(Compression::fast(), true);
                compress.set_dictionary(&dictionary()).map_err(|_| FrameError::Compression)?;
                none.insert(compress)
            }
        };
        let mut output = Vec::new();
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            let before = (compress.total_in(), compress.total_out());
            compress.compress(input, &mut chunk, FlushCompress::Sync).map_err(|_| FrameError::Compression)?;
            let consumed = usize::try_from(compress.total_in() - before.0).map_err(|_| FrameError::Compression)?;
            let produced = usize::try_from(compress.total_out() - before.1).map_err(|_| FrameError::Compression)?;
            input = input.get(consumed..).ok_or(FrameError::Compression)?;
            output.extend_from_slice(chunk.get(..produced).ok_or(FrameError::Compression)?);
            if input.is_empty() && produced < CHUNK_BYTES {
                return Ok(output);
            }
        }
    }
}

//! From state to bytes, a chunk at a time: no more than one chunk is in memory, and the store is never waited for.

use std::{
    hash::{BuildHasher, RandomState},
    ops::Bound,
};

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};

use super::{HASH, MAGIC, PAGE};
use crate::{
    StoreError,
    embedded::{
        frame::{FrameBuffer, HEADER},
        record,
    },
    state::State,
};

/// A frame is finished when it has grown this large.
const CHUNK: usize = 64 << 10;

/// Hands out a snapshot of `state`, frame by frame.
pub(crate) struct Encoder {
    state: State,
    salt: u32,
    stage: Stage,
    hash: Sha256,
    written: u64,
}

enum Stage {
    Begin,
    /// The keys behind this one are still to come.
    Keys(Bytes),
    Tail,
    Done,
}

impl Encoder {
    pub(crate) fn new(state: &State) -> Encoder {
        let state = state.without_history();
        let salt = RandomState::new().hash_one(state.revision) as u32;
        Encoder { state, salt, stage: Stage::Begin, hash: Sha256::new(), written: 0 }
    }

    /// What all chunks together will have, found by laying them out without writing them.
    pub(crate) fn bytes(&self) -> u64 {
        let mut lead = Vec::new();
        record::file(&mut lead, self.salt, self.state.revision);
        let mut content = MAGIC.len() + HEADER + lead.len();
        let mut payload = self.lead().len();
        for kv in self.state.keys.values() {
            payload += record::key_value_len(kv);
            if payload >= CHUNK {
                content += HEADER + payload;
                payload = 0;
            }
        }
        let mut end = Vec::new();
        record::end(&mut end, self.state.keys.len() as u64);
        content += HEADER + payload + end.len();
        (content.next_multiple_of(PAGE) + HASH) as u64
    }

    fn begin(&mut self) -> Result<Bytes, StoreError> {
        self.stage = Stage::Keys(Bytes::new());
        let mut first = FrameBuffer::new();
        record::file(first.payload(), self.salt, self.state.revision);
        let mut chunk = BytesMut::from(&MAGIC[..]);
        chunk.put_slice(seal(&mut first, 0)?);
        Ok(self.hashed(chunk.freeze()))
    }

    /// What stands before the keys.
    fn lead(&self) -> Vec<u8> {
        let mut lead = Vec::new();
        record::compact(&mut lead, self.state.compacted);
        for (id, ttl_seconds) in &self.state.leases {
            record::grant(&mut lead, *id, *ttl_seconds);
        }
        lead
    }

    fn keys(&mut self, after: &Bytes) -> Result<Bytes, StoreError> {
        let mut frame = FrameBuffer::new();
        if after.is_empty() {
            frame.payload().extend_from_slice(&self.lead());
        }
        let behind = (Bound::Excluded(after.as_ref()), Bound::Unbounded);
        self.stage = Stage::Tail;
        for (key, kv) in self.state.keys.range::<_, [u8]>(behind) {
            record::key_value(frame.payload(), kv);
            if frame.payload_len() >= CHUNK {
                self.stage = Stage::Keys(key.clone());
                break;
            }
        }
        if matches!(self.stage, Stage::Tail) {
            record::end(frame.payload(), self.state.keys.len() as u64);
        }
        let chunk = Bytes::copy_from_slice(seal(&mut frame, self.salt)?);
        Ok(self.hashed(chunk))
    }

    fn tail(&mut self) -> Bytes {
        self.stage = Stage::Done;
        let padding = self.written.next_multiple_of(PAGE as u64) - self.written;
        let mut chunk = BytesMut::zeroed(usize::try_from(padding).unwrap_or(0));
        self.hash.update(&chunk);
        chunk.put_slice(&self.hash.finalize_reset());
        chunk.freeze()
    }

    fn hashed(&mut self, chunk: Bytes) -> Bytes {
        self.hash.update(&chunk);
        self.written += chunk.len() as u64;
        chunk
    }
}

/// Fails only for a frame of 4 GiB, which no request is large enough to make.
fn seal(frame: &mut FrameBuffer, salt: u32) -> Result<&[u8], StoreError> {
    let bytes = frame.payload_len();
    frame.seal(salt).map_err(|_| StoreError::TooLarge { bytes, limit: u32::MAX as usize })
}

impl Iterator for Encoder {
    type Item = Result<Bytes, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let chunk = match &self.stage {
            Stage::Begin => self.begin(),
            Stage::Keys(after) => {
                let after = after.clone();
                self.keys(&after)
            }
            Stage::Tail => Ok(self.tail()),
            Stage::Done => return None,
        };
        if chunk.is_err() {
            self.stage = Stage::Done;
        }
        Some(chunk)
    }
}

//! Objects at rest as a list, without decoding any: their bytes go out as they are, a chunk at a time: a list is never
//! in memory as a whole.

use std::sync::Arc;

use api::{ApiError, protobuf};
use bytes::Bytes;
use serde_json::Value;

use crate::http::{Body, CHUNK, full, in_turns};
use crate::registry::Served;
use crate::storage::Stored;

/// Encoding is quick, but ten thousand objects are many: others get their turn.
const TURN: usize = 64;

pub(super) fn json(served: &Served, meta: &Value, items: Vec<Arc<Stored>>) -> Body {
    let (kind, version) = (&served.list_kind, served.info.api_version());
    let items_have_type = served.custom().is_some();
    let head = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{version}\",\"metadata\":{meta},\"items\":[");
    let write = move |out: &mut Vec<u8>, index: usize, item: &Stored| {
        if index > 0 {
            out.push(b',');
        }
        item.write(out, items_have_type);
    };
    Chunks { items: items.into_iter(), index: 0, pending: head.into_bytes(), tail: Some(b"]}\n".to_vec()), write }
        .body()
}

pub(super) async fn protobuf(served: &Served, meta: &Value, items: Vec<Arc<Stored>>) -> Result<Body, ApiError> {
    let mut lengths = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        lengths.push(item.message(&served.schema).map_err(ApiError::internal)?.len());
        if index % TURN == TURN - 1 {
            tokio::task::yield_now().await;
        }
    }
    let (kind, version) = (served.list_kind.clone(), served.info.api_version());
    let (head, tail) = protobuf::list_ends(&version, &kind, meta, lengths.into_iter())
        .ok_or_else(|| ApiError::internal("no protobuf form"))?;
    let schema = served.schema.clone();
    let write = move |out: &mut Vec<u8>, _: usize, item: &Stored| {
        // It was made above, or is made again if it has been dropped since.
        protobuf::write_item(out, &item.message(&schema).unwrap_or_default());
    };
    Ok(Chunks { items: items.into_iter(), index: 0, pending: head, tail: Some(tail), write }.body())
}

struct Chunks<W> {
    items: std::vec::IntoIter<Arc<Stored>>,
    index: usize,
    pending: Vec<u8>,
    tail: Option<Vec<u8>>,
    write: W,
}

impl<W: Fn(&mut Vec<u8>, usize, &Stored) + Send + Unpin + 'static> Chunks<W> {
    /// One piece with its length where it is small, a stream where it is not.
    fn body(mut self) -> Body {
        match self.next() {
            Some(only) if self.tail.is_none() => full(only),
            Some(first) => in_turns(std::iter::once(first).chain(self), None),
            None => full(Bytes::new()),
        }
    }
}

impl<W: Fn(&mut Vec<u8>, usize, &Stored)> Iterator for Chunks<W> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.tail.as_ref()?;
        let mut out = std::mem::take(&mut self.pending);
        out.reserve(CHUNK.min(self.items.len().saturating_mul(1024)));
        while out.len() < CHUNK {
            match self.items.next() {
                Some(item) => {
                    (self.write)(&mut out, self.index, &item);
                    self.index += 1;
                }
                None => {
                    out.extend_from_slice(&self.tail.take().unwrap_or_default());
                    break;
                }
            }
        }
        Some(out.into())
    }
}

//! Events on the wire, each encoded once for all who watch it.
//!
//! Watchers of a key get its events at about the same time, so the newest encodings are kept for a moment. What is kept is
//! bounded by its size; an event that is asked for later than that is encoded again.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;

use crate::{Event, KeyValue, etcd::convert::event_to_proto};

/// Some thousands of usual objects: more than any watcher that keeps up is behind.
const KEPT_BYTES: usize = 8 << 20;
/// What an entry takes beside its bytes, roughly.
const OVERHEAD: usize = 150;

/// An event is known by the address of its key-value, which cannot be another's while it is kept, and by whether the
/// previous value is with it.
type Name = (usize, bool);

#[derive(Default)]
pub(super) struct Encodings(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_name: HashMap<Name, (Arc<KeyValue>, Bytes)>,
    oldest_first: VecDeque<Name>,
    bytes: usize,
    /// How many events were ever encoded.
    encoded: u64,
}

impl Encodings {
    pub(super) fn of(&self, event: &Event, with_prev: bool) -> Bytes {
        // Without a previous value both are the same.
        let name = (Arc::as_ptr(&event.kv).addr(), with_prev && event.prev.is_some());
        let mut kept = self.0.lock();
        if let Some((_, encoded)) = kept.by_name.get(&name) {
            return encoded.clone();
        }
        let encoded = Bytes::from(event_to_proto(event, with_prev).encode_to_vec());
        kept.keep(name, event.kv.clone(), encoded.clone());
        encoded
    }

    #[cfg(test)]
    pub(super) fn encoded(&self) -> u64 {
        self.0.lock().encoded
    }
}

impl Kept {
    fn keep(&mut self, name: Name, kv: Arc<KeyValue>, encoded: Bytes) {
        self.encoded += 1;
        self.bytes += encoded.len() + OVERHEAD;
        self.by_name.insert(name, (kv, encoded));
        self.oldest_first.push_back(name);
        while self.bytes > KEPT_BYTES
            && let Some((_, oldest)) = self.oldest_first.pop_front().and_then(|oldest| self.by_name.remove(&oldest))
        {
            self.bytes -= oldest.len() + OVERHEAD;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventKind, etcd::proto::mvccpb};

    fn event(value: Vec<u8>) -> Event {
        let kv = |value: Vec<u8>| Arc::new(KeyValue { key: "k".into(), value: value.into(), ..KeyValue::default() });
        Event { kind: EventKind::Put, kv: kv(value), prev: Some(kv(vec![7])) }
    }

    #[test]
    fn an_event_is_encoded_once_with_and_once_without_what_it_replaced() {
        let encodings = Encodings::default();
        let event = event(vec![1; 100]);
        for _ in 0..3 {
            for with_prev in [false, true] {
                let got = mvccpb::Event::decode(encodings.of(&event, with_prev)).unwrap();
                assert_eq!(got, event_to_proto(&event, with_prev));
            }
        }
        assert_eq!(encodings.encoded(), 2);
        assert_eq!(encodings.of(&event, true).as_ptr(), encodings.of(&event, true).as_ptr());
    }

    #[test]
    fn only_so_much_is_kept() {
        let encodings = Encodings::default();
        let events: Vec<_> = (0..20).map(|_| event(vec![0; 1 << 20])).collect();
        events.iter().for_each(|event| drop(encodings.of(event, false)));
        let kept = encodings.0.lock();
        assert!(kept.bytes <= KEPT_BYTES && kept.bytes > KEPT_BYTES / 2);
        assert_eq!((kept.by_name.len(), kept.oldest_first.len()), (7, 7));
    }
}

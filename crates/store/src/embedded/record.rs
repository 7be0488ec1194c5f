//! Records: what a frame's payload says. Numbers are LEB128, byte strings have their length in front.

use std::sync::Arc;

use bytes::{BufMut, Bytes};

use crate::{Batch, EventKind, KeyValue, Revision};

/// Raised when a record changes its meaning.
pub(crate) const FORMAT: u64 = 1;

const FILE: u8 = 1;
const TXN: u8 = 2;
const KEY_VALUE: u8 = 3;
const GRANT: u8 = 4;
const REVOKE: u8 = 5;
const COMPACT: u8 = 6;
const END: u8 = 7;
const PUT: u8 = 1;
const DELETE: u8 = 2;

#[derive(Debug, PartialEq)]
pub(crate) enum Record {
    /// The first record of every file: the salt of its other frames, and the revision it starts from.
    File {
        format: u64,
        salt: u32,
        revision: Revision,
    },
    Txn {
        revision: Revision,
        changes: Vec<Change>,
    },
    /// A key as it is, in a base segment.
    KeyValue(Arc<KeyValue>),
    Grant {
        id: i64,
        ttl_seconds: i64,
    },
    Revoke {
        id: i64,
    },
    Compact {
        revision: Revision,
    },
    /// The last record of a base segment: how many keys it holds.
    End {
        keys: u64,
    },
}

#[derive(Debug, PartialEq)]
pub(crate) enum Change {
    Put { key: Bytes, value: Bytes, lease: i64 },
    Delete { key: Bytes },
}

pub(crate) fn file(out: &mut Vec<u8>, salt: u32, revision: Revision) {
    out.put_u8(FILE);
    put_u64(out, FORMAT);
    out.put_u32_le(salt);
    put_i64(out, revision);
}

pub(crate) fn txn(out: &mut Vec<u8>, batch: &Batch) {
    out.put_u8(TXN);
    put_i64(out, batch.revision);
    put_u64(out, batch.events.len() as u64);
    for event in batch.events.iter() {
        match event.kind {
            EventKind::Put => {
                out.put_u8(PUT);
                put_bytes(out, &event.kv.key);
                put_bytes(out, &event.kv.value);
                put_i64(out, event.kv.lease);
            }
            EventKind::Delete => {
                out.put_u8(DELETE);
                put_bytes(out, &event.kv.key);
            }
        }
    }
}

pub(crate) fn key_value(out: &mut Vec<u8>, kv: &KeyValue) {
    out.put_u8(KEY_VALUE);
    put_bytes(out, &kv.key);
    put_bytes(out, &kv.value);
    for number in [kv.create_revision, kv.mod_revision, kv.version, kv.lease] {
        put_i64(out, number);
    }
}

/// How many bytes [`key_value`] writes.
pub(crate) fn key_value_len(kv: &KeyValue) -> usize {
    let number = |number: u64| number.max(1).ilog2() as usize / 7 + 1;
    let bytes = |bytes: &[u8]| number(bytes.len() as u64) + bytes.len();
    let numbers = [kv.create_revision, kv.mod_revision, kv.version, kv.lease];
    1 + bytes(&kv.key) + bytes(&kv.value) + numbers.into_iter().map(|n| number(n.cast_unsigned())).sum::<usize>()
}

pub(crate) fn grant(out: &mut Vec<u8>, id: i64, ttl_seconds: i64) {
    out.put_u8(GRANT);
    put_i64(out, id);
    put_i64(out, ttl_seconds);
}

pub(crate) fn revoke(out: &mut Vec<u8>, id: i64) {
    out.put_u8(REVOKE);
    put_i64(out, id);
}

pub(crate) fn compact(out: &mut Vec<u8>, revision: Revision) {
    out.put_u8(COMPACT);
    put_i64(out, revision);
}

pub(crate) fn end(out: &mut Vec<u8>, keys: u64) {
    out.put_u8(END);
    put_u64(out, keys);
}

fn put_u64(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

fn put_i64(out: &mut Vec<u8>, number: i64) {
    put_u64(out, number.cast_unsigned());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// Takes one record off the front of a payload; `None` if there is none this version can read.
pub(crate) fn take(input: &mut &[u8]) -> Option<Record> {
    Some(match take_u8(input)? {
        FILE => Record::File { format: take_u64(input)?, salt: take_u32(input)?, revision: take_i64(input)? },
        TXN => {
            let revision = take_i64(input)?;
            let count = take_u64(input)?;
            let changes = (0..count).map(|_| take_change(input)).collect::<Option<_>>()?;
            Record::Txn { revision, changes }
        }
        KEY_VALUE => Record::KeyValue(Arc::new(KeyValue {
            key: take_bytes(input)?,
            value: take_bytes(input)?,
            create_revision: take_i64(input)?,
            mod_revision: take_i64(input)?,
            version: take_i64(input)?,
            lease: take_i64(input)?,
        })),
        GRANT => Record::Grant { id: take_i64(input)?, ttl_seconds: take_i64(input)? },
        REVOKE => Record::Revoke { id: take_i64(input)? },
        COMPACT => Record::Compact { revision: take_i64(input)? },
        END => Record::End { keys: take_u64(input)? },
        _ => return None,
    })
}

fn take_change(input: &mut &[u8]) -> Option<Change> {
    Some(match take_u8(input)? {
        PUT => Change::Put { key: take_bytes(input)?, value: take_bytes(input)?, lease: take_i64(input)? },
        DELETE => Change::Delete { key: take_bytes(input)? },
        _ => return None,
    })
}

fn take_u8(input: &mut &[u8]) -> Option<u8> {
    let (first, rest) = input.split_first()?;
    *input = rest;
    Some(*first)
}

fn take_u32(input: &mut &[u8]) -> Option<u32> {
    let (number, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(u32::from_le_bytes(*number))
}

fn take_u64(input: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take_u8(input)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take_i64(input: &mut &[u8]) -> Option<i64> {
    Some(take_u64(input)?.cast_signed())
}

/// A copy: a slice would keep the whole frame alive as long as its smallest value.
fn take_bytes(input: &mut &[u8]) -> Option<Bytes> {
    let len = usize::try_from(take_u64(input)?).ok()?;
    let (bytes, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(Bytes::copy_from_slice(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Event;

    #[test]
    fn every_record_is_read_back_as_it_was_written() {
        check(|out| file(out, 0xfeed_f00d, 300), Record::File { format: FORMAT, salt: 0xfeed_f00d, revision: 300 });
        check(|out| grant(out, i64::MIN, 60), Record::Grant { id: i64::MIN, ttl_seconds: 60 });
        check(|out| revoke(out, i64::MAX), Record::Revoke { id: i64::MAX });
        check(|out| compact(out, 0), Record::Compact { revision: 0 });
        check(|out| end(out, 127), Record::End { keys: 127 });
        let kv = KeyValue {
            key: "k".into(),
            value: "v".into(),
            create_revision: 2,
            mod_revision: 128,
            version: 3,
            lease: -1,
        };
        check(|out| key_value(out, &kv), Record::KeyValue(Arc::new(kv.clone())));
        let mut written = Vec::new();
        key_value(&mut written, &kv);
        assert_eq!(key_value_len(&kv), written.len());
        let event = |kind| Event { kind, kv: Arc::new(kv.clone()), prev: None };
        let batch = Batch { revision: 128, events: [event(EventKind::Put), event(EventKind::Delete)].into() };
        let changes =
            vec![Change::Put { key: "k".into(), value: "v".into(), lease: -1 }, Change::Delete { key: "k".into() }];
        check(|out| txn(out, &batch), Record::Txn { revision: 128, changes });
    }

    #[track_caller]
    fn check(write: impl FnOnce(&mut Vec<u8>), want: Record) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        let mut rest = bytes.as_slice();
        assert_eq!(take(&mut rest), Some(want));
        assert!(rest.is_empty());
        for len in 0..bytes.len() {
            assert_eq!(take(&mut &bytes[..len]), None, "cut at {len}");
        }
    }

    proptest! {
        #[test]
        fn no_input_is_too_strange_to_decode(bytes: Vec<u8>) {
            let mut rest = bytes.as_slice();
            while take(&mut rest).is_some() {}
        }
    }
}

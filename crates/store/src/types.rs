//! What is stored, asked and answered: etcd's data model in plain types.

use std::sync::Arc;

use bytes::Bytes;

/// Counts changes of the whole store. 0 stands for "now" in a question and for "absent" in a comparison.
pub type Revision = i64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Bytes,
    pub value: Bytes,
    /// The revision of the put that made the key, after its last deletion if there was one.
    pub create_revision: Revision,
    pub mod_revision: Revision,
    /// How many puts since the key was made; 1 for the first.
    pub version: i64,
    /// 0: none.
    pub lease: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Put {
        key: Bytes,
        value: Bytes,
        lease: i64,
    },
    /// `end` as in [`Range`].
    Delete {
        key: Bytes,
        end: Option<Bytes>,
    },
    /// Changes a key that must be there; `None` keeps what it has.
    Update {
        key: Bytes,
        value: Option<Bytes>,
        lease: Option<i64>,
    },
    Range(Range),
    /// All conditions, nested ones too, are checked before anything is done.
    Txn(Txn),
}

impl Op {
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Op {
        Op::Put { key: key.into(), value: value.into(), lease: 0 }
    }

    pub fn delete(key: impl Into<Bytes>) -> Op {
        Op::Delete { key: key.into(), end: None }
    }

    pub(crate) fn writes(&self) -> bool {
        match self {
            Op::Put { .. } | Op::Delete { .. } | Op::Update { .. } => true,
            Op::Range(_) => false,
            Op::Txn(txn) => txn.success.iter().chain(&txn.failure).any(Op::writes),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    pub start: Bytes,
    /// `None`: the one key `start`; `Some("\0")`: all keys from `start` on; otherwise exclusive.
    pub end: Option<Bytes>,
    /// 0: now.
    pub revision: Revision,
    /// 0: all.
    pub limit: usize,
    pub keys_only: bool,
    pub count_only: bool,
}

impl Range {
    pub fn key(key: impl Into<Bytes>) -> Range {
        Range { start: key.into(), ..Range::default() }
    }

    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Range {
        let crate::Keys { start, end } = crate::Keys::prefix(prefix.into());
        Range { start, end, ..Range::default() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeResult {
    /// In key order.
    pub kvs: Vec<Arc<KeyValue>>,
    /// The limit left some out.
    pub more: bool,
    /// All keys in the range, whatever the limit.
    pub count: i64,
    /// The store's revision when it answered, not the one asked for.
    pub revision: Revision,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The usual one: the key was last changed by `is`; 0: the key is absent.
    ModRevision { key: Bytes, is: Revision },
    /// Everything else etcd can ask, of one key or of every key in a range. An absent key compares as zeros, and
    /// its value as unlike anything.
    Where { key: Bytes, end: Option<Bytes>, target: Target, order: Order },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Version(i64),
    CreateRevision(Revision),
    ModRevision(Revision),
    Value(Bytes),
    Lease(i64),
}

/// How what is stored must stand to what is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Equal,
    NotEqual,
    Greater,
    Less,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    pub compares: Vec<Compare>,
    pub success: Vec<Op>,
    pub failure: Vec<Op>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnResult {
    pub succeeded: bool,
    /// The store's revision after the transaction.
    pub revision: Revision,
    /// One for each operation of the branch that ran.
    pub results: Vec<OpResult>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpResult {
    /// Of a put and of an update.
    Put {
        prev: Option<Arc<KeyValue>>,
    },
    Delete {
        prev: Vec<Arc<KeyValue>>,
    },
    Range(RangeResult),
    Txn(TxnResult),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Put,
    Delete,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// For a deletion only `key` and `mod_revision` are set.
    pub kv: Arc<KeyValue>,
    pub prev: Option<Arc<KeyValue>>,
}

/// All events of one revision that a watcher asked for, in the order of the transaction's operations. One without events
/// says that nothing else happened up to its revision; engines may send it when they learn so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub revision: Revision,
    pub events: Arc<[Event]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub id: i64,
    pub ttl_seconds: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    pub id: i64,
    pub granted_ttl_seconds: i64,
    pub remaining_seconds: i64,
    pub keys: Vec<Bytes>,
}

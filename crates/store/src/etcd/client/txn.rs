//! The store's questions as etcd's requests, and etcd's answers as the store's results.

use super::{end_to_proto, kv_from_proto, pb, revision};
use crate::{
    Op, OpResult, Range, RangeResult, Revision, Txn, TxnResult,
    etcd::{
        convert::compare_to_proto,
        proto::etcdserverpb::{request_op::Request, response_op::Response},
    },
};

pub(super) fn range_to_proto(range: Range) -> pb::RangeRequest {
    pb::RangeRequest {
        key: range.start,
        range_end: end_to_proto(range.end),
        limit: i64::try_from(range.limit).unwrap_or(0),
        revision: range.revision,
        keys_only: range.keys_only,
        count_only: range.count_only,
        ..Default::default()
    }
}

pub(super) fn range_from_proto(response: pb::RangeResponse) -> RangeResult {
    RangeResult {
        revision: revision(response.header.as_ref()),
        kvs: response.kvs.into_iter().map(kv_from_proto).collect(),
        more: response.more,
        count: response.count,
    }
}

pub(super) fn txn_to_proto(txn: Txn) -> pb::TxnRequest {
    let ops = |ops: Vec<Op>| ops.into_iter().map(|op| pb::RequestOp { request: Some(op_to_proto(op)) }).collect();
    pb::TxnRequest {
        compare: txn.compares.into_iter().map(compare_to_proto).collect(),
        success: ops(txn.success),
        failure: ops(txn.failure),
    }
}

fn op_to_proto(op: Op) -> Request {
    match op {
        Op::Put { key, value, lease } => {
            Request::RequestPut(pb::PutRequest { key, value, lease, prev_kv: true, ..Default::default() })
        }
        Op::Update { key, value, lease } => Request::RequestPut(pb::PutRequest {
            key,
            ignore_value: value.is_none(),
            ignore_lease: lease.is_none(),
            value: value.unwrap_or_default(),
            lease: lease.unwrap_or_default(),
            prev_kv: true,
        }),
        Op::Delete { key, end } => {
            Request::RequestDeleteRange(pb::DeleteRangeRequest { key, range_end: end_to_proto(end), prev_kv: true })
        }
        Op::Range(range) => Request::RequestRange(range_to_proto(range)),
        Op::Txn(txn) => Request::RequestTxn(txn_to_proto(txn)),
    }
}

pub(super) fn txn_from_proto(response: pb::TxnResponse) -> TxnResult {
    let revision = revision(response.header.as_ref());
    txn_at(response, revision)
}

/// Nested answers have no revision of their own.
fn txn_at(response: pb::TxnResponse, revision: Revision) -> TxnResult {
    let answers = response.responses.into_iter().filter_map(|op| op.response);
    let results = answers.map(|answer| match answer {
        Response::ResponseRange(found) => OpResult::Range(range_from_proto(found)),
        Response::ResponsePut(put) => OpResult::Put { prev: put.prev_kv.map(kv_from_proto) },
        Response::ResponseDeleteRange(deleted) => {
            OpResult::Delete { prev: deleted.prev_kvs.into_iter().map(kv_from_proto).collect() }
        }
        Response::ResponseTxn(nested) => OpResult::Txn(txn_at(nested, revision)),
    });
    TxnResult { succeeded: response.succeeded, revision, results: results.collect() }
}

//! Transactions: requests as the store's operations, and its results in the shape that was asked for.

use bytes::Bytes;
use prost::Message;
use tonic::Status;

use super::{header, range};
use crate::{
    Op, OpResult, Revision, StoreError, Txn, TxnResult,
    etcd::{
        MAX_REQUEST_BYTES,
        convert::{compare_from_proto, end_from_proto, kv_to_proto},
        proto::etcdserverpb::{self as pb, request_op::Request, response_op::Response},
    },
};

/// etcd's limit on anything that would go through its log.
pub(super) fn check_size(request: &impl Message) -> Result<(), Status> {
    match request.encoded_len() {
        bytes if bytes > MAX_REQUEST_BYTES => Err(StoreError::TooLarge { bytes, limit: MAX_REQUEST_BYTES }.into()),
        _ => Ok(()),
    }
}

pub(super) fn put(request: &pb::PutRequest) -> Result<Op, Status> {
    if request.ignore_value && !request.value.is_empty() {
        return Err(Status::invalid_argument("etcdserver: value is provided"));
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Status::invalid_argument("etcdserver: lease is provided"));
    }
    // Copied: what is kept must not keep the whole message it came in.
    let (key, value, lease) = (own(&request.key), own(&request.value), request.lease);
    Ok(match (request.ignore_value, request.ignore_lease) {
        (false, false) => Op::Put { key, value, lease },
        (no_value, no_lease) => {
            Op::Update { key, value: (!no_value).then_some(value), lease: (!no_lease).then_some(lease) }
        }
    })
}

fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

pub(super) fn delete(request: &pb::DeleteRangeRequest) -> Op {
    Op::Delete { key: request.key.clone(), end: end_from_proto(&request.range_end) }
}

pub(super) fn txn(request: &pb::TxnRequest) -> Result<Txn, Status> {
    let ops = |ops: &[pb::RequestOp]| ops.iter().map(op).collect::<Result<_, _>>();
    Ok(Txn {
        compares: request.compare.iter().map(compare_from_proto).collect(),
        success: ops(&request.success)?,
        failure: ops(&request.failure)?,
    })
}

fn op(op: &pb::RequestOp) -> Result<Op, Status> {
    Ok(match &op.request {
        Some(Request::RequestRange(request)) => Op::Range(range::question(request)),
        Some(Request::RequestPut(request)) => put(request)?,
        Some(Request::RequestDeleteRange(request)) => delete(request),
        Some(Request::RequestTxn(request)) => Op::Txn(txn(request)?),
        None => return Err(StoreError::KeyNotFound.into()),
    })
}

pub(super) fn put_answer(request: &pb::PutRequest, result: OpResult, revision: Revision) -> pb::PutResponse {
    let prev = match result {
        OpResult::Put { prev } if request.prev_kv => prev,
        _ => None,
    };
    pb::PutResponse { header: header(revision), prev_kv: prev.as_deref().map(kv_to_proto) }
}

pub(super) fn delete_answer(
    request: &pb::DeleteRangeRequest,
    result: OpResult,
    revision: Revision,
) -> pb::DeleteRangeResponse {
    let prev = match result {
        OpResult::Delete { prev } => prev,
        _ => Vec::new(),
    };
    let deleted = i64::try_from(prev.len()).unwrap_or(i64::MAX);
    let prev_kvs = if request.prev_kv { prev.iter().map(|kv| kv_to_proto(kv)).collect() } else { Vec::new() };
    pb::DeleteRangeResponse { header: header(revision), deleted, prev_kvs }
}

pub(super) fn txn_answer(request: &pb::TxnRequest, result: TxnResult) -> pb::TxnResponse {
    let (succeeded, revision) = (result.succeeded, result.revision);
    let ops = if succeeded { &request.success } else { &request.failure };
    let answers = ops.iter().zip(result.results).map(|(op, result)| op_answer(op, result, revision));
    let responses = answers.map(|response| pb::ResponseOp { response }).collect();
    pb::TxnResponse { header: header(revision), succeeded, responses }
}

fn op_answer(op: &pb::RequestOp, result: OpResult, revision: Revision) -> Option<Response> {
    Some(match (op.request.as_ref()?, result) {
        (Request::RequestRange(request), OpResult::Range(found)) => {
            Response::ResponseRange(range::answer(request, found))
        }
        // etcd leaves the header of a nested answer empty.
        (Request::RequestTxn(request), OpResult::Txn(result)) => Response::ResponseTxn(pb::TxnResponse {
            header: Some(pb::ResponseHeader::default()),
            ..txn_answer(request, result)
        }),
        (Request::RequestPut(request), result) => Response::ResponsePut(put_answer(request, result, revision)),
        (Request::RequestDeleteRange(request), result) => {
            Response::ResponseDeleteRange(delete_answer(request, result, revision))
        }
        _ => return None,
    })
}

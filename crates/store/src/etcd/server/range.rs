//! Range: what the store is asked, and how its answer is filtered, sorted and cut as etcd does it.

use std::{cmp::Ordering, sync::Arc};

use super::header;
use crate::{
    KeyValue, Range, RangeResult,
    etcd::{
        convert::{end_from_proto, kv_to_proto},
        proto::etcdserverpb::{
            self as pb,
            range_request::{SortOrder, SortTarget},
        },
    },
};

pub(super) fn question(request: &pb::RangeRequest) -> Range {
    let limit = usize::try_from(request.limit).unwrap_or(0);
    Range {
        start: request.key.clone(),
        end: end_from_proto(&request.range_end),
        revision: request.revision.max(0),
        // What is filtered or sorted can only be cut afterwards.
        limit: if request.sort_order() != SortOrder::None || filters(request) { 0 } else { limit },
        keys_only: request.keys_only && request.sort_target() != SortTarget::Value,
        count_only: request.count_only,
    }
}

pub(super) fn answer(request: &pb::RangeRequest, found: RangeResult) -> pb::RangeResponse {
    let mut kvs = found.kvs;
    if filters(request) {
        kvs.retain(|kv| passes(request, kv));
    }
    sort(request, &mut kvs);
    let limit = usize::try_from(request.limit).unwrap_or(0);
    let cut = limit > 0 && kvs.len() > limit;
    if cut {
        kvs.truncate(limit);
    }
    let mut kvs: Vec<_> = kvs.iter().map(|kv| kv_to_proto(kv)).collect();
    if request.keys_only {
        kvs.iter_mut().for_each(|kv| kv.value.clear());
    }
    pb::RangeResponse { header: header(found.revision), kvs, more: found.more || cut, count: found.count }
}

fn filters(request: &pb::RangeRequest) -> bool {
    [request.min_mod_revision, request.max_mod_revision, request.min_create_revision, request.max_create_revision]
        .iter()
        .any(|bound| *bound != 0)
}

fn passes(request: &pb::RangeRequest, kv: &KeyValue) -> bool {
    let within = |value, min, max| (min == 0 || value >= min) && (max == 0 || value <= max);
    within(kv.mod_revision, request.min_mod_revision, request.max_mod_revision)
        && within(kv.create_revision, request.min_create_revision, request.max_create_revision)
}

fn sort(request: &pb::RangeRequest, kvs: &mut [Arc<KeyValue>]) {
    let by: fn(&KeyValue, &KeyValue) -> Ordering = match request.sort_target() {
        SortTarget::Key => |a, b| a.key.cmp(&b.key),
        SortTarget::Version => |a, b| a.version.cmp(&b.version),
        SortTarget::Create => |a, b| a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => |a, b| a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => |a, b| a.value.cmp(&b.value),
    };
    match (request.sort_order(), request.sort_target()) {
        // The store answers in this order.
        (SortOrder::None | SortOrder::Ascend, SortTarget::Key) => {}
        (SortOrder::None | SortOrder::Ascend, _) => kvs.sort_by(|a, b| by(a, b)),
        (SortOrder::Descend, _) => kvs.sort_by(|a, b| by(b, a)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys a, b, c; modified at 9, 7, 8; created at 2, 3, 4; values z, y, x.
    fn stored() -> RangeResult {
        let kv = |key: &'static str, mod_revision, create_revision, value: &'static str| {
            let (key, value) = (key.into(), value.into());
            Arc::new(KeyValue { key, value, create_revision, mod_revision, version: 1, lease: 0 })
        };
        let kvs = vec![kv("a", 9, 2, "z"), kv("b", 7, 3, "y"), kv("c", 8, 4, "x")];
        RangeResult { kvs, more: false, count: 3, revision: 9 }
    }

    #[test]
    fn a_range_is_filtered_then_sorted_then_cut() {
        let none = pb::RangeRequest::default();
        let by = |target: SortTarget, order: SortOrder| pb::RangeRequest {
            sort_target: target.into(),
            sort_order: order.into(),
            ..Default::default()
        };
        check(none.clone(), "a b c");
        check(by(SortTarget::Key, SortOrder::Descend), "c b a");
        check(by(SortTarget::Mod, SortOrder::Ascend), "b c a");
        check(by(SortTarget::Mod, SortOrder::None), "b c a");
        check(by(SortTarget::Create, SortOrder::Descend), "c b a");
        check(pb::RangeRequest { keys_only: true, ..by(SortTarget::Value, SortOrder::Ascend) }, "c b a");
        check(pb::RangeRequest { limit: 2, ..by(SortTarget::Mod, SortOrder::Ascend) }, "b c more");
        check(pb::RangeRequest { min_mod_revision: 8, ..none.clone() }, "a c");
        check(pb::RangeRequest { max_mod_revision: 8, limit: 1, ..none.clone() }, "b more");
        check(pb::RangeRequest { min_create_revision: 3, max_create_revision: 3, ..none }, "b");
    }

    #[track_caller]
    fn check(request: pb::RangeRequest, want: &str) {
        let answer = answer(&request, stored());
        let mut words: Vec<_> = answer.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect();
        words.extend(answer.more.then(|| "more".to_owned()));
        assert_eq!(words.join(" "), want, "{request:?}");
        assert_eq!(answer.count, 3, "the count is of all keys");
        assert!(!request.keys_only || answer.kvs.iter().all(|kv| kv.value.is_empty()));
    }
}

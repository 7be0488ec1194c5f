//! The small pieces both ends translate: key-values, events, intervals, conditions.

use std::sync::Arc;

use bytes::Bytes;

use super::proto::{etcdserverpb as pb, mvccpb};
use crate::{Compare, Event, EventKind, KeyValue, Order, Target};

pub(super) fn kv_to_proto(kv: &KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: kv.key.clone(),
        value: kv.value.clone(),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
    }
}

pub(super) fn kv_from_proto(kv: mvccpb::KeyValue) -> Arc<KeyValue> {
    Arc::new(KeyValue {
        key: kv.key,
        value: kv.value,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
    })
}

pub(super) fn event_to_proto(event: &Event, with_prev: bool) -> mvccpb::Event {
    let r#type = match event.kind {
        EventKind::Put => mvccpb::event::Type::Put,
        EventKind::Delete => mvccpb::event::Type::Delete,
    };
    let prev_kv = event.prev.as_deref().filter(|_| with_prev).map(kv_to_proto);
    mvccpb::Event { r#type: r#type.into(), kv: Some(kv_to_proto(&event.kv)), prev_kv }
}

pub(super) fn event_from_proto(event: mvccpb::Event) -> Event {
    let kind = match event.r#type() {
        mvccpb::event::Type::Put => EventKind::Put,
        mvccpb::event::Type::Delete => EventKind::Delete,
    };
    let kv = kv_from_proto(event.kv.unwrap_or_default());
    Event { kind, kv, prev: event.prev_kv.map(kv_from_proto) }
}

/// On the wire an end that is empty is none.
pub(super) fn end_from_proto(end: &Bytes) -> Option<Bytes> {
    (!end.is_empty()).then(|| end.clone())
}

pub(super) fn end_to_proto(end: Option<Bytes>) -> Bytes {
    end.unwrap_or_default()
}

pub(super) fn compare_from_proto(compare: &pb::Compare) -> Compare {
    use pb::compare::{CompareResult, CompareTarget, TargetUnion};
    let number = match &compare.target_union {
        Some(
            TargetUnion::Version(number)
            | TargetUnion::CreateRevision(number)
            | TargetUnion::ModRevision(number)
            | TargetUnion::Lease(number),
        ) => *number,
        _ => 0,
    };
    let target = match compare.target() {
        CompareTarget::Version => Target::Version(number),
        CompareTarget::Create => Target::CreateRevision(number),
        CompareTarget::Mod => Target::ModRevision(number),
        CompareTarget::Lease => Target::Lease(number),
        CompareTarget::Value => Target::Value(match &compare.target_union {
            Some(TargetUnion::Value(value)) => value.clone(),
            _ => Bytes::new(),
        }),
    };
    let order = match compare.result() {
        CompareResult::Equal => Order::Equal,
        CompareResult::Greater => Order::Greater,
        CompareResult::Less => Order::Less,
        CompareResult::NotEqual => Order::NotEqual,
    };
    let (key, end) = (compare.key.clone(), end_from_proto(&compare.range_end));
    match (target, order, &end) {
        (Target::ModRevision(is), Order::Equal, None) => Compare::ModRevision { key, is },
        (target, order, _) => Compare::Where { key, end, target, order },
    }
}

pub(super) fn compare_to_proto(compare: Compare) -> pb::Compare {
    use pb::compare::{CompareResult, CompareTarget, TargetUnion};
    let (key, end, target, order) = match compare {
        Compare::ModRevision { key, is } => (key, None, Target::ModRevision(is), Order::Equal),
        Compare::Where { key, end, target, order } => (key, end, target, order),
    };
    let (target, union) = match target {
        Target::Version(version) => (CompareTarget::Version, TargetUnion::Version(version)),
        Target::CreateRevision(revision) => (CompareTarget::Create, TargetUnion::CreateRevision(revision)),
        Target::ModRevision(revision) => (CompareTarget::Mod, TargetUnion::ModRevision(revision)),
        Target::Value(value) => (CompareTarget::Value, TargetUnion::Value(value)),
        Target::Lease(lease) => (CompareTarget::Lease, TargetUnion::Lease(lease)),
    };
    let result = match order {
        Order::Equal => CompareResult::Equal,
        Order::Greater => CompareResult::Greater,
        Order::Less => CompareResult::Less,
        Order::NotEqual => CompareResult::NotEqual,
    };
    pb::Compare {
        result: result.into(),
        target: target.into(),
        key,
        target_union: Some(union),
        range_end: end_to_proto(end),
    }
}

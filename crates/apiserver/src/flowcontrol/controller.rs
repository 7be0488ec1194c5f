//! Reads flow schemas and priority levels out of the API's objects, divides the seats, and says which schemas lead nowhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::http::HeaderValue;
use api::{ApiError, Object, ObjectExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::allocation::{Item, allocate};
use super::queue_set::{QueueSet, Queuing};
use super::rule::Rule;
use super::{Distinguisher, FlowControl, Level, Limits, Plan, Room, Schema, now};
use crate::bootstrap::{self, flow};
use crate::field_manager::{FieldManager, Tracking};
use crate::handlers::Writer;
use crate::server::ApiServer;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";
/// How often levels lend and borrow.
const PERIOD: Duration = Duration::from_secs(10);
/// After which writes that failed are tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// A request may take this part of a level's seats.
const MOST_SEATS: f64 = 0.15;

/// Follows the objects until the server drains.
pub(crate) fn start(server: &Arc<ApiServer>) {
    if !server.config.flow.enable_priority_and_fairness {
        return;
    }
    let follow = |server: Arc<ApiServer>| async move {
        let caches = [SCHEMAS, LEVELS]
            .map(|plural| server.registry.stored(GROUP, plural).and_then(|served| served.cache.clone()));
        let [Some(schemas), Some(levels)] = caches else { return };
        loop {
            let (Ok((mut schemas, _)), Ok((mut levels, _))) = (schemas.watch_from(None), levels.watch_from(None))
            else {
                return;
            };
            let found = [SCHEMAS, LEVELS].map(|plural| server.cached_all(GROUP, plural, ""));
            let [found_schemas, found_levels] = &found;
            digest(&server.flow, found_schemas, found_levels);
            let written = write_back(&server, found_schemas, found_levels).await;
            let failed =
                written.inspect_err(|error| tracing::warn!(%error, "flow control objects are not up to date")).is_err();
            // Either is ended when it falls behind, and everything is read again.
            tokio::select! {
                _ = schemas.next() => (),
                _ = levels.next() => (),
                () = tokio::time::sleep(PAUSE), if failed => (),
            }
        }
    };
    let adjust = |server: Arc<ApiServer>| async move {
        loop {
            server.flow.busy.notified().await;
            tokio::time::sleep(PERIOD).await;
            // A request that comes from now on is the next period's.
            server.flow.is_busy.store(false, Ordering::Relaxed);
            borrow(&server.flow, &server.flow.plan.load(), now());
        }
    };
    server.tasks.spawn(server.drain.clone().run_until_cancelled_owned(follow(server.clone())));
    server.tasks.spawn(server.drain.clone().run_until_cancelled_owned(adjust(server.clone())));
}

/// What every server has even if nobody has written it.
fn mandatory(plural: &str) -> Vec<Object> {
    let is = |object: &Object| matches!(object.name(), "exempt" | "catch-all");
    let all = flow::objects().into_iter().filter(|(of, _)| *of == plural);
    all.filter_map(|(_, object)| object.as_object().cloned()).filter(is).collect()
}

fn with_mandatory(objects: &[Object], plural: &str) -> Vec<Object> {
    let is_missing = |object: &Object| !objects.iter().any(|known| known.name() == object.name());
    objects.iter().cloned().chain(mandatory(plural).into_iter().filter(is_missing)).collect()
}

/// Takes a new configuration into use.
pub(super) fn digest(flow: &FlowControl, schemas: &[Object], levels: &[Object]) {
    let old = flow.plan.load();
    let configured: Vec<(Object, Queuing)> = with_mandatory(levels, LEVELS)
        .into_iter()
        .filter_map(|level| queuing(&level).map(|queuing| (level, queuing)))
        .collect();
    let shares =
        configured.iter().map(|(level, _)| number(level, "nominalConcurrencyShares").unwrap_or_default()).sum();
    let mut levels: Vec<Arc<Level>> = Vec::new();
    for (object, queuing) in configured {
        let limits = limits(&object, flow.total_seats(), shares);
        let most_seats = match queuing {
            Queuing::Queue { hand_size, .. } => {
                let part = (limits.nominal as f64 * MOST_SEATS).ceil() as usize;
                part.min(limits.nominal / hand_size.max(1)).max(1)
            }
            _ => usize::MAX,
        };
        let known = old.levels.iter().find(|level| level.name == object.name()).map(|level| level.room.clone());
        let room = known.unwrap_or_else(|| {
            let set = Mutex::new(QueueSet::new(queuing, limits.nominal, now()));
            Arc::new(Room { set, dropped: Mutex::default(), is_watched: AtomicBool::new(false) })
        });
        levels.push(Arc::new(Level {
            name: object.name().to_owned(),
            uid: uid(&object),
            queuing,
            limits,
            most_seats,
            room,
        }));
    }
    levels.sort_by(|one, other| one.name.cmp(&other.name));
    let mut read: Vec<Schema> =
        with_mandatory(schemas, SCHEMAS).iter().filter_map(|schema| read_schema(flow, schema, &levels)).collect();
    read.sort_by(|one, other| (one.precedence, &one.name).cmp(&(other.precedence, &other.name)));
    let plan = Plan { schemas: read, levels };
    borrow(flow, &plan, now());
    flow.plan.store(Arc::new(plan));
}

fn uid(object: &Object) -> HeaderValue {
    HeaderValue::from_str(object.uid()).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn parameters(level: &Object) -> Option<&Value> {
    level.at(&["spec", "limited"]).or_else(|| level.at(&["spec", "exempt"]))
}

fn number(level: &Object, field: &str) -> Option<f64> {
    parameters(level)?.get(field)?.as_f64()
}

/// How a level deals with too many; `None` for one that makes no sense and is ignored.
fn queuing(level: &Object) -> Option<Queuing> {
    if (level.text(&["spec", "type"]) == "Exempt") != (level.name() == "exempt") {
        return None;
    }
    if level.name() == "exempt" {
        return Some(Queuing::Exempt);
    }
    let response = level.at(&["spec", "limited", "limitResponse"])?;
    if response.get("type")?.as_str()? == "Reject" {
        return Some(Queuing::Reject);
    }
    let of = |field: &str| usize::try_from(response.get("queuing")?.get(field)?.as_u64()?).ok();
    Some(Queuing::Queue { queues: of("queues")?, hand_size: of("handSize")?, length: of("queueLengthLimit")? })
}

fn limits(level: &Object, total: usize, shares: f64) -> Limits {
    let own = number(level, "nominalConcurrencyShares").unwrap_or_default();
    let nominal = if shares > 0.0 { (total as f64 * own / shares).ceil() } else { 0.0 };
    let part = |field: &str| number(level, field).map(|percent| (nominal * percent / 100.0).round() as usize);
    let nominal = nominal as usize;
    let lower = nominal - part("lendablePercent").unwrap_or_default().min(nominal);
    Limits { nominal, lower, upper: nominal + part("borrowingLimitPercent").unwrap_or(total) }
}

fn read_schema(flow: &FlowControl, schema: &Object, levels: &[Arc<Level>]) -> Option<Schema> {
    let level = schema.text(&["spec", "priorityLevelConfiguration", "name"]);
    let level = levels.iter().find(|known| known.name == level)?.clone();
    let rules = schema.at(&["spec", "rules"]).and_then(Value::as_array).into_iter().flatten();
    Some(Schema {
        name: schema.name().to_owned(),
        uid: uid(schema),
        precedence: schema.at(&["spec", "matchingPrecedence"]).and_then(Value::as_i64).unwrap_or(1000),
        distinguisher: match schema.text(&["spec", "distinguisherMethod", "type"]) {
            "ByUser" => Distinguisher::ByUser,
            "ByNamespace" => Distinguisher::ByNamespace,
            _ => Distinguisher::None,
        },
        rules: rules.filter_map(Value::as_object).map(Rule::read).collect(),
        counted: flow.counted(&level.name, schema.name()),
        level,
    })
}

/// Divides the seats anew, by what each level could have used since the last time.
pub(super) fn borrow(flow: &FlowControl, plan: &Plan, now: Duration) {
    let mut items = Vec::new();
    let (mut remaining, mut lowest, mut least) = (0_usize, 0, 0);
    let mut exempt = 0;
    for level in &plan.levels {
        let known = {
            let mut set = level.room.set.lock();
            set.sync(now);
            set.nominal = level.limits.nominal;
            set.demand.settle(now, PERIOD)
        };
        let high = known.high_watermark.round() as usize;
        remaining += level.limits.nominal;
        if level.queuing == Queuing::Exempt {
            let taken = level.limits.lower.max(high);
            exempt += taken;
            items.push((taken, None));
            continue;
        }
        let lower = level.limits.lower.max(high.min(level.limits.nominal));
        (lowest, least) = (lowest + level.limits.lower, least + lower);
        let bounds =
            Item { lower: lower as f64, upper: level.limits.upper as f64, target: known.smoothed.max(lower as f64) };
        items.push((lower, Some(bounds)));
    }
    let all = remaining;
    let remaining = remaining.saturating_sub(exempt);
    let bounds: Vec<Item> = items.iter().filter_map(|(_, item)| *item).collect();
    let divided = if remaining > least { allocate(all as f64, &bounds) } else { None };
    flow.fair_fraction.store(divided.as_ref().map_or(0.0, |(_, fraction)| *fraction).to_bits(), Ordering::Relaxed);
    let mut shares = divided.map(|(shares, _)| shares).unwrap_or_default().into_iter();
    for (level, (lower, item)) in plan.levels.iter().zip(&items) {
        let least_of = |part: f64| level.limits.lower + ((lower - level.limits.lower) as f64 * part).round() as usize;
        let mut set = level.room.set.lock();
        let limit = match item {
            None => *lower,
            Some(_) if remaining <= lowest => level.limits.lower,
            Some(_) if remaining <= least => least_of((remaining - lowest) as f64 / (least - lowest) as f64),
            // Bounds that leave no choice leave everything as it was.
            Some(_) => shares.next().map_or(set.limit(), |share| share.round() as usize),
        };
        set.target = item.map_or(*lower as f64, |item| item.target);
        set.configure(level.queuing, limit, now);
    }
}

/// Says of each schema whether its level exists, and brings back what was deleted that every cluster has.
async fn write_back(server: &Arc<ApiServer>, schemas: &[Object], levels: &[Object]) -> Result<(), ApiError> {
    for (plural, object) in flow::objects() {
        let known = if plural == SCHEMAS { schemas } else { levels };
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        if !known.iter().any(|known| known.name() == name) {
            bootstrap::ensure(server, GROUP, plural, "", object).await?;
        }
    }
    let Some(served) = server.registry.stored(GROUP, SCHEMAS) else { return Ok(()) };
    for schema in schemas {
        let level = schema.text(&["spec", "priorityLevelConfiguration", "name"]);
        let is_found = levels.iter().any(|known| known.name() == level && queuing(known).is_some());
        let Some(condition) = condition(schema, level, is_found) else { continue };
        let (subresource, tracking) = ("status", Tracking::Applied);
        let writer = Writer { server, served, context: None, subresource, dry_run: false, tracking };
        let manager = FieldManager { registry: &server.registry, served, subresource };
        let applied = json!({
            "kind": served.info.kind, "apiVersion": served.info.api_version(),
            "metadata": {"name": schema.name()}, "status": {"conditions": [condition]},
        });
        let Value::Object(applied) = applied else { continue };
        let change = |current: &Object| manager.apply(Some(current), &applied, MANAGER, true, &crate::handlers::now());
        match writer.update("", schema.name(), change).await {
            Err(error) if error.reason == "NotFound" => (),
            written => drop(written?),
        }
    }
    Ok(())
}

/// The condition that a schema should have and has not.
fn condition(schema: &Object, level: &str, is_found: bool) -> Option<Value> {
    let reference = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let (status, reason, message) = match is_found {
        true => ("False", "Found", format!("{reference} and it exists")),
        false => ("True", "NotFound", format!("{reference} but there is no such object")),
    };
    let conditions = schema.at(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
    let is_this = |known: &Value| {
        let is = |field: &str, value: &str| known.get(field).and_then(Value::as_str) == Some(value);
        is("type", "Dangling") && is("status", status) && is("reason", reason) && is("message", &message)
    };
    (!conditions.into_iter().any(is_this)).then(|| {
        json!({"type": "Dangling", "status": status, "reason": reason, "message": message, "lastTransitionTime": crate::handlers::now()})
    })
}

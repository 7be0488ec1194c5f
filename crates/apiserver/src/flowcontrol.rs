//! API priority and fairness: no client can take the server away from the others.
//!
//! Every request belongs to a flow schema and by it to a priority level, which has a number of seats ([`queue_set`]). One that
//! finds seats free goes on after one short lock; the others wait their turn or are refused. Who belongs where is read out of
//! the API's own objects ([`controller`]), and levels lend each other what they do not use ([`allocation`]).

mod allocation;
pub(crate) mod controller;
mod demand;
mod dropped;
pub(crate) mod dump;
mod histogram;
mod queue_set;
mod rule;
mod seat;
mod watchers;
mod width;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ::http::{HeaderValue, Response, StatusCode, header};
use api::UserInfo;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::dropped::Dropped;
use self::histogram::Histogram;
use self::queue_set::{Asker, QueueSet, Start};
use self::rule::Rule;
use self::seat::{Seat, keep};
use self::watchers::Watchers;
use crate::auth::settings::parse_duration;
use crate::http::{Body, respond_bytes};
use crate::pipeline::Context;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;

/// A quarter of the time that a request has; but never longer than [`MAX_WAIT`].
const WAIT_SHARE: u32 = 4;
const MAX_WAIT: Duration = Duration::from_secs(60);
const MASTERS: &str = "system:masters";

/// Upstream's flags of the same names.
#[derive(Clone, Debug)]
pub struct FlowSettings {
    pub enable_priority_and_fairness: bool,
    pub max_requests_inflight: usize,
    pub max_mutating_requests_inflight: usize,
}

impl Default for FlowSettings {
    fn default() -> Self {
        Self { enable_priority_and_fairness: true, max_requests_inflight: 400, max_mutating_requests_inflight: 200 }
    }
}

/// Time since the first question.
fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// Which flow of a schema a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distinguisher {
    None,
    ByUser,
    ByNamespace,
}

struct Schema {
    name: String,
    uid: HeaderValue,
    precedence: i64,
    distinguisher: Distinguisher,
    rules: Vec<Rule>,
    level: Arc<Level>,
    counted: Arc<Counted>,
}

impl Schema {
    fn flow<'a>(&self, user: &'a str, namespace: &'a str) -> &'a str {
        match self.distinguisher {
            Distinguisher::None => "",
            Distinguisher::ByUser => user,
            Distinguisher::ByNamespace => namespace,
        }
    }
}

/// A priority level as it is configured now.
struct Level {
    name: String,
    uid: HeaderValue,
    queuing: queue_set::Queuing,
    limits: Limits,
    /// That one request may take.
    most_seats: usize,
    room: Arc<Room>,
}

/// Seats: what its shares come to, what it keeps whatever others want, what it may have at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Limits {
    nominal: usize,
    lower: usize,
    upper: usize,
}

/// The seats of a level and who is on them; it outlives changes of the configuration.
struct Room {
    set: Mutex<QueueSet>,
    dropped: Mutex<Dropped>,
    /// Somebody sees to it that those who linger leave.
    is_watched: AtomicBool,
}

/// The names of a level and of a schema.
type Key = (String, String);

impl Room {
    /// One is refused; after how many seconds it should come again.
    fn refuse(&self) -> i64 {
        self.dropped.lock().record(jiff::Timestamp::now().as_second())
    }
}

/// What was counted of one schema in one level.
struct Counted {
    dispatched: AtomicU64,
    rejected: [AtomicU64; REASONS.len()],
    waiting: AtomicUsize,
    waiting_seats: AtomicUsize,
    executing: AtomicUsize,
    executing_seats: AtomicUsize,
    /// How long they waited: those that went on, and those that did not.
    waits: [Histogram; 2],
    /// How long they took: all but watches, and how watches began.
    executions: [Histogram; 2],
    seats: Histogram,
    queue_lengths: Histogram,
    /// Whom writes were told to.
    watchers: Histogram,
}

impl Default for Counted {
    fn default() -> Self {
        Self {
            dispatched: AtomicU64::default(),
            rejected: Default::default(),
            waiting: AtomicUsize::default(),
            waiting_seats: AtomicUsize::default(),
            executing: AtomicUsize::default(),
            executing_seats: AtomicUsize::default(),
            waits: [(); 2].map(|()| Histogram::new(histogram::SECONDS)),
            executions: [(); 2].map(|()| Histogram::new(histogram::SECONDS)),
            seats: Histogram::new(histogram::SEATS),
            queue_lengths: Histogram::new(histogram::LENGTHS),
            watchers: Histogram::new(histogram::WATCHERS),
        }
    }
}

const REASONS: [&str; 3] = ["concurrency-limit", "queue-full", "time-out"];

/// Everything that is configured, replaced as a whole.
#[derive(Default)]
struct Plan {
    /// By precedence, then by name.
    schemas: Vec<Schema>,
    /// By name.
    levels: Vec<Arc<Level>>,
}

pub(crate) struct FlowControl {
    settings: FlowSettings,
    plan: ArcSwap<Plan>,
    watchers: Watchers,
    counted: Mutex<BTreeMap<Key, Arc<Counted>>>,
    /// Requests came since the levels were last adjusted.
    is_busy: AtomicBool,
    busy: Notify,
    /// Bits of a floating-point number.
    fair_fraction: AtomicU64,
    /// Where there is no fairness: how many read and write.
    in_flight: [Arc<AtomicUsize>; 2],
}

/// Whether a request may go on.
enum Entry {
    Now(Seat),
    Wait(Seat, tokio::sync::oneshot::Receiver<()>),
    /// After how many seconds to come again.
    Rejected(i64),
}

impl FlowControl {
    pub(crate) fn new(settings: FlowSettings) -> Self {
        let flow = Self {
            settings,
            plan: ArcSwap::default(),
            watchers: Watchers::default(),
            counted: Mutex::default(),
            is_busy: AtomicBool::new(false),
            busy: Notify::new(),
            fair_fraction: AtomicU64::new(0),
            in_flight: Default::default(),
        };
        // What no server is without, until it has read what there is.
        controller::digest(&flow, &[], &[]);
        flow
    }

    fn total_seats(&self) -> usize {
        self.settings.max_requests_inflight + self.settings.max_mutating_requests_inflight
    }

    fn counted(&self, level: &str, schema: &str) -> Arc<Counted> {
        self.counted.lock().entry((level.to_owned(), schema.to_owned())).or_default().clone()
    }

    /// Tells who adjusts the levels that there is something to do.
    fn note_busy(&self) {
        if !self.is_busy.load(Ordering::Relaxed) && !self.is_busy.swap(true, Ordering::Relaxed) {
            self.busy.notify_one();
        }
    }
}

impl ApiServer {
    /// Takes the request's seats, waiting for them if need be; or answers that there are too many requests. Streams take none.
    pub(crate) async fn admit(&self, context: &mut Context) -> Result<Option<Seat>, Response<Body>> {
        let info = &context.info;
        if context.refused.is_some() || (info.is_long_running() && info.verb != "watch") {
            return Ok(None);
        }
        if !self.flow.settings.enable_priority_and_fairness {
            return self.flow.count(&context.user, info).map(Some).ok_or_else(|| self.refuse(context, 1));
        }
        let (seat, woken) = match self.enter(context) {
            Entry::Now(seat) => return Ok(Some(seat)),
            Entry::Rejected(retry_after) => return Err(self.refuse(context, retry_after)),
            Entry::Wait(seat, woken) => (seat, woken),
        };
        let asked = context.query.get("timeout").filter(|_| context.info.verb != "watch").and_then(parse_duration);
        let allotted = self.config.request_timeout;
        let limit = (asked.unwrap_or(allotted).min(allotted) / WAIT_SHARE).min(MAX_WAIT);
        match tokio::time::timeout(limit, woken).await {
            Ok(Ok(())) => Ok(Some(seat.seated())),
            _ => {
                let retry_after = seat.give_up();
                Err(self.refuse(context, retry_after))
            }
        }
    }

    /// Keeps the seats of a request until its answer is written, and counts a watch that begins.
    pub(crate) fn keep_seat(&self, context: &Context, response: Response<Body>, seat: Option<Seat>) -> Response<Body> {
        let begins = context.info.verb == "watch" && response.status().is_success();
        keep(response, seat, if begins { self.flow.watchers.register(&context.info) } else { None }, begins)
    }

    fn refuse(&self, context: &Context, retry_after: i64) -> Response<Body> {
        let info = &context.info;
        context.set_served(self.find(&info.group, &info.version, &info.resource).is_some());
        too_many(retry_after)
    }

    fn enter(&self, context: &mut Context) -> Entry {
        let plan = self.flow.plan.load();
        let (info, user) = (&context.info, &context.user);
        let matching = plan.schemas.iter().find(|schema| schema.rules.iter().any(|rule| rule.matches(user, info)));
        // The last one is for everybody.
        let Some(schema) = matching.or(plan.schemas.last()) else { return Entry::Rejected(1) };
        context.flow = Some((schema.uid.clone(), schema.level.uid.clone()));
        self.flow.note_busy();
        let (width, watchers) = width::estimate(self, info, &context.query, schema.level.most_seats);
        schema.counted.seats.observe(width.seats() as f64);
        if let Some(watchers) = watchers {
            schema.counted.watchers.observe(watchers as f64);
        }
        let flow = schema.flow(&user.name, &info.namespace);
        let mut hasher = DefaultHasher::new();
        (&schema.name, flow).hash(&mut hasher);
        let asker = Asker {
            schema: schema.name.clone(),
            user: user.name.clone(),
            verb: info.verb,
            path: info.path.clone(),
            flow: flow.to_owned(),
        };
        let room = schema.level.room.clone();
        let (started, length) = {
            let mut set = room.set.lock();
            (set.start(asker, width, hasher.finish(), now()), set.enqueued.take())
        };
        if let Some(length) = length {
            schema.counted.queue_lengths.observe(length as f64);
        }
        let seat = |id| Seat::waiting(room.clone(), id, schema.counted.clone(), width, info.verb == "watch");
        match started {
            Start::Rejected(reason) => {
                let at = REASONS.iter().position(|known| *known == reason);
                if let Some(count) = at.and_then(|at| schema.counted.rejected.get(at)) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Entry::Rejected(room.refuse())
            }
            Start::Execute(id) => Entry::Now(seat(id).seated()),
            Start::Wait(id, woken) => {
                seat::watch(&room);
                Entry::Wait(seat(id), woken)
            }
        }
    }
}

impl FlowControl {
    /// Without fairness: so many may read and so many write, and the most powerful always.
    fn count(&self, user: &UserInfo, info: &RequestInfo) -> Option<Seat> {
        if info.is_long_running() {
            return Some(Seat::none());
        }
        let reads = matches!(info.verb, "get" | "list" | "watch");
        let [reading, mutating] = &self.in_flight;
        let (counter, limit) = match reads {
            true => (reading, self.settings.max_requests_inflight),
            false => (mutating, self.settings.max_mutating_requests_inflight),
        };
        let seat = Seat::counted(counter.clone());
        let fits = limit == 0 || counter.load(Ordering::Relaxed) <= limit;
        (fits || user.groups.iter().any(|group| group == MASTERS)).then_some(seat)
    }
}

/// What upstream says to whom it refuses.
fn too_many(retry_after: i64) -> Response<Body> {
    let text = "Too many requests, please try again later.\n";
    let mut response = respond_bytes(StatusCode::TOO_MANY_REQUESTS, "text/plain; charset=utf-8", text);
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests;

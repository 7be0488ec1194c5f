//! What flow control is doing, for people (`/debug/api_priority_and_fairness/…`) and for Prometheus.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use ::http::{Method, Response, StatusCode};

use super::histogram::{Histogram, Lasting};
use super::queue_set::{Request, Shares};
use super::{Counted, FlowControl, REASONS, now};
use crate::http::{Body, Query, page_not_found, respond_bytes};
use crate::request_info::RequestInfo;

pub(crate) const PATH: &str = "/debug/api_priority_and_fairness/";

pub(crate) fn answer(flow: &FlowControl, path: &str, query: &Query) -> Response<Body> {
    let with_details = query.get("includeRequestDetails").is_some_and(|value| !value.is_empty());
    let rows = match path.strip_prefix(PATH) {
        Some("dump_priority_levels") => levels(flow),
        Some("dump_queues") => queues(flow),
        Some("dump_requests") => requests(flow, with_details),
        _ => return page_not_found(),
    };
    respond_bytes(StatusCode::OK, "text/plain; charset=utf-8", table(&rows))
}

/// Columns as wide as their widest entry, as Go's tabwriter lays them out.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.len() + 2).max().unwrap_or_default().max(8)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match index + 1 == row.len() {
                true => writeln!(text, "{cell}"),
                false => write!(text, "{:<width$}", format!("{cell},")),
            };
        }
    }
    text
}

fn row(cells: &[&dyn std::fmt::Display]) -> Vec<String> {
    cells.iter().map(ToString::to_string).collect()
}

fn levels(flow: &FlowControl) -> Vec<Vec<String>> {
    let mut rows = vec![row(&[
        &"PriorityLevelName",
        &"ActiveQueues",
        &"IsIdle",
        &"IsQuiescing",
        &"WaitingRequests",
        &"ExecutingRequests",
        &"DispatchedRequests",
        &"RejectedRequests",
        &"TimedoutRequests",
        &"CancelledRequests",
    ])];
    for level in &flow.plan.load().levels {
        let set = level.room.set.lock();
        let active = set.queues.iter().filter(|queue| !queue.waiting.is_empty()).count();
        let (waiting, executing, dispatched) = (set.waiting, set.executing, set.dispatched);
        rows.push(row(&[
            &level.name,
            &active,
            &set.is_idle(),
            &false,
            &waiting,
            &executing,
            &dispatched,
            &set.rejected,
            &0,
            &set.cancelled,
        ]));
    }
    rows
}

fn queues(flow: &FlowControl) -> Vec<Vec<String>> {
    let mut rows = vec![row(&[
        &"PriorityLevelName",
        &"Index",
        &"PendingRequests",
        &"ExecutingRequests",
        &"SeatsInUse",
        &"NextDispatchR",
        &"InitialSeatsSum",
        &"MaxSeatsSum",
        &"TotalWorkSum",
    ])];
    for level in &flow.plan.load().levels {
        let set = level.room.set.lock();
        for (index, queue) in set.queues.iter().enumerate() {
            let initial: usize =
                queue.waiting.iter().filter_map(|id| set.requests.get(*id)).map(|request| request.width.initial).sum();
            rows.push(row(&[
                &level.name,
                &index,
                &queue.waiting.len(),
                &queue.executing,
                &queue.seats_in_use,
                &format!("{:.8}ss", queue.next_dispatch_r),
                &initial,
                &queue.seats_waiting,
                &format!("{:.8}ss", queue.work),
            ]));
        }
    }
    rows
}

fn requests(flow: &FlowControl, with_details: bool) -> Vec<Vec<String>> {
    let mut head = row(&[
        &"PriorityLevelName",
        &"FlowSchemaName",
        &"QueueIndex",
        &"RequestIndexInQueue",
        &"FlowDistingsher",
        &"ArriveTime",
        &"InitialSeats",
        &"FinalSeats",
        &"AdditionalLatency",
        &"StartTime",
    ]);
    if with_details {
        head.extend(row(&[
            &"UserName",
            &"Verb",
            &"APIPath",
            &"Namespace",
            &"Name",
            &"APIVersion",
            &"Resource",
            &"SubResource",
        ]));
    }
    let mut rows = vec![head];
    for level in &flow.plan.load().levels {
        let set = level.room.set.lock();
        for (id, request) in &set.requests {
            let queue = request.queue.and_then(|index| set.queues.get(index));
            let place = queue.and_then(|queue| queue.waiting.iter().position(|waiting| *waiting == id));
            rows.push(request_row(&level.name, request, place, with_details));
        }
    }
    rows
}

fn request_row(level: &str, request: &Request, place: Option<usize>, with_details: bool) -> Vec<String> {
    let index = |index: Option<usize>| index.map_or_else(|| "-1".to_owned(), |index| index.to_string());
    let mut cells = row(&[
        &level,
        &request.asker.schema,
        &index(request.queue),
        &index(place),
        &request.asker.flow,
        &time(Some(request.arrived)),
        &request.width.initial,
        &request.width.last,
        &format_args!("{:?}", request.width.extra),
        &time(request.started),
    ]);
    if with_details {
        let info = RequestInfo::new(&Method::GET, &request.asker.path, false, None);
        let version = match info.group.as_str() {
            "" => info.version.clone(),
            group => format!("{group}/{}", info.version),
        };
        let asker = &request.asker;
        cells.extend(row(&[
            &asker.user,
            &asker.verb,
            &asker.path,
            &info.namespace,
            &info.name,
            &version,
            &info.resource,
            &info.subresource,
        ]));
    }
    cells
}

/// A moment of flow control's own time, by everybody's clock.
fn time(at: Option<Duration>) -> String {
    let Some(at) = at else { return "0001-01-01T00:00:00Z".to_owned() };
    let time = SystemTime::now() - now().saturating_sub(at);
    jiff::Timestamp::try_from(time).map(|time| time.to_string()).unwrap_or_default()
}

/// Upstream's `apiserver_flowcontrol_…`.
pub(crate) fn metrics(flow: &FlowControl, text: &mut String) {
    let counted = flow.counted.lock();
    let mut family = |name: &str, kind: &str, help: &str, lines: &mut dyn FnMut(&mut String, &str)| {
        let name = format!("apiserver_flowcontrol_{name}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        lines(text, &name);
    };
    let of = |(level, schema): &super::Key| format!("flow_schema=\"{schema}\",priority_level=\"{level}\"");
    let value = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    type Gauge = (&'static str, &'static str, fn(&Counted) -> &AtomicUsize);
    let gauges: [Gauge; 4] = [
        ("current_inqueue_requests", "Requests that wait.", |one| &one.waiting),
        ("current_inqueue_seats", "Seats of the requests that wait.", |one| &one.waiting_seats),
        ("current_executing_requests", "Requests that are answered.", |one| &one.executing),
        ("current_executing_seats", "Seats of the requests that are answered.", |one| &one.executing_seats),
    ];
    for (name, help, read) in gauges {
        family(name, "gauge", help, &mut |text, name| {
            for (key, one) in counted.iter() {
                let _ = writeln!(text, "{name}{{{}}} {}", of(key), value(read(one)));
            }
        });
    }
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    family("dispatched_requests_total", "counter", "Requests that were let in.", &mut |text, name| {
        for (key, one) in counted.iter() {
            let _ = writeln!(text, "{name}{{{}}} {}", of(key), load(&one.dispatched));
        }
    });
    family("rejected_requests_total", "counter", "Requests that were refused.", &mut |text, name| {
        for (key, one) in counted.iter() {
            for (reason, count) in REASONS.iter().zip(&one.rejected).filter(|(_, count)| load(count) > 0) {
                let _ = writeln!(text, "{name}{{{},reason=\"{reason}\"}} {}", of(key), load(count));
            }
        }
    });
    type Seen = (&'static str, &'static str, &'static str, fn(&Counted) -> &Histogram);
    let seen: [&[Seen]; 5] = [
        &[
            ("request_wait_duration_seconds", "How long requests waited.", "execute=\"true\",", |one| {
                let [went_on, _] = &one.waits;
                went_on
            }),
            ("request_wait_duration_seconds", "", "execute=\"false\",", |one| {
                let [_, given_up] = &one.waits;
                given_up
            }),
        ],
        &[
            (
                "request_execution_seconds",
                "How long requests took, and watches to begin.",
                "type=\"regular\",",
                |one| {
                    let [regular, _] = &one.executions;
                    regular
                },
            ),
            ("request_execution_seconds", "", "type=\"watch\",", |one| {
                let [_, watch] = &one.executions;
                watch
            }),
        ],
        &[("work_estimated_seats", "Seats that requests were thought to take.", "", |one| &one.seats)],
        &[("request_queue_length_after_enqueue", "How long queues were with each that was put into one.", "", |one| {
            &one.queue_lengths
        })],
        &[("watch_count_samples", "How many watch what is written.", "", |one| &one.watchers)],
    ];
    for kinds in seen {
        let Some((name, help, ..)) = kinds.first() else { continue };
        family(name, "histogram", help, &mut |text, name| {
            for (key, one) in counted.iter() {
                for (_, _, label, read) in kinds {
                    read(one).write(text, name, &format!("{label}{}", of(key)));
                }
            }
        });
    }
    let plan = flow.plan.load();
    type OfLevel = (&'static str, &'static str, fn(&Arc<super::Level>) -> f64);
    let levels: [OfLevel; 10] = [
        ("nominal_limit_seats", "Seats by the configured shares.", |level| level.limits.nominal as f64),
        ("lower_limit_seats", "Seats that are never lent.", |level| level.limits.lower as f64),
        ("upper_limit_seats", "Seats at most, with what is borrowed.", |level| level.limits.upper as f64),
        ("current_limit_seats", "Seats now.", |level| level.room.set.lock().limit() as f64),
        ("demand_seats_high_watermark", "The most seats that were wanted in the last period.", |level| {
            level.room.set.lock().demand.known.high_watermark
        }),
        ("demand_seats_average", "Seats that were wanted in the last period.", |level| {
            level.room.set.lock().demand.known.average
        }),
        ("demand_seats_stdev", "How much that varied.", |level| level.room.set.lock().demand.known.deviation),
        ("demand_seats_smoothed", "Seats that are wanted, as far as is known.", |level| {
            level.room.set.lock().demand.known.smoothed
        }),
        ("target_seats", "Seats that the last division aimed at.", |level| level.room.set.lock().target),
        ("current_r", "Seat-seconds that each busy queue has been due.", |level| level.room.set.lock().r()),
    ];
    for (name, help, read) in levels {
        family(name, "gauge", help, &mut |text, name| {
            for level in &plan.levels {
                let _ = writeln!(text, "{name}{{priority_level=\"{}\"}} {}", level.name, read(level));
            }
        });
    }
    for level in &plan.levels {
        level.room.set.lock().sync(now());
    }
    type OfShare = (&'static str, &'static str, &'static [(&'static str, fn(&Shares) -> &Lasting)]);
    let shares: [OfShare; 3] = [
        (
            "priority_level_seat_utilization",
            "For how many nanoseconds what part of the seats was taken.",
            &[("phase=\"executing\",", |shares| &shares.seats)],
        ),
        (
            "priority_level_request_utilization",
            "For how many nanoseconds how many requests there were, as a part of those that may be.",
            &[("phase=\"executing\",", |shares| &shares.executing), ("phase=\"waiting\",", |shares| &shares.waiting)],
        ),
        (
            "demand_seats",
            "For how many nanoseconds how many seats were wanted, as a part of the nominal ones.",
            &[("", |shares| &shares.demand)],
        ),
    ];
    for (name, help, phases) in shares {
        family(name, "histogram", help, &mut |text, name| {
            for level in &plan.levels {
                let set = level.room.set.lock();
                for (label, read) in phases {
                    read(&set.shares).write(text, name, &format!("{label}priority_level=\"{}\"", level.name));
                }
            }
        });
    }
    family(
        "seat_fair_frac",
        "gauge",
        "What part of its demand each level gets that no bound holds.",
        &mut |text, name| {
            let _ = writeln!(text, "{name} {}", f64::from_bits(load(&flow.fair_fraction)));
        },
    );
}

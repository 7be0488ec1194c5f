//! How many seats a request takes, and for how long: what a list reads, and whom a write wakes.

use std::time::Duration;

use crate::http::Query;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;

const BYTES_PER_SEAT: usize = 100_000;
/// A list is written a chunk at a time: one is made while the one before it is sent. Upstream, which has more of it in memory at once,
/// counts a megabyte.
const LIST_BYTES: usize = 2 * crate::http::CHUNK;
const LIST_SEATS: usize = 100;
const WRITE_SEATS: usize = 10;
const WATCHES_PER_SEAT: usize = 10;
/// What it takes to tell the watchers of one seat.
const TELLING: Duration = Duration::from_millis(5);
/// Enough objects to know their size by.
const SAMPLE: usize = 8;

/// Seats while it is answered, and seats for some time after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Width {
    pub(super) initial: usize,
    pub(super) last: usize,
    pub(super) extra: Duration,
}

impl Width {
    pub(super) const ONE: Self = Self { initial: 1, last: 0, extra: Duration::ZERO };

    /// Those it has from beginning to end.
    pub(super) fn seats(&self) -> usize {
        self.initial.max(self.last)
    }

    /// Seat-seconds, if it takes `seconds` to be answered.
    pub(super) fn work(&self, seconds: f64) -> f64 {
        self.initial as f64 * seconds + self.last as f64 * self.extra.as_secs_f64()
    }

    /// The same work on no more than these seats at the end.
    pub(super) fn narrowed(self, seats: usize) -> Self {
        if self.last <= seats || seats == 0 {
            return self;
        }
        Self { last: seats, extra: self.extra.mul_f64(self.last as f64 / seats as f64), ..self }
    }

    /// A write of something that so many watch.
    fn of_write(watchers: usize, most: usize) -> Self {
        if watchers < WATCHES_PER_SEAT {
            return Self::ONE;
        }
        let wanted = watchers.div_ceil(WATCHES_PER_SEAT);
        Self { initial: 1, last: wanted, extra: TELLING }.narrowed(most.min(WRITE_SEATS))
    }

    /// A list of so many objects, each of about so many bytes.
    fn of_list(objects: usize, size: usize, most: usize) -> Self {
        let bytes = objects.saturating_mul(size).min(LIST_BYTES);
        Self { initial: bytes.div_ceil(BYTES_PER_SEAT).clamp(1, most.min(LIST_SEATS)), ..Self::ONE }
    }
}

/// What a request will take, of the `most` seats that its priority level gives to one; and how many a write will be told to.
pub(super) fn estimate(server: &ApiServer, info: &RequestInfo, query: &Query, most: usize) -> (Width, Option<usize>) {
    match info.verb {
        // Nobody is told of a token.
        "create" if info.resource == "serviceaccounts" && info.subresource == "token" => (Width::ONE, None),
        "create" | "update" | "patch" | "delete" if info.is_resource => {
            let watchers = server.flow.watchers.interested(info);
            (Width::of_write(watchers, most), Some(watchers))
        }
        _ => (of_read(server, info, query, most), None),
    }
}

fn of_read(server: &ApiServer, info: &RequestInfo, query: &Query, most: usize) -> Width {
    if !info.is_resource {
        return Width::ONE;
    }
    match info.verb {
        "list" | "watch" => {
            let begins_with_all =
                query.flag("sendInitialEvents") || matches!(query.get("resourceVersion"), None | Some("" | "0"));
            if info.verb == "watch" && !begins_with_all {
                return Width::ONE;
            }
            let served = server.find(&info.group, &info.version, &info.resource);
            let Some(cache) = served.as_ref().and_then(|served| served.cache.as_ref()) else { return Width::ONE };
            let snapshot = cache.snapshot();
            let (mut count, mut bytes) = (0, 0);
            for object in snapshot.objects.values().take(SAMPLE) {
                (count, bytes) = (count + 1, bytes + object.size());
            }
            let limit = query.get("limit").and_then(|text| text.parse().ok()).filter(|limit| *limit > 0);
            let objects = match info.name.is_empty() {
                true => snapshot.objects.len().min(limit.unwrap_or(usize::MAX)),
                false => 1,
            };
            Width::of_list(objects, bytes.checked_div(count).unwrap_or_default(), most)
        }
        _ => Width::ONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_takes_a_seat_for_what_it_reads() {
        let check = |objects, size, most, want| assert_eq!(Width::of_list(objects, size, most).seats(), want);
        check(0, 0, 100, 1);
        check(10, 1000, 100, 1);
        check(100, 2000, 100, 2);
        check(500, 2000, 100, 3);
        check(1_000_000, 2000, 100, 3);
        check(1_000_000, 2000, 2, 2);
    }

    #[test]
    fn a_write_keeps_seats_for_its_watchers() {
        let check = |watchers, most, seats, millis: f64| {
            let width = Width::of_write(watchers, most);
            assert_eq!(width.seats(), seats, "{watchers} watchers");
            assert!((width.extra.as_secs_f64() * 1000.0 - millis).abs() < 0.001, "{width:?}");
        };
        check(0, 10, 1, 0.0);
        check(9, 10, 1, 0.0);
        check(10, 10, 1, 5.0);
        check(95, 10, 10, 5.0);
        // The same work on fewer seats.
        check(200, 10, 10, 10.0);
        check(200, 4, 4, 25.0);
    }
}

//! Decides what becomes of an event: a new object, a raised count, a combined one, or nothing. client-go's rules.
//!
//! The same event again raises the count of the first. More than [`MAX_SIMILAR`] that differ only in message within
//! [`SIMILAR_INTERVAL`] are combined into one. One source may say [`SPAM_BURST`] things about an object, then one every five minutes.

use std::collections::{HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;

const MAX_SIMILAR: usize = 10;
const SIMILAR_INTERVAL: SignedDuration = SignedDuration::from_secs(600);
const SPAM_BURST: f64 = 25.0;
const SPAM_REFILL_PER_SECOND: f64 = 1.0 / 300.0;
/// Objects whose history is kept; the longest unheard of are forgotten first.
const MAX_SUBJECTS: usize = 4096;

/// What a component said, before it is decided how to record it.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) object: ObjectReference,
    pub(crate) kind: &'static str,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) at: Timestamp,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Record {
    Create { name: String, message: String },
    Raise { name: String, message: String, count: i32, first: Timestamp },
    Drop,
}

#[derive(Default)]
pub(crate) struct Correlator {
    subjects: HashMap<Subject, History>,
}

/// What spam is counted by.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Subject {
    object: [Option<String>; 5],
    kind: &'static str,
}

struct History {
    tokens: f64,
    last: Timestamp,
    similar: HashMap<String, Similar>,
    recorded: HashMap<(String, String), Recorded>,
}

/// Events of one reason.
struct Similar {
    messages: HashSet<String>,
    last: Timestamp,
}

struct Recorded {
    name: String,
    count: i32,
    first: Timestamp,
}

impl Correlator {
    pub(crate) fn correlate(&mut self, said: &Said) -> Record {
        self.forget_oldest();
        let history = self.subjects.entry(Subject::of(said)).or_insert_with(|| History::new(said.at));
        if !history.take_token(said.at) {
            return Record::Drop;
        }
        let combined = history.is_combined(said);
        let message =
            if combined { format!("(combined from similar events): {}", said.message) } else { said.message.clone() };
        // A combined event is one event, whatever it says.
        let key = (said.reason.clone(), if combined { String::new() } else { said.message.clone() });
        match history.recorded.get_mut(&key) {
            Some(recorded) => {
                recorded.count += 1;
                Record::Raise { name: recorded.name.clone(), message, count: recorded.count, first: recorded.first }
            }
            None => {
                let object = said.object.name.as_deref().unwrap_or_default();
                let name = format!("{object}.{:x}", said.at.as_nanosecond());
                history.recorded.insert(key, Recorded { name: name.clone(), count: 1, first: said.at });
                Record::Create { name, message }
            }
        }
    }

    /// The server no longer has the event (they expire): the next one is created anew.
    pub(crate) fn lost(&mut self, said: &Said, name: &str) {
        if let Some(history) = self.subjects.get_mut(&Subject::of(said)) {
            history.recorded.retain(|_, recorded| recorded.name != name);
        }
    }

    fn forget_oldest(&mut self) {
        if self.subjects.len() < MAX_SUBJECTS {
            return;
        }
        let mut times: Vec<_> = self.subjects.values().map(|history| history.last).collect();
        times.sort_unstable();
        if let Some(middle) = times.get(times.len() / 2).copied() {
            self.subjects.retain(|_, history| history.last > middle);
        }
    }
}

impl Subject {
    fn of(said: &Said) -> Self {
        let object = said.object.clone();
        Self { object: [object.api_version, object.kind, object.namespace, object.name, object.uid], kind: said.kind }
    }
}

impl History {
    fn new(now: Timestamp) -> Self {
        Self { tokens: SPAM_BURST, last: now, similar: HashMap::new(), recorded: HashMap::new() }
    }

    fn take_token(&mut self, now: Timestamp) -> bool {
        let passed = now.duration_since(self.last).as_secs_f64().max(0.0);
        self.tokens = (self.tokens + passed * SPAM_REFILL_PER_SECOND).min(SPAM_BURST);
        self.last = now;
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    fn is_combined(&mut self, said: &Said) -> bool {
        let fresh = || Similar { messages: HashSet::new(), last: said.at };
        let similar = self.similar.entry(said.reason.clone()).or_insert_with(fresh);
        if said.at.duration_since(similar.last) > SIMILAR_INTERVAL {
            *similar = fresh();
        }
        similar.last = said.at;
        if similar.messages.len() >= MAX_SIMILAR {
            return !similar.messages.contains(&said.message);
        }
        similar.messages.insert(said.message.clone());
        similar.messages.len() >= MAX_SIMILAR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: &str, second: i64) -> Said {
        let object = ObjectReference { name: Some("web".into()), ..Default::default() };
        let at = Timestamp::from_second(second).unwrap();
        Said { object, kind: "Normal", reason: "Pulled".into(), message: message.into(), at }
    }

    /// What becomes of each `message@second`: `new`, the raised count, `combined`, `combined count` or `drop`.
    #[track_caller]
    fn check(events: &[(&str, i64)], want: &[&str]) {
        let mut correlator = Correlator::default();
        let got: Vec<_> = events
            .iter()
            .map(|(message, second)| match correlator.correlate(&said(message, *second)) {
                Record::Create { message, .. } if message.starts_with("(combined") => "combined".to_owned(),
                Record::Create { .. } => "new".to_owned(),
                Record::Raise { message, count, .. } if message.starts_with("(combined") => format!("combined {count}"),
                Record::Raise { count, .. } => count.to_string(),
                Record::Drop => "drop".to_owned(),
            })
            .collect();
        assert_eq!(got, want);
    }

    #[test]
    fn the_same_event_raises_its_count() {
        check(&[("a", 1), ("a", 2), ("b", 3), ("a", 4)], &["new", "2", "new", "3"]);
    }

    #[test]
    fn many_similar_events_are_combined() {
        let messages: Vec<_> = (0..12).map(|n| format!("m{n}")).collect();
        let events: Vec<_> = messages.iter().map(|message| (message.as_str(), 1)).collect();
        let mut want = vec!["new"; 9];
        want.extend(["combined", "combined 2", "combined 3"]);
        check(&events, &want);
    }

    #[test]
    fn a_source_that_never_stops_is_cut_to_one_in_five_minutes() {
        let mut events = vec![("a", 0); 26];
        events.push(("a", 301));
        let mut correlator = Correlator::default();
        let got: Vec<_> = events.iter().map(|(m, s)| correlator.correlate(&said(m, *s)) == Record::Drop).collect();
        assert_eq!(got.iter().filter(|dropped| **dropped).count(), 1);
        assert!(!got[26], "refilled after five minutes");
    }

    #[test]
    fn a_lost_event_is_created_anew() {
        let mut correlator = Correlator::default();
        let Record::Create { name, .. } = correlator.correlate(&said("a", 1)) else { panic!("not created") };
        correlator.lost(&said("a", 1), &name);
        assert!(matches!(correlator.correlate(&said("a", 2)), Record::Create { .. }));
    }
}

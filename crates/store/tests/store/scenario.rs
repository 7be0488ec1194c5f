//! Runs `tests/scenarios/engine/*.txt` against every engine and against the naive model: one expectation for all.
//!
//! A line holds steps separated by ` | `; a step is `command → answer`. `#` starts a comment. Every file starts with an empty store.

use std::{collections::HashMap, fmt::Write, path::Path, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use store::*;

use crate::model::Model;

#[tokio::test]
async fn the_engine_follows_every_scenario() {
    for (name, text) in scenarios("engine") {
        let dir = tempfile::tempdir().unwrap();
        let mut engine =
            Engine { dir: dir.path(), store: Some(Embedded::open(dir.path(), Options::default()).unwrap()) };
        run(&name, &text, &mut engine).await;
    }
}

#[tokio::test]
async fn the_model_follows_every_scenario() {
    for (name, text) in scenarios("engine") {
        run(&name, &text, &mut Model::default()).await;
    }
}

/// The name and text of every file of this kind.
pub(crate) fn scenarios(kind: &str) -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios").join(kind);
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let all: Vec<_> = files.map(|path| (path.display().to_string(), std::fs::read_to_string(&path).unwrap())).collect();
    assert!(!all.is_empty());
    all
}

pub(crate) trait Subject {
    fn store(&self) -> &dyn Store;
    /// Ends whatever holds the data and starts it again.
    async fn reopen(&mut self) {}
}

impl Subject for Model {
    fn store(&self) -> &dyn Store {
        self
    }
}

struct Engine<'a> {
    dir: &'a Path,
    store: Option<Embedded>,
}

impl Subject for Engine<'_> {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    async fn reopen(&mut self) {
        self.store.take().unwrap().close().await;
        self.store = Some(Embedded::open(self.dir, Options::default()).unwrap());
    }
}

pub(crate) async fn run(name: &str, text: &str, subject: &mut impl Subject) {
    let mut watches = HashMap::new();
    for (line, command, want) in steps(name, text) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let got = perform(subject, &mut watches, &words).await.unwrap_or_else(|error| said(&error));
        assert_eq!(got.trim(), want, "{name}:{line}: {command}");
    }
}

/// Line number, command and expected answer of every step.
pub(crate) fn steps<'a>(name: &str, text: &'a str) -> Vec<(usize, &'a str, &'a str)> {
    let mut steps = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap().trim();
        for step in line.split(" | ").filter(|step| !step.is_empty()) {
            let (command, want) = step.split_once('→').unwrap_or_else(|| panic!("{name}:{}: no →", index + 1));
            steps.push((index + 1, command.trim(), want.trim()));
        }
    }
    steps
}

async fn perform(
    subject: &mut impl Subject,
    watches: &mut HashMap<String, Watch>,
    words: &[&str],
) -> Result<String, StoreError> {
    let store = subject.store();
    Ok(match words {
        ["reopen"] => {
            watches.clear();
            subject.reopen().await;
            "ok".into()
        }
        ["put" | "revalue" | "relet" | "del", ..] => {
            let result = store.txn(Txn { success: vec![op(words)], ..Txn::default() }).await?;
            match &result.results[0] {
                OpResult::Delete { prev } => format!("deleted {} rev {}", prev.len(), result.revision),
                _ => format!("rev {}", result.revision),
            }
        }
        ["get", ..] => ranged(&store.range(range(words)).await?),
        ["txn", ..] => done(&store.txn(txn(&words[1..])).await?),
        ["compact", revision] => store.compact(revision.parse().unwrap()).await.map(|()| "ok".into())?,
        ["revision"] => store.revision().await?.to_string(),
        ["watch", name, keys, ..] => {
            let (start, end) = interval(keys);
            watches.insert((*name).into(), store.watch(start, end, number(words, "from")).await?);
            "ok".into()
        }
        ["next", name, how @ ..] => {
            let next = watches.get_mut(*name).unwrap().next();
            let next = tokio::time::timeout(Duration::from_secs(10), next).await.expect("an event");
            batch(&next.expect("no end")?, *how != ["bare"])
        }
        ["quiet", name] => match watches.get_mut(*name).unwrap().next().now_or_never() {
            None => "yes".into(),
            Some(item) => format!("{item:?}"),
        },
        ["grant", id, ..] => {
            let lease = store.lease_grant(number(words, "ttl"), id.parse().unwrap()).await?;
            format!("lease {} ttl {}", lease.id, lease.ttl_seconds)
        }
        ["revoke", id] => format!("rev {}", store.lease_revoke(id.parse().unwrap()).await?),
        ["alive", id] => format!("ttl {}", store.lease_keep_alive(id.parse().unwrap()).await?.ttl_seconds),
        ["lease", id] => {
            let status = store.lease_time_to_live(id.parse().unwrap()).await?;
            let keys: Vec<_> = status.keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
            format!("granted {} keys {}", status.granted_ttl_seconds, keys.join(" "))
        }
        ["leases"] => store.leases().await?.iter().map(|id| format!("{id} ")).collect(),
        _ => panic!("unknown command {words:?}"),
    })
}

pub(crate) fn number(words: &[&str], name: &str) -> i64 {
    option(words, name).map_or(0, |text| text.parse().unwrap())
}

pub(crate) fn option<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// `a` one key, `a..c` up to c, `a..` to the end, `a*` a prefix.
pub(crate) fn interval(text: &str) -> (Bytes, Option<Bytes>) {
    if let Some(prefix) = text.strip_suffix('*') {
        let keys = Keys::prefix(bytes(prefix));
        return (keys.start, keys.end);
    }
    match text.split_once("..") {
        None => (bytes(text), None),
        Some((start, "")) => (bytes(start), Some(bytes("\0"))),
        Some((start, end)) => (bytes(start), Some(bytes(end))),
    }
}

fn op(words: &[&str]) -> Op {
    match words {
        ["put", pair, ..] => {
            let (key, value) = pair.split_once('=').unwrap();
            let lease = option(words, "lease").map_or(0, |id| id.parse().unwrap());
            Op::Put { key: bytes(key), value: bytes(value), lease }
        }
        ["revalue", pair] => {
            let (key, value) = pair.split_once('=').unwrap();
            Op::Update { key: bytes(key), value: Some(bytes(value)), lease: None }
        }
        ["relet", key, ..] => {
            let lease = option(words, "lease").map(|id| id.parse().unwrap());
            Op::Update { key: bytes(key), value: None, lease }
        }
        ["del", keys] => {
            let (key, end) = interval(keys);
            Op::Delete { key, end }
        }
        ["(", nested @ .., ")"] => Op::Txn(txn(nested)),
        _ => Op::Range(range(words)),
    }
}

fn range(words: &[&str]) -> Range {
    let (start, end) = interval(words[1]);
    Range {
        start,
        end,
        revision: number(words, "at"),
        limit: number(words, "limit") as usize,
        keys_only: words.contains(&"keys"),
        count_only: words.contains(&"count"),
    }
}

/// `if mod a = 2 , version b > 0 then put a=2 , ( if then del b else ) else get a`
fn txn(words: &[&str]) -> Txn {
    let parts = split(words, &["if", "then", "else"]);
    let part = |index: usize| {
        let words = parts.get(index).copied().unwrap_or_default();
        split(words, &[","]).into_iter().filter(|words| !words.is_empty())
    };
    Txn {
        compares: part(1).map(compare).collect(),
        success: part(2).map(op).collect(),
        failure: part(3).map(op).collect(),
    }
}

/// Splits at separators that are in no parentheses.
pub(crate) fn split<'a, 'b>(words: &'b [&'a str], separators: &[&str]) -> Vec<&'b [&'a str]> {
    let mut depth = 0;
    let separates = |word: &&str| {
        depth += i32::from(*word == "(") - i32::from(*word == ")");
        depth == 0 && separators.contains(word)
    };
    words.split(separates).collect()
}

fn compare(words: &[&str]) -> Compare {
    let [target, keys, order, operand] = words else { panic!("{words:?}") };
    let (key, end) = interval(keys);
    let number = || operand.parse().unwrap();
    if (*target, *order, &end) == ("mod", "=", &None) {
        return Compare::ModRevision { key, is: number() };
    }
    let target = match *target {
        "mod" => Target::ModRevision(number()),
        "create" => Target::CreateRevision(number()),
        "version" => Target::Version(number()),
        "lease" => Target::Lease(number()),
        "value" => Target::Value(bytes(operand)),
        _ => panic!("unknown target {target}"),
    };
    let order = match *order {
        "=" => Order::Equal,
        "!=" => Order::NotEqual,
        ">" => Order::Greater,
        "<" => Order::Less,
        _ => panic!("unknown order {order}"),
    };
    Compare::Where { key, end, target, order }
}

fn done(result: &TxnResult) -> String {
    let mut text = format!("{} rev {}", if result.succeeded { "yes" } else { "no" }, result.revision);
    for result in &result.results {
        match result {
            OpResult::Put { .. } => text += ", put",
            OpResult::Delete { prev } => write!(text, ", deleted {}", prev.len()).unwrap(),
            OpResult::Range(result) => write!(text, ", {}", ranged(result)).unwrap(),
            OpResult::Txn(result) => write!(text, ", ( {} )", done(result)).unwrap(),
        }
    }
    text
}

fn ranged(result: &RangeResult) -> String {
    let mut text: String = result.kvs.iter().map(|kv| format!("{} ", key_value(kv))).collect();
    write!(text, "of {}", result.count).unwrap();
    text + if result.more { " more" } else { "" }
}

/// `key=value@create/mod/version`, and the lease if there is one.
fn key_value(kv: &KeyValue) -> String {
    let (key, value) = (String::from_utf8_lossy(&kv.key), String::from_utf8_lossy(&kv.value));
    let lease = if kv.lease == 0 { String::new() } else { format!("+{}", kv.lease) };
    format!("{key}={value}@{}/{}/{}{lease}", kv.create_revision, kv.mod_revision, kv.version)
}

/// Every event with what it replaced, if that is wanted: etcd forgets it with the compaction of the revision before.
fn batch(batch: &Batch, with_prev: bool) -> String {
    let mut text = format!("{}:", batch.revision);
    for event in batch.events.iter() {
        assert_eq!(event.kv.mod_revision, batch.revision);
        match event.kind {
            EventKind::Put => write!(text, " put {}", key_value(&event.kv)).unwrap(),
            EventKind::Delete => write!(text, " del {}", String::from_utf8_lossy(&event.kv.key)).unwrap(),
        }
        if with_prev {
            write!(text, " was {}", event.prev.as_ref().map_or("none".into(), |kv| key_value(kv))).unwrap();
        }
    }
    text
}

fn said(error: &StoreError) -> String {
    match error {
        StoreError::Compacted { oldest } => format!("compacted oldest {oldest}"),
        StoreError::FutureRevision { current, .. } => format!("future current {current}"),
        StoreError::LeaseNotFound(id) => format!("no lease {id}"),
        StoreError::LeaseExists(id) => format!("lease {id} exists"),
        StoreError::DuplicateKey => "duplicate key".into(),
        StoreError::KeyNotFound => "no key".into(),
        other => format!("error {other}"),
    }
}

//! Runs `tests/scenarios/api/*.txt`, message by message, against our server in front of the engine and of the naive model,
//! and against real etcd: one expectation for all, refusals to the letter.

use std::{
    collections::{HashMap, VecDeque},
    fmt::Write,
    time::Duration,
};

use bytes::Bytes;
use store::etcd::proto::{
    etcdserverpb::{
        self as pb, auth_client::AuthClient, kv_client::KvClient, lease_client::LeaseClient,
        maintenance_client::MaintenanceClient, request_op::Request, response_op::Response, watch_request::RequestUnion,
    },
    mvccpb,
};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use crate::{
    etcd::{Etcd, Served, connect, tool},
    model::Model,
    scenario::{bytes, interval, number, option, scenarios, split, steps},
    session::Session,
};

/// More than any of these needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(15);

#[tokio::test]
async fn our_server_on_the_engine_follows_every_api_scenario() {
    for (name, text) in scenarios("api") {
        let dir = tempfile::tempdir().unwrap();
        let served = Served::start(dir.path());
        run(&name, &text, served.endpoint()).await;
        served.stop().await;
    }
}

#[tokio::test]
async fn our_server_on_the_model_follows_every_api_scenario() {
    for (name, text) in scenarios("api") {
        let dir = tempfile::tempdir().unwrap();
        let served = Served::in_front_of(dir.path(), Model::default());
        run(&name, &text, served.endpoint()).await;
        served.stop().await;
    }
}

#[tokio::test]
async fn real_etcd_follows_every_api_scenario() {
    let Some(binary) = tool("etcd") else { return };
    for (name, text) in scenarios("api") {
        let dir = tempfile::tempdir().unwrap();
        let etcd = Etcd::cluster(&binary, dir.path(), 1).remove(0);
        connect(vec![etcd.endpoint.clone()]).await;
        run(&name, &text, etcd.endpoint.clone()).await;
    }
}

async fn run(name: &str, text: &str, endpoint: String) {
    let mut api = Api::new(endpoint).await;
    let mut differing = Vec::new();
    for (line, command, want) in steps(name, text) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let got = tokio::time::timeout(PATIENCE, api.perform(&words)).await;
        let got = got.unwrap_or_else(|_| Ok("no answer".into()));
        let got = got.unwrap_or_else(|status| format!("{:?}: {}", status.code(), status.message()));
        if got.trim() != want {
            differing.push(format!("{name}:{line}: {command}\n  got  {got}\n  want {want}"));
        }
    }
    assert!(differing.is_empty(), "\n{}", differing.join("\n"));
}

struct Api {
    channel: Channel,
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
    watches: HashMap<String, Watching>,
}

/// A stream of watches, with the events that have come and were not asked for yet.
struct Watching {
    session: Session,
    events: VecDeque<(i64, mvccpb::Event)>,
}

impl Api {
    async fn new(endpoint: String) -> Api {
        let channel = Endpoint::new(endpoint).unwrap().connect().await.unwrap();
        Api {
            kv: KvClient::new(channel.clone()),
            lease: LeaseClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            channel,
            watches: HashMap::new(),
        }
    }

    async fn perform(&mut self, words: &[&str]) -> Result<String, Status> {
        Ok(match words {
            ["put", ..] => put_answer(&self.kv.put(put(words)).await?.into_inner()),
            ["range", ..] => range_answer(&self.kv.range(range(words)).await?.into_inner()),
            ["del", ..] => delete_answer(&self.kv.delete_range(delete(words)).await?.into_inner()),
            ["txn", rest @ ..] => txn_answer(&self.kv.txn(txn(rest)).await?.into_inner()),
            ["large", bytes] => {
                let value = vec![b'v'; bytes.parse().unwrap()].into();
                let put = pb::PutRequest { key: "large".into(), value, ..Default::default() };
                put_answer(&self.kv.put(put).await?.into_inner())
            }
            ["many", count] => {
                let op = |n| pb::RequestOp { request: Some(Request::RequestPut(put(&["put", &format!("{n}=1")]))) };
                let success = (0..count.parse().unwrap()).map(op).collect();
                let answer = self.kv.txn(pb::TxnRequest { success, ..Default::default() }).await?.into_inner();
                format!("done {} rev {}", answer.responses.len(), revision_of(&answer.header))
            }
            ["compact", revision] => {
                let request = pb::CompactionRequest { revision: revision.parse().unwrap(), physical: true };
                format!("rev {}", revision_of(&self.kv.compact(request).await?.into_inner().header))
            }
            ["grant" | "revoke" | "alive" | "ttl" | "leases", ..] => self.perform_lease(words).await?,
            ["watch" | "next" | "quiet" | "cancel" | "progress" | "half-close", name, ..] => {
                if !self.watches.contains_key(*name) {
                    let session = Session::start(self.channel.clone());
                    self.watches.insert((*name).into(), Watching { session, events: VecDeque::new() });
                }
                self.watches.get_mut(*name).unwrap().perform(words).await
            }
            ["status"] => {
                let status = self.maintenance.status(pb::StatusRequest {}).await?.into_inner();
                let header = status.header.unwrap();
                assert_eq!(header.member_id, status.leader);
                assert!(status.version.starts_with("3.") && status.db_size >= status.db_size_in_use);
                format!("rev {} errors {}", header.revision, status.errors.len())
            }
            ["hashkv", ..] => {
                let request = pb::HashKvRequest { revision: number(words, "at") };
                let first = self.maintenance.hash_kv(request).await?.into_inner();
                let second = self.maintenance.hash_kv(request).await?.into_inner();
                assert_eq!(first.hash, second.hash);
                format!("rev {} compacted {}", revision_of(&first.header), first.compact_revision)
            }
            ["alarms"] => {
                let alarms = self.maintenance.alarm(pb::AlarmRequest::default()).await?.into_inner().alarms;
                format!("{}", alarms.len())
            }
            ["defragment"] => {
                self.maintenance.defragment(pb::DefragmentRequest {}).await?;
                "ok".into()
            }
            ["auth", "status"] => {
                match AuthClient::new(self.channel.clone()).auth_status(pb::AuthStatusRequest {}).await {
                    Ok(status) => format!("enabled {}", status.into_inner().enabled),
                    // etcd 3.4 cannot tell.
                    Err(status) if status.message().starts_with("unknown method AuthStatus") => "enabled false".into(),
                    Err(status) => return Err(status),
                }
            }
            ["auth", "login"] => {
                let request = pb::AuthenticateRequest { name: "root".into(), password: "secret".into() };
                AuthClient::new(self.channel.clone()).authenticate(request).await?.into_inner().token
            }
            _ => panic!("unknown command {words:?}"),
        })
    }

    async fn perform_lease(&mut self, words: &[&str]) -> Result<String, Status> {
        let id = words.get(1).map_or(0, |id| id.parse().unwrap());
        Ok(match words[0] {
            "grant" => {
                let request = pb::LeaseGrantRequest { id, ttl: number(words, "ttl") };
                let lease = self.lease.lease_grant(request).await?.into_inner();
                assert_eq!(lease.error, "");
                format!("lease {} ttl {}", lease.id, lease.ttl)
            }
            "revoke" => {
                let answer = self.lease.lease_revoke(pb::LeaseRevokeRequest { id }).await?.into_inner();
                format!("rev {}", revision_of(&answer.header))
            }
            "alive" => {
                let once = tokio_stream::once(pb::LeaseKeepAliveRequest { id });
                let mut answers = self.lease.lease_keep_alive(once).await?.into_inner();
                let answer = answers.message().await?.expect("an answer");
                format!("lease {} ttl {}", answer.id, answer.ttl)
            }
            "ttl" => {
                let request = pb::LeaseTimeToLiveRequest { id, keys: words.contains(&"keys") };
                let lease = self.lease.lease_time_to_live(request).await?.into_inner();
                assert!(lease.ttl <= lease.granted_ttl);
                let mut keys: Vec<_> = lease.keys.iter().map(text).collect();
                keys.sort_unstable();
                let gone = if lease.ttl < 0 { " gone" } else { "" };
                format!("lease {} granted {}{gone} keys {}", lease.id, lease.granted_ttl, keys.join(" "))
            }
            _ => {
                let leases = self.lease.lease_leases(pb::LeaseLeasesRequest {}).await?.into_inner().leases;
                let mut ids: Vec<_> = leases.iter().map(|lease| lease.id).collect();
                ids.sort_unstable();
                ids.iter().map(|id| format!("{id} ")).collect()
            }
        })
    }
}

impl Watching {
    async fn perform(&mut self, words: &[&str]) -> String {
        match words {
            ["watch", _, keys, ..] => {
                let (key, end) = interval(keys);
                let filters = [("noput", 0), ("nodelete", 1)].into_iter().filter(|(word, _)| words.contains(word));
                let request = pb::WatchCreateRequest {
                    key,
                    range_end: end.unwrap_or_default(),
                    start_revision: number(words, "from"),
                    filters: filters.map(|(_, filter)| filter).collect(),
                    prev_kv: words.contains(&"prev"),
                    watch_id: number(words, "id"),
                    ..Default::default()
                };
                self.session.send(RequestUnion::CreateRequest(request)).await;
                self.control().await
            }
            ["cancel", _, id] => {
                let request = pb::WatchCancelRequest { watch_id: id.parse().unwrap() };
                self.session.send(RequestUnion::CancelRequest(request)).await;
                self.control().await
            }
            ["progress", _] => {
                self.session.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
                self.control().await
            }
            ["half-close", _] => {
                self.session.requests = None;
                "ok".into()
            }
            ["next", _, "cancel"] => self.control().await,
            _ => self.next().await,
        }
    }

    /// The next response that carries no events.
    async fn control(&mut self) -> String {
        loop {
            let response = self.session.next().await;
            if response.events.is_empty() {
                return control_answer(&response);
            }
            self.events.extend(response.events.into_iter().map(|event| (response.watch_id, event)));
        }
    }

    /// All events of the next revision of one watch: `watch 0: 3: put a=1@2/3/2`.
    async fn next(&mut self) -> String {
        while self.events.is_empty() {
            let response = self.session.next().await;
            assert!(!response.events.is_empty(), "{}", control_answer(&response));
            self.events.extend(response.events.into_iter().map(|event| (response.watch_id, event)));
        }
        let place = |(id, event): &(i64, mvccpb::Event)| (*id, event.kv.as_ref().unwrap().mod_revision);
        let (id, revision) = place(&self.events[0]);
        let mut said = format!("watch {id}: {revision}:");
        while let Some((_, event)) = self.events.pop_front_if(|event| place(event) == (id, revision)) {
            let kv = event.kv.as_ref().unwrap();
            match event.r#type() {
                mvccpb::event::Type::Put => write!(said, " put {}", key_value(kv)).unwrap(),
                mvccpb::event::Type::Delete => write!(said, " del {}", text(&kv.key)).unwrap(),
            }
            if let Some(prev) = &event.prev_kv {
                write!(said, " was {}", key_value(prev)).unwrap();
            }
        }
        said
    }
}

fn control_answer(response: &pb::WatchResponse) -> String {
    let mut said = format!("watch {} rev {}", response.watch_id, revision_of(&response.header));
    for (set, word) in [(response.created, " created"), (response.canceled, " canceled")] {
        said += if set { word } else { "" };
    }
    if response.compact_revision != 0 {
        write!(said, " compacted {}", response.compact_revision).unwrap();
    }
    if !response.cancel_reason.is_empty() {
        write!(said, ": {}", response.cancel_reason).unwrap();
    }
    said
}

fn put(words: &[&str]) -> pb::PutRequest {
    let (key, value) = words[1].split_once('=').unwrap();
    pb::PutRequest {
        key: bytes(key),
        value: bytes(value),
        lease: number(words, "lease"),
        prev_kv: words.contains(&"prev"),
        ignore_value: words.contains(&"ignore_value"),
        ignore_lease: words.contains(&"ignore_lease"),
    }
}

fn range(words: &[&str]) -> pb::RangeRequest {
    use pb::range_request::{SortOrder, SortTarget};
    let (key, end) = interval(words[1]);
    let target = match option(words, "sort") {
        None | Some("key") => SortTarget::Key,
        Some("version") => SortTarget::Version,
        Some("create") => SortTarget::Create,
        Some("mod") => SortTarget::Mod,
        Some("value") => SortTarget::Value,
        Some(other) => panic!("unknown sort {other}"),
    };
    let order = match (words.contains(&"asc"), words.contains(&"desc")) {
        (true, _) => SortOrder::Ascend,
        (_, true) => SortOrder::Descend,
        _ => SortOrder::None,
    };
    pb::RangeRequest {
        key,
        range_end: end.unwrap_or_default(),
        limit: number(words, "limit"),
        revision: number(words, "at"),
        sort_order: order.into(),
        sort_target: target.into(),
        serializable: words.contains(&"serializable"),
        keys_only: words.contains(&"keys"),
        count_only: words.contains(&"count"),
        min_mod_revision: number(words, "min_mod"),
        max_mod_revision: number(words, "max_mod"),
        min_create_revision: number(words, "min_create"),
        max_create_revision: number(words, "max_create"),
    }
}

fn delete(words: &[&str]) -> pb::DeleteRangeRequest {
    let (key, end) = interval(words[1]);
    pb::DeleteRangeRequest { key, range_end: end.unwrap_or_default(), prev_kv: words.contains(&"prev") }
}

fn txn(words: &[&str]) -> pb::TxnRequest {
    let parts = split(words, &["if", "then", "else"]);
    let part = |index: usize| {
        let words = parts.get(index).copied().unwrap_or_default();
        split(words, &[","]).into_iter().filter(|words| !words.is_empty())
    };
    pb::TxnRequest {
        compare: part(1).map(compare).collect(),
        success: part(2).map(op).collect(),
        failure: part(3).map(op).collect(),
    }
}

fn op(words: &[&str]) -> pb::RequestOp {
    let request = match words {
        ["put", ..] => Request::RequestPut(put(words)),
        ["del", ..] => Request::RequestDeleteRange(delete(words)),
        ["range", ..] => Request::RequestRange(range(words)),
        ["(", nested @ .., ")"] => Request::RequestTxn(txn(nested)),
        ["nothing"] => return pb::RequestOp { request: None },
        _ => panic!("unknown operation {words:?}"),
    };
    pb::RequestOp { request: Some(request) }
}

/// Only whether a key is there: the conditions themselves are the engine scenarios' matter.
fn compare(words: &[&str]) -> pb::Compare {
    let [key, "=", version] = words else { panic!("{words:?}") };
    let target_union = Some(pb::compare::TargetUnion::Version(version.parse().unwrap()));
    pb::Compare { key: bytes(key), target_union, ..Default::default() }
}

fn put_answer(answer: &pb::PutResponse) -> String {
    let was = answer.prev_kv.as_ref().map_or(String::new(), |kv| format!(" was {}", key_value(kv)));
    format!("rev {}{was}", revision_of(&answer.header))
}

fn delete_answer(answer: &pb::DeleteRangeResponse) -> String {
    let was: Vec<_> = answer.prev_kvs.iter().map(|kv| format!(" was {}", key_value(kv))).collect();
    format!("deleted {} rev {}{}", answer.deleted, revision_of(&answer.header), was.concat())
}

fn range_answer(answer: &pb::RangeResponse) -> String {
    let mut said: String = answer.kvs.iter().map(|kv| format!("{} ", key_value(kv))).collect();
    write!(said, "of {}", answer.count).unwrap();
    said + if answer.more { " more" } else { "" }
}

fn txn_answer(answer: &pb::TxnResponse) -> String {
    let succeeded = if answer.succeeded { "yes" } else { "no" };
    let mut said = format!("{succeeded} rev {}", revision_of(&answer.header));
    for op in &answer.responses {
        said += ", ";
        said += &match op.response.as_ref().unwrap() {
            Response::ResponseRange(answer) => range_answer(answer),
            Response::ResponsePut(answer) => put_answer(answer),
            Response::ResponseDeleteRange(answer) => delete_answer(answer),
            Response::ResponseTxn(answer) => format!("( {} )", txn_answer(answer)),
        };
    }
    said
}

fn key_value(kv: &mvccpb::KeyValue) -> String {
    let lease = if kv.lease == 0 { String::new() } else { format!("+{}", kv.lease) };
    let (key, value) = (text(&kv.key), text(&kv.value));
    format!("{key}={value}@{}/{}/{}{lease}", kv.create_revision, kv.mod_revision, kv.version)
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn revision_of(header: &Option<pb::ResponseHeader>) -> i64 {
    header.as_ref().map_or(0, |header| header.revision)
}

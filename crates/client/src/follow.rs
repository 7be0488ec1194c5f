//! Lists, then watches, for as long as it takes: the one loop behind every cache. It knows no types and hands objects on as JSON,
//! so that it exists once however many types are followed.

use std::ops::ControlFlow;
use std::time::Duration;

use bytes::BytesMut;
use form_urlencoded::Serializer;
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use rand::Rng as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

/// The first pause after a failed list or watch, doubled up to [`RETRY_MAX`] until the server answers again.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(30);
const PAGE: u32 = 500;
/// The server ends a watch after this, and up to twice this; all of them at once would be a burst of new ones.
const WATCH_SECONDS: u32 = 300;
/// A page of the largest objects there can be, and a single one of them with room to spare.
const MAX_PAGE: usize = 1 << 30;
const MAX_EVENT: usize = 16 << 20;
const GONE: u16 = 410;
/// A watch that said nothing and ended sooner is one that does not work.
const AT_ONCE: Duration = Duration::from_secs(1);

/// What is followed.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// `/api/v1/pods`
    pub path: String,
    pub labels: String,
    pub fields: String,
    /// Names, owners and the like are enough.
    pub metadata_only: bool,
}

/// What is told: a list (again, after an interruption that lost the place), then single changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<T> {
    Begin,
    Listed(T),
    End,
    Applied(T),
    Deleted(T),
}

/// How a follower takes what it is told; it breaks off when it has seen enough.
pub type Follower<'a> = dyn FnMut(Event<&str>) -> ControlFlow<()> + Send + 'a;

#[derive(Debug, thiserror::Error)]
enum Interruption {
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("{message} ({code})")]
    Refused { code: u16, message: String },
    #[error(transparent)]
    Body(#[from] tower::BoxError),
    #[error("not understood: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("an event of more than {MAX_EVENT} bytes")]
    TooLarge,
    #[error("the watch ended at once")]
    Empty,
}

impl Interruption {
    /// What happened since is not known any more: only a list helps.
    fn lost_the_place(&self) -> bool {
        matches!(self, Self::Refused { code: GONE, .. })
    }
}

type Outcome<T> = Result<ControlFlow<(), T>, Interruption>;

#[derive(Deserialize)]
struct List<'a> {
    metadata: Meta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    resource_version: String,
    #[serde(rename = "continue")]
    rest: Option<String>,
}

#[derive(Deserialize)]
struct Object {
    metadata: Meta,
}

#[derive(Deserialize)]
struct WatchEvent<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: String,
}

/// Returns only when the follower breaks off.
pub async fn follow(client: &kube::Client, target: &Target, on: &mut Follower<'_>) {
    let mut retry = RETRY_MIN;
    let mut version: Option<String> = None;
    loop {
        let outcome = match &version {
            None => list(client, target, on).await,
            Some(from) => watch(client, target, from, on).await,
        };
        match outcome {
            Ok(ControlFlow::Break(())) => return,
            Ok(ControlFlow::Continue(reached)) => {
                version = Some(reached);
                retry = RETRY_MIN;
            }
            Err(error) => {
                tracing::debug!(path = target.path, %error, "list and watch interrupted");
                if error.lost_the_place() {
                    version = None;
                }
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(RETRY_MAX);
            }
        }
    }
}

/// Answers the version that was listed.
async fn list(client: &kube::Client, target: &Target, on: &mut Follower<'_>) -> Outcome<String> {
    let mut rest = String::new();
    loop {
        if rest.is_empty() && on(Event::Begin).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let query = target.query(&[("limit", &PAGE.to_string()), ("continue", &rest)]);
        let body = send(client, target, &query, "PartialObjectMetadataList").await?;
        let page = Limited::new(body, MAX_PAGE).collect().await?.to_bytes();
        let page: List<'_> = serde_json::from_slice(&page)?;
        for item in page.items.iter().flatten() {
            if on(Event::Listed(item.get())).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        rest = page.metadata.rest.unwrap_or_default();
        if rest.is_empty() {
            return Ok(on(Event::End).map_continue(|()| page.metadata.resource_version));
        }
    }
}

/// Answers the version that was reached when the server ended the watch.
async fn watch(client: &kube::Client, target: &Target, from: &str, on: &mut Follower<'_>) -> Outcome<String> {
    let seconds = WATCH_SECONDS + rand::rng().random_range(0..WATCH_SECONDS);
    let query = target.query(&[
        ("watch", "true"),
        ("allowWatchBookmarks", "true"),
        ("timeoutSeconds", &seconds.to_string()),
        ("resourceVersion", from),
    ]);
    let mut body = send(client, target, &query, "PartialObjectMetadata").await?;
    let begun = Instant::now();
    let mut version = None;
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let known = rest.len();
        rest.extend_from_slice(&data);
        let Some(end) = data.iter().rposition(|byte| *byte == b'\n') else {
            if rest.len() > MAX_EVENT {
                return Err(Interruption::TooLarge);
            }
            continue;
        };
        let whole = rest.split_to(known + end + 1);
        let mut newest = None;
        for line in whole.as_ref().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let event: WatchEvent<'_> = serde_json::from_slice(line)?;
            let object = event.object.get();
            let told = match event.r#type {
                "ADDED" | "MODIFIED" => on(Event::Applied(object)),
                "DELETED" => on(Event::Deleted(object)),
                "BOOKMARK" => ControlFlow::Continue(()),
                _ => return Err(refused(object)),
            };
            if told.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            newest = Some(object);
        }
        if let Some(object) = newest {
            version = Some(serde_json::from_str::<Object>(object)?.metadata.resource_version);
        }
    }
    match version {
        Some(version) => Ok(ControlFlow::Continue(version)),
        // Nothing happened for as long as the server keeps a watch.
        None if begun.elapsed() >= AT_ONCE => Ok(ControlFlow::Continue(from.to_owned())),
        // It is asked for again, but not in a hot loop.
        None => Err(Interruption::Empty),
    }
}

impl Target {
    /// The selectors and `more`, without what is empty.
    fn query(&self, more: &[(&str, &str)]) -> String {
        let selectors = [("labelSelector", self.labels.as_str()), ("fieldSelector", self.fields.as_str())];
        let said = more.iter().chain(&selectors).filter(|(_, value)| !value.is_empty());
        Serializer::new(String::new()).extend_pairs(said).finish()
    }
}

async fn send(client: &kube::Client, target: &Target, query: &str, partial: &str) -> Result<Body, Interruption> {
    let mut request = http::Request::get(format!("{}?{query}", target.path));
    if target.metadata_only {
        let accept = format!("application/json;as={partial};g=meta.k8s.io;v=v1");
        request = request.header(http::header::ACCEPT, accept);
    }
    let response = client.send(request.body(Body::empty())?).await?;
    let (code, body) = (response.status(), response.into_body());
    if code.is_success() {
        return Ok(body);
    }
    let told = Limited::new(body, MAX_EVENT).collect().await?.to_bytes();
    match refused(&String::from_utf8_lossy(&told)) {
        Interruption::Refused { message, .. } => Err(Interruption::Refused { code: code.as_u16(), message }),
        other => Err(other),
    }
}

/// What a Status says.
fn refused(status: &str) -> Interruption {
    let Status { code, message } = serde_json::from_str(status).unwrap_or_default();
    Interruption::Refused { code, message }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use http_body_util::StreamBody;
    use parking_lot::Mutex;

    use super::*;

    /// Answers each request with the next of `script` (the end of what is expected of its query, then its body in pieces),
    /// and tells what a follower hears until it heard `enough`.
    async fn told(script: &[(&'static str, u16, &[&'static str])], enough: &str) -> Vec<String> {
        let script: VecDeque<_> = script.iter().map(|(end, code, body)| (*end, *code, body.to_vec())).collect();
        let script = Arc::new(Mutex::new(script));
        let handler = move |request: http::Request<crate::Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let (end, code, body) = script.lock().pop_front().expect("no more requests");
            assert!(query.ends_with(end), "{query} does not end with {end}");
            let frames = body.into_iter().map(|piece| Ok::<_, tower::BoxError>(http_body::Frame::data(piece.into())));
            let body = StreamBody::new(futures::stream::iter(frames));
            async move { http::Response::builder().status(code).body(body).unwrap() }
        };
        let client = crate::in_process(handler, api::UserInfo::default());
        let target = Target { path: "/api/v1/pods".into(), labels: "a=b".into(), ..Target::default() };
        let mut told = Vec::new();
        let on = &mut |event: Event<&str>| {
            told.push(format!("{event:?}").replace("\\\"", "'"));
            if told.last().is_some_and(|last| last.contains(enough)) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        follow(&client, &target, on).await;
        told
    }

    #[tokio::test(start_paused = true)]
    async fn pages_are_one_list_and_events_may_come_in_pieces() {
        let heard = told(
            &[
                ("limit=500&labelSelector=a%3Db", 200, &[r#"{"metadata":{"continue":"x="},"items":[{"n":1}]}"#]),
                (
                    "continue=x%3D&labelSelector=a%3Db",
                    200,
                    &[r#"{"metadata":{"resourceVersion":"7"},"items":[{"n":2}]}"#],
                ),
                (
                    "resourceVersion=7&labelSelector=a%3Db",
                    200,
                    &[
                        "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"8\"}}}\n{\"type\":",
                        "\"DELETED\",\"object\":{\"metadata\":{\"resourceVersion\":\"9\"}}}\n",
                        "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"12\"}}}\n",
                    ],
                ),
                // The watch ended: it goes on where the bookmark was.
                (
                    "resourceVersion=12&labelSelector=a%3Db",
                    200,
                    &["{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"resourceVersion\":\"13\"}}}\n"],
                ),
            ],
            "13",
        )
        .await;
        let want = [
            "Begin",
            "Listed(\"{'n':1}\")",
            "Listed(\"{'n':2}\")",
            "End",
            "Applied(\"{'metadata':{'resourceVersion':'8'}}\")",
            "Deleted(\"{'metadata':{'resourceVersion':'9'}}\")",
            "Applied(\"{'metadata':{'resourceVersion':'13'}}\")",
        ];
        assert_eq!(heard, want);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_lost_place_leads_to_a_new_list() {
        let list: &[&str] = &[r#"{"metadata":{"resourceVersion":"7"},"items":null}"#];
        let from_7 = "resourceVersion=7&labelSelector=a%3Db";
        let heard = told(
            &[
                ("limit=500&labelSelector=a%3Db", 200, list),
                (from_7, 200, &[]),
                (from_7, 503, &["not even JSON"]),
                (from_7, 200, &["{\"type\":\"ERROR\",\"object\":{\"code\":500,\"message\":\"etcd\"}}\n"]),
                (from_7, 200, &["{\"type\":\"ERROR\",\"object\":{\"code\":410,\"message\":\"too old\"}}\n"]),
                ("limit=500&labelSelector=a%3Db", 200, list),
                (from_7, 410, &["{\"code\":410}"]),
                ("limit=500&labelSelector=a%3Db", 200, &[r#"{"metadata":{},"items":[{"last":1}]}"#]),
            ],
            "last",
        )
        .await;
        assert_eq!(heard, ["Begin", "End", "Begin", "End", "Begin", "Listed(\"{'last':1}\")"]);
    }

    /// However often nothing happens: a pause between two watches is a time in which a cache is old.
    #[tokio::test(start_paused = true)]
    async fn a_quiet_watch_that_ends_in_its_time_goes_on_at_once() {
        const WATCHES: usize = 30;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let times = asked.clone();
        let handler = move |request: http::Request<crate::Body>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let asked = asked.clone();
            async move {
                if !is_watch {
                    return http::Response::new(text(r#"{"metadata":{"resourceVersion":"7"}}"#));
                }
                let count = {
                    let mut asked = asked.lock();
                    asked.push(Instant::now());
                    asked.len()
                };
                let event = "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"8\"}}}\n";
                let quiet = futures::stream::once(async move {
                    tokio::time::sleep(Duration::from_secs(300)).await;
                    let said = if count == WATCHES { event } else { "" };
                    Ok::<_, tower::BoxError>(http_body::Frame::data(bytes::Bytes::from(said)))
                });
                http::Response::new(http_body_util::BodyExt::boxed_unsync(StreamBody::new(quiet)))
            }
        };
        let client = crate::in_process(handler, api::UserInfo::default());
        let on = &mut |event: Event<&str>| match event {
            Event::Applied(_) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        follow(&client, &Target { path: "/api/v1/pods".into(), ..Target::default() }, on).await;
        let times = times.lock();
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        assert_eq!(gaps.max(), Some(Duration::from_secs(300)));
    }

    fn text(said: &'static str) -> crate::Body {
        http_body_util::Full::from(said).map_err(|never| match never {}).boxed_unsync()
    }
}

//! WATCH: the changes of a resource as they happen, as one chunk per event.

use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderValue, Response, header};
use api::{ApiError, protobuf};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::list::Selection;
use super::{encode, options};
use crate::convert;
use crate::http::{Accept, Body, BoxError, Encoding, Form, stream};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::{ApiServer, store_error};
use crate::storage::{Change, EventType, Position, Snapshot, Stored, WatchError, frame};

/// Upstream closes watches after 30 to 60 minutes where the client does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How far a client may lag behind in its connection before the ring has to wait for it.
const CHUNKS_AHEAD: usize = 16;

struct Watcher {
    server: Arc<ApiServer>,
    served: Arc<Served>,
    selection: Selection,
    accept: Accept,
    include_object: Option<String>,
    out: mpsc::Sender<Result<Bytes, BoxError>>,
}

/// The client went away, or was told why its watch ends.
struct Ended;

pub(super) async fn answer(
    server: &Arc<ApiServer>,
    served: &Arc<Served>,
    context: &Context,
) -> Result<Response<Body>, ApiError> {
    let cache = served.cache.clone().ok_or_else(ApiError::no_such_resource)?;
    let accept = context.accept()?;
    options::check(&context.query, true)?;
    let selection = Selection::of(served, context)?;
    let query = &context.query;
    let bookmarks = query.flag("allowWatchBookmarks");
    let initial_events = query.get("sendInitialEvents").map(|value| value == "true");
    let asked = query.get("resourceVersion").unwrap_or_default();
    let from = match asked {
        "" | "0" => None,
        _ if initial_events == Some(true) => None,
        text => Some(options::revision(text).map_err(|why| ApiError::new(500, "", why))?),
    };
    if asked != "0" {
        server.feed.current().await.map_err(store_error)?;
    }
    let (out, receiver) = mpsc::channel(CHUNKS_AHEAD);
    let watcher = Watcher {
        server: server.clone(),
        served: served.clone(),
        selection,
        accept: accept.clone(),
        include_object: query.get("includeObject").map(ToOwned::to_owned),
        out,
    };
    // Before the snapshot: a change between the two follows as an event.
    let applied = server.feed.applied();
    let start = cache.watch_from(from);
    let timeout = query.number("timeoutSeconds").and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0);
    let timeout = timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let with_state = from.is_none() && initial_events != Some(false);
    let end_mark = initial_events == Some(true);
    let drain = server.drain.clone();
    tokio::spawn(async move {
        let work = async {
            match start {
                Ok((position, snapshot)) => {
                    if with_state {
                        watcher.send_state(&snapshot, applied, end_mark && bookmarks).await?;
                    }
                    watcher.follow(&cache, position, bookmarks).await
                }
                Err(error) => watcher.fail(&error).await,
            }
        };
        tokio::select! {
            Ended = async { match work.await { Ok(()) | Err(Ended) => Ended } } => (),
            () = tokio::time::sleep(timeout) => (),
            () = drain.cancelled() => (),
        }
    });
    let chunks = futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|chunk| (chunk, receiver))
    });
    let mut response = Response::new(stream(chunks));
    let content_type = match accept.encoding {
        Encoding::Yaml => "application/yaml;stream=watch",
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        Encoding::Json | Encoding::PrettyJson => "application/json",
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

impl Watcher {
    async fn send(&self, chunk: Bytes) -> Result<(), Ended> {
        self.out.send(Ok(chunk)).await.map_err(|_| Ended)
    }

    async fn send_state(&self, snapshot: &Snapshot, applied: i64, end_mark: bool) -> Result<(), Ended> {
        for stored in snapshot.objects.values().filter(|stored| self.selection.matches(stored)) {
            let chunk = match self.plain() {
                Some(Encoding::Protobuf) => self.sealed(EventType::Added, stored),
                Some(_) => frame(EventType::Added, stored),
                None => self.render(EventType::Added, stored),
            };
            self.send(chunk).await?;
        }
        if end_mark {
            self.bookmark(snapshot.revision.max(applied), true).await?;
        }
        Ok(())
    }

    async fn follow(
        &self,
        cache: &crate::storage::Cache,
        mut position: Position,
        bookmarks: bool,
    ) -> Result<(), Ended> {
        let mut told = self.server.feed.applied();
        let mut bookmark = tokio::time::interval_at(tokio::time::Instant::now() + BOOKMARK_EVERY, BOOKMARK_EVERY);
        loop {
            // Read before the changes are: what a bookmark covers has then been sent.
            let applied = self.server.feed.applied();
            let changes = tokio::select! {
                changes = cache.next(&mut position) => changes,
                () = self.out.closed() => return Err(Ended),
                _ = bookmark.tick(), if bookmarks => {
                    if applied > told && cache.is_at_end(position) {
                        told = applied;
                        self.bookmark(applied, false).await?;
                    }
                    continue;
                }
            };
            let changes = match changes {
                Ok(changes) => changes,
                Err(error) => return self.fail(&error).await,
            };
            for change in changes {
                told = told.max(change.revision);
                self.tell(&change).await?;
            }
        }
    }

    /// What this watcher sees of a change: an object that enters its selection is added, one that leaves is deleted.
    async fn tell(&self, change: &Change) -> Result<(), Ended> {
        let before = change.previous.as_ref().is_some_and(|previous| self.selection.matches(previous));
        let now = !change.deleted && self.selection.matches(&change.object);
        let kind = match (before, now) {
            (false, false) => return Ok(()),
            (false, true) => EventType::Added,
            (true, true) => EventType::Modified,
            (true, false) => EventType::Deleted,
        };
        let chunk = match self.plain() {
            Some(Encoding::Protobuf) => change.protobuf_frame(kind, || self.sealed(kind, &change.object)),
            Some(_) => change.frame(kind, &change.object),
            None => self.render(kind, &change.object),
        };
        self.send(chunk).await
    }

    /// Stored bytes can be sent as they are, in this encoding.
    fn plain(&self) -> Option<Encoding> {
        let is_plain = self.accept.form == Form::Whole
            && self.accept.encoding != Encoding::Yaml
            && self.served.is_storage_version();
        is_plain.then_some(self.accept.encoding)
    }

    /// An event in protobuf.
    fn sealed(&self, kind: EventType, stored: &Stored) -> Bytes {
        let (version, name) = (self.served.info.api_version(), &self.served.info.kind);
        match stored.message(&self.served.schema) {
            Ok(message) => protobuf::frame(kind.as_str(), &protobuf::seal(&version, name, &message)).into(),
            Err(error) => self.line("ERROR", &ApiError::internal(error).to_status()),
        }
    }

    /// An event whose object is a tree.
    fn line(&self, kind: &str, object: &Value) -> Bytes {
        if self.accept.encoding == Encoding::Protobuf
            && let Some(sealed) = protobuf::encode(object)
        {
            return protobuf::frame(kind, &sealed).into();
        }
        let mut bytes = serde_json::to_vec(&json!({"type": kind, "object": object})).unwrap_or_default();
        bytes.push(b'\n');
        bytes.into()
    }

    fn render(&self, kind: EventType, stored: &Stored) -> Bytes {
        let object = convert::from_storage(&self.served, stored.decode());
        let value = encode::shaped(&self.served, &self.accept, self.include_object.as_deref(), &object);
        self.line(kind.as_str(), &value)
    }

    async fn bookmark(&self, revision: i64, initial_events_end: bool) -> Result<(), Ended> {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if let (true, Some(map)) = (initial_events_end, metadata.as_object_mut()) {
            map.insert("annotations".into(), json!({"k8s.io/initial-events-end": "true"}));
        }
        let (kind, version) = (&self.served.info.kind, self.served.info.api_version());
        let mut object = json!({"kind": kind, "apiVersion": version, "metadata": metadata});
        if self.accept.form != Form::Whole
            && let Value::Object(bare) = object
        {
            object = encode::shaped(&self.served, &self.accept, self.include_object.as_deref(), &bare);
        }
        self.send(self.line("BOOKMARK", &object)).await
    }

    async fn fail(&self, error: &WatchError) -> Result<(), Ended> {
        let status = ApiError::expired(error.to_string()).to_status();
        self.send(self.line("ERROR", &status)).await
    }
}

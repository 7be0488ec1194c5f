//! WATCH: the changes of a resource as they happen; those that wait for the client go out as one chunk, and who asks the same is
//! answered with the same bytes.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::http::{HeaderValue, Response, header};
use api::{ApiError, Object, protobuf};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::list::Selection;
use super::{encode, options};
use crate::convert;
use crate::http::{Accept, Body, Encoding, Form, stream};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::{ApiServer, store_error};
use crate::storage::{Change, EventType, Place, Snapshot, Stored, WatchError, frame};
use crate::table;

/// Upstream closes watches after 30 to 60 minutes where the client does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// What a chunk holds of small events.
const CHUNK: usize = 32 << 10;
const COLUMNS: &[u8] = b"\"columnDefinitions\":";
const NO_COLUMNS: &[u8] = b"\"columnDefinitions\":null";
/// So many views are not worth a look for those that nobody has any more.
const FEW_VIEWS: usize = 64;

/// What those who ask the same see, and how they want to see it.
pub(crate) struct View {
    server: Arc<ApiServer>,
    served: Arc<Served>,
    selection: Selection,
    accept: Accept,
    include_object: Option<String>,
    recent: Mutex<Option<Seen>>,
}

/// All views of a resource that somebody has, by what was asked.
pub(crate) type Views = Mutex<HashMap<String, Weak<View>>>;

/// What is seen of the changes from one place in the ring to another.
#[derive(Clone)]
struct Seen {
    from: u64,
    to: u64,
    /// Who was told of more than this looks again.
    told: u64,
    revision: i64,
    /// Nothing, where none of them is selected.
    chunk: Option<Bytes>,
}

/// A watch as its connection pulls it, a chunk at a time: there is no task and no queue between the ring of changes and the
/// client, so one that does not read costs nothing but its place.
struct Session {
    view: Arc<View>,
    /// What there is at the beginning, the last first, with the revision it is of.
    state: Vec<Arc<Stored>>,
    /// The bookmark that ends the state, or the error that ends the watch.
    then: Option<Then>,
    place: Option<Place>,
    /// The columns of a table, until they have been told.
    columns: Option<Vec<u8>>,
    /// Up to here the client knows.
    told: i64,
    /// `None` where none are asked for.
    bookmarks: Option<Interval>,
    timeout: Pin<Box<Sleep>>,
    drain: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The definition of a custom resource changed, or went; built-in ones stay.
    retired: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

enum Then {
    Bookmark(i64),
    Fail(ApiError),
}

impl From<WatchError> for ApiError {
    fn from(error: WatchError) -> Self {
        Self::expired(error.to_string())
    }
}

pub(super) async fn answer(
    server: &Arc<ApiServer>,
    served: &Arc<Served>,
    context: &Context,
) -> Result<Response<Body>, ApiError> {
    let cache = served.cache.clone().ok_or_else(ApiError::no_such_resource)?;
    let accept = context.accept()?.streamed()?;
    options::check(&context.query, true)?;
    let selection = Selection::of(served, context)?;
    let include_object = encode::include_object(context, &accept)?;
    let query = &context.query;
    let bookmarks = query.flag("allowWatchBookmarks");
    let initial_events = query.get("sendInitialEvents").map(|value| value == "true");
    let asked = query.get("resourceVersion").unwrap_or_default();
    let from = match asked {
        "" | "0" => None,
        _ if initial_events == Some(true) => None,
        text => Some(options::revision(text).map_err(|why| ApiError::new(500, "", why))?),
    };
    let current = if asked == "0" { 0 } else { server.feed.current().await.map_err(store_error)? };
    let view = View::of(server, served, context, selection, &accept, include_object);
    // Before the snapshot: a change between the two follows as an event.
    let applied = server.feed.applied();
    let timeout = query.number("timeoutSeconds").and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0);
    let timeout = timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let mut session = Session {
        view,
        state: Vec::new(),
        then: None,
        place: None,
        columns: (accept.form == Form::Table).then(|| table::definitions(served).to_string().into_bytes()),
        told: applied,
        bookmarks: bookmarks.then(|| tokio::time::interval_at(Instant::now() + BOOKMARK_EVERY, BOOKMARK_EVERY)),
        timeout: Box::pin(tokio::time::sleep(timeout)),
        drain: Box::pin(server.drain.clone().cancelled_owned()),
        retired: served.custom().map(|_| Box::pin(served.retired.clone().cancelled_owned())),
    };
    match cache.watch_over(from, context.connection) {
        Ok((place, snapshot)) => {
            session.view.selection.check(&snapshot)?;
            if from.is_none() && initial_events != Some(false) {
                session.state = session.view.state(&snapshot);
                let is_marked = initial_events == Some(true) && bookmarks;
                session.then = is_marked.then(|| Then::Bookmark(snapshot.revision.max(applied)));
            }
            session.place = Some(place);
        }
        Err(error) => session.then = Some(Then::Fail(error.into())),
    }
    // What there is is to be at least that new, and it is not.
    let at_least = if initial_events == Some(true) { options::revision(asked).unwrap_or_default() } else { 0 };
    if at_least > current && asked != "0" {
        let error = options::too_large(at_least, current, 1);
        (session.state, session.then, session.place) = (Vec::new(), Some(Then::Fail(error)), None);
    }
    if accept.form == Form::PartialObjectMetadataList {
        // No event is a list, and upstream says no more.
        (session.state, session.then, session.place) = (Vec::new(), None, None);
    }
    let chunks = futures::stream::unfold(Box::new(session), |mut session| async move {
        let chunk = session.next().await?;
        Some((Ok(session.with_columns(chunk)), session))
    });
    let mut response = Response::new(stream(chunks));
    let content_type = match accept.encoding {
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        Encoding::Json | Encoding::PrettyJson | Encoding::Yaml => "application/json",
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

impl Session {
    /// Columns are described with the first row that is told, and never again.
    fn with_columns(&mut self, chunk: Bytes) -> Bytes {
        let Some(columns) = self.columns.as_deref() else { return chunk };
        let Some(at) = chunk.windows(NO_COLUMNS.len()).position(|part| part == NO_COLUMNS) else { return chunk };
        let (head, tail) = chunk.split_at(at);
        let chunk = [head, COLUMNS, columns, tail.get(NO_COLUMNS.len()..).unwrap_or_default()].concat().into();
        self.columns = None;
        chunk
    }

    /// The next events; `None` ends the watch.
    async fn next(&mut self) -> Option<Bytes> {
        let (mut events, mut size) = (Vec::new(), 0);
        while size < CHUNK
            && let Some(stored) = self.state.pop()
        {
            if self.view.selects(&stored).await {
                let event = self.view.added(&stored).await;
                size += event.len();
                events.push(event);
            }
        }
        if let Some(chunk) = joined(events) {
            return Some(chunk);
        }
        match self.then.take() {
            Some(Then::Bookmark(revision)) => return Some(self.view.bookmark(revision, true)),
            Some(Then::Fail(error)) => return Some(self.view.fail(&error)),
            None => (),
        }
        let place = self.place.as_mut()?;
        loop {
            // Who is behind is told at once, and asks what else there is to wait for only when there is nothing to tell.
            if !place.is_behind() || self.timeout.is_elapsed() {
                // Read before the changes are: what a bookmark covers has then been sent.
                let applied = self.view.server.feed.applied();
                let due = async {
                    match &mut self.bookmarks {
                        Some(bookmarks) => bookmarks.tick().await,
                        None => std::future::pending().await,
                    }
                };
                let retired = async {
                    match &mut self.retired {
                        Some(retired) => retired.await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = &mut self.timeout => return None,
                    () = &mut self.drain => return None,
                    () = retired => return None,
                    () = place.ready() => (),
                    _ = due => {
                        if applied > self.told && place.is_at_end() {
                            self.told = applied;
                            return Some(self.view.bookmark(applied, false));
                        }
                        continue;
                    }
                }
            }
            match self.view.look(place).await {
                Ok(seen) => {
                    self.told = self.told.max(seen.revision);
                    if seen.chunk.is_some() {
                        return seen.chunk;
                    }
                }
                Err(error) => {
                    let told = self.view.fail(&error.into());
                    self.place = None;
                    return Some(told);
                }
            }
        }
    }
}

/// Events that go out together. One alone is shared with all who watch, as it is.
fn joined(mut events: Vec<Bytes>) -> Option<Bytes> {
    match events.len() {
        0 | 1 => events.pop(),
        _ => Some(events.concat().into()),
    }
}

impl View {
    /// The view of whoever asked the same before, or a new one.
    fn of(
        server: &Arc<ApiServer>,
        served: &Arc<Served>,
        context: &Context,
        selection: Selection,
        accept: &Accept,
        include_object: Option<&str>,
    ) -> Arc<Self> {
        let query = &context.query;
        let selectors = [query.get("labelSelector"), query.get("fieldSelector")];
        let asked = format!("{:?}", (&selection.prefix, &context.info.name, selectors, accept, include_object));
        let mut views = served.views.lock();
        if let Some(view) = views.get(&asked).and_then(Weak::upgrade) {
            return view;
        }
        if views.len() >= FEW_VIEWS && views.len() == views.capacity() {
            views.retain(|_, view| view.strong_count() > 0);
        }
        let view = Arc::new(Self {
            server: server.clone(),
            served: served.clone(),
            selection,
            accept: *accept,
            include_object: include_object.map(ToOwned::to_owned),
            recent: Mutex::default(),
        });
        views.insert(asked, Arc::downgrade(&view));
        view
    }

    /// What there is to see from a place on, which moves past it. Others may have looked from there before.
    async fn look(self: &Arc<Self>, place: &mut Place) -> Result<Seen, WatchError> {
        let (from, told) = (place.position(), place.told());
        let recent = self.recent.lock().as_ref().filter(|seen| seen.from == from && told <= seen.told).cloned();
        if let Some(seen) = recent {
            place.skip_to(seen.to);
            return Ok(seen);
        }
        let changes = place.take()?;
        let mut events = Vec::new();
        for change in &changes {
            events.extend(self.seen(change).await);
        }
        let revision = changes.last().map_or(0, |change| change.revision);
        let to = place.position();
        let seen = Seen { from, to, told: told.max(to), revision, chunk: joined(events) };
        if Arc::strong_count(self) > 1 {
            *self.recent.lock() = Some(seen.clone());
        }
        Ok(seen)
    }

    /// What this watcher is shown of what there is, the last first.
    fn state(&self, snapshot: &Snapshot) -> Vec<Arc<Stored>> {
        let selected = snapshot.objects.values().filter(|stored| self.selection.matches(stored));
        let mut selected: Vec<_> = selected.cloned().collect();
        selected.reverse();
        selected
    }

    /// What cannot be converted is told to the watcher as an error, not kept from it.
    async fn selects(&self, stored: &Stored) -> bool {
        self.selection.matches(stored)
            && (!self.selection.is_converted()
                || Box::pin(self.selection.selects(&self.server, &self.served, stored)).await.unwrap_or(true))
    }

    async fn added(&self, stored: &Stored) -> Bytes {
        match self.plain(stored) {
            Some(Encoding::Protobuf) => self.sealed(EventType::Added, stored),
            Some(_) => frame(EventType::Added, stored),
            None => Box::pin(self.render(EventType::Added, stored)).await,
        }
    }

    /// What this watcher sees of a change: an object that enters its selection is added, one that leaves is deleted.
    async fn seen(&self, change: &Change) -> Option<Bytes> {
        let before = match &change.previous {
            Some(previous) => self.selects(previous).await,
            None => false,
        };
        let now = !change.deleted && self.selects(&change.object).await;
        let kind = match (before, now) {
            (false, false) => return None,
            (false, true) => EventType::Added,
            (true, true) => EventType::Modified,
            (true, false) => EventType::Deleted,
        };
        // What leaves the selection is told as it was while it was selected.
        let left = match &change.previous {
            Some(previous) if kind == EventType::Deleted && !change.deleted => Some(previous.at(change.revision)),
            _ => None,
        };
        let object = left.as_ref().unwrap_or(&change.object);
        Some(match self.plain(object) {
            Some(Encoding::Protobuf) => change.protobuf_frame(kind, || self.sealed(kind, object)),
            Some(_) => change.frame(kind, object),
            // A webhook may have to be asked. Few watches need this, so its state is not part of every one.
            None => Box::pin(self.render(kind, object)).await,
        })
    }

    /// Stored bytes can be sent as they are, in this encoding.
    fn plain(&self, stored: &Stored) -> Option<Encoding> {
        let is_plain = self.accept.form == Form::Whole
            && stored.is_plain
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

    async fn render(&self, kind: EventType, stored: &Stored) -> Bytes {
        let object = match convert::from_storage(&self.server, &self.served, stored).await {
            Ok(object) => object,
            Err(error) => return self.line("ERROR", &error.to_status()),
        };
        self.line(kind.as_str(), &self.shaped(&object))
    }

    /// Without columns: who shares the view may have been told of them.
    fn shaped(&self, object: &Object) -> Value {
        let mut value = encode::shaped(&self.served, &self.accept, self.include_object.as_deref(), object);
        if let (Form::Table, Some(map)) = (self.accept.form, value.as_object_mut()) {
            map.insert("columnDefinitions".into(), Value::Null);
        }
        value
    }

    fn bookmark(&self, revision: i64, initial_events_end: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if let (true, Some(map)) = (initial_events_end, metadata.as_object_mut()) {
            map.insert("annotations".into(), json!({"k8s.io/initial-events-end": "true"}));
        }
        let (kind, version) = (&self.served.info.kind, self.served.info.api_version());
        let mut object = json!({"kind": kind, "apiVersion": version, "metadata": metadata});
        if self.accept.form != Form::Whole
            && let Value::Object(bare) = object
        {
            object = self.shaped(&bare);
        }
        self.line("BOOKMARK", &object)
    }

    fn fail(&self, error: &ApiError) -> Bytes {
        self.line("ERROR", &error.to_status())
    }
}

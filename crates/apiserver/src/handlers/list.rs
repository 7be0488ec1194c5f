//! LIST: a consistent snapshot, selected and cut into pages.

mod fields;
mod token;

use std::collections::BTreeMap;
use std::sync::Arc;

use ::http::{Response, StatusCode};
use api::selector::{FieldSelector, Selector};
use api::{ApiError, Object};
use serde_json::{Value, json};

use self::token::Continue;
use super::{encode, options, splice};
use crate::convert;
use crate::custom::Conversion;
use crate::http::{Accept, Body, Encoding, Form, respond, respond_body};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::{ApiServer, store_error};
use crate::storage::{Snapshot, Stored};

/// So many objects take longer to decode than others should wait for.
const MANY: usize = 200;

/// What a list or watch selects.
#[derive(Clone)]
pub(super) struct Selection {
    /// `namespace/`; empty for all.
    pub(super) prefix: String,
    pub(super) labels: Selector,
    pub(super) fields: FieldSelector,
    /// Fields of a version that only a webhook can make of what is stored: they are looked at once it has.
    converted: FieldSelector,
}

impl Selection {
    pub(super) fn of(served: &Served, context: &Context) -> Result<Self, ApiError> {
        let labels = Selector::parse(context.query.get("labelSelector").unwrap_or_default());
        let labels = labels.map_err(|error| ApiError::bad_request(error.to_string()))?;
        let fields = FieldSelector::parse(context.query.get("fieldSelector").unwrap_or_default());
        let fields = fields.map_err(|error| ApiError::bad_request(error.to_string()))?;
        let mut fields = fields;
        if !context.info.name.is_empty() {
            // The old watch path names its object, and that is what was authorized.
            let (field, value) = ("metadata.name".to_owned(), context.info.name.clone());
            fields.0.push(api::selector::FieldRequirement { field, equals: true, value });
        }
        for requirement in &mut fields.0 {
            requirement.field = fields::stored(served, &requirement.field)?.into_owned();
        }
        let is_converted = !served.is_storage_version()
            && served.custom().is_some_and(|custom| matches!(custom.definition.conversion, Conversion::Webhook(..)));
        let is_late = |field: &str| is_converted && !field.starts_with("metadata.");
        let (converted, fields) = fields.0.into_iter().partition(|requirement| is_late(&requirement.field));
        let (converted, fields) = (FieldSelector(converted), FieldSelector(fields));
        let namespaced = served.info.namespaced && !context.info.namespace.is_empty();
        let prefix = if namespaced { format!("{}/", context.info.namespace) } else { String::new() };
        Ok(Self { prefix, labels, fields, converted })
    }

    /// An error where one of the objects it may select cannot be read.
    pub(super) fn check(&self, snapshot: &Snapshot) -> Result<(), ApiError> {
        match self.fields.exact("metadata.name") {
            Some(name) if !self.prefix.is_empty() => snapshot.check_key(&format!("{}{name}", self.prefix)),
            _ => snapshot.check_prefix(&self.prefix),
        }
    }

    pub(super) fn matches(&self, stored: &Stored) -> bool {
        stored.key.starts_with(&self.prefix)
            && self.labels.matches_by(|key| stored.label(key))
            && self.fields.matches(|field| stored.field(field))
    }

    /// The same, after conversion where it takes one.
    pub(super) async fn selects(&self, server: &ApiServer, served: &Served, stored: &Stored) -> Result<bool, ApiError> {
        if !self.matches(stored) {
            return Ok(false);
        }
        if !self.is_converted() {
            return Ok(true);
        }
        Ok(self.matches_converted(served, &convert::from_storage(server, served, stored).await?))
    }

    fn matches_converted(&self, served: &Served, object: &Object) -> bool {
        let Some(custom) = served.custom() else { return true };
        let value = Value::Object(object.clone());
        let texts: BTreeMap<&str, String> = custom.version().selectable_texts(&value).collect();
        self.converted.matches(|field| texts.get(field).map_or("", String::as_str))
    }

    pub(super) fn is_converted(&self) -> bool {
        !self.converted.is_everything()
    }

    fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything() && self.converted.is_everything()
    }
}

const TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new \
                       list without the continue parameter, or use the continue token in this response to retrieve the \
                       remainder of the results. Continuing with the provided token results in an inconsistent list - \
                       objects that were created, modified, or deleted between the time the first chunk was returned and \
                       now may show up in the list.";

pub(super) struct Page {
    revision: i64,
    pub(super) items: Vec<Arc<Stored>>,
    next: Option<String>,
    remaining: Option<usize>,
}

pub(super) async fn answer(
    server: &Arc<ApiServer>,
    served: &Arc<Served>,
    context: &Context,
) -> Result<Response<Body>, ApiError> {
    let accept = context.accept()?;
    options::check(&context.query, false)?;
    let selection = Selection::of(served, context)?;
    let limit = usize::try_from(context.query.number("limit").unwrap_or(0)).unwrap_or(0);
    let is_late = selection.is_converted();
    let page = page(server, served, context, &selection, if is_late { 0 } else { limit }).await?;
    let is_plain = || page.items.iter().all(|item| item.is_plain);
    if accept.form == Form::Whole && served.is_storage_version() && is_plain() {
        let meta = page_meta(served, &page);
        match accept.encoding {
            Encoding::Json => return Ok(respond_body(&accept, splice::json(served, &meta, page.items))),
            Encoding::Protobuf => {
                return Ok(respond_body(&accept, splice::protobuf(served, &meta, page.items).await?));
            }
            _ => (),
        }
    }
    if page.items.len() <= MANY {
        return shaped(server, served, context, &accept, &selection, page, limit).await;
    }
    let heavy = &server.heavy;
    let (server, served, context) = (server.clone(), served.clone(), context.clone());
    heavy.run(async move { shaped(&server, &served, &context, &accept, &selection, page, limit).await }).await
}

/// A list whose objects have to be decoded.
async fn shaped(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
    accept: &Accept,
    selection: &Selection,
    mut page: Page,
    limit: usize,
) -> Result<Response<Body>, ApiError> {
    let mut objects = convert::list_from_storage(server, served, page.items.iter().map(|stored| &**stored)).await?;
    if selection.is_converted() {
        let mut selected = objects.iter().map(|object| selection.matches_converted(served, object));
        page.items.retain(|_| selected.next().unwrap_or_default());
        objects.retain(|object| selection.matches_converted(served, object));
        page = cut(page.revision, page.items.into_iter(), limit, selection);
        objects.truncate(page.items.len());
    }
    let mut meta = page_meta(served, &page);
    if let (Form::Table, None, Some(meta)) = (accept.form, &page.next, meta.as_object_mut()) {
        meta.remove("continue");
    }
    let value = encode::list(served, context, accept, &objects, meta)?;
    Ok(respond(StatusCode::OK, accept, &value))
}

/// Of a whole list. That of custom resources says that nothing follows.
pub(super) fn list_meta(served: &Served, revision: i64) -> Value {
    let mut meta = json!({"resourceVersion": revision.to_string()});
    if let (true, Some(map)) = (served.custom().is_some(), meta.as_object_mut()) {
        map.insert("continue".into(), "".into());
    }
    meta
}

pub(super) fn page_meta(served: &Served, page: &Page) -> Value {
    let mut meta = list_meta(served, page.revision);
    if let (Some(next), Some(map)) = (&page.next, meta.as_object_mut()) {
        map.insert("continue".into(), next.clone().into());
        if let Some(remaining) = page.remaining {
            map.insert("remainingItemCount".into(), remaining.into());
        }
    }
    meta
}

pub(super) async fn page(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
    selection: &Selection,
    limit: usize,
) -> Result<Page, ApiError> {
    let cache = served.cache.as_ref().ok_or_else(ApiError::no_such_resource)?;
    if let Some(token) = context.query.get("continue") {
        let token = token::read(token)?;
        if context.query.get("resourceVersion").is_some_and(|version| version != "0") {
            return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
        }
        return continued(server, served, selection, token, limit).await;
    }
    let wanted = asked_revision(server, context).await?;
    let asked = context.query.get("resourceVersion").unwrap_or_default();
    // Whatever is at hand is given whole.
    let limit = if asked == "0" { 0 } else { limit };
    let exact = is_exact(context);
    if exact && wanted > 0 && wanted < server.feed.applied() {
        let items = at_revision(server, served, wanted, "").await?;
        return Ok(cut(wanted, items.into_iter().filter(|item| selection.matches(item)), limit, selection));
    }
    // In this order: a change between the two is then missing from both, and a watch from here brings it.
    let applied = server.feed.applied();
    let snapshot = cache.snapshot();
    let revision = snapshot.revision.max(applied);
    if let Some(name) = selection.fields.exact("metadata.name")
        && (!selection.prefix.is_empty() || !served.info.namespaced)
    {
        let key = format!("{}{name}", selection.prefix);
        snapshot.check_key(&key)?;
        let found = snapshot.objects.get(&*key).cloned();
        let items = found.into_iter().filter(|item| selection.matches(item)).collect();
        return Ok(Page { revision, items, next: None, remaining: None });
    }
    snapshot.check_prefix(&selection.prefix)?;
    let from: Arc<str> = selection.prefix.as_str().into();
    let items = snapshot
        .objects
        .range(from..)
        .take_while(|(key, _)| key.starts_with(&selection.prefix))
        .filter(|(_, item)| selection.matches(item))
        .map(|(_, item)| item.clone());
    Ok(cut(revision, items, limit, selection))
}

/// The revision a list is to be at least of, once it is reached.
pub(super) async fn asked_revision(server: &Arc<ApiServer>, context: &Context) -> Result<i64, ApiError> {
    let asked = context.query.get("resourceVersion").unwrap_or_default();
    let refuse = |why| ApiError::bad_request(format!("invalid resource version: {why}"));
    let wanted = if asked.is_empty() { 0 } else { options::revision(asked).map_err(refuse)? };
    if asked != "0" {
        let current = server.feed.current().await.map_err(store_error)?;
        if wanted > current {
            return Err(options::too_large(wanted, current, if is_exact(context) { 0 } else { 1 }));
        }
    }
    Ok(wanted)
}

/// A page of a version is of just that version, unless it is said otherwise.
fn is_exact(context: &Context) -> bool {
    match context.query.get("resourceVersionMatch") {
        Some(found) => found == "Exact",
        None => context.query.number("limit").is_some_and(|limit| limit > 0),
    }
}

/// Takes one page and, where more follows, says where.
fn cut(revision: i64, mut items: impl Iterator<Item = Arc<Stored>>, limit: usize, selection: &Selection) -> Page {
    if limit == 0 {
        return Page { revision, items: items.collect(), next: None, remaining: None };
    }
    let page: Vec<_> = items.by_ref().take(limit).collect();
    let rest = items.count();
    let next = (rest > 0).then(|| page.last().map(|last| Continue::after(revision, &last.key).encode())).flatten();
    // Upstream counts what remains only where nothing is filtered away.
    let remaining = selection.is_everything().then_some(rest);
    Page { revision, items: page, next, remaining }
}

async fn continued(
    server: &Arc<ApiServer>,
    served: &Served,
    selection: &Selection,
    token: Continue,
    limit: usize,
) -> Result<Page, ApiError> {
    let current = server.feed.current().await.map_err(store_error)?;
    // A client that was told to may go on with the list as it is now.
    let revision = if token.rv < 0 { current } else { token.rv };
    if revision > current {
        return Err(options::too_large(revision, current, 0));
    }
    let items = match at_revision(server, served, revision, &token.start).await {
        Err(error) if error.code == 410 => {
            let next = token.without_revision();
            return Err(ApiError { resume: Some(next.encode().into()), ..ApiError::expired(TOO_OLD) });
        }
        items => items?,
    };
    Ok(cut(revision, items.into_iter().filter(|item| selection.matches(item)), limit, selection))
}

/// The objects from `start` on, as they were.
async fn at_revision(
    server: &Arc<ApiServer>,
    served: &Served,
    revision: i64,
    start: &str,
) -> Result<Vec<Arc<Stored>>, ApiError> {
    let cache = served.cache.as_ref().ok_or_else(ApiError::no_such_resource)?;
    let from = format!("{}{start}", cache.prefix);
    let mut end = cache.prefix.clone().into_bytes();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    let range = store::Range { start: from.into(), end: Some(end.into()), revision, ..store::Range::default() };
    let found = server.store().range(range).await.map_err(store_error)?;
    let mut items = Vec::with_capacity(found.kvs.len());
    for kv in found.kvs {
        let key = String::from_utf8_lossy(&kv.key);
        let key = key.strip_prefix(&cache.prefix).unwrap_or_default();
        items.push(Arc::new(
            cache.decode(key, kv.mod_revision, &kv.value).map_err(|unreadable| ApiError::from(&unreadable))?,
        ));
    }
    Ok(items)
}

//! The way of a request: who is it, may they, and what does the path lead to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use api::field::FieldError;
use api::{ApiError, UserInfo};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::body::Body as _;
use parking_lot::Mutex;
use serde_json::json;
use tracing::Instrument as _;

use crate::aggregator::{described, proxy};
use crate::audit::ClientAddress;
use crate::auth::settings::parse_duration;
use crate::http::{
    Accept, Body, Offer, Query, Verbatim, add_warnings, again, gzip, held, page_not_found, respond_error, respond_text,
};
use crate::listener::Shared;
use crate::request_info::{RequestInfo, decode_path};
use crate::server::ApiServer;
use crate::{
    audit, auth, debug, discovery, field_manager, flowcontrol, handlers, health, heavy, metrics, openapi, routes,
    statusz, streaming,
};

/// Everything about a request but its body. Copies share what is noted about it.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) info: RequestInfo,
    pub(crate) user: UserInfo,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    /// The connection it came on, where that carries others, too.
    pub(crate) connection: Option<u64>,
    /// Who sent it, whomever they act as.
    pub(crate) real_user: UserInfo,
    /// They may not act as they want to.
    pub(crate) refused: Option<ApiError>,
    /// Why it was allowed, once it was.
    pub(crate) decision: Option<String>,
    /// What it was matched with: the identities of a flow schema and of a priority level.
    pub(crate) flow: Option<(HeaderValue, HeaderValue)>,
    notes: Arc<Notes>,
}

/// What is noted about a request while it is answered.
#[derive(Default)]
struct Notes {
    is_served: AtomicBool,
    is_unsniffable: AtomicBool,
    has_no_protobuf: AtomicBool,
    logs_requests: AtomicBool,
    warnings: Mutex<Vec<String>>,
    annotations: Mutex<BTreeMap<String, String>>,
}

impl Context {
    pub(crate) fn new(info: RequestInfo, user: UserInfo, query: Query, headers: HeaderMap) -> Self {
        Self {
            info,
            user,
            query,
            headers,
            connection: None,
            real_user: UserInfo::default(),
            refused: None,
            decision: None,
            flow: None,
            notes: Arc::default(),
        }
    }

    /// The path leads to something, or not; only what does is worth a metric of its own.
    pub(crate) fn set_served(&self, is_served: bool) {
        self.notes.is_served.store(is_served, Ordering::Relaxed);
    }

    /// The answer must not be taken for anything but what it says it is.
    pub(crate) fn forbid_sniffing(&self, is_forbidden: bool) {
        self.notes.is_unsniffable.store(is_forbidden, Ordering::Relaxed);
    }

    /// What is sent is logged with it.
    pub(crate) fn log_requests(&self, logs_requests: bool) {
        self.notes.logs_requests.store(logs_requests, Ordering::Relaxed);
    }

    /// Tells the client something without failing.
    pub(crate) fn warn(&self, warning: String) {
        self.notes.warnings.lock().push(warning);
    }

    /// Tells the audit log something.
    pub(crate) fn annotate(&self, key: String, value: impl Into<String>) {
        self.notes.annotations.lock().insert(key, value.into());
    }

    /// The same of what was sent, where the log is to have that.
    pub(crate) fn annotate_request(&self, key: String, value: impl FnOnce() -> String) {
        if self.notes.logs_requests.load(Ordering::Relaxed) {
            self.annotate(key, value());
        }
    }

    pub(crate) fn annotations(&self) -> BTreeMap<String, String> {
        self.notes.annotations.lock().clone()
    }

    pub(crate) fn accept(&self) -> Result<Accept, ApiError> {
        let is_custom = self.notes.has_no_protobuf.load(Ordering::Relaxed);
        Accept::of(&self.headers, &self.query, if is_custom { Offer::Custom } else { Offer::Resource })
    }

    /// Checks what a write asks for beside its object; tells whether it is only a rehearsal. `kind` is the options' kind.
    pub(crate) fn dry_run(&self, kind: &str) -> Result<bool, ApiError> {
        self.dry_run_after(kind, None)
    }

    /// The same, with what is wrong with the options already: all of it is told at once.
    pub(crate) fn dry_run_after(&self, kind: &str, wrong: Option<FieldError>) -> Result<bool, ApiError> {
        const STRICTNESS: [&str; 4] = ["", "Ignore", "Strict", "Warn"];
        let asked: Vec<&str> = self.query.all("dryRun").collect();
        let mut errors = Vec::from_iter(wrong);
        errors.extend(field_manager::problems(self));
        if asked.iter().any(|value| *value != "All") {
            errors.push(FieldError::not_supported("dryRun", json!(asked), &["All"]));
        }
        if let Some(strictness) = self.query.get("fieldValidation").filter(|value| !STRICTNESS.contains(value)) {
            errors.push(FieldError::not_supported("fieldValidation", strictness, &STRICTNESS));
        }
        match errors.is_empty() {
            true => Ok(!asked.is_empty()),
            false => Err(ApiError::invalid("meta.k8s.io", kind, "", &errors)),
        }
    }
}

/// 400 for a path with a malformed escape, in the words of Go's server.
fn malformed_path() -> Response<Body> {
    respond_text(StatusCode::BAD_REQUEST, "400 Bad Request")
}

/// 500 for a path from which no RequestInfo can be built, as upstream.
fn of_nothing(path: &str) -> Response<Body> {
    let why = format!("unable to determine kind and namespace from url, {path}");
    let text = format!("Internal Server Error: {path:?}: failed to create RequestInfo: {why}\n");
    respond_text(StatusCode::INTERNAL_SERVER_ERROR, text)
}

impl ApiServer {
    /// Answers one request. Within the process, the caller vouches for the user it puts into the extensions.
    pub fn handle(self: &Arc<Self>, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        let span = tracing::debug_span!("request", method = %request.method(), path = %request.uri().path());
        self.clone().answer(request).instrument(span).boxed()
    }

    async fn answer(self: Arc<Self>, request: Request<Body>) -> Response<Body> {
        let page = self.config.cors.check(request.headers());
        if let Some(response) = page.as_ref().and_then(|page| page.preflight(request.method())) {
            return response;
        }
        let is_remote = request.extensions().get::<ClientAddress>().is_some();
        let query = Query::parse(request.uri().query());
        let selected = query.get("fieldSelector").and_then(|text| api::selector::FieldSelector::parse(text).ok());
        let Some(path) = decode_path(request.uri().path()) else { return malformed_path() };
        let info = RequestInfo::new(request.method(), &path, query.flag("watch"), selected);
        if info.is_of_nothing() {
            return of_nothing(&info.path);
        }
        let under_way = self.metrics.begin(&info);
        let mut context = Context::new(info, UserInfo::default(), query, request.headers().clone());
        context.connection = request.extensions().get().map(|Shared(connection)| *connection);
        let answered = match check_timeout(&context) {
            Ok(()) => self.authenticated(&mut context, request).await,
            Err(error) => Err(error),
        };
        let mut response = match answered {
            Ok(response) => finished(&context, response),
            Err(error) => {
                tracing::debug!(code = error.code, message = %error.message, "request failed");
                let mut response = respond_error(&error, &context.headers, &context.query);
                add_warnings(&mut response, &context.notes.warnings.lock());
                if context.notes.is_unsniffable.load(Ordering::Relaxed) {
                    let plain = HeaderValue::from_static("nosniff");
                    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, plain);
                }
                response
            }
        };
        if context.notes.is_served.load(Ordering::Relaxed) {
            let (code, size) = (response.status().as_u16(), response.body().size_hint().exact());
            self.metrics.observe(&context.info, &context.query, code, under_way.took(), size);
        }
        // Who answered for this server says itself how it was let in.
        let is_own = response.extensions().get::<Verbatim>().is_none();
        if is_own && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let caching = response.headers_mut().entry("cache-control");
            caching.or_insert(HeaderValue::from_static("no-cache, private"));
        }
        if is_own && is_remote {
            response.headers_mut().entry(audit::ID).or_insert_with(|| audit::id(&context.headers));
        }
        if let Some((schema, level)) = context.flow.take().filter(|_| is_own) {
            response.headers_mut().insert("x-kubernetes-pf-flowschema-uid", schema);
            response.headers_mut().insert("x-kubernetes-pf-prioritylevel-uid", level);
        }
        if let Some(page) = page {
            page.add(response.headers_mut());
        }
        if context.info.is_long_running() { response.map(|body| held(body, under_way)) } else { response }
    }

    async fn authenticated(
        self: &Arc<Self>,
        context: &mut Context,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let audit = self.config.audit.as_ref();
        let known = request.extensions();
        let outcome = auth::authenticate(self, known, request.headers(), &context.info.path).await;
        match (outcome, audit) {
            (Ok(user), audit) => {
                // Nothing behind authentication reads a credential, and nothing may pass one on.
                let front_proxy = &self.authenticator.request_header;
                auth::remove_credentials(request.headers_mut(), front_proxy);
                auth::remove_credentials(&mut context.headers, front_proxy);
                match auth::impersonate(self, &user, &context.headers).await {
                    Ok(acting) => context.user = acting,
                    Err(refused) => (context.user, context.refused) = (user.clone(), Some(refused)),
                }
                context.real_user = user;
                match audit {
                    Some(audit) => self.perform_audited(audit, context, request).await,
                    None => self.perform(context, request).await,
                }
            }
            (Err(error), audit) => {
                if let Some(audit) = audit {
                    audit.unauthenticated(context, request, &error).await;
                }
                Err(error)
            }
        }
    }

    /// What is asked, if they may.
    pub(crate) async fn perform(
        self: &Arc<Self>,
        context: &mut Context,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let seat = match self.admit(context).await {
            Ok(seat) => seat,
            Err(refusal) => return Ok(refusal),
        };
        auth::authorize_request(self, context).await?;
        let response = self.allowed(context, request).await?;
        Ok(self.keep_seat(context, response, seat))
    }

    /// What is asked, by one who may.
    pub(crate) async fn allowed(
        self: &Arc<Self>,
        context: &Context,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let routed = self.route(context, request);
        if context.info.is_long_running() {
            return routed.await;
        }
        let late = |_| ApiError::new(504, "Timeout", "Timeout: request did not complete within the allotted timeout");
        let allotted = context.query.get("timeout").and_then(parse_duration).filter(|asked| !asked.is_zero());
        let limit = self.config.request_timeout;
        let allotted = allotted.map_or(limit, |asked| asked.min(limit));
        tokio::time::timeout(allotted, routed).await.map_err(late)?
    }

    /// What is not of a resource.
    async fn route_plain(
        self: &Arc<Self>,
        context: &Context,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let (path, method) = (context.info.path.as_str(), request.method());
        let path = match path.strip_suffix('/') {
            Some(bare @ (auth::discovery::CONFIGURATION | auth::discovery::KEYS)) => bare,
            _ => path,
        };
        let response = match path {
            "/metrics" => metrics::answer(self, method),
            "/metrics/slis" => self.health.metrics(),
            "/statusz" => statusz::answer(self, context)?,
            "/version" | "/version/" => {
                routes::check_read(method, &context.headers, &["application/json"])?;
                health::version()
            }
            debug::VERBOSITY => match debug::answer(self, request).await {
                Some(answer) => answer?,
                None => return Ok(page_not_found()),
            },
            _ if debug::is_asked(self, path) => debug::index(),
            _ if health::is_check(path) => match health::answer(self, context).await {
                Some(answer) => answer,
                None => return Ok(page_not_found()),
            },
            auth::discovery::CONFIGURATION => {
                routes::check_read(method, &context.headers, &["application/json"])?;
                auth::discovery::answer(self, path)?
            }
            auth::discovery::KEYS => {
                routes::check_read(method, &context.headers, &["application/jwk-set+json"])?;
                auth::discovery::answer(self, path)?
            }
            _ if openapi::is_asked(path) => openapi::answer(self, context).await?,
            _ if path.starts_with(flowcontrol::dump::PATH) => {
                return Ok(flowcontrol::dump::answer(&self.flow, path, &context.query));
            }
            "/" | "/index.html" | "/api" | "/apis" => discovery::answer(self, context, method)?,
            _ if path.starts_with("/api/") || path.starts_with("/apis/") => discovery::answer(self, context, method)?,
            _ => return Ok(page_not_found()),
        };
        context.set_served(true);
        Ok(response)
    }

    async fn route(self: &Arc<Self>, context: &Context, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let path = context.info.path.as_str();
        if path.starts_with("//") {
            return Ok(page_not_found());
        }
        if let Some(remote) = self.aggregator.find(path) {
            return Ok(proxy::forward(self, &remote, path, &context.user, request).await);
        }
        if !context.info.is_resource {
            if let Some(remote) = path.strip_prefix("/openapi/v3").and_then(|path| self.aggregator.find(path)) {
                return Ok(proxy::forward(self, &remote, path, &described::reader(), request).await);
            }
            return self.route_plain(context, request).await;
        }
        let info = &context.info;
        let Some(served) = self.find(&info.group, &info.version, &info.resource) else {
            let known = info.group.is_empty() || self.registry.has_group(&info.group);
            return if known { Err(ApiError::no_such_resource()) } else { Ok(page_not_found()) };
        };
        if info.subresource.is_empty() || served.info.has_subresource(&info.subresource) {
            context.set_served(true);
        }
        match served.custom() {
            Some(custom) => {
                context.notes.has_no_protobuf.store(true, Ordering::Relaxed);
                custom.version().warning.iter().for_each(|warning| context.warn(warning.clone()));
                if handlers::check_scope(&served, info).is_err() {
                    return Ok(page_not_found());
                }
            }
            None => {
                routes::check(&served, info, request.method(), &context.headers)?;
                if let Some(warning) = &served.warning {
                    context.warn(warning.clone());
                    self.metrics.deprecated(info);
                }
            }
        }
        handlers::check_name(info)?;
        if streaming::is_stream(&served, info) {
            return streaming::answer(self, &served, context, request).await;
        }
        if info.verb == "watch" && handlers::websocket::is_asked(&context.headers) {
            return handlers::websocket::answer(self, &served, context, request).await;
        }
        let body = request.into_body();
        if !heavy::may_be_heavy(body.size_hint().upper()) {
            return Box::pin(handlers::answer(self, &served, context, body)).await;
        }
        let bytes = crate::http::read(body).await?;
        if !heavy::is_heavy(&context.headers, &bytes) {
            // Its state is large, and everything around it would be moved with it.
            return Box::pin(handlers::answer(self, &served, context, again(bytes))).await;
        }
        let (server, context) = (self.clone(), context.clone());
        let answer = async move { handlers::answer(&server, &served, &context, again(bytes)).await };
        self.heavy.run(answer).await
    }
}

/// How long a client wants to wait for what does not go on for long.
fn check_timeout(context: &Context) -> Result<(), ApiError> {
    match context.query.get("timeout").filter(|_| !context.info.is_long_running()) {
        Some(text) if parse_duration(text.trim_start_matches(['-', '+'])).is_none() && text != "0" => {
            let is_bare = text.trim_start_matches(['-', '+']).parse::<f64>().is_ok();
            let wrong = if is_bare { "missing unit in" } else { "invalid" };
            let why = format!("invalid timeout specified in the request URL - time: {wrong} duration {text:?}");
            Err(ApiError::bad_request(why))
        }
        _ => Ok(()),
    }
}

/// What every answer has but errors.
fn finished(context: &Context, mut response: Response<Body>) -> Response<Body> {
    let is_own = response.extensions().get::<Verbatim>().is_none();
    if is_own && !context.info.is_long_running() && gzip::is_accepted(&context.headers) {
        response = gzip::compress(response);
    }
    add_warnings(&mut response, &context.notes.warnings.lock());
    response
}

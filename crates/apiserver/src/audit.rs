//! The audit log: who asked for what, and what they got, one line of `audit.k8s.io/v1` JSON per stage of a request.
//!
//! [`Policy`] decides what is worth a line, [`Event`] says it, [`Log`] writes it. A request is answered once its line is
//! written: what was answered is logged.

mod event;
mod log;
mod policy;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use ::http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use api::{ApiError, UserInfo};
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use self::event::Event;
pub use self::log::AuditLog;
use self::log::Log;
use self::policy::{Level, Policy};
use crate::auth;
use crate::http::{Body, again, decode_any, full, held, read, respond_error};
use crate::pipeline::Context;
use crate::server::ApiServer;

/// Why nothing can be logged.
/// What a request is called where it is told of.
pub(crate) const ID: HeaderName = HeaderName::from_static("audit-id");

/// The name its sender gave it, or one of its own.
pub(crate) fn id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(ID).filter(|id| !id.is_empty());
    let random = || uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string();
    given.cloned().unwrap_or_else(|| HeaderValue::try_from(random()).unwrap_or(HeaderValue::from_static("")))
}

#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("the audit policy cannot be read: {0}")]
    Policy(String),
    #[error("the audit log cannot be opened")]
    Log(#[from] std::io::Error),
}

/// Who sent a request, as the network has it; put into the extensions by the listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress(pub(crate) std::net::IpAddr);

pub struct Audit {
    policy: Policy,
    log: Log,
}

impl Audit {
    /// `policy` is the text of a policy file.
    pub fn new(policy: &str, log: AuditLog) -> Result<Self, AuditError> {
        Ok(Self { policy: Policy::parse(policy)?, log: Log::open(log)? })
    }

    /// Those who cannot say who they are get a line of their own: nothing else will tell of them.
    pub(crate) async fn unauthenticated(&self, context: &Context, request: Request<Body>, error: &ApiError) {
        let event = self.begin(context, &request, None);
        drop(request);
        if let Some(event) = event {
            let message = "Authentication failed, attempted: bearer";
            let status = json!({"metadata": {}, "status": "Failure", "message": message, "reason": error.reason, "code": error.code});
            self.store(&event, "ResponseStarted", Some(status), None).await;
        }
    }

    fn begin(&self, context: &Context, request: &Request<Body>, real: Option<&UserInfo>) -> Option<Event> {
        let rule = self.policy.rule(real.unwrap_or(&context.user), &context.info);
        (rule.level != Level::None).then(|| Event::new(rule, context, request, real))
    }

    async fn store(&self, event: &Event, stage: &'static str, status: Option<Value>, object: Option<Value>) {
        if !event.omits(stage) {
            self.log.write(event.line(stage, status, object)).await;
        }
    }
}

impl ApiServer {
    /// Performs a request whose stages are logged, if the policy asks for it.
    pub(crate) async fn perform_audited(
        self: &Arc<Self>,
        audit: &Arc<Audit>,
        context: &mut Context,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        // Impersonation must show who it really was.
        let Some(mut event) = audit.begin(context, &request, Some(&context.real_user)) else {
            return self.perform(context, request).await;
        };
        let long_running = context.info.is_long_running();
        audit.store(&event, "RequestReceived", None, None).await;
        let outcome = AssertUnwindSafe(self.recorded(&mut event, context, request)).catch_unwind().await;
        event.set_decision(context.decision.as_deref(), context.annotations());
        let result = match outcome {
            Ok(result) => result,
            Err(panic) => {
                let status = json!({"metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500, "message": "APIServer panic'd"});
                audit.store(&event, "Panic", Some(status), None).await;
                std::panic::resume_unwind(panic);
            }
        };
        let (mut response, status, mut object) = match result {
            Err(error) => {
                let whole = error.to_status();
                let response = respond_error(&error, &context.headers, &context.query);
                (response, event::bare_status(whole.clone()), Some(whole))
            }
            Ok(response) => {
                let code = response.status().as_u16();
                (response, json!({"metadata": {}, "code": code}), None)
            }
        };
        if let Ok(id) = event.id().parse() {
            response.headers_mut().insert("audit-id", id);
        }
        if long_running {
            audit.store(&event, "ResponseStarted", Some(status.clone()), None).await;
            let ending = Ending { audit: audit.clone(), event: Some((event, status)) };
            return Ok(response.map(|body| held(body, ending)));
        }
        if event.level() == Level::RequestResponse && object.is_none() {
            let (parts, body) = response.into_parts();
            response = match body.collect().await {
                Ok(body) => {
                    let bytes = body.to_bytes();
                    object = decode_any(&parts.headers, &bytes);
                    Response::from_parts(parts, full(bytes))
                }
                Err(error) => respond_error(&ApiError::internal(error), &context.headers, &context.query),
            };
        }
        audit.store(&event, "ResponseComplete", Some(status), object).await;
        Ok(response)
    }

    /// Performs it, and keeps what was sent; what they may not do is not even read.
    async fn recorded(
        self: &Arc<Self>,
        event: &mut Event,
        context: &mut Context,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let seat = match self.admit(context).await {
            Ok(seat) => seat,
            Err(refusal) => return Ok(refusal),
        };
        auth::authorize_request(self, context).await?;
        context.log_requests(event.level() >= Level::Request);
        let names_itself = context.info.verb == "create" && context.info.name.is_empty();
        if !context.info.is_long_running() && (event.level() >= Level::Request || names_itself) {
            let (parts, body) = request.into_parts();
            let bytes = read(body).await?;
            event.set_request(decode_any(&parts.headers, &bytes));
            request = Request::from_parts(parts, again(bytes));
        }
        let response = self.allowed(context, request).await?;
        Ok(self.keep_seat(context, response, seat))
    }
}

/// Tells of the end of a watch or stream once its body is dropped.
struct Ending {
    audit: Arc<Audit>,
    event: Option<(Event, Value)>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        const STAGE: &str = "ResponseComplete";
        if let Some((event, status)) = self.event.take().filter(|(event, _)| !event.omits(STAGE)) {
            self.audit.log.write_later(event.line(STAGE, Some(status), None));
        }
    }
}

//! `/healthz`, `/livez`, `/readyz` with each check named, and `/version`.

use std::sync::Arc;
use std::time::Duration;

use ::http::{Response, StatusCode};
use api::ApiError;
use serde_json::json;

use crate::http::{Body, respond, respond_bytes};
use crate::pipeline::Context;
use crate::server::ApiServer;

/// Upstream's.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
const CHECKS: [&str; 4] = ["ping", "log", "etcd", "informer-sync"];
/// Only where values are encrypted by others, or may come to be.
const KMS: &str = "kms-providers";
pub(crate) const VERSION: &str = "v1.36.4";

/// `/readyz/etcd`: one check by its name.
pub(crate) fn is_check(path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    matches!((parts.next(), parts.next(), parts.next()), (Some("healthz" | "livez" | "readyz"), Some(name), None) if CHECKS.contains(&name) || matches!(name, "shutdown" | KMS))
}

pub(crate) async fn answer(server: &Arc<ApiServer>, context: &Context) -> Result<Response<Body>, ApiError> {
    let path = context.info.path.trim_end_matches('/');
    if path == "/version" {
        return Ok(respond(StatusCode::OK, &context.accept()?, &version()));
    }
    let mut parts = path.trim_matches('/').splitn(2, '/');
    let (endpoint, single) = (parts.next().unwrap_or_default(), parts.next());
    let excluded: Vec<&str> = context.query.all("exclude").collect();
    let mut lines = String::new();
    let mut failed = false;
    let ready_only = (endpoint == "readyz").then_some("shutdown");
    let encrypting = server.encryption.as_ref().is_some_and(|encryption| encryption.has_check()).then_some(KMS);
    for name in CHECKS.into_iter().chain(encrypting).chain(ready_only) {
        if single.is_some_and(|wanted| wanted != name) {
            continue;
        }
        if excluded.contains(&name) {
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        let passes = check(server, name).await;
        failed |= !passes;
        lines.push_str(&if passes {
            format!("[+]{name} ok\n")
        } else {
            format!("[-]{name} failed: reason withheld\n")
        });
    }
    let verdict = if failed { "failed" } else { "passed" };
    let body = match (failed, context.query.flag("verbose")) {
        (false, false) => "ok".to_owned(),
        _ => format!("{lines}{endpoint} check {verdict}\n"),
    };
    let status = if failed { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
    Ok(respond_bytes(status, "text/plain; charset=utf-8", body))
}

async fn check(server: &ApiServer, name: &str) -> bool {
    match name {
        // Whoever cannot reach the store should not be sent requests.
        "etcd" => store_answers(server).await,
        // Nothing is served before the store has been read.
        "informer-sync" => server.feed.applied() > 0,
        KMS => match &server.encryption {
            Some(encryption) => encryption.check().await,
            None => true,
        },
        "shutdown" => !server.drain.is_cancelled(),
        _ => true,
    }
}

pub(crate) async fn store_answers(server: &ApiServer) -> bool {
    matches!(tokio::time::timeout(STORE_TIMEOUT, server.store().revision()).await, Ok(Ok(_)))
}

fn version() -> serde_json::Value {
    json!({
        "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35", "gitVersion": VERSION, "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "ferry", "compiler": "rustc", "platform": "linux/amd64",
    })
}

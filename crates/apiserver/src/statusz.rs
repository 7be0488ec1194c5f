//! `/statusz`: what runs here, since when; as text for people, or as an object.

use ::http::{HeaderValue, Response, StatusCode, header};
use api::ApiError;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::health::VERSION;
use crate::http::{Accept, Body, Encoding, PageForm, page_form, respond, respond_bytes};
use crate::pipeline::Context;
use crate::server::ApiServer;

const PATHS: [&str; 6] = ["/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"];

const KIND: &str = "Statusz";
const HEAD: &str = "\napiserver statusz\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
                    compatibility guarantees and is for debugging purposes only.\n";

pub(crate) fn answer(server: &ApiServer, context: &Context) -> Result<Response<Body>, ApiError> {
    let (encoding, version) = match page_form(&context.headers, KIND) {
        None => {
            let why = "only the following media types are accepted: application/json, application/yaml, text/plain";
            return Err(ApiError::not_acceptable(why));
        }
        Some(PageForm::Text) => {
            let text = HEAD.to_owned() + &lines(server, Timestamp::now());
            return Ok(respond_bytes(StatusCode::OK, "text/plain; charset=utf-8", text));
        }
        Some(PageForm::Object(encoding, version)) => (encoding, version),
    };
    let mut object = status(server, Timestamp::now());
    if let Some(map) = object.as_object_mut() {
        map.insert("kind".into(), KIND.into());
        map.insert("apiVersion".into(), format!("config.k8s.io/{version}").into());
        map.insert("metadata".into(), json!({"name": "apiserver"}));
    }
    if version == "v1alpha1" {
        context.warn("This version of the statusz endpoint is deprecated. Please use a newer version.".to_owned());
    }
    let mut response = respond(StatusCode::OK, &Accept { encoding, ..Accept::default() }, &object);
    let media = if encoding == Encoding::Yaml { "yaml" } else { "json" };
    let told = HeaderValue::from_str(&format!("application/{media};g=config.k8s.io;v={version};as={KIND}"));
    response.headers_mut().insert(header::CONTENT_TYPE, told.map_err(ApiError::internal)?);
    Ok(response)
}

fn status(server: &ApiServer, now: Timestamp) -> Value {
    json!({
        "startTime": server.begun.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "uptimeSeconds": now.duration_since(server.begun).as_secs(),
        "goVersion": "ferry", "binaryVersion": VERSION.trim_start_matches('v'), "emulationVersion": "1.36", "paths": PATHS,
    })
}

fn lines(server: &ApiServer, now: Timestamp) -> String {
    let up = now.duration_since(server.begun).as_secs();
    format!(
        "\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: ferry\nBinary version: {}\nEmulation version: 1.36\nPaths: {}\n",
        server.begun.strftime("%a %b %e %H:%M:%S UTC %Y"),
        up / 3600,
        up / 60 % 60,
        up % 60,
        VERSION.trim_start_matches('v'),
        PATHS.join(" ")
    )
}

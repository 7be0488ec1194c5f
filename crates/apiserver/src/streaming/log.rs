//! The log of a container, as its kubelet tells it.

use ::http::{HeaderValue, Request, Response, StatusCode, header};
use api::field::FieldError;
use api::status::Details;
use api::{ApiError, ObjectExt as _};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use jiff::Timestamp;

use super::connect;
use super::target::{self, Target, Way, escape, unexplained};
use crate::http::{Body, Query, full};
use crate::outbound;
use crate::pipeline::Context;
use crate::server::ApiServer;

/// More of what a kubelet says instead of a log is not told.
const MAX_COMPLAINT: usize = 50_000;

/// `PodLogOptions`, as a query says them.
#[derive(Debug)]
struct Options {
    tail_lines: Option<i64>,
    limit_bytes: Option<i64>,
    since_seconds: Option<i64>,
    since_time: Option<Timestamp>,
    /// Only one of both outputs, for which there is a feature that is off.
    has_stream: bool,
    flags: Vec<&'static str>,
    way: Way,
}

impl Options {
    fn read(query: &Query) -> Result<Self, ApiError> {
        let number = |name: &str| {
            let Some(text) = query.all(name).next() else { return Ok(None) };
            let why = match text.parse::<i64>() {
                Ok(number) => return Ok(Some(number)),
                Err(error) => match error.kind() {
                    std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => "value out of range",
                    _ => "invalid syntax",
                },
            };
            Err(ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}")))
        };
        let time = |text: &str| {
            text.parse::<Timestamp>().map_err(|_| {
                let layout = "2006-01-02T15:04:05Z07:00";
                ApiError::bad_request(format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\""))
            })
        };
        let flags = ["follow", "previous", "timestamps"].into_iter().filter(|flag| query.flag(flag));
        Ok(Self {
            tail_lines: number("tailLines")?,
            limit_bytes: number("limitBytes")?,
            since_seconds: number("sinceSeconds")?,
            since_time: query.get("sinceTime").map(time).transpose()?,
            has_stream: query.all("stream").next().is_some(),
            flags: flags.collect(),
            way: if query.flag("insecureSkipTLSVerifyBackend") { Way::UnverifiedKubelet } else { Way::Kubelet },
        })
    }

    fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if let Some(lines @ ..0) = self.tail_lines {
            errors.push(FieldError::invalid("tailLines", lines, "must be greater than or equal to 0"));
        }
        if let Some(bytes @ ..1) = self.limit_bytes {
            errors.push(FieldError::invalid("limitBytes", bytes, "must be greater than 0"));
        }
        match (self.since_seconds, self.since_time) {
            (Some(_), Some(_)) => {
                errors
                    .push(FieldError::forbidden("[]", "at most one of `sinceTime` or `sinceSeconds` may be specified"));
            }
            (Some(seconds @ ..1), None) => {
                errors.push(FieldError::invalid("sinceSeconds", seconds, "must be greater than 0"));
            }
            _ => (),
        }
        if self.has_stream {
            errors.push(FieldError::forbidden("stream", "may not be specified"));
        }
        errors
    }

    /// As the kubelet is asked: by name.
    fn query(&self) -> String {
        let mut pairs: Vec<(&str, String)> = self.flags.iter().map(|flag| (*flag, "true".to_owned())).collect();
        let numbers =
            [("limitBytes", self.limit_bytes), ("sinceSeconds", self.since_seconds), ("tailLines", self.tail_lines)];
        pairs.extend(numbers.into_iter().filter_map(|(name, number)| Some((name, number?.to_string()))));
        pairs.extend(
            self.since_time.map(|time| ("sinceTime", escape(&time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()))),
        );
        pairs.sort();
        let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
    }
}

pub(super) async fn answer(server: &ApiServer, context: &Context) -> Result<Response<Body>, ApiError> {
    let info = &context.info;
    let options = Options::read(&context.query)?;
    let errors = options.check();
    if !errors.is_empty() {
        return Err(ApiError::invalid("", "PodLogOptions", &info.name, &errors));
    }
    let pod = target::find_pod(server, &info.namespace, &info.name)?;
    let container = target::container(&pod, context.query.get("container"))?;
    let node = pod.text(&["spec", "nodeName"]);
    if node.is_empty() {
        let mut nothing = Response::new(full(Bytes::new()));
        *nothing.status_mut() = StatusCode::NO_CONTENT;
        return Ok(nothing);
    }
    let (host, port) = target::kubelet(server, node, "pods")?;
    let path = format!("/containerLogs/{}/{}/{container}{}", info.namespace, info.name, options.query());
    let target = Target { host, address: None, port, way: options.way, path_and_query: path };
    tell(server, &target, &info.name).await
}

async fn tell(server: &ApiServer, target: &Target, pod: &str) -> Result<Response<Body>, ApiError> {
    let authority = target.authority();
    let request = Request::get(&target.path_and_query).header(header::HOST, &authority).body(full(Bytes::new()));
    let request = request.map_err(ApiError::internal)?;
    let answer = connect::send(&server.config.kubelet, target, request).await;
    let answer = answer
        .map_err(|error| unexplained(format!("Get \"https://{authority}{}\": {}", target.path_and_query, error)))?;
    if !matches!(answer.status().as_u16(), 200..=206) {
        let status = answer.status();
        let complaint = Limited::new(answer.into_body(), MAX_COMPLAINT).collect().await.map_err(ApiError::internal)?;
        return Err(refusal(status, &String::from_utf8_lossy(&complaint.to_bytes()), pod));
    }
    let mut response = Response::new(connect::boxed(answer.into_body()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

/// What a kubelet refused with, in the words of the API.
fn refusal(status: StatusCode, said: &str, pod: &str) -> ApiError {
    let reason = match status.as_u16() {
        500 => return ApiError::internal(said),
        400 => return ApiError::bad_request(said),
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        501.. => "InternalError",
        _ => "",
    };
    let message = format!("{} ( pods/log {pod})", outbound::unexpected(status, said));
    let details = Details { kind: "pods/log".into(), name: pod.to_owned(), ..Details::default() };
    ApiError::new(status.as_u16(), reason, message).with(details)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_is_asked_for_what_was_asked_for() {
        check("", Ok(""));
        check("follow=&previous=false&timestamps=no&bogus=1", Ok("?follow=true&timestamps=true"));
        check("tailLines=0&limitBytes=10&sinceSeconds=7", Ok("?limitBytes=10&sinceSeconds=7&tailLines=0"));
        check("sinceTime=2024-01-01T00:00:00.5%2B02:00", Ok("?sinceTime=2023-12-31T22%3A00%3A00Z"));
        check("tailLines=-1", Err("tailLines: Invalid value: -1: must be greater than or equal to 0"));
        check("limitBytes=0", Err("limitBytes: Invalid value: 0: must be greater than 0"));
        check("sinceSeconds=0", Err("sinceSeconds: Invalid value: 0: must be greater than 0"));
        check(
            "sinceSeconds=1&sinceTime=2024-01-01T00:00:00Z",
            Err("[]: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"),
        );
        check("stream=", Err("stream: Forbidden: may not be specified"));
        check("tailLines=", Err("strconv.ParseInt: parsing \"\": invalid syntax"));
        check(
            "sinceSeconds=99999999999999999999",
            Err("strconv.ParseInt: parsing \"99999999999999999999\": value out of range"),
        );
        check(
            "sinceTime=bad",
            Err("parsing time \"bad\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"bad\" as \"2006\""),
        );
    }

    #[track_caller]
    fn check(query: &str, want: Result<&str, &str>) {
        let read = Options::read(&Query::parse(Some(query))).map_err(|error| error.message);
        let told = read.and_then(|options| match options.check().first() {
            Some(error) => Err(error.to_string()),
            None => Ok(options.query()),
        });
        assert_eq!(told, want.map(str::to_owned).map_err(str::to_owned), "{query}");
    }

    #[test]
    fn what_a_kubelet_refuses_with_is_told_as_upstream_tells_it() {
        for (code, reason, message) in [
            (400, "BadRequest", "no"),
            (403, "Forbidden", "no ( pods/log web)"),
            (404, "NotFound", "the server could not find the requested resource ( pods/log web)"),
            (500, "InternalError", "Internal error occurred: no"),
            (
                302,
                "",
                "the server responded with the status code 302 but did not return more information ( pods/log web)",
            ),
        ] {
            let error = refusal(StatusCode::from_u16(code).unwrap(), "no", "web");
            assert_eq!((error.code, error.reason, error.message.as_str()), (code, reason, message));
        }
    }
}

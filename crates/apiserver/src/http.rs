//! Bodies, queries and content negotiation.

mod accept;
mod decode;
pub(crate) mod gzip;
mod turns;
mod warnings;

use std::num::IntErrorKind;
use std::time::{Duration, Instant};

use api::ApiError;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Body as _, Frame};
use serde_json::Value;

pub(crate) use self::accept::{Accept, Encoding, Form, Offer, PROTOBUF, PageForm, check_produced, page_form};
pub(crate) use self::decode::{check_type, decode_any, decode_bare, decode_tracked, yaml, yaml_tracked};
pub(crate) use self::turns::{CHUNK, in_turns};
pub(crate) use self::warnings::add_warnings;
use crate::heavy::give_way;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Requests in and responses out, over TCP or within the process.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Upstream's limit on what a client may send.
const MAX_BODY: usize = 3 << 20;
/// Then it is others' turn: a large body that is all there would keep a worker for milliseconds.
const READ_AT_ONCE: usize = 64 << 10;
const MAX_DISCARDED: usize = 8 << 20;
/// Between parts of a body that is too large anyway: nobody waits for it but who sent it.
const DISCARDING: Duration = Duration::from_millis(2);
/// Whoever gives way and is back before this was alone.
const WANTED: Duration = Duration::from_micros(50);
/// Between parts of a large body where others want the processors: they are many and ask for little.
const BUSY: Duration = Duration::from_millis(1);
/// What is kept free for a body because it is announced; announcing costs nothing.
const MAX_AHEAD: usize = 64 << 10;

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    let bytes = bytes.into();
    if bytes.len() > CHUNK {
        return turns::whole_in_turns(bytes);
    }
    again(bytes)
}

/// A body that has been read, to be read again.
pub(crate) fn again(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn stream<S>(chunks: S) -> Body
where
    S: Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
{
    StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data))).boxed_unsync()
}

/// A body that keeps something until it is dropped.
struct Held<T> {
    body: Body,
    _kept: T,
}

impl<T: Unpin> hyper::body::Body for Held<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        std::pin::Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

pub(crate) fn held<T: Unpin + Send + 'static>(body: Body, kept: T) -> Body {
    Held { body, _kept: kept }.boxed_unsync()
}

/// The whole body, up to the limit.
pub(crate) async fn read(mut body: Body) -> Result<Bytes, ApiError> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let (mut bytes, mut size) = (BytesMut::new(), 0);
    let mut since_others = 0;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| ApiError::bad_request(format!("the request body could not be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        size += data.len();
        if size == data.len() && size <= MAX_BODY && body.is_end_stream() {
            return Ok(data);
        }
        since_others += data.len();
        if since_others > READ_AT_ONCE {
            since_others = 0;
            let begun = Instant::now();
            give_way().await;
            if size.max(announced) > MAX_BODY {
                tokio::time::sleep(DISCARDING).await;
            } else if begun.elapsed() > WANTED {
                tokio::time::sleep(BUSY).await;
            }
        }
        // A little more is heard out, so that the client hears why it is refused instead of finding the connection closed.
        if size > MAX_DISCARDED {
            break;
        }
        if size <= MAX_BODY && announced <= MAX_BODY {
            // Whoever sends this much means it: the rest gets its place at once, not twice as much again and again.
            let believed = if size > MAX_AHEAD { announced } else { announced.min(MAX_AHEAD) };
            bytes.reserve(believed.saturating_sub(bytes.len()).max(data.len()));
            bytes.extend_from_slice(&data);
        }
    }
    if size > MAX_BODY {
        return Err(ApiError::too_large(format!("Request entity too large: limit is {MAX_BODY}")));
    }
    Ok(bytes.freeze())
}

/// The decoded query string.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Self {
        // What cannot be read is as if it were not there.
        let is_read = |pair: &&str| !pair.is_empty() && !pair.contains(';') && has_whole_escapes(pair);
        let pairs = query.unwrap_or_default().split('&').filter(is_read);
        Self(
            pairs
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (percent_decode(key), percent_decode(value))
                })
                .collect(),
        )
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str()).filter(|v| !v.is_empty())
    }

    /// What the first of this name says, if only that it is there.
    pub(crate) fn first(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    pub(crate) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Anything but `false` and `0` is true, even nothing.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.first(key).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    pub(crate) fn number(&self, key: &str) -> Option<i64> {
        self.get(key)?.parse().ok()
    }
}

/// A number in a query.
pub(crate) fn parse_int(text: &str) -> Result<i64, ApiError> {
    text.parse().map_err(|error: std::num::ParseIntError| {
        let why = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
    })
}

/// Two hexadecimal digits come after every percent sign.
pub(crate) fn has_whole_escapes(text: &str) -> bool {
    let mut parts = text.split('%').skip(1);
    parts.all(|part| part.get(..2).is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit())))
}

pub(crate) fn percent_decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let mut ahead = bytes.clone();
                let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
                match (digit(ahead.next()), digit(ahead.next())) {
                    (Some(high), Some(low)) => {
                        out.push(u8::try_from(high * 16 + low).unwrap_or_default());
                        bytes = ahead;
                    }
                    _ => out.push(b'%'),
                }
            }
            other => out.push(other),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A value as the client asked for it; as JSON where its kind has no protobuf form.
pub(crate) fn respond(status: StatusCode, accept: &Accept, value: &Value) -> Response<Body> {
    let bytes = match accept.encoding {
        Encoding::Protobuf => match api::protobuf::encode(value) {
            Some(bytes) => bytes,
            None => return respond(status, &Accept::default(), value),
        },
        Encoding::Json => {
            let mut bytes = serde_json::to_vec(value).unwrap_or_default();
            bytes.push(b'\n');
            bytes
        }
        Encoding::PrettyJson => serde_json::to_vec_pretty(value).unwrap_or_default(),
        Encoding::Yaml => serde_saphyr::to_string(value).unwrap_or_default().into_bytes(),
    };
    respond_bytes(status, accept.content_type(), bytes)
}

/// What is no object, in lines, whatever the client says.
pub(crate) fn respond_lines(status: StatusCode, value: &Value) -> Response<Body> {
    respond_bytes(status, "application/json", serde_json::to_vec_pretty(value).unwrap_or_default())
}

pub(crate) fn respond_bytes(status: StatusCode, content_type: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(crate) fn respond_body(accept: &Accept, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(accept.content_type()));
    response
}

/// A failure, as lines where the client takes none of what failures are told in.
pub(crate) fn respond_error(error: &ApiError, headers: &HeaderMap, query: &Query) -> Response<Body> {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let as_lines = Accept { encoding: Encoding::PrettyJson, ..Accept::default() };
    let accept = Accept::negotiate(headers, query, Offer::Plain).unwrap_or(as_lines);
    let mut response = respond(status, &accept, &error.to_status());
    let retry_after = error.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if retry_after > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry_after));
    }
    response
}

/// An answer that is passed on as it came.
#[derive(Clone, Copy)]
pub(crate) struct Verbatim;

/// A path that nothing is behind, not even a group: told as Go's servers do.
pub(crate) fn page_not_found() -> Response<Body> {
    respond_text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Plain words, as Go's servers say them.
pub(crate) fn respond_text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = respond_bytes(status, "text/plain; charset=utf-8", text);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

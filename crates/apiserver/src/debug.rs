//! `/debug/flags/v`: how much is logged, changed while the server runs.

use ::http::{HeaderValue, Method, Response, StatusCode, header};
use api::ApiError;

use crate::http::{Body, read, respond_bytes};
use crate::server::ApiServer;

pub(crate) const VERBOSITY: &str = "/debug/flags/v";
const FLAGS: &str = "/debug/flags";

/// The page above it.
pub(crate) fn is_asked(server: &ApiServer, path: &str) -> bool {
    let below = path.strip_prefix(FLAGS);
    server.config.set_verbosity.is_some() && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub(crate) fn index() -> Response<Body> {
    const PAGE: &str = "<html>\n<head>\n<title>/debug/flags/</title>\n</head>\n<body>\n/debug/flags/<br>\n<br>\nflags:<br>\n\
                        <table>\n<tr>v<br>\n</table>\n<br>\nfull flags configurable<br>\n</body>\n</html>\n";
    respond_bytes(StatusCode::OK, "text/html; charset=utf-8", PAGE)
}

/// Changes how much is logged, to what `--v` would have said.
pub type SetVerbosity = fn(u8);

/// `None` where nothing can be changed.
pub(crate) async fn answer(
    server: &ApiServer,
    request: ::http::Request<Body>,
) -> Option<Result<Response<Body>, ApiError>> {
    let set = server.config.set_verbosity?;
    if request.method() != Method::PUT {
        return Some(Ok(said(StatusCode::NOT_ACCEPTABLE, "unsupported http method")));
    }
    let body = match read(request.into_body()).await {
        Ok(body) => body,
        Err(error) => return Some(Err(error)),
    };
    let text = String::from_utf8_lossy(&body);
    Some(Ok(match text.parse::<u32>() {
        Ok(level) => {
            set(u8::try_from(level).unwrap_or(u8::MAX));
            said(StatusCode::OK, &format!("successfully set klog.logging.verbosity to {level}"))
        }
        Err(_) => said(StatusCode::BAD_REQUEST, &format!("strconv.ParseUint: parsing {text:?}: invalid syntax")),
    }))
}

fn said(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = respond_bytes(status, "text/plain", format!("{text}\n"));
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

//! Swagger UI over the documents of this server: `kubectl proxy`, then `/openapi/ui/` in a browser.

use std::io::Read as _;

use ::http::{HeaderValue, Response, StatusCode, header};
use api::ApiError;

use crate::http::{Body, gzip, respond_bytes};
use crate::pipeline::Context;

const SCRIPT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui-bundle.gz"));
const STYLE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui.gz"));
const PAGE: &str = include_str!("ui.html");

pub(super) fn answer(context: &Context, file: &str) -> Result<Response<Body>, ApiError> {
    let (content_type, packed) = match file.trim_matches('/') {
        // What the page refers to stands below it.
        "" if !context.info.path.ends_with('/') => {
            let mut response = respond_bytes(StatusCode::MOVED_PERMANENTLY, "text/plain", "");
            response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("ui/"));
            return Ok(response);
        }
        "" => return Ok(respond_bytes(StatusCode::OK, "text/html; charset=utf-8", PAGE)),
        "swagger-ui-bundle.js" => ("text/javascript; charset=utf-8", SCRIPT),
        "swagger-ui.css" => ("text/css; charset=utf-8", STYLE),
        _ => return Err(ApiError::no_such_resource()),
    };
    let mut response = if gzip::is_accepted(&context.headers) {
        let mut response = respond_bytes(StatusCode::OK, content_type, packed);
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
    } else {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(packed).read_to_end(&mut plain).map_err(ApiError::internal)?;
        respond_bytes(StatusCode::OK, content_type, plain)
    };
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=86400"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_what_they_are_called() {
        let check = |packed: &[u8], wanted: &str| {
            let mut text = String::new();
            flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
            assert!(text.contains(wanted), "no {wanted} in {} bytes", text.len());
        };
        check(SCRIPT, "SwaggerUIBundle");
        check(STYLE, ".swagger-ui");
    }
}

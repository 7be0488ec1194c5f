//! Large answers, compressed for clients that accept it.

use std::io::Write as _;

use bytes::{Buf as _, Bytes};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;

use super::{Body, BoxError, stream};

/// Upstream's threshold: less is not worth the work.
const THRESHOLD: u64 = 128 << 10;
/// Compressed at a time, so that others get their turn in between.
const SLICE: usize = super::CHUNK;

pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|token| token.trim() == "gzip")
}

/// Compresses the body as it is sent, if it is large or nobody knows how large.
pub(crate) fn compress(response: Response<Body>) -> Response<Body> {
    let hint = response.body().size_hint();
    let is_small = hint.exact().is_some_and(|size| size <= THRESHOLD);
    if is_small || response.headers().contains_key(header::CONTENT_ENCODING) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    parts.headers.remove(header::CONTENT_LENGTH);
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let state = State { body, encoder: Some(encoder), waiting: Bytes::new() };
    Response::from_parts(parts, stream(futures::stream::unfold(state, State::next)))
}

struct State {
    body: Body,
    /// `None` once all has been sent.
    encoder: Option<GzEncoder<Vec<u8>>>,
    waiting: Bytes,
}

impl State {
    async fn next(mut self) -> Option<(Result<Bytes, BoxError>, Self)> {
        let mut encoder = self.encoder.take()?;
        loop {
            if self.waiting.is_empty() {
                match self.body.frame().await {
                    Some(Ok(frame)) => self.waiting = frame.into_data().unwrap_or_default(),
                    Some(Err(error)) => return Some((Err(error), self)),
                    None => return Some((encoder.finish().map(Bytes::from).map_err(Into::into), self)),
                }
            }
            let slice = self.waiting.split_to(self.waiting.remaining().min(SLICE));
            if let Err(error) = encoder.write_all(&slice) {
                return Some((Err(error.into()), self));
            }
            let out = std::mem::take(encoder.get_mut());
            if !out.is_empty() {
                self.encoder = Some(encoder);
                return Some((Ok(out.into()), self));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::full;
    use std::io::Read as _;

    #[test]
    fn only_clients_that_say_so_get_it() {
        for (value, want) in
            [("gzip", true), ("deflate, gzip", true), ("gzip;q=0", false), ("identity", false), ("", false)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(value));
            assert_eq!(is_accepted(&headers), want, "{value}");
        }
    }

    #[tokio::test]
    async fn large_bodies_shrink_and_small_ones_stay() {
        let large: Vec<u8> = (0..1_000_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let response = compress(Response::new(full(large.clone())));
        assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
        let packed = response.into_body().collect().await.unwrap().to_bytes();
        let mut back = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut back).unwrap();
        assert!(back == large && packed.len() < large.len() / 2, "{}", packed.len());
        let small = compress(Response::new(full(vec![0; 128 << 10])));
        assert!(small.headers().get(header::CONTENT_ENCODING).is_none());
    }
}

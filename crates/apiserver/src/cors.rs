//! Answers to browsers that ask whether a page of another origin may use the API.

mod pattern;

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};

use self::pattern::Pattern;
pub use self::pattern::PatternError;
use crate::http::{Body, full};

/// The origins that may; by default none.
#[derive(Debug, Default)]
pub struct Cors(Vec<Pattern>);

/// An origin a browser sent that is allowed: what is added to the answer.
pub(crate) struct Allowed(HeaderValue);

impl Cors {
    /// `patterns` are regular expressions, each pinned to where the host begins and ends: else `example.com` would allow
    /// `example.com.attacker.net`.
    pub fn new(patterns: &[String]) -> Result<Self, PatternError> {
        let compile = |text: &String| {
            let starts = ["^", "//"].iter().any(|mark| text.contains(mark));
            let ends = ["$", ":"].iter().any(|mark| text.contains(mark));
            if starts && ends { Pattern::new(text) } else { Err(PatternError::Unpinned(text.clone())) }
        };
        patterns.iter().map(compile).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn check(&self, headers: &HeaderMap) -> Option<Allowed> {
        if self.0.is_empty() {
            return None;
        }
        let origin = headers.get(header::ORIGIN)?;
        let text = origin.to_str().ok()?;
        self.0.iter().any(|pattern| pattern.matches(text)).then(|| Allowed(origin.clone()))
    }
}

impl Allowed {
    /// A question before the request itself is answered without looking any further.
    pub(crate) fn preflight(&self, method: &Method) -> Option<Response<Body>> {
        if method != Method::OPTIONS {
            return None;
        }
        let mut response = Response::new(full(""));
        *response.status_mut() = StatusCode::NO_CONTENT;
        self.add(response.headers_mut());
        Some(response)
    }

    pub(crate) fn add(&self, headers: &mut HeaderMap) {
        const METHODS: &str = "POST, GET, OPTIONS, PUT, DELETE, PATCH";
        const HEADERS: &str = "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since";
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS),
            (header::ACCESS_CONTROL_EXPOSE_HEADERS, "Date"),
            (header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
}

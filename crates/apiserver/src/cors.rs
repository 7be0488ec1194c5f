//! Answers to browsers that ask whether a page of another origin may use the API.

use api::structural::pattern::{self, Pattern};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};

use crate::http::{Body, full};

/// The origins that may; by default none.
#[derive(Debug, Default)]
pub struct Cors(Vec<Pattern>);

/// Why an expression cannot say which origins may.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OriginError {
    #[error("{0:?} does not pin to the start and end of the host: use ^ or //, and $ or :")]
    Unpinned(String),
    #[error("{0:?}: {1}")]
    Syntax(String, pattern::PatternError),
}

/// An origin a browser sent that is allowed: what is added to the answer.
pub(crate) struct Allowed(HeaderValue);

impl Cors {
    /// `patterns` are regular expressions, each pinned to where the host begins and ends: else `example.com` would allow
    /// `example.com.attacker.net`.
    pub fn new(patterns: &[String]) -> Result<Self, OriginError> {
        let checked = |text: &String| {
            let starts = ["^", "//"].iter().any(|mark| text.contains(mark));
            let ends = ["$", ":"].iter().any(|mark| text.contains(mark));
            if !(starts && ends) {
                return Err(OriginError::Unpinned(text.clone()));
            }
            pattern::compile(text).map_err(|error| OriginError::Syntax(text.clone(), error))?;
            Ok(Pattern::new(text))
        };
        patterns.iter().map(checked).collect::<Result<_, _>>().map(Self)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_match_as_regular_expressions_do() {
        check("^https://example\\.com$", "https://example.com", true);
        check("^https://example\\.com$", "https://exampleXcom", false);
        check("//example[.]com$", "https://example.com", true);
        check("//example[.]com$", "https://example.com.attacker.net", false);
        check("//localhost(:|$)", "http://localhost:8080", true);
        check("//localhost(:|$)", "http://localhosts", false);
        check("(?i)^https?://([a-z0-9-]{1,9}\\.)*example\\.com(:\\d+)?$", "http://a.B-c.example.com:99", true);
        check("^http://[^/]*$", "http://a/b", false);
    }

    #[test]
    fn an_expression_that_lets_strangers_in_or_makes_no_sense_is_refused() {
        for text in ["example.com", "//example[.]com", "example[.]com$", ""] {
            assert_eq!(Cors::new(&[text.to_owned()]).unwrap_err(), OriginError::Unpinned(text.to_owned()));
        }
        for text in ["^(a$", "^[a$", "^[z-a]$"] {
            assert!(matches!(Cors::new(&[text.to_owned()]), Err(OriginError::Syntax(..))), "{text}");
        }
    }

    #[track_caller]
    fn check(pattern: &str, origin: &str, want: bool) {
        let headers = HeaderMap::from_iter([(header::ORIGIN, HeaderValue::try_from(origin).unwrap())]);
        let cors = Cors::new(&[pattern.to_owned()]).unwrap();
        assert_eq!(cors.check(&headers).is_some(), want, "{pattern} on {origin}");
    }
}

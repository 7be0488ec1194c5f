//! Where the next page of a list begins; opaque to clients.

use api::ApiError;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

const VERSION: &str = "meta.k8s.io/v1";
/// The revision of a token that goes on with whatever is there.
const AS_IT_IS: i64 = -1;

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Continue {
    v: String,
    pub(super) rv: i64,
    pub(super) start: String,
}

impl Continue {
    pub(super) fn after(revision: i64, last: &str) -> Self {
        Self { v: VERSION.into(), rv: revision, start: format!("{last}\0") }
    }

    #[must_use]
    pub(super) fn without_revision(self) -> Self {
        Self { rv: AS_IT_IS, ..self }
    }

    pub(super) fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}

/// A token that this server, or another, gave away.
pub(super) fn read(text: &str) -> Result<Continue, ApiError> {
    parse(text)
        .map_err(|why| ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}")))
}

fn parse(text: &str) -> Result<Continue, String> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let odd = text.bytes().position(|byte| !is_known(byte)).or((text.len() % 4 == 1).then(|| text.len() - 1));
    if let Some(at) = odd {
        return Err(format!("illegal base64 data at input byte {at}"));
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| error.to_string())?;
    let token: Continue = serde_json::from_slice(&bytes)
        .map_err(|error| api::json::complaint(&bytes).unwrap_or_else(|| error.to_string()))?;
    let is_plain = |part: &str| !matches!(part, "" | "." | "..");
    match &token {
        Continue { v, .. } if v != VERSION => Err(format!("server does not recognize this encoded version {v}")),
        Continue { rv: 0, .. } => Err(format!("incorrect encoded start resourceVersion (version {VERSION})")),
        Continue { start, .. } if start.is_empty() => Err(format!("encoded start key empty (version {VERSION})")),
        Continue { start, .. } if !start.strip_prefix('/').unwrap_or(start).split('/').all(is_plain) => {
            Err(start.clone())
        }
        _ => Ok(token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_token_is_told_as_upstream_tells_it() {
        check("x", "illegal base64 data at input byte 0");
        check("e30=", "illegal base64 data at input byte 3");
        check(&URL_SAFE_NO_PAD.encode("{}"), "server does not recognize this encoded version ");
        let token = |rv, start: &str| Continue { v: VERSION.into(), rv, start: start.into() }.encode();
        check(&token(0, "a"), "incorrect encoded start resourceVersion (version meta.k8s.io/v1)");
        check(&token(5, ""), "encoded start key empty (version meta.k8s.io/v1)");
        check(&token(5, "../a"), "../a");
        check(&token(5, "a\0"), "");
        check(&token(-1, "default/a\0"), "");
    }

    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(parse(text).err().unwrap_or_default(), want, "{text}");
    }
}

//! The chain of authenticators: front proxy, client certificate, bearer token of every kind, and nobody in particular.

use std::collections::HashMap;

use ::http::{Extensions, HeaderMap, HeaderValue, header};
use api::{ApiError, UserInfo};
use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::oidc::Issuer;
use super::reload::Reloads;
use super::request_header::RequestHeaderSettings;
use super::webhook::TokenWebhook;
use super::{jwt, token_file, tokens};
use crate::server::ApiServer;

/// Prefix of the WebSocket subprotocol that carries a token: browsers let a page set no other header.
const SOCKET_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

const NOBODY: &str = "invalid bearer token";

/// Why the credentials of a request cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BearerError {
    #[error("multiple base64.bearer.authorization tokens specified")]
    Several,
    #[error("invalid base64.bearer.authorization token encoding")]
    Encoding,
    #[error("invalid base64.bearer.authorization token")]
    NotUtf8,
    /// One must be left to answer with, once the token's is removed.
    #[error("missing additional subprotocol")]
    NoOtherProtocol,
}

/// What the client's certificate is believed when a request begins; put into the extensions by the listener.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientCertificate {
    pub(crate) user: Option<UserInfo>,
    /// The common name, if it is a front proxy's.
    pub(crate) proxy: Option<String>,
}

pub(crate) struct Authenticator {
    pub(super) tokens: HashMap<String, UserInfo>,
    pub(super) bootstrap: bool,
    /// Replaced when the file that names them changes.
    pub(super) issuers: ArcSwap<Vec<Issuer>>,
    pub(super) webhook: Option<TokenWebhook>,
    pub(crate) request_header: RequestHeaderSettings,
    pub(super) anonymous: Anonymous,
    pub(super) reloads: Reloads,
}

pub(super) struct Anonymous {
    pub(super) enabled: bool,
    /// Only these; any if there are none.
    pub(super) paths: Vec<String>,
    /// As the file says it, which may not change.
    pub(super) configured: Option<Value>,
}

/// Whom a request proves to be from.
pub(crate) async fn authenticate(
    server: &ApiServer,
    known: &Extensions,
    headers: &HeaderMap,
    path: &str,
) -> Result<UserInfo, ApiError> {
    // Within the process, the caller vouches for the user.
    if let Some(user) = known.get::<UserInfo>() {
        return Ok(user.clone());
    }
    let own = &server.authenticator;
    if let Some(certificate) = known.get::<ClientCertificate>() {
        let proxied = certificate.proxy.as_deref().and_then(|proxy| own.request_header.user(proxy, headers));
        if let Some(user) = proxied.or_else(|| certificate.user.clone()) {
            return Ok(authenticated(user));
        }
    }
    let token = bearer(headers).map_err(|error| {
        tracing::debug!(%error, "token refused");
        ApiError::unauthorized()
    })?;
    if let Some(token) = token {
        return match own.token(server, &token, server.config.api_audiences()).await {
            Ok((user, _)) => Ok(authenticated(user)),
            Err(error) => {
                tracing::debug!(%error, "token refused");
                Err(ApiError::unauthorized())
            }
        };
    }
    // Who shows a certificate that is worth nothing, any more perhaps, is told so.
    if known.get::<ClientCertificate>().is_some() {
        return Err(ApiError::unauthorized());
    }
    let anonymous = &own.anonymous;
    if !anonymous.enabled || !(anonymous.paths.is_empty() || anonymous.paths.iter().any(|own| own == path)) {
        return Err(ApiError::unauthorized());
    }
    let groups = vec!["system:unauthenticated".into()];
    Ok(UserInfo { name: "system:anonymous".into(), groups, ..UserInfo::default() })
}

pub(crate) fn authenticated(mut user: UserInfo) -> UserInfo {
    if user.name != "system:anonymous"
        && !user.in_group("system:authenticated")
        && !user.in_group("system:unauthenticated")
    {
        user.groups.push("system:authenticated".into());
    }
    user
}

/// The token a request carries; an empty one is none.
fn bearer(headers: &HeaderMap) -> Result<Option<String>, BearerError> {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if let Some((scheme, token)) = authorization.and_then(|value| value.trim().split_once(' ')) {
        let token = token.split(' ').next().unwrap_or_default();
        return Ok((scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned()));
    }
    let (tokens, others): (Vec<&str>, Vec<&str>) =
        subprotocols(headers).partition(|protocol| protocol.starts_with(SOCKET_TOKEN));
    let encoded = match *tokens.as_slice() {
        [] => return Ok(None),
        [one] => one.strip_prefix(SOCKET_TOKEN).unwrap_or_default(),
        _ => return Err(BearerError::Several),
    };
    let token = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| BearerError::Encoding)?;
    let token = String::from_utf8(token).map_err(|_| BearerError::NotUtf8)?;
    match (token.is_empty(), others.is_empty()) {
        (true, _) => Ok(None),
        (false, true) => Err(BearerError::NoOtherProtocol),
        (false, false) => Ok(Some(token)),
    }
}

/// The WebSocket subprotocols a client offers, over all headers of that name.
fn subprotocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',').map(str::trim))
}

/// Removes every credential from the headers of an authenticated request, so that none reaches a pod, a kubelet or an
/// aggregated API server: the bearer token in its header or WebSocket subprotocol, and the user a front proxy named.
pub(crate) fn remove_credentials(headers: &mut HeaderMap, front_proxy: &RequestHeaderSettings) {
    headers.remove(header::AUTHORIZATION);
    if subprotocols(headers).any(|protocol| protocol.starts_with(SOCKET_TOKEN)) {
        let others = subprotocols(headers).filter(|protocol| !protocol.starts_with(SOCKET_TOKEN));
        let others = HeaderValue::try_from(others.collect::<Vec<_>>().join(","));
        headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
        if let Some(others) = others.ok().filter(|others| !others.is_empty()) {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, others);
        }
    }
    front_proxy.clear(headers);
}

impl Authenticator {
    /// Whose token it is, and which of the wanted audiences it is for; says what those who looked at it minded.
    pub(crate) async fn token(
        &self,
        server: &ApiServer,
        token: &str,
        wanted: &[String],
    ) -> Result<(UserInfo, Vec<String>), String> {
        // Those that know nothing of audiences are for the API alone, and are not asked about others.
        let own = server.config.api_audiences();
        let here: Vec<String> = wanted.iter().filter(|name| own.contains(name)).cloned().collect();
        let is_for_api = !here.is_empty();
        let mut minded = Vec::new();
        if is_for_api && let Some(user) = self.tokens.get(token) {
            return Ok((user.clone(), here));
        }
        match tokens::authenticate(server, token, wanted) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => (),
            Err(error) => minded.push(error.to_string()),
        }
        if is_for_api
            && self.bootstrap
            && let Some(user) = token_file::bootstrap(server, token, jiff::Timestamp::now())
        {
            return Ok((user, here));
        }
        let issuers = self.issuers.load_full();
        if is_for_api
            && !issuers.is_empty()
            && let Some(parsed) = jwt::parse(token)
            && let Some(issuer) = issuers.iter().find(|issuer| issuer.is_of(&parsed))
        {
            match issuer.authenticate(&parsed, jiff::Timestamp::now().as_second()).await {
                Ok(user) => return Ok((user, here)),
                Err(error) => minded.push(error.to_string()),
            }
        }
        if let Some(webhook) = &self.webhook {
            match webhook.authenticate(token, wanted, own).await {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => (),
                Err(error) => minded.push(error.to_string()),
            }
        }
        Err(match minded.is_empty() {
            true => NOBODY.to_owned(),
            false => format!("[{NOBODY}, {}]", minded.join(", ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Ok(value) = value.parse() {
            headers.insert(name, value);
        }
        headers
    }

    #[test]
    fn a_token_is_where_clients_put_it() {
        let check = |value: &str, want: Option<&str>| {
            let token = bearer(&headers(header::AUTHORIZATION, value)).unwrap();
            assert_eq!(token.as_deref(), want, "{value}");
        };
        check("Bearer abc", Some("abc"));
        check("bearer abc", Some("abc"));
        check("Bearer ", None);
        check("Bearer", None);
        check("Basic abc", None);
        let socket = |value: &str| bearer(&headers(header::SEC_WEBSOCKET_PROTOCOL, value));
        let encoded = URL_SAFE_NO_PAD.encode("abc");
        assert_eq!(socket(&format!("v4.channel.k8s.io, {SOCKET_TOKEN}{encoded}")), Ok(Some("abc".to_owned())));
        assert_eq!(socket("v4.channel.k8s.io"), Ok(None));
        assert_eq!(socket(&format!("{SOCKET_TOKEN}???, v4.channel.k8s.io")), Err(BearerError::Encoding));
        assert_eq!(socket(&format!("{SOCKET_TOKEN}_w, v4.channel.k8s.io")), Err(BearerError::NotUtf8));
        assert_eq!(socket(&format!("{SOCKET_TOKEN}{encoded}")), Err(BearerError::NoOtherProtocol));
        assert_eq!(socket(&format!("{SOCKET_TOKEN}{encoded}, {SOCKET_TOKEN}{encoded}, a")), Err(BearerError::Several));
    }

    #[test]
    fn no_credential_stays_in_an_authenticated_request() {
        let token = format!("{SOCKET_TOKEN}{}", URL_SAFE_NO_PAD.encode("abc"));
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer abc"),
            ("sec-websocket-protocol", &format!("v5.channel.k8s.io, {token}")),
            ("sec-websocket-protocol", "v4.channel.k8s.io"),
            ("x-remote-user", "root"),
            ("x-remote-extra-scopes", "all"),
            ("x-front-user", "root"),
            ("x-front-extra-scopes", "all"),
            ("accept", "*/*"),
        ] {
            headers.append(header::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
        let front_proxy = RequestHeaderSettings {
            username_headers: vec!["X-Front-User".into()],
            extra_headers_prefix: vec!["X-Front-Extra-".into()],
            ..RequestHeaderSettings::default()
        };
        remove_credentials(&mut headers, &front_proxy);
        let mut left: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        left.sort_unstable();
        assert_eq!(left, [("accept", "*/*"), ("sec-websocket-protocol", "v5.channel.k8s.io,v4.channel.k8s.io")]);
    }

    #[test]
    fn every_user_but_nobody_is_authenticated() {
        let check = |name: &str, groups: &[&str], want: &str| {
            let groups = groups.iter().map(ToString::to_string).collect();
            let user = authenticated(UserInfo { name: name.into(), groups, ..UserInfo::default() });
            assert_eq!(user.groups.join(","), want);
        };
        check("bob", &[], "system:authenticated");
        check("bob", &["system:authenticated"], "system:authenticated");
        check("system:anonymous", &[], "");
    }

    proptest! {
        #[test]
        fn no_header_breaks_the_reader(value in "[ -~]{0,80}") {
            for name in [header::AUTHORIZATION, header::SEC_WEBSOCKET_PROTOCOL] {
                if let Ok(Some(token)) = bearer(&headers(name, &value)) {
                    prop_assert!(!token.is_empty());
                }
            }
        }
    }
}

//! Passes requests on to who answers them, in the name of who asks; watches and upgraded connections included.

use std::sync::Arc;

use ::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use api::{ApiError, UserInfo};
use http_body_util::BodyExt as _;

use super::Remote;
use crate::http::{Body, Verbatim, respond_text};
use crate::outbound::line::Answer;
use crate::server::ApiServer;
use crate::streaming;

const PREFIX: &str = "x-remote-";

/// Sends the request for the decoded `path` to the server behind an APIService, on behalf of `user`.
///
/// The path is escaped anew: the other server is asked for what was authorized here, not for the client's spelling of it.
pub(crate) async fn forward(
    server: &Arc<ApiServer>,
    remote: &Remote,
    path: &str,
    user: &UserInfo,
    mut request: Request<Body>,
) -> Response<Body> {
    let unavailable = || respond_text(StatusCode::SERVICE_UNAVAILABLE, "service unavailable\n");
    let client = match &remote.client {
        _ if !remote.is_available => return unavailable(),
        Ok(client) => client,
        Err(error) => return respond_text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    let Ok(place) = client.place(server) else { return unavailable() };
    let client_side = hyper::upgrade::on(&mut request);
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = format!("{}{query}", streaming::escape_path(path));
    let host = HeaderValue::try_from(format!("{}:{}", place.host, place.port)).map_err(ApiError::internal);
    let mut outgoing = match host.and_then(|host| streaming::outgoing(host, &path, request)) {
        Ok(outgoing) => outgoing,
        Err(error) => return respond_text(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    identify(outgoing.headers_mut(), user);
    let (response, line) = match client.send(&place, outgoing).await {
        Ok(answer) => answer,
        Err(error) => {
            let why = format!("error trying to reach service: {error}\n");
            return respond_text(StatusCode::SERVICE_UNAVAILABLE, why);
        }
    };
    let mut response = if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        line.detach();
        streaming::carry(client_side, response)
    } else {
        if response.status().is_redirection() && response.headers().contains_key(header::LOCATION) {
            let why = "the backend attempted to redirect this request, which is not permitted";
            return respond_text(StatusCode::BAD_GATEWAY, why);
        }
        let client = client.clone();
        response.map(|body| Answer::new(body, line, move |line| client.keep(&place, line)).boxed_unsync())
    };
    response.headers_mut().remove(header::CONNECTION);
    response.extensions_mut().insert(Verbatim);
    response
}

/// Says whom the request is of. Nobody else says so.
pub(super) fn identify(headers: &mut HeaderMap, user: &UserInfo) {
    let others: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(PREFIX)).cloned().collect();
    others.into_iter().for_each(|name| drop(headers.remove(name)));
    let mut add = |name: String, value: &str| {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.append(name, value);
        }
    };
    add(format!("{PREFIX}user"), &user.name);
    if !user.uid.is_empty() {
        add(format!("{PREFIX}uid"), &user.uid);
    }
    user.groups.iter().for_each(|group| add(format!("{PREFIX}group"), group));
    for (key, values) in &user.extra {
        values.iter().for_each(|value| add(format!("{PREFIX}extra-{}", escaped(key)), value));
    }
}

/// A key as part of a header's name: what cannot stand there, and `%` itself, is escaped.
fn escaped(key: &str) -> String {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    let one = |byte: u8| if token(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    key.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_told_in_headers_and_by_nobody_else() {
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", HeaderValue::from_static("root"));
        headers.insert("x-remote-extra-a", HeaderValue::from_static("b"));
        let user = UserInfo {
            name: "jane".into(),
            uid: "7".into(),
            groups: vec!["a".into(), "b".into()],
            extra: [("example.com/x%".to_owned(), vec!["1".to_owned()])].into(),
        };
        identify(&mut headers, &user);
        let mut told: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap())).collect();
        told.sort();
        let want =
            "x-remote-extra-example.com%2fx%25=1 x-remote-group=a x-remote-group=b x-remote-uid=7 x-remote-user=jane";
        assert_eq!(told.join(" "), want);
    }
}

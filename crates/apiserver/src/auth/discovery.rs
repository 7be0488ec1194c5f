//! The service-account issuer, described for those who check its tokens themselves (OpenID Connect discovery).

use ::http::{HeaderValue, Response, StatusCode, header};
use api::ApiError;
use serde_json::{Value, json};

use crate::http::{Body, respond_bytes};
use crate::server::ApiServer;

pub(crate) const CONFIGURATION: &str = "/.well-known/openid-configuration";
pub(crate) const KEYS: &str = "/openid/v1/jwks";

/// `path` is one of the two above.
pub(crate) fn answer(server: &ApiServer, path: &str) -> Result<Response<Body>, ApiError> {
    let (content_type, document) = match path {
        CONFIGURATION => {
            let address = std::net::SocketAddr::new(server.config.advertise_address, server.config.secure_port);
            let algorithms = server.config.service_account_keys.algorithms();
            let keys = format!("https://{address}{KEYS}");
            ("application/json", configuration(&server.config.service_account_issuer, &keys, &algorithms))
        }
        _ => ("application/jwk-set+json", server.config.service_account_keys.published()),
    };
    let mut response = respond_bytes(StatusCode::OK, content_type, document.to_string());
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    Ok(response)
}

fn configuration(issuer: &str, keys: &str, algorithms: &[&str]) -> Value {
    json!({
        "issuer": issuer, "jwks_uri": keys, "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": algorithms,
    })
}

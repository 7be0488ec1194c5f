//! The service-account issuer, described for those who check its tokens themselves (OpenID Connect discovery).

use ::http::{HeaderValue, Response, StatusCode, header};
use api::ApiError;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::tokens::ServiceAccountKey;
use crate::http::{Body, respond_bytes};
use crate::server::ApiServer;

pub(crate) const CONFIGURATION: &str = "/.well-known/openid-configuration";
pub(crate) const KEYS: &str = "/openid/v1/jwks";

/// `path` is one of the two above.
pub(crate) fn answer(server: &ApiServer, path: &str) -> Result<Response<Body>, ApiError> {
    let (content_type, document) = match path {
        CONFIGURATION => {
            let address = std::net::SocketAddr::new(server.config.advertise_address, server.config.secure_port);
            (
                "application/json",
                configuration(&server.config.service_account_issuer, &format!("https://{address}{KEYS}")),
            )
        }
        _ => ("application/jwk-set+json", keys(&server.config.service_account_key)?),
    };
    let mut response = respond_bytes(StatusCode::OK, content_type, document.to_string());
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    Ok(response)
}

fn configuration(issuer: &str, keys: &str) -> Value {
    json!({
        "issuer": issuer, "jwks_uri": keys, "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"],
    })
}

fn keys(key: &ServiceAccountKey) -> Result<Value, ApiError> {
    // A point on the curve, uncompressed: a four, then both coordinates.
    let point = key.public().strip_prefix(&[4]).and_then(|point| point.split_at_checked(32));
    let (x, y) = point.ok_or_else(|| ApiError::internal("the service-account key is not a P-256 point"))?;
    let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
    let key = json!({"use": "sig", "kty": "EC", "kid": key.id(), "crv": "P-256", "alg": "ES256", "x": x, "y": y});
    Ok(json!({"keys": [key]}))
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, UnparsedPublicKey};

    use super::*;

    #[test]
    fn a_token_can_be_checked_with_the_published_key_alone() {
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
        let key = ServiceAccountKey::from_pkcs8(der.as_ref()).unwrap();
        let token = key.sign(&json!({"sub": "a"})).unwrap();
        let document = keys(&key).unwrap();
        let published = &document["keys"][0];
        let [head, _, signature]: [&str; 3] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
        let head: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(head).unwrap()).unwrap();
        assert_eq!((&head["kid"], &head["alg"]), (&published["kid"], &published["alg"]));
        let coordinate = |name: &str| URL_SAFE_NO_PAD.decode(published[name].as_str().unwrap()).unwrap();
        let point = [vec![4], coordinate("x"), coordinate("y")].concat();
        let text = token.rsplit_once('.').unwrap().0;
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(text.as_bytes(), &signature).unwrap();
    }
}

//! Values in the store that this server cannot read: their key is not at hand, or their bytes are not an object.
//!
//! Such an object exists, so it must not look deleted: clients get an error for it, and for lists it belongs to. The server's own
//! decisions go on with its last readable state, as upstream's informers do. Nothing else is affected.

use api::ApiError;
use bytes::Bytes;

use super::encryption::SEALED;

/// Prefix of the placeholder that the encryption layer returns for a value it cannot decrypt. Whether a later try may succeed, and the
/// error, follow it. No object begins with these bytes, in JSON or in protobuf.
const MARK: &[u8] = b"k8s:unreadable:";
const TRANSIENT: &[u8] = b"transient:";
const PERMANENT: &[u8] = b"permanent:";
/// Upstream's error of a server that has no encryption configured.
const IDENTITY: &str = "identity transformer tried to read encrypted data";

/// An object that cannot be read, at the revision that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(super) revision: i64,
    /// Encrypted with a key that is not configured: reading it again will not help.
    pub(super) lacks_key: bool,
    message: String,
}

/// A value in place of one that cannot be decrypted.
pub(super) fn marked(is_transient: bool, reason: &str) -> Bytes {
    [MARK, if is_transient { TRANSIENT } else { PERMANENT }, reason.as_bytes()].concat().into()
}

impl Unreadable {
    /// `key` is the whole key in the store, `error` what decoding the value as an object failed with.
    pub(super) fn new(key: &str, revision: i64, value: &[u8], error: &serde_json::Error) -> Self {
        let marked = value.strip_prefix(MARK);
        let reason = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let (why, lacks_key) = match marked.map(|rest| (rest.strip_prefix(TRANSIENT), rest.strip_prefix(PERMANENT))) {
            Some((Some(why), _)) => (Some(reason(why)), false),
            Some((_, Some(why))) => (Some(reason(why)), true),
            _ if value.starts_with(SEALED) => (Some(IDENTITY.to_owned()), true),
            _ => (None, false),
        };
        let message = match why {
            Some(why) => format!("unable to transform key {key:?}: {why}"),
            None => format!("unable to decode the object at key {key:?}: {error}"),
        };
        Self { revision, lacks_key, message }
    }
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// As upstream's storage errors, which have no reason of their own.
impl From<&Unreadable> for ApiError {
    fn from(unreadable: &Unreadable) -> Self {
        Self::new(500, "", unreadable.message.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_key_and_the_cause() {
        let check = |value: &[u8], want: &str, lacks_key: bool| {
            let error = serde_json::from_slice::<api::Object>(value).unwrap_err();
            let found = Unreadable::new("/registry/secrets/a/b", 7, value, &error);
            assert_eq!((found.to_string().as_str(), found.lacks_key), (want, lacks_key));
        };
        check(&marked(true, "no answer"), "unable to transform key \"/registry/secrets/a/b\": no answer", false);
        check(&marked(false, "no key"), "unable to transform key \"/registry/secrets/a/b\": no key", true);
        let identity =
            "unable to transform key \"/registry/secrets/a/b\": identity transformer tried to read encrypted data";
        check(b"k8s:enc:aescbc:v1:one:\x01\x02", identity, true);
        let decode = "unable to decode the object at key \"/registry/secrets/a/b\": EOF while parsing an object at line 1 column 1";
        check(b"{", decode, false);
    }
}

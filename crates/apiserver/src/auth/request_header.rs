//! The front proxy: whoever shows its certificate says whom it speaks for.

use api::UserInfo;
use http::{HeaderMap, HeaderName};

use crate::http::percent_decode;

/// `--requestheader-*`
#[derive(Clone, Debug, Default)]
pub struct RequestHeaderSettings {
    /// Proxies' certificates are signed by these authorities, in DER; without any no header is believed.
    pub client_ca: Vec<Vec<u8>>,
    /// Common names; any if there are none.
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_headers_prefix: Vec<String>,
}

impl RequestHeaderSettings {
    /// `proxy` is the common name of a certificate that was verified.
    pub(crate) fn user(&self, proxy: &str, headers: &HeaderMap) -> Option<UserInfo> {
        if !self.allowed_names.is_empty() && !self.allowed_names.iter().any(|name| name == proxy) {
            return None;
        }
        let first = |names: &[String]| {
            let mut values = names.iter().filter_map(|name| headers.get(name.as_str())?.to_str().ok());
            values.find(|value| !value.is_empty()).unwrap_or_default().to_owned()
        };
        let name = first(&self.username_headers);
        if name.is_empty() {
            return None;
        }
        let groups = self.group_headers.iter().flat_map(|name| headers.get_all(name.as_str()));
        let groups = groups.filter_map(|value| value.to_str().ok()).filter(|value| !value.is_empty());
        let mut user = UserInfo {
            name,
            uid: first(&self.uid_headers),
            groups: groups.map(ToOwned::to_owned).collect(),
            ..UserInfo::default()
        };
        for prefix in &self.extra_headers_prefix {
            let prefix = prefix.to_ascii_lowercase();
            for (name, value) in headers {
                if let (Some(key), Ok(value)) = (name.as_str().strip_prefix(prefix.as_str()), value.to_str()) {
                    let key = percent_decode(&key.replace('+', "%2b"));
                    user.extra.entry(key).or_default().push(value.to_owned());
                }
            }
        }
        Some(user)
    }

    /// Removes the headers in which a front proxy names a user, configured or usual: for nobody behind authentication do
    /// they prove anything.
    pub(super) fn clear(&self, headers: &mut HeaderMap) {
        const USUAL: [&str; 3] = ["x-remote-user", "x-remote-uid", "x-remote-group"];
        const USUAL_EXTRA: &str = "x-remote-extra-";
        let own = [&self.username_headers, &self.uid_headers, &self.group_headers];
        let names: Vec<&str> = own.into_iter().flatten().map(String::as_str).chain(USUAL).collect();
        let prefixes: Vec<String> =
            self.extra_headers_prefix.iter().map(|prefix| prefix.to_ascii_lowercase()).collect();
        let is_of_proxy = |name: &HeaderName| {
            let text = name.as_str();
            names.iter().any(|own| own.eq_ignore_ascii_case(text))
                || prefixes.iter().any(|prefix| text.starts_with(prefix))
                || text.starts_with(USUAL_EXTRA)
        };
        let removed: Vec<HeaderName> = headers.keys().filter(|name| is_of_proxy(name)).cloned().collect();
        removed.iter().for_each(|name| drop(headers.remove(name)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings() -> RequestHeaderSettings {
        let list = |name: &str| vec![name.to_owned()];
        RequestHeaderSettings {
            client_ca: Vec::new(),
            allowed_names: list("front"),
            username_headers: list("X-Remote-User"),
            uid_headers: list("X-Remote-Uid"),
            group_headers: list("X-Remote-Group"),
            extra_headers_prefix: list("X-Remote-Extra-"),
        }
    }

    #[test]
    fn a_proxy_says_whom_it_speaks_for() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-remote-user", "bob"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-uid", "7"),
            ("x-remote-extra-scopes%2fone", "x"),
        ] {
            headers.append(http::HeaderName::from_static(name), value.parse().unwrap());
        }
        let user = settings().user("front", &headers).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str(), user.groups.join(",")), ("bob", "7", "a,b".into()));
        assert_eq!(user.extra.get("scopes/one"), Some(&vec!["x".to_owned()]));
        assert_eq!(settings().user("other", &headers), None);
        assert_eq!(settings().user("front", &HeaderMap::new()), None);
    }

    proptest! {
        /// No header makes a user without a name, nor one for a proxy that is not known.
        #[test]
        fn no_headers_make_a_nameless_user(names in prop::collection::vec("[a-z-]{1,20}", 0..5), value in "[ -~]{0,20}") {
            let mut headers = HeaderMap::new();
            for name in names.iter().map(String::as_str).chain(["x-remote-user"]) {
                if let (Ok(name), Ok(value)) = (name.parse::<http::HeaderName>(), value.parse()) {
                    headers.append(name, value);
                }
            }
            prop_assert!(settings().user("front", &headers).is_none_or(|user| !user.name.is_empty()));
            prop_assert!(settings().user("", &headers).is_none());
        }
    }
}

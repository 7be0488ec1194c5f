//! Tokens from a file, and bootstrap tokens from secrets of `kube-system`.

use std::collections::HashMap;
use std::path::Path;

use api::{ObjectExt as _, UserInfo};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::settings::AuthError;
use crate::server::ApiServer;

/// `token,user,uid,"group,group"`
pub(crate) fn read(path: &Path) -> Result<HashMap<String, UserInfo>, AuthError> {
    let text = std::fs::read_to_string(path).map_err(|error| AuthError::Read(path.to_owned(), error))?;
    parse(&text).map_err(|columns| {
        let why = format!("must have at least 3 columns (token, user name, user uid), found {columns}");
        AuthError::Config(path.display().to_string(), why)
    })
}

/// On failure, how many columns there were.
fn parse(text: &str) -> Result<HashMap<String, UserInfo>, usize> {
    let mut users = HashMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let mut fields = fields(line).into_iter();
        let count = fields.len();
        let (Some(token), Some(name), Some(uid)) = (fields.next(), fields.next(), fields.next()) else {
            return Err(count);
        };
        if token.is_empty() {
            tracing::warn!("an empty token in the token file was left out");
            continue;
        }
        let groups = fields.next().map(|groups| groups.split(',').map(ToOwned::to_owned).collect()).unwrap_or_default();
        users.insert(token, UserInfo { name, uid, groups, ..UserInfo::default() });
    }
    Ok(users)
}

/// The fields of a line; within quotes a comma is a comma and a doubled quote is one.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                fields.last_mut().map(|field| field.push('"')).unwrap_or_default();
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            other => fields.last_mut().map(|field| field.push(other)).unwrap_or_default(),
        }
    }
    fields
}

/// `abcdef.0123456789abcdef`: a node that joins shows it; a secret of that name says whether it is still good.
pub(crate) fn bootstrap(server: &ApiServer, token: &str, now: jiff::Timestamp) -> Option<UserInfo> {
    let (id, secret) = split(token)?;
    let stored = server.cached("", "secrets", &format!("kube-system/bootstrap-token-{id}"))?;
    if stored.is_terminating() || stored.text(&["type"]) != "bootstrap.kubernetes.io/token" {
        return None;
    }
    let data = |key: &str| {
        let decoded = STANDARD.decode(stored.text(&["data", key])).ok();
        decoded.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
    };
    let expiration = data("expiration");
    // One that cannot be read has passed.
    let expired = !expiration.is_empty() && expiration.parse::<jiff::Timestamp>().map_or(true, |until| until <= now);
    if !is_equal(&data("token-secret"), secret)
        || data("token-id") != id
        || expired
        || data("usage-bootstrap-authentication") != "true"
    {
        return None;
    }
    let mut groups = vec!["system:bootstrappers".to_owned()];
    for group in data("auth-extra-groups").split(',').map(str::trim).filter(|group| !group.is_empty()) {
        let name = group.strip_prefix("system:bootstrappers:")?;
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b':' | b'-');
        if name.is_empty() || name.len() > 256 || !name.bytes().all(fits) || name.ends_with([':', '-']) {
            return None;
        }
        groups.push(group.to_owned());
    }
    Some(UserInfo { name: format!("system:bootstrap:{id}"), groups, ..UserInfo::default() })
}

fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let fits = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (fits(id, 6) && fits(secret, 16)).then_some((id, secret))
}

/// How long it takes does not tell how much was right.
pub(super) fn is_equal(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_users() {
        let users = parse("t1,bob,1\nt2,alice,2,\"a,b\"\n,nobody,3\nt3,\"o\"\"x\",4,c\n").unwrap();
        let told =
            |token: &str| users.get(token).map(|user| (user.name.as_str(), user.uid.as_str(), user.groups.join("|")));
        assert_eq!(told("t1"), Some(("bob", "1", String::new())));
        assert_eq!(told("t2"), Some(("alice", "2", "a|b".into())));
        assert_eq!(told("t3"), Some(("o\"x", "4", "c".into())));
        assert_eq!(users.len(), 3);
        assert_eq!(parse("t1,bob"), Err(2));
    }

    #[test]
    fn only_tokens_of_the_right_shape_are_looked_up() {
        assert_eq!(split("abcdef.0123456789abcdef"), Some(("abcdef", "0123456789abcdef")));
        for odd in ["abcdef", "abcdef.", "abcde.0123456789abcdef", "ABCDEF.0123456789abcdef", "../..f.0123456789abcdef"]
        {
            assert_eq!(split(odd), None, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn no_file_breaks_the_reader(text in "\\PC{0,100}") {
            let _ = parse(&text);
        }

        #[test]
        fn no_token_breaks_the_splitter(token in "\\PC{0,40}") {
            if let Some((id, secret)) = split(&token) {
                prop_assert_eq!(format!("{id}.{secret}"), token);
            }
        }
    }
}

//! What an image is called: where it is, its repository, a tag and a digest.

const LONGEST_REPOSITORY: usize = 255;
const LONGEST_TAG: usize = 128;

/// The tag of an image, which is `latest` where there is neither tag nor digest; none where the name cannot be read.
pub(super) fn tag(image: &str) -> Option<&str> {
    if image.len() == 64 && image.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return None; // That is an image's own number, which no registry calls it by.
    }
    let (domain, rest) = match image.split_once('/') {
        Some((head, rest)) if is_domain_like(head) => (head, rest),
        _ => ("docker.io", image),
    };
    let (rest, digest) = rest.split_once('@').map_or((rest, None), |(rest, digest)| (rest, Some(digest)));
    let (path, tag) = rest.split_once(':').map_or((rest, None), |(path, tag)| (path, Some(tag)));
    let official = domain == "docker.io" && !path.contains('/');
    let length = path.len() + if official { "library/".len() } else { 0 };
    let named = is_domain(domain) && length <= LONGEST_REPOSITORY && path.split('/').all(is_component);
    let known = named && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
    known.then(|| tag.unwrap_or(if digest.is_some() { "" } else { "latest" }))
}

/// What cannot be a part of a repository's name is where the repository is.
fn is_domain_like(head: &str) -> bool {
    head.contains(['.', ':']) || head == "localhost" || head.bytes().any(|b| b.is_ascii_uppercase())
}

fn is_domain(text: &str) -> bool {
    let digits = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    if let Some((address, port)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let within = |b: u8| b.is_ascii_hexdigit() || b == b':';
        return !address.is_empty()
            && address.bytes().all(within)
            && (port.is_empty() || port.strip_prefix(':').is_some_and(digits));
    }
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let label = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    host.split('.').all(label) && port.is_none_or(digits)
}

/// Small letters and digits, with a dot, one or two underscores or any number of dashes between them.
fn is_component(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let edge = |b: Option<&u8>| b.is_some_and(|b| plain(*b));
    let parts = || text.split(|c: char| c.is_ascii() && plain(c as u8)).filter(|part| !part.is_empty());
    let separator = |part: &str| matches!(part, "." | "_" | "__") || part.bytes().all(|b| b == b'-');
    edge(text.as_bytes().first()) && edge(text.as_bytes().last()) && parts().all(separator)
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= LONGEST_TAG
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|b| word(b) || matches!(b, b'.' | b'-'))
}

fn is_digest(text: &str) -> bool {
    let Some((algorithm, hash)) = text.split_once(':') else { return false };
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(part) && hash.len() >= 32 && hash.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::tag;

    #[test]
    fn an_image_without_tag_or_digest_is_the_latest() {
        let digest = format!("nginx@sha256:{}", "a".repeat(64));
        let tagged = format!("nginx:latest@sha256:{}", "a".repeat(64));
        for (image, want) in [
            ("nginx", Some("latest")),
            ("nginx:1.2", Some("1.2")),
            ("localhost:5000/a/b__c-d", Some("latest")),
            ("localhost:5000/nginx:1", Some("1")),
            ("[::1]:5000/nginx", Some("latest")),
            (&digest, Some("")),
            (&tagged, Some("latest")),
            ("", None),
            ("Nginx", None),
            ("a//b", None),
            ("nginx:", None),
            ("nginx@sha256:aa", None),
        ] {
            assert_eq!(tag(image), want, "{image}");
        }
    }
}

//! Addresses in what a proxied server answers, made to lead back through the proxy.

/// A proxied page: where it is seen, and where it comes from.
pub(super) struct Page {
    /// What the client's path has before the server's own.
    pub(super) prefix: String,
    /// The server's own host and port.
    pub(super) source: String,
    /// Whom the client thinks that it asks.
    pub(super) asked: String,
}

/// Why something is no address.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// In which attributes of which elements there are addresses.
const ADDRESSES: [(&str, &[&str]); 25] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Elements whose content is text, whatever it looks like.
const TEXTS: [&str; 10] =
    ["iframe", "noembed", "noframes", "noscript", "plaintext", "script", "style", "textarea", "title", "xmp"];

impl Page {
    /// What the server is told of the path that the client sees.
    pub(super) fn forwarded(&self, path: &str) -> String {
        let mut forwarded = cleaned(&format!("{}/{path}", self.prefix));
        if path.ends_with('/') && !forwarded.ends_with('/') {
            forwarded.push('/');
        }
        forwarded
    }

    /// The address of something on the same server, through the proxy; any other as it is.
    pub(super) fn url(&self, text: &str) -> Result<String, Malformed> {
        let url = Url::parse(text)?;
        let is_elsewhere = !url.host.is_empty() && url.host != self.source && url.host != self.asked;
        if is_elsewhere || !url.path.starts_with('/') {
            return Ok(text.to_owned());
        }
        let origin = if url.host == self.asked && !url.host.is_empty() { url.origin } else { "" };
        let path = if url.path.starts_with(&self.prefix) { url.path.to_owned() } else { self.forwarded(url.path) };
        Ok(format!("{origin}{path}{}", url.rest))
    }

    /// A page with the addresses in its elements changed; all else stays as it is.
    pub(super) fn html(&self, page: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(page.len() + page.len() / 8);
        let mut rest = page;
        while let Some(at) = rest.iter().position(|byte| *byte == b'<') {
            let (before, from) = rest.split_at(at);
            out.extend_from_slice(before);
            rest = self.markup(from, &mut out);
        }
        out.extend_from_slice(rest);
        out
    }

    /// Takes what begins with `<`; answers what follows it.
    fn markup<'a>(&self, from: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
        let end = match from {
            [b'<', b'!', b'-', b'-', ..] => past(from, 4, b"-->"),
            [b'<', b'!' | b'?' | b'/', ..] => past(from, 2, b">"),
            [b'<', first, ..] if first.is_ascii_alphabetic() => return self.element(from, out),
            _ => 1,
        };
        let (taken, rest) = from.split_at(end);
        out.extend_from_slice(taken);
        rest
    }

    fn element<'a>(&self, from: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
        let mut text = Reader { from, at: 1 };
        let name = text.until(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>')).to_ascii_lowercase();
        let known =
            ADDRESSES.iter().find(|(element, _)| element.as_bytes() == name).map_or(&[][..], |(_, names)| names);
        let mut copied = 0;
        while let Some(attribute) = text.attribute() {
            let is_address = known.iter().any(|name| name.as_bytes().eq_ignore_ascii_case(attribute.name));
            let Ok(value) = std::str::from_utf8(attribute.value) else { continue };
            let plain = unescaped(value);
            if let (true, Ok(changed)) = (is_address, self.url(&plain))
                && changed != plain
            {
                out.extend_from_slice(from.get(copied..attribute.start).unwrap_or_default());
                out.extend_from_slice(format!("\"{}\"", escaped(&changed)).as_bytes());
                copied = attribute.end;
            }
        }
        let content = TEXTS.iter().find(|element| element.as_bytes() == name);
        let end = content.map_or(text.at, |element| end_of(from, text.at, element.as_bytes()));
        out.extend_from_slice(from.get(copied..end).unwrap_or_default());
        from.get(end..).unwrap_or_default()
    }
}

struct Url<'a> {
    /// Scheme and host, as they stand there.
    origin: &'a str,
    host: &'a str,
    path: &'a str,
    /// Query and fragment.
    rest: &'a str,
}

impl<'a> Url<'a> {
    fn parse(text: &'a str) -> Result<Self, Malformed> {
        if text.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(Malformed("net/url: invalid control character in URL"));
        }
        if text.starts_with(':') {
            return Err(Malformed("missing protocol scheme"));
        }
        let whole = text.split(['?', '#']).next().unwrap_or_default();
        let rest = text.get(whole.len()..).unwrap_or_default();
        let scheme = whole.split_once(':').map_or(0, |(scheme, _)| {
            let mut letters = scheme.bytes();
            let begins = letters.next().is_some_and(|first| first.is_ascii_alphabetic());
            let is_scheme = begins && letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'-' | b'.'));
            if is_scheme { scheme.len() + 1 } else { 0 }
        });
        let after = whole.get(scheme..).unwrap_or_default();
        let Some(authority) = after.strip_prefix("//") else {
            // What follows a scheme at once is no path: `mailto:somebody`.
            return Ok(Self { origin: "", host: "", path: after, rest });
        };
        let host = authority.split('/').next().unwrap_or_default();
        let (origin, path) = whole.split_at(scheme + 2 + host.len());
        Ok(Self { origin, host, path, rest })
    }
}

/// A path without `.`, `..` and doubled slashes.
pub(super) fn cleaned(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => (),
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

struct Reader<'a> {
    from: &'a [u8],
    at: usize,
}

struct Attribute<'a> {
    name: &'a [u8],
    value: &'a [u8],
    /// Where the value stands, its quotes included.
    start: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.from.get(self.at).copied()
    }

    fn until(&mut self, is_end: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = self.from.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| is_end(*byte)).unwrap_or(rest.len());
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    /// The next one; nothing once the element's tag has ended, which is passed then.
    fn attribute(&mut self) -> Option<Attribute<'a>> {
        self.until(|byte| !byte.is_ascii_whitespace() && byte != b'/');
        match self.peek()? {
            b'>' => {
                self.at += 1;
                return None;
            }
            // A name may begin with what would end it.
            b'=' => self.at += 1,
            _ => (),
        }
        let name = self.until(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>' | b'='));
        let behind = self.at;
        self.until(|byte| !byte.is_ascii_whitespace());
        if self.peek() != Some(b'=') {
            self.at = behind;
            return Some(Attribute { name, value: b"", start: behind, end: behind });
        }
        self.at += 1;
        self.until(|byte| !byte.is_ascii_whitespace());
        let start = self.at;
        let value = match self.peek() {
            Some(quote @ (b'"' | b'\'')) => {
                self.at += 1;
                let value = self.until(|byte| byte == quote);
                self.at = (self.at + 1).min(self.from.len());
                value
            }
            _ => self.until(|byte| byte.is_ascii_whitespace() || byte == b'>'),
        };
        Some(Attribute { name, value, start, end: self.at })
    }
}

/// Behind the next `end`; everything, if there is none.
fn past(text: &[u8], from: usize, end: &[u8]) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    rest.windows(end.len()).position(|window| window == end).map_or(text.len(), |at| from + at + end.len())
}

/// Where the closing tag of an element begins whose content is text.
fn end_of(text: &[u8], from: usize, element: &[u8]) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    let closes = |window: &[u8]| {
        let name = window.strip_prefix(b"</");
        name.is_some_and(|name| name.eq_ignore_ascii_case(element))
    };
    rest.windows(element.len() + 2).position(closes).map_or(text.len(), |at| from + at)
}

const ENTITIES: [(&str, &str); 5] = [("&lt;", "<"), ("&gt;", ">"), ("&#34;", "\""), ("&#39;", "'"), ("&amp;", "&")];

fn unescaped(text: &str) -> String {
    let plain = text.replace("&quot;", "\"").replace("&apos;", "'");
    ENTITIES.iter().fold(plain, |text, (entity, letter)| text.replace(entity, letter))
}

fn escaped(text: &str) -> String {
    ENTITIES.iter().rev().fold(text.to_owned(), |text, (entity, letter)| text.replace(letter, entity))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/api/v1/namespaces/d/pods/web/proxy";

    fn page() -> Page {
        Page { prefix: PREFIX.into(), source: "10.0.0.1:8080".into(), asked: "localhost:8001".into() }
    }

    #[test]
    fn what_is_on_the_same_server_is_reached_through_the_proxy() {
        for (text, want) in [
            ("/abs", "PREFIX/abs"),
            ("/slash/", "PREFIX/slash/"),
            ("/", "PREFIX/"),
            ("/q?a=/b#/c", "PREFIX/q?a=/b#/c"),
            ("/a/../sp%20ace", "PREFIX/sp%20ace"),
            ("http://10.0.0.1:8080/same", "PREFIX/same"),
            ("//10.0.0.1:8080/same", "PREFIX/same"),
            ("http://localhost:8001/h", "http://localhost:8001PREFIX/h"),
            ("PREFIX/already", "PREFIX/already"),
            ("http://10.0.0.1:8080PREFIX/already", "PREFIX/already"),
            ("http://other.example/x", "http://other.example/x"),
            ("relative/x", "relative/x"),
            ("../x", "../x"),
            ("?q=1", "?q=1"),
            ("#here", "#here"),
            ("mailto:a@b", "mailto:a@b"),
            ("http://10.0.0.1:8080", "http://10.0.0.1:8080"),
            ("", ""),
        ] {
            let (text, want) = (text.replace("PREFIX", PREFIX), want.replace("PREFIX", PREFIX));
            assert_eq!(page().url(&text).unwrap(), want, "{text}");
        }
        assert_eq!(page().url("::bad"), Err(Malformed("missing protocol scheme")));
        assert_eq!(page().url("/a\r\nb"), Err(Malformed("net/url: invalid control character in URL")));
    }

    #[test]
    fn addresses_are_changed_where_elements_have_them_and_nowhere_else() {
        for (text, want) in [
            ("<a href=\"/x\">/x</a>", "<a href=\"PREFIX/x\">/x</a>"),
            ("<A HREF=/UP CLASS=x>", "<A HREF=\"PREFIX/UP\" CLASS=x>"),
            ("<a href='/x?a=1&amp;b=2'>", "<a href=\"PREFIX/x?a=1&amp;b=2\">"),
            ("<img src = '/i.png' alt='a > b'/>", "<img src = \"PREFIX/i.png\" alt='a > b'/>"),
            ("<input value=\"/not\" formaction=/f>", "<input value=\"/not\" formaction=\"PREFIX/f\">"),
            ("<br/><a href=rel><p title='/x'>", "<br/><a href=rel><p title='/x'>"),
            ("<!-- <a href=\"/x\"> --><!DOCTYPE html></a>", "<!-- <a href=\"/x\"> --><!DOCTYPE html></a>"),
            ("<script src='/s'>'<a href=\"/x\">'</SCRIPT>", "<script src=\"PREFIX/s\">'<a href=\"/x\">'</SCRIPT>"),
            ("<title>A <a href=\"/x\"></title><a href=/y>", "<title>A <a href=\"/x\"></title><a href=\"PREFIX/y\">"),
            ("1 < 2 <a href=\"/un", "1 < 2 <a href=\"PREFIX/un\""),
            ("<a href=\"::bad\"><a href><a =/x>", "<a href=\"::bad\"><a href><a =/x>"),
            ("", ""),
            ("<", "<"),
            ("<script>", "<script>"),
            ("<!--", "<!--"),
        ] {
            let told = String::from_utf8(page().html(text.as_bytes())).unwrap();
            assert_eq!(told, want.replace("PREFIX", PREFIX), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_page_is_too_strange(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            page().html(&bytes);
        }

        #[test]
        fn what_has_no_address_stays_as_it_is(text in "[<>/a-c=\"' !-]{0,60}") {
            let text = text.replace('a', "p");
            proptest::prop_assert_eq!(page().html(text.as_bytes()), text.as_bytes());
        }
    }
}

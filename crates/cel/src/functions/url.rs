//! URLs: absolute ones, or absolute paths.

use super::{lists, unfit};
use crate::error::EvalError;
use crate::library::Args;
use crate::opaque::Opaque;
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, EvalError>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    user: Option<String>,
    host: String,
    /// As it was written.
    path: String,
    query: String,
    fragment: String,
}

impl Url {
    /// The error is worded as upstream's parser does.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_parts(text).map_err(|why| format!("parse {text:?}: {why}"))
    }

    fn parse_parts(text: &str) -> Result<Self, String> {
        if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        if text.is_empty() {
            return Err("empty url".to_owned());
        }
        let (scheme, rest) = scheme(text)?;
        if !rest.starts_with('/') && scheme.is_empty() && text != "*" {
            return Err("invalid URI for request".to_owned());
        }
        let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url = Self {
            scheme: scheme.to_ascii_lowercase(),
            user: None,
            host: String::new(),
            path: rest.to_owned(),
            query: query.to_owned(),
            fragment: fragment.to_owned(),
        };
        if let Some(after) = rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
            let end = after.find('/').unwrap_or(after.len());
            let (authority, path) = after.split_at(end);
            let (user, host) = match authority.rsplit_once('@') {
                Some((user, host)) => (Some(user.to_owned()), host),
                None => (None, authority),
            };
            check_host(host)?;
            path.clone_into(&mut url.path);
            url.user = user;
            host.clone_into(&mut url.host);
        }
        check_escapes(&url.path)?;
        Ok(url)
    }

    fn port(&self) -> &str {
        match self.host.rsplit_once(':') {
            Some((_, port)) if !port.contains(']') => port,
            _ => "",
        }
    }

    fn hostname(&self) -> &str {
        let port = self.port();
        let host = if port.is_empty() {
            self.host.strip_suffix(':').unwrap_or(&self.host)
        } else {
            self.host.get(..self.host.len() - port.len() - 1).unwrap_or_default()
        };
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The path as it was written, or with everything escaped that must be.
    fn escaped_path(&self) -> String {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@[]/%".contains(&b);
        if self.path.bytes().all(allowed) {
            return self.path.clone();
        }
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&b);
        let mut out = String::new();
        for byte in unescaped(&self.path, false).unwrap_or_default() {
            if plain(byte) { out.push(char::from(byte)) } else { out.push_str(&format!("%{byte:02X}")) }
        }
        out
    }
}

fn scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => return Ok((text.get(..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default())),
            _ => break,
        }
    }
    Ok(("", text))
}

fn check_host(host: &str) -> Result<(), String> {
    let port = if let Some(inside) = host.strip_prefix('[') {
        let end = inside.rfind(']').ok_or("missing ']' in host")?;
        inside.get(end + 1..).unwrap_or_default()
    } else {
        host.rfind(':').and_then(|at| host.get(at..)).unwrap_or_default()
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    if !(port.is_empty() || (port.starts_with(':') && digits.bytes().all(|b| b.is_ascii_digit()))) {
        return Err(format!("invalid port {port:?} after host"));
    }
    if let Some(bad) = host.chars().find(|c| " \"<>\\^`{|}".contains(*c)) {
        return Err(format!("invalid character {:?} in host name", bad.to_string()));
    }
    Ok(())
}

fn check_escapes(text: &str) -> Result<(), String> {
    unescaped(text, false).map(|_| ()).map_err(|at| {
        let shown: String = text.get(at..).unwrap_or_default().chars().take(3).collect();
        format!("invalid URL escape {shown:?}")
    })
}

/// The bytes meant; the place of the first escape that is none.
fn unescaped(text: &str, plus_is_space: bool) -> Result<Vec<u8>, usize> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'%' => {
                let code = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok()).ok_or(at)?;
                out.push(code);
                bytes.nth(1);
            }
            b'+' if plus_is_space => out.push(b' '),
            other => out.push(other),
        }
    }
    Ok(out)
}

pub(crate) fn parse<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::String(text)] = args.values else { return Err(unfit(args)) };
    let parsed = Url::parse(text);
    let url = parsed.map_err(|why| EvalError::new(format!("URL parse error during conversion from string: {why}")))?;
    Ok(Value::opaque(Opaque::Url(url)))
}

pub(crate) fn is<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::String(text)] = args.values else { return Err(unfit(args)) };
    Ok(Value::Bool(Url::parse(text).is_ok()))
}

fn url<'x>(args: &'x Args<'_, '_>) -> Result<&'x Url, EvalError> {
    if let [Value::Opaque(opaque)] = args.values
        && let Opaque::Url(url) = &**opaque
    {
        return Ok(url);
    }
    Err(unfit(args))
}

pub(crate) fn part<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let url = url(args)?;
    Ok(Value::string(match args.function {
        "getScheme" => url.scheme.as_str(),
        "getHost" => &url.host,
        "getHostname" => url.hostname(),
        "getPort" => url.port(),
        _ => return Ok(Value::string(url.escaped_path())),
    }))
}

pub(crate) fn query<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let mut found: Vec<(String, Vec<Value<'a>>)> = Vec::new();
    for pair in url(args)?.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Ok(key), Ok(value)) = (unescaped(key, true), unescaped(value, true)) else { continue };
        let key = String::from_utf8_lossy(&key).into_owned();
        let value = Value::string(String::from_utf8_lossy(&value).into_owned());
        match found.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => found.push((key, vec![value])),
        }
    }
    lists::map_of(found.into_iter().map(|(key, values)| (Value::string(key), Value::list(values))).collect())
}

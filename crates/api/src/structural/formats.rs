//! The formats that text can have, checked as upstream checks them.

use std::net::IpAddr;
use std::sync::LazyLock;

use super::{Kind, Pattern};

/// Formats of other names mean nothing.
pub fn is_supported(format: &str, kind: Kind) -> bool {
    match kind {
        Kind::Any | Kind::String => FORMATS.iter().any(|(name, _)| *name == format.replace('-', "")),
        Kind::Integer => matches!(format, "int32" | "int64"),
        Kind::Number => matches!(format, "float" | "double"),
        _ => false,
    }
}

pub(super) fn fits(format: &str, text: &str) -> bool {
    let name = format.replace('-', "");
    let found = FORMATS.iter().find(|(known, _)| *known == name);
    found.is_none_or(|(_, rule)| rule(text))
}

type Rule = fn(&str) -> bool;

const FORMATS: [(&str, Rule); 26] = [
    ("bsonobjectid", |text| text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit())),
    ("uri", is_request_uri),
    ("email", is_email),
    ("hostname", is_hostname),
    ("ipv4", |text| text.contains('.') && is_ip_sloppy(text)),
    ("ipv6", |text| text.contains(':') && text.parse::<IpAddr>().is_ok()),
    ("cidr", is_cidr_sloppy),
    ("mac", is_mac),
    ("uuid", |text| is_uuid(text, None)),
    ("uuid3", |text| is_uuid(text, Some('3'))),
    ("uuid4", |text| is_uuid(text, Some('4'))),
    ("uuid5", |text| is_uuid(text, Some('5'))),
    ("isbn", |text| is_isbn10(text) || is_isbn13(text)),
    ("isbn10", is_isbn10),
    ("isbn13", is_isbn13),
    ("creditcard", is_credit_card),
    ("ssn", |text| text.len() == 11 && SSN.matches(text)),
    ("hexcolor", |text| HEX_COLOR.matches(text)),
    ("rgbcolor", |text| RGB_COLOR.matches(text)),
    ("byte", |text| BASE64.matches(text)),
    ("password", |_| true),
    ("date", is_date),
    ("duration", is_duration),
    ("datetime", is_date_time),
    ("k8sshortname", |text| text.len() <= 63 && SHORT_NAME.matches(text)),
    ("k8slongname", |text| text.len() <= 253 && LONG_NAME.matches(text)),
];

macro_rules! patterns {
    ($($name:ident = $text:expr;)*) => { $(static $name: LazyLock<Pattern> = LazyLock::new(|| Pattern::new($text));)* };
}

patterns! {
    CREDIT_CARD = r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35\d{3})\d{11})$";
    SSN = r"^\d{3}[- ]?\d{2}[- ]?\d{4}$";
    HEX_COLOR = r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$";
    RGB_COLOR = r"^rgb\(\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$";
    BASE64 = r"^(?:[A-Za-z0-9+\/]{4})*(?:[A-Za-z0-9+\/]{2}==|[A-Za-z0-9+\/]{3}=|[A-Za-z0-9+\/]{4})$";
    SHORT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
    LONG_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
    TIME = r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$";
    GO_DURATION = r"^[+-]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";
    LONG_DURATION = r"(?i)\d+\s*((ns|nano[a-zµ]*|us|µs|micro[a-zµ]*|ms|milli[a-zµ]*|s|sec[a-zµ]*|m|min[a-zµ]*|h|hr|hour[a-zµ]*|d|day[a-zµ]*|w|wk|week[a-zµ]*)([^A-Za-zµ]|$))";
    EMAIL = r#"^([A-Za-z0-9!#$%&'*+/=?^_`{|}~\x80-\x{10FFFF}-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~\x80-\x{10FFFF}-]+)*|"([^"\\]|\\.)*")@([A-Za-z0-9!#$%&'*+/=?^_`{|}~\x80-\x{10FFFF}-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~\x80-\x{10FFFF}-]+)*|\[[^\]]*\])$"#;
}

/// An absolute path, or something with a scheme.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b < 0x20 || b == 0x7f || b == b' ') {
        return false;
    }
    if text.starts_with('/') {
        return has_valid_escapes(text);
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    if !is_scheme || !has_valid_escapes(rest) {
        return false;
    }
    let Some(after) = rest.strip_prefix("//") else { return true };
    let authority = after.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let port = match host.strip_prefix('[') {
        Some(literal) => match literal.split_once(']') {
            Some((_, port)) => port.strip_prefix(':').unwrap_or(port),
            None => return false,
        },
        None => host.split_once(':').map_or("", |(_, port)| port),
    };
    port.bytes().all(|b| b.is_ascii_digit()) && !host.contains(['<', '>', '"', '\\', '^', '`', '{', '|', '}'])
}

fn has_valid_escapes(text: &str) -> bool {
    let is_hex = |part: Option<&str>| part.is_some_and(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
    text.match_indices('%').all(|(at, _)| is_hex(text.get(at + 1..at + 3)))
}

fn is_email(text: &str) -> bool {
    let text = text.trim();
    let address = match (text.rfind('<'), text.strip_suffix('>')) {
        (Some(open), Some(inner)) => inner.get(open + 1..).unwrap_or_default(),
        _ => text,
    };
    EMAIL.matches(address)
}

/// One label with a dash after its first letter at most, or several of which the last is of letters; symbols are letters,
/// too, but not in the last.
fn is_hostname(text: &str) -> bool {
    let is_letter = |c: char| c.is_alphabetic();
    let is_symbol = |c: char| "$+<=>^`|~".contains(c) || !(c.is_ascii() || c.is_control() || c.is_whitespace());
    let is_part = |c: char| c.is_ascii_digit() || is_letter(c) || is_symbol(c);
    let label = |label: &str| {
        label.starts_with(is_part) && label.ends_with(is_part) && label.chars().all(|c| is_part(c) || c == '-')
    };
    let fits = match text.rsplit_once('.') {
        None => {
            let rest = text.strip_prefix(is_part).map(|rest| rest.strip_prefix('-').unwrap_or(rest));
            rest.is_some_and(|rest| rest.chars().all(is_part))
        }
        Some((labels, last)) => {
            labels.split('.').all(label) && last.chars().all(is_letter) && last.chars().count() >= 2
        }
    };
    fits && text.len() <= 255 && text.split('.').all(|label| label.len() <= 63)
}

/// Parts of an IPv4 address may begin with zeros, as they could once.
fn is_ip_sloppy(text: &str) -> bool {
    let trimmed: Vec<&str> = text
        .split('.')
        .map(|part| match part.trim_start_matches('0') {
            "" if !part.is_empty() => "0",
            rest => rest,
        })
        .collect();
    text.parse::<IpAddr>().is_ok() || (!text.contains(':') && trimmed.join(".").parse::<IpAddr>().is_ok())
}

fn is_cidr_sloppy(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let most = if address.contains(':') { 128 } else { 32 };
    is_ip_sloppy(address)
        && !bits.is_empty()
        && bits.bytes().all(|b| b.is_ascii_digit())
        && bits.parse().is_ok_and(|bits: u8| bits <= most)
}

fn is_mac(text: &str) -> bool {
    let parts = |separator: char, digits: usize| -> usize {
        let parts: Vec<&str> = text.split(separator).collect();
        let fit = parts.iter().all(|part| part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit()));
        if fit { parts.len() * digits / 2 } else { 0 }
    };
    [parts(':', 2), parts('-', 2), parts('.', 4)].into_iter().any(|bytes| matches!(bytes, 6 | 8 | 20))
}

/// Groups of 8, 4, 4, 4 and 12 hexadecimal digits, each dash of which may be left out.
fn is_uuid(text: &str, version: Option<char>) -> bool {
    let mut digits = Vec::with_capacity(32);
    for c in text.chars() {
        match c {
            '-' if matches!(digits.len(), 8 | 12 | 16 | 20) => (),
            c if c.is_ascii_hexdigit() => digits.push(c.to_ascii_lowercase()),
            _ => return false,
        }
    }
    let dashes_follow_each_other = text.contains("--") || text.ends_with('-');
    let variant = || matches!(digits.get(16), Some('8' | '9' | 'a' | 'b'));
    digits.len() == 32
        && !dashes_follow_each_other
        && version.is_none_or(|version| digits.get(12) == Some(&version) && (version == '3' || variant()))
}

fn without(text: &str, dropped: impl Fn(char) -> bool) -> String {
    text.chars().filter(|c| !dropped(*c)).collect()
}

fn is_isbn10(text: &str) -> bool {
    let text = without(text, |c| c.is_whitespace() || c == '-');
    let mut sum = 0;
    for (index, c) in text.chars().enumerate() {
        let digit = match c {
            'X' if index == 9 => 10,
            c => match c.to_digit(10) {
                Some(digit) => digit,
                None => return false,
            },
        };
        sum += (u32::try_from(index).unwrap_or(0) + 1) * digit;
    }
    text.len() == 10 && sum.is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let text = without(text, |c| c.is_whitespace() || c == '-');
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let sum: u32 = digits.iter().enumerate().map(|(i, digit)| if i % 2 == 0 { *digit } else { digit * 3 }).sum();
    digits.len() == 13 && text.len() == 13 && sum.is_multiple_of(10)
}

fn is_credit_card(text: &str) -> bool {
    let digits = without(text, |c| !c.is_ascii_digit());
    let doubled = |(index, digit): (usize, u32)| match (index % 2 == 1, digit * 2) {
        (false, _) => digit,
        (true, twice) if twice > 9 => twice - 9,
        (true, twice) => twice,
    };
    let sum: u32 = digits.chars().rev().filter_map(|c| c.to_digit(10)).enumerate().map(doubled).sum();
    CREDIT_CARD.matches(&digits) && sum.is_multiple_of(10)
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let Some((date, time)) = lower.split_once('t') else { return false };
    let part = |range: std::ops::Range<usize>| time.get(range).unwrap_or_default();
    is_date(date) && TIME.matches(time) && part(0..2) <= "23" && part(3..5) <= "59" && part(6..8) <= "59"
}

/// As in Go, or in words: `3 days`.
fn is_duration(text: &str) -> bool {
    GO_DURATION.matches(text) || LONG_DURATION.matches(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_fits_its_format_or_not() {
        check("uri", "https://a.b/c?d=%20", "a.b http://[::1 /a%zz");
        check("uri", "/path", "");
        check("email", "a@b.c \"x\"@z", "a@ @b a.b");
        check("hostname", "a.example.com localhost a-b", "-a.b a_b ab-c.d a.b- -");
        check("ipv4", "10.0.0.1 010.0.0.01", "10.0.0 ::1");
        check("ipv6", "::1 fe80::1", "10.0.0.1 ::g");
        check("cidr", "10.0.0.0/8 ::/0", "10.0.0.0/33 10.0.0.0");
        check("mac", "00:1b:44:11:3a:b7 001b.4411.3ab7 00-1b-44-11-3a-b7", "00:1b:44 zz:1b:44:11:3a:b7");
        check("uuid", "123e4567-e89b-12d3-a456-426614174000 123E4567E89B12D3A456426614174000", "123e4567 xyz");
        check("uuid4", "123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000");
        check("isbn", "0321751043 978-0321751041", "0321751044");
        check("creditcard", "4111-1111-1111-1111", "4111-1111-1111-1112");
        check("ssn", "111-11-1111", "111111111");
        check("hexcolor", "#fff 00FF00", "#ff");
        check("rgbcolor", "rgb(100,100,100)", "rgb(300,0,0)");
        check("byte", "VGVzdA==", "VGVzdA x");
        check("date", "2024-02-29", "2023-02-29 2024-2-9");
        check("date-time", "2024-02-29T10:00:00Z 2024-02-29t10:00:00.5+01:00", "2024-02-29 2024-02-29T25:00:00Z");
        check("duration", "1h30m 5s 3days", "x 5q");
        check("k8s-short-name", "a-b", "A-b a.b");
        check("k8s-long-name", "a-b.c", "A.b a..b");
    }

    #[track_caller]
    fn check(format: &str, good: &str, bad: &str) {
        for text in good.split(' ') {
            assert!(fits(format, text), "{format} {text}");
        }
        for text in bad.split(' ').filter(|text| !text.is_empty()) {
            assert!(!fits(format, text), "{format} {text}");
        }
    }
}

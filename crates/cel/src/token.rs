//! Text into tokens.

use crate::source::Issue;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Eof,
    Ident,
    Escaped,
    Int,
    Uint,
    Float,
    String,
    Bytes,
    /// An operator, a bracket, or one of the words `true`, `false`, `null`, `in`.
    Sign(&'static str),
}

/// A token, the code point it starts at, and its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lexeme<'s> {
    pub(crate) token: Token,
    pub(crate) at: u32,
    pub(crate) text: &'s str,
}

/// Longer ones first.
const SIGNS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*",
    "/", "%",
];
const WORDS: [&str; 4] = ["in", "true", "false", "null"];

/// The tokens, ending with `Eof`. What is no token is told and skipped.
pub(crate) fn lex<'s>(source: &'s str, issues: &mut Vec<Issue>) -> Vec<Lexeme<'s>> {
    let mut lexer = Lexer { rest: source, at: 0 };
    let mut found = Vec::new();
    loop {
        lexer.skip_space();
        let at = lexer.at;
        if lexer.rest.is_empty() {
            found.push(Lexeme { token: Token::Eof, at, text: "<EOF>" });
            return found;
        }
        match scan(lexer.rest) {
            Ok((token, length)) => {
                let text = lexer.advance(length);
                found.push(Lexeme { token, at, text });
            }
            Err(length) => {
                let text = lexer.advance(length.max(1));
                let message = format!("Syntax error: token recognition error at: '{}'", escaped(text));
                issues.push(Issue { at: Some(at), message });
            }
        }
    }
}

/// How a stretch of text is shown within a message about syntax.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t")
}

struct Lexer<'s> {
    rest: &'s str,
    at: u32,
}

impl<'s> Lexer<'s> {
    /// Takes at least `bytes`, up to the end of a character.
    fn advance(&mut self, bytes: usize) -> &'s str {
        let mut end = bytes.min(self.rest.len());
        while !self.rest.is_char_boundary(end) {
            end += 1;
        }
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.at += u32::try_from(taken.chars().count()).unwrap_or(u32::MAX);
        taken
    }

    fn skip_space(&mut self) {
        loop {
            let blank = self.rest.len() - self.rest.trim_start_matches(['\t', ' ', '\r', '\n', '\u{c}']).len();
            if blank > 0 {
                self.advance(blank);
            } else if self.rest.starts_with("//") {
                self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else {
                return;
            }
        }
    }
}

/// The token at the start of the text and its length in bytes, or the length of what is none.
fn scan(text: &str) -> Result<(Token, usize), usize> {
    if let Some(quoted) = string(text) {
        return quoted;
    }
    let first = text.chars().next().unwrap_or_default();
    let second_digit = text.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
    if first.is_ascii_digit() || (first == '.' && second_digit) {
        return Ok(number(text));
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let length = run(text, |b| b.is_ascii_alphanumeric() || b == b'_');
        let word = text.get(..length).unwrap_or_default();
        let token = WORDS.iter().find(|w| **w == word).map_or(Token::Ident, |w| Token::Sign(w));
        return Ok((token, length));
    }
    if let Some(inside) = text.strip_prefix('`') {
        let length = run(inside, |b| b.is_ascii_alphanumeric() || b"_.-/ ".contains(&b));
        return if length > 0 && inside.as_bytes().get(length) == Some(&b'`') {
            Ok((Token::Escaped, length + 2))
        } else {
            Err(length + 2)
        };
    }
    match SIGNS.iter().find(|sign| text.starts_with(**sign)) {
        Some(sign) => Ok((Token::Sign(sign), sign.len())),
        // A lone `&`, `|` or `=` is refused together with what follows it.
        None if matches!(first, '&' | '|' | '=') => {
            Err(first.len_utf8() + text.chars().nth(1).map_or(0, char::len_utf8))
        }
        None => Err(first.len_utf8()),
    }
}

fn run(text: &str, wanted: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|b| wanted(*b)).count()
}

fn number(text: &str) -> (Token, usize) {
    let after = |from: usize| text.get(from..).unwrap_or_default();
    if text.starts_with("0x") {
        let digits = run(after(2), |b| b.is_ascii_hexdigit());
        if digits > 0 {
            let end = 2 + digits;
            return if after(end).starts_with(['u', 'U']) { (Token::Uint, end + 1) } else { (Token::Int, end) };
        }
    }
    let mut end = run(text, |b| b.is_ascii_digit());
    let mut token = Token::Int;
    let fraction = if after(end).starts_with('.') { run(after(end + 1), |b| b.is_ascii_digit()) } else { 0 };
    if fraction > 0 {
        end += 1 + fraction;
        token = Token::Float;
    }
    if after(end).starts_with(['e', 'E']) {
        let sign = usize::from(after(end + 1).starts_with(['+', '-']));
        let digits = run(after(end + 1 + sign), |b| b.is_ascii_digit());
        if digits > 0 {
            return (Token::Float, end + 1 + sign + digits);
        }
    }
    if token == Token::Int && after(end).starts_with(['u', 'U']) {
        return (Token::Uint, end + 1);
    }
    (token, end)
}

/// A string or bytes literal with its prefixes and quotes; `None` if the text does not begin like one.
fn string(text: &str) -> Option<Result<(Token, usize), usize>> {
    let (bytes, raw) = match text.as_bytes() {
        [b'b' | b'B', b'r' | b'R', b'"' | b'\'', ..] => (true, true),
        [b'b' | b'B', b'"' | b'\'', ..] => (true, false),
        [b'r' | b'R', b'"' | b'\'', ..] => (false, true),
        [b'"' | b'\'', ..] => (false, false),
        _ => return None,
    };
    let prefix = usize::from(bytes) + usize::from(raw);
    let body = text.get(prefix..)?;
    let token = if bytes { Token::Bytes } else { Token::String };
    let triple = ["\"\"\"", "'''"].into_iter().find(|q| body.starts_with(q));
    if let Some(length) = triple.and_then(|quote| closing(body, quote, raw)) {
        return Some(Ok((token, prefix + length)));
    }
    let quote = body.get(..1)?;
    match closing(body, quote, raw) {
        Some(length) => Some(Ok((token, prefix + length))),
        // The prefix alone is a name.
        None if prefix > 0 => None,
        None => Some(Err(broken(body, quote))),
    }
}

/// How long the literal is, quotes included; `None` if it does not end or has an unknown escape.
fn closing(body: &str, quote: &str, raw: bool) -> Option<usize> {
    let mut at = quote.len();
    loop {
        let rest = body.get(at..)?;
        if rest.starts_with(quote) {
            return Some(at + quote.len());
        }
        let c = rest.chars().next()?;
        if quote.len() == 1 && matches!(c, '\n' | '\r') {
            return None;
        }
        at += if c == '\\' && !raw { escape(rest)? } else { c.len_utf8() };
    }
}

/// The length of a known escape.
fn escape(rest: &str) -> Option<usize> {
    let digits = |from: usize, count: usize, radix: u32| {
        let text = rest.get(from..from + count)?;
        text.chars().all(|c| c.is_digit(radix)).then_some(from + count)
    };
    match rest.as_bytes().get(1)? {
        b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'"' | b'\'' | b'\\' | b'?' | b'`' => Some(2),
        b'x' | b'X' => digits(2, 2, 16),
        b'u' => digits(2, 4, 16),
        b'U' => digits(2, 8, 16),
        b'0'..=b'3' => digits(1, 3, 8),
        _ => None,
    }
}

/// How much of a literal that never ends is told as unrecognized.
fn broken(body: &str, quote: &str) -> usize {
    let mut at = quote.len();
    while let Some(c) = body.get(at..).and_then(|rest| rest.chars().next()) {
        if c == '\\' {
            match body.get(at..).and_then(escape) {
                Some(length) => at += length,
                None => return at + broken_escape(body.get(at..).unwrap_or_default()),
            }
            continue;
        }
        at += c.len_utf8();
        if matches!(c, '\n' | '\r') {
            return at;
        }
    }
    at
}

/// As far as an escape could be one, and the character at which it cannot.
fn broken_escape(rest: &str) -> usize {
    let (radix, most) = match rest.as_bytes().get(1) {
        Some(b'x' | b'X') => (16, 2),
        Some(b'u') => (16, 4),
        Some(b'U') => (16, 8),
        Some(b'0'..=b'3') => (8, 2),
        _ => (16, 0),
    };
    let known = if most == 0 { 1 } else { 2 };
    let digits = rest.chars().skip(known).take(most).take_while(|c| c.is_digit(radix)).count();
    let end = known + digits;
    end + rest.chars().nth(end).map_or(0, char::len_utf8)
}

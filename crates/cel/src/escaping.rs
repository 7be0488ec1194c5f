//! Field names that are no names of the language, and how they are spelled instead.

use crate::parser::RESERVED;

/// Words that mean something; the others are only kept free.
const MEANT: [&str; 4] = ["true", "false", "null", "in"];
const ESCAPES: [(&str, &str); 4] = [("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")];

/// It means something in an expression, or may come to.
pub(crate) fn is_word(name: &str) -> bool {
    MEANT.contains(&name) || RESERVED.contains(&name)
}

/// How a field is spelled in an expression; `None` if it cannot be.
pub fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if is_word(name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        if let Some((plain, escaped)) = ESCAPES.iter().find(|(plain, _)| rest.starts_with(plain)) {
            out.push_str(escaped);
            rest = rest.get(plain.len()..)?;
        } else if c.is_ascii_alphanumeric() || c == '_' {
            out.push(c);
            rest = rest.get(1..)?;
        } else {
            return None;
        }
    }
    Some(out)
}

/// The field an escaped name stands for; `None` if an escape in it is unknown.
pub fn unescape(escaped: &str) -> Option<String> {
    let mut out = String::with_capacity(escaped.len());
    let mut rest = escaped;
    loop {
        let Some(start) = rest.find("__") else {
            out.push_str(rest);
            return Some(out);
        };
        let after = rest.get(start + 2..)?;
        let word = after.get(..after.find('_').unwrap_or(after.len()))?;
        let closed = !word.is_empty() && after.get(word.len()..)?.starts_with("__");
        if !closed {
            // Not an escape: an underscore goes through as it is.
            out.push_str(rest.get(..=start)?);
            rest = rest.get(start + 1..)?;
            continue;
        }
        out.push_str(rest.get(..start)?);
        let spelled = format!("__{word}__");
        match ESCAPES.iter().find(|(_, known)| *known == spelled) {
            Some((plain, _)) => out.push_str(plain),
            None if is_word(word) && spelled == escaped => out.push_str(word),
            None => return None,
        }
        rest = after.get(word.len() + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spelled_and_read_back() {
        check("spec", "spec");
        check("a.b-c/d", "a__dot__b__dash__c__slash__d");
        check("__x", "__underscores__x");
        check("namespace", "__namespace__");
        check("if", "__if__");
        check("a_b", "a_b");
        check("a___b", "a__underscores___b");
        assert_eq!(escape("1a"), None);
        assert_eq!(escape("a$b"), None);
        assert_eq!(escape(""), None);
        assert_eq!(unescape("__nothing__"), None);
        assert_eq!(unescape("x__if__"), None);
        assert_eq!(unescape("a__b"), Some("a__b".into()));
    }

    #[track_caller]
    fn check(name: &str, escaped: &str) {
        assert_eq!(escape(name).as_deref(), Some(escaped), "{name}");
        assert_eq!(unescape(escaped).as_deref(), Some(name), "{escaped}");
    }
}

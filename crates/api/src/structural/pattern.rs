//! Regular expressions of the dialect that definitions are written in, which knows only ASCII in its classes.

use std::sync::OnceLock;

use regex::Regex;

/// A pattern that is compiled when something is first held against it.
#[derive(Debug, Default)]
pub struct Pattern {
    text: Box<str>,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), compiled: OnceLock::new() }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Nothing matches a pattern that cannot be compiled; definitions with one are refused.
    pub fn matches(&self, text: &str) -> bool {
        let compiled = self.compiled.get_or_init(|| compile(&self.text).ok());
        compiled.as_ref().is_some_and(|regex| regex.is_match(text))
    }
}

impl Clone for Pattern {
    fn clone(&self) -> Self {
        Self::new(&self.text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// Why a pattern cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("error parsing regexp: {0}")]
pub struct PatternError(String);

pub fn compile(pattern: &str) -> Result<Regex, PatternError> {
    Regex::new(&translated(pattern)).map_err(|error| {
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default();
        PatternError(last.trim_start_matches("error: ").to_owned())
    })
}

/// `\d`, `\w`, `\s` and `\b` mean ASCII alone; `\Q…\E` quotes.
fn translated(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern.chars();
    let mut in_class = false;
    while let Some(c) = rest.next() {
        match c {
            '\\' => {
                let Some(escaped) = rest.next() else {
                    out.push('\\');
                    break;
                };
                let class = match escaped {
                    'd' => "0-9",
                    'w' => "0-9A-Za-z_",
                    's' => "\\t\\n\\x0c\\r ",
                    'D' => "^0-9",
                    'W' => "^0-9A-Za-z_",
                    'S' => "^\\t\\n\\x0c\\r ",
                    'b' if !in_class => {
                        out.push_str("(?-u:\\b)");
                        continue;
                    }
                    'Q' => {
                        let text = rest.as_str();
                        let (quoted, after) = text.split_once("\\E").unwrap_or((text, ""));
                        out.push_str(&regex::escape(quoted));
                        rest = after.chars();
                        continue;
                    }
                    other => {
                        out.push('\\');
                        out.push(other);
                        continue;
                    }
                };
                match (in_class, class.starts_with('^')) {
                    (true, false) => out.push_str(class),
                    _ => out.push_str(&format!("[{class}]")),
                }
            }
            '[' if in_class => {
                // A POSIX class, or a plain bracket, which only this dialect lets stand bare.
                let posix = rest.as_str().starts_with(':').then(|| rest.as_str().find(":]")).flatten();
                match posix {
                    Some(end) => {
                        let (name, after) = rest.as_str().split_at(end + 2);
                        out.push('[');
                        out.push_str(name);
                        rest = after.chars();
                    }
                    None => out.push_str("\\["),
                }
            }
            '[' => {
                in_class = true;
                out.push('[');
                if let Some(after) = rest.as_str().strip_prefix('^') {
                    out.push('^');
                    rest = after.chars();
                }
                if let Some(after) = rest.as_str().strip_prefix(']') {
                    out.push_str("\\]");
                    rest = after.chars();
                }
            }
            ']' => {
                in_class = false;
                out.push(']');
            }
            // Set operations are of another dialect.
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_upstream() {
        check(r"^\d+$", "12", true);
        check(r"^\d+$", "١٢", false);
        check(r"^[\w.-]+$", "a_b.c-d", true);
        check(r"^[\w.-]+$", "ä", false);
        check(r"^\S+$", "a b", false);
        check(r"^[^\S]+$", " ", true);
        check(r"^[[:alpha:]]+$", "abc", true);
        check(r"^[a[]+$", "a[", true);
        check(r"^[]a]+$", "]a", true);
        check(r"^[a&&b]+$", "a&b", true);
        check(r"^\Qa.b\E$", "a.b", true);
        check(r"^\Qa.b\E$", "axb", false);
        check(r"^(https?|ftp)://[^\s/$.?#].[^\s]*$", "https://a.b/c", true);
        check(r"^.{2}$", "äö", true);
        check(r"(?i)^abc$", "ABC", true);
    }

    #[track_caller]
    fn check(pattern: &str, text: &str, want: bool) {
        assert_eq!(Pattern::new(pattern).matches(text), want, "{pattern} on {text}");
    }

    #[test]
    fn what_cannot_be_compiled_says_why() {
        assert!(compile("(").unwrap_err().to_string().starts_with("error parsing regexp: "));
    }
}

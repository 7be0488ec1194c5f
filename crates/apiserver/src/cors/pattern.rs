//! Regular expressions as far as origins need them: a crate for all of them would be larger than this server's share of one.
//!
//! Literals, `.`, classes, groups, `|`, `*`, `+`, `?`, `^`, `$`, and `\d`, `\w`, `\s`. Anything else is refused, never
//! taken for something it is not. A match takes time in the square of the text at most, whatever the pattern.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::str::Chars;

/// Why a pattern cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PatternError {
    #[error("{0:?} does not pin to the start and end of the host: use ^ or //, and $ or :")]
    Unpinned(String),
    #[error("{0:?} is no regular expression that is understood here, at {1:?}")]
    Syntax(String, String),
}

#[derive(Debug)]
pub(super) struct Pattern(Node);

#[derive(Debug)]
enum Node {
    Start,
    End,
    /// A character that is (or is not, if `true`) in one of the ranges.
    Class(Vec<(char, char)>, bool),
    Sequence(Vec<Node>),
    Either(Vec<Node>),
    /// At least so many times, and at most once if `true`.
    Repeat(Box<Node>, usize, bool),
}

impl Pattern {
    pub(super) fn new(text: &str) -> Result<Self, PatternError> {
        let mut rest = text.chars().peekable();
        let node = either(&mut rest);
        match (node, rest.peek()) {
            (Some(node), None) => Ok(Self(node)),
            _ => Err(PatternError::Syntax(text.to_owned(), rest.collect())),
        }
    }

    /// Somewhere in the text.
    pub(super) fn matches(&self, text: &str) -> bool {
        let text: Vec<char> = text.chars().collect();
        let anywhere = (0..=text.len()).collect();
        !ends(&self.0, &text, &anywhere).is_empty()
    }
}

/// Where a match of `node` can end that begins at one of `starts`.
fn ends(node: &Node, text: &[char], starts: &BTreeSet<usize>) -> BTreeSet<usize> {
    match node {
        Node::Start => starts.iter().copied().filter(|at| *at == 0).collect(),
        Node::End => starts.iter().copied().filter(|at| *at == text.len()).collect(),
        Node::Class(ranges, negated) => {
            let fits = |c: &char| ranges.iter().any(|(first, last)| (first..=last).contains(&c)) != *negated;
            starts.iter().filter(|at| text.get(**at).is_some_and(fits)).map(|at| at + 1).collect()
        }
        Node::Sequence(nodes) => nodes.iter().fold(starts.clone(), |at, node| ends(node, text, &at)),
        Node::Either(nodes) => nodes.iter().flat_map(|node| ends(node, text, starts)).collect(),
        Node::Repeat(node, least, once) => {
            let first = (0..*least).fold(starts.clone(), |at, _| ends(node, text, &at));
            let mut all = first.clone();
            let mut last = first;
            while !last.is_empty() {
                last = ends(node, text, &last).difference(&all).copied().collect();
                all.extend(&last);
                if *once {
                    break;
                }
            }
            all
        }
    }
}

fn either(rest: &mut Peekable<Chars<'_>>) -> Option<Node> {
    let mut nodes = vec![sequence(rest)?];
    while rest.next_if_eq(&'|').is_some() {
        nodes.push(sequence(rest)?);
    }
    Some(Node::Either(nodes))
}

fn sequence(rest: &mut Peekable<Chars<'_>>) -> Option<Node> {
    let mut nodes = Vec::new();
    while rest.peek().is_some_and(|c| !matches!(c, '|' | ')')) {
        let node = atom(rest)?;
        nodes.push(match rest.next_if(|c| matches!(c, '*' | '+' | '?')) {
            Some('*') => Node::Repeat(Box::new(node), 0, false),
            Some('+') => Node::Repeat(Box::new(node), 1, false),
            Some(_) => Node::Repeat(Box::new(node), 0, true),
            None => node,
        });
    }
    Some(Node::Sequence(nodes))
}

fn atom(rest: &mut Peekable<Chars<'_>>) -> Option<Node> {
    let one = |c: char| Node::Class(vec![(c, c)], false);
    match rest.next()? {
        '^' => Some(Node::Start),
        '$' => Some(Node::End),
        '.' => Some(Node::Class(vec![('\n', '\n')], true)),
        '[' => class(rest),
        '(' => {
            if rest.next_if_eq(&'?').is_some() && rest.next() != Some(':') {
                return None;
            }
            let node = either(rest)?;
            rest.next_if_eq(&')').map(|_| node)
        }
        '\\' => Some(Node::Class(escaped(rest.next()?)?, false)),
        '*' | '+' | '?' | '{' | '}' | ']' | ')' => None,
        c => Some(one(c)),
    }
}

fn escaped(c: char) -> Option<Vec<(char, char)>> {
    match c {
        'd' => Some(vec![('0', '9')]),
        'w' => Some(vec![('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')]),
        's' => Some(vec![(' ', ' '), ('\t', '\t'), ('\n', '\n'), ('\r', '\r')]),
        c if c.is_ascii_alphanumeric() => None,
        c => Some(vec![(c, c)]),
    }
}

fn class(rest: &mut Peekable<Chars<'_>>) -> Option<Node> {
    let negated = rest.next_if_eq(&'^').is_some();
    let mut ranges = Vec::new();
    loop {
        let first = match rest.next()? {
            ']' if !ranges.is_empty() => return Some(Node::Class(ranges, negated)),
            '\\' => {
                ranges.extend(escaped(rest.next()?)?);
                continue;
            }
            // `[:alpha:]` means more than its letters.
            '[' if rest.peek() == Some(&':') => return None,
            c => c,
        };
        if rest.next_if_eq(&'-').is_none() {
            ranges.push((first, first));
        } else if rest.peek() == Some(&']') {
            ranges.extend([(first, first), ('-', '-')]);
        } else {
            let last = rest.next().filter(|last| *last != '\\' && *last >= first)?;
            ranges.push((first, last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_match_as_regular_expressions_do() {
        check("^https://example\\.com$", "https://example.com", true);
        check("^https://example\\.com$", "https://exampleXcom", false);
        check("//example[.]com$", "https://example.com", true);
        check("//example[.]com$", "https://example.com.attacker.net", false);
        check("//localhost(:|$)", "http://localhost:8080", true);
        check("//localhost(:|$)", "http://localhosts", false);
        check("^https?://([a-z0-9-]+\\.)*example\\.com(:\\d+)?$", "http://a.b-c.example.com:99", true);
        check("^https?://([a-z0-9-]+\\.)*example\\.com(:\\d+)?$", "ftp://example.com", false);
        check("^http://[^/]*$", "http://a/b", false);
        check("^.*$", "", true);
        check("^(a|b|)+$", "abba", true);
        check("^(a*)*$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", false);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in ["^a{2}$", "^(a$", "^a)$", "^[a$", "*", "^\\b$", "^(?i)a$", "^[[:alpha:]]$", "^[z-a]$", "a\\"] {
            assert!(Pattern::new(text).is_err(), "{text}");
        }
    }

    #[track_caller]
    fn check(pattern: &str, text: &str, want: bool) {
        assert_eq!(Pattern::new(pattern).unwrap().matches(text), want, "{pattern} on {text}");
    }
}

//! An expression's text, and errors that point into it.

/// One thing wrong with an expression, at a code point of its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Issue {
    /// `None`: the error is about the whole, and upstream prints it without a place.
    pub(crate) at: Option<u32>,
    pub(crate) message: String,
}

/// All that is wrong with an expression, as its author reads it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The text is wrong, or its types are.
    #[error("{0}")]
    Check(String),
    /// A constant in it cannot be computed.
    #[error("{0}")]
    Program(String),
}

/// Upstream stops counting here.
const MAX_ISSUES: usize = 100;
const MAX_SNIPPET: usize = 16_384;

/// The issues in the order of their places, each with the line it is in and a mark under the spot.
pub(crate) fn report(source: &str, mut issues: Vec<Issue>) -> CompileError {
    issues.truncate(MAX_ISSUES);
    // A text without any has no first line, and what is wrong is before it.
    let lines: Vec<&str> = if source.is_empty() { Vec::new() } else { source.split('\n').collect() };
    let mut placed: Vec<((i64, i64), String)> =
        issues.into_iter().map(|issue| (place(source, issue.at), issue.message)).collect();
    placed.sort_by_key(|(at, _)| *at);
    let shown: Vec<String> =
        placed.iter().map(|((line, column), message)| show(&lines, *line, *column, message)).collect();
    CompileError::Check(shown.join("\n"))
}

/// Line from one, column from zero; both -1 for an issue without a place.
fn place(source: &str, at: Option<u32>) -> (i64, i64) {
    let Some(at) = at else { return (-1, -1) };
    if source.is_empty() {
        return (1, -1);
    }
    let (mut line, mut column) = (1, 0);
    for c in source.chars().take(at as usize) {
        if c == '\n' {
            line += 1;
            column = 0;
        } else {
            column += 1;
        }
    }
    (line, column)
}

fn show(lines: &[&str], line: i64, column: i64, message: &str) -> String {
    let mut text = format!("ERROR: <input>:{line}:{}: {message}", column + 1);
    let snippet = usize::try_from(line - 1).ok().and_then(|index| lines.get(index));
    if let Some(snippet) = snippet.filter(|snippet| snippet.len() <= MAX_SNIPPET) {
        let snippet = snippet.replace('\t', " ");
        let column = usize::try_from(column).unwrap_or_default();
        let mut marks: String =
            snippet.chars().take(column).map(|c| if c.len_utf8() > 1 { '．' } else { '.' }).collect();
        let wide = snippet.chars().nth(column).is_some_and(|c| c.len_utf8() > 1);
        marks.push(if wide { '＾' } else { '^' });
        text.push_str(&format!("\n | {snippet}\n | {marks}"));
    }
    text
}

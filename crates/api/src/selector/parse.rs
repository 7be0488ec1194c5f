//! The grammar of label selectors, with upstream's complaints.

use super::{Operator, Requirement, SelectorError};
use crate::field::FieldError;
use crate::validation::{is_label_value, is_qualified_name};

const OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";
const SYMBOLS: [&str; 8] = [")", ",", "!", "==", "=", ">", "<", "!="];

/// What is left to read. The end is an empty token.
struct Tokens<'a> {
    text: &'a str,
}

fn is_special(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// A key or a value; words that may be operators are these, too.
fn is_name(token: &str) -> bool {
    !token.is_empty() && !token.starts_with(is_special)
}

impl<'a> Tokens<'a> {
    /// The next token, and what comes after it.
    fn split(&self) -> (&'a str, &'a str) {
        let text = self.text.trim_start_matches(is_space);
        let end = if text.starts_with(is_special) {
            // The longest symbol that there is.
            let two = text.get(..2).filter(|two| SYMBOLS.contains(two));
            two.map_or(1, str::len)
        } else {
            text.find(|c| is_special(c) || is_space(c)).unwrap_or(text.len())
        };
        text.split_at_checked(end).unwrap_or(("", ""))
    }

    fn peek(&self) -> &'a str {
        self.split().0
    }

    fn next(&mut self) -> &'a str {
        let (token, rest) = self.split();
        self.text = rest;
        token
    }
}

/// All requirements of a selector.
pub(super) fn requirements(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut tokens = Tokens { text };
    let mut all = Vec::new();
    let may_begin = |token: &str| is_name(token) || token == "!";
    let found =
        |token: &str, expected: &str| Err(SelectorError::List(format!("found '{token}', expected: {expected}")));
    loop {
        match tokens.peek() {
            "" => return Ok(all),
            token if !may_begin(token) => return found(token, "!, identifier, or 'end of string'"),
            _ => all.push(requirement(&mut tokens).map_err(SelectorError::Requirement)?),
        }
        match tokens.next() {
            "" => return Ok(all),
            "," if may_begin(tokens.peek()) => (),
            "," => return found(tokens.peek(), "identifier after ','"),
            token => return found(token, "',' or 'end of string'"),
        }
    }
}

fn requirement(tokens: &mut Tokens<'_>) -> Result<Requirement, String> {
    let mut token = tokens.next();
    let is_negated = token == "!";
    if is_negated {
        token = tokens.next();
    }
    if !is_name(token) {
        return Err(format!("found '{token}', expected: identifier"));
    }
    let key = token.to_owned();
    let wrong = is_qualified_name(&key).join("; ");
    if !wrong.is_empty() {
        return Err(FieldError::invalid("<nil>", key, wrong).to_string());
    }
    if is_negated {
        return Ok(Requirement { key, operator: Operator::DoesNotExist, values: Vec::new() });
    }
    if matches!(tokens.peek(), "" | ",") {
        return Ok(Requirement { key, operator: Operator::Exists, values: Vec::new() });
    }
    let (operator, is_set) = match tokens.next() {
        "in" => (Operator::In, true),
        "notin" => (Operator::NotIn, true),
        "=" | "==" => (Operator::In, false),
        "!=" => (Operator::NotIn, false),
        ">" => (Operator::GreaterThan, false),
        "<" => (Operator::LessThan, false),
        other => return Err(format!("found '{other}', expected: {OPERATORS}")),
    };
    let mut values = if is_set { value_set(tokens)? } else { vec![value(tokens)?] };
    values.sort();
    values.dedup();
    let is_ordered = matches!(operator, Operator::GreaterThan | Operator::LessThan);
    checked(&key, is_ordered, &values)?;
    Ok(Requirement { key, operator, values })
}

/// `key=` selects the empty value.
fn value(tokens: &mut Tokens<'_>) -> Result<String, String> {
    match tokens.peek() {
        "" | "," => Ok(String::new()),
        token if is_name(token) => Ok(tokens.next().to_owned()),
        token => Err(format!("found '{token}', expected: identifier")),
    }
}

/// `(a, b)`, in which any may be left out.
fn value_set(tokens: &mut Tokens<'_>) -> Result<Vec<String>, String> {
    let open = tokens.next();
    if open != "(" {
        return Err(format!("found '{open}' expected: '('"));
    }
    match tokens.peek() {
        ")" => {
            tokens.next();
            return Ok(vec![String::new()]);
        }
        token if !is_name(token) && token != "," => {
            return Err(format!("found '{token}', expected: ',', ')' or identifier"));
        }
        _ => (),
    }
    let mut values = Vec::new();
    loop {
        match tokens.next() {
            "," => {
                if values.is_empty() || matches!(tokens.peek(), ")" | ",") {
                    values.push(String::new());
                }
                if tokens.peek() == ")" {
                    break;
                }
            }
            token if is_name(token) => {
                values.push(token.to_owned());
                match tokens.peek() {
                    "," => (),
                    ")" => break,
                    other => return Err(format!("found '{other}', expected: ',' or ')'")),
                }
            }
            token => return Err(format!("found '{token}', expected: ',', or identifier")),
        }
    }
    tokens.next();
    Ok(values)
}

/// Values are those of labels; where they are compared, they are numbers.
fn checked(key: &str, is_ordered: bool, values: &[String]) -> Result<(), String> {
    let mut errors = Vec::new();
    for (index, value) in values.iter().enumerate() {
        if is_ordered && value.parse::<i64>().is_err() {
            let why = "for 'Gt', 'Lt' operators, the value must be an integer";
            errors.push(FieldError::invalid(format!("values[{index}]"), value.as_str(), why).to_string());
        }
    }
    for (index, value) in values.iter().enumerate() {
        let wrong = is_label_value(value).join("; ");
        if !wrong.is_empty() {
            errors.push(FieldError::invalid(format!("values[{index}][{key}]"), value.as_str(), wrong).to_string());
        }
    }
    match errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Selector;

    #[test]
    fn complaints_are_upstreams() {
        for (text, wanted) in [
            ("=1", "found '=', expected: !, identifier, or 'end of string'"),
            ("i,,odd", "found ',', expected: identifier after ','"),
            ("i===1", "unable to parse requirement: found '=', expected: identifier"),
            ("i in 1", "unable to parse requirement: found '1' expected: '('"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            ("i=1=2", "found '=', expected: ',' or 'end of string'"),
            ("/a=1", "unable to parse requirement: <nil>: Invalid value: \"/a\": prefix part must be non-empty"),
        ] {
            assert_eq!(Selector::parse(text).unwrap_err().to_string(), wanted, "{text}");
        }
        for fine in ["x in (foo,,baz),y,z notin ()", "in=1", "a in (in)", "i in (,)", " i ", "i>1,i<4"] {
            assert!(Selector::parse(fine).is_ok(), "{fine}");
        }
    }
}

//! JSONPath as printer columns, scale paths and selectable fields use it: `.spec.items[?(@.type=="Ready")].status`.

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// Every element, or every value of an object.
    All,
    /// Values of this name, however deep.
    Deep(Box<[Step]>),
    /// From, to, and each how many; negative ones count from the end.
    Slice(Option<i64>, Option<i64>, i64),
    Index(i64),
    Either(Vec<Step>),
    Filter(JsonPath, Option<(Comparison, Operand)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Literal(Value),
    Path(JsonPath),
}

/// Why a text is no path.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("unterminated array")]
    UnterminatedArray,
    #[error("unterminated filter")]
    UnterminatedFilter,
    #[error("unrecognized character in action: U+{:04X} {:?}", *.0 as u32, .0)]
    Unexpected(char),
    #[error("invalid array index {0}")]
    Index(String),
    #[error("unrecognized identifier {0}")]
    Identifier(String),
}

/// What ends a name.
const ENDS: [char; 9] = ['.', '[', ']', '$', '@', '{', '}', ' ', '\t'];

impl JsonPath {
    /// Reads a path, with or without the root's `$`.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let mut rest = text.strip_prefix(['$', '@']).unwrap_or(text);
        let mut steps = Vec::new();
        while let Some(first) = rest.chars().next() {
            rest = match first {
                '[' => {
                    let (inside, after) = bracket(rest)?;
                    steps.push(array(inside)?);
                    after
                }
                '.' => match rest.strip_prefix("..") {
                    Some(after) => {
                        let (step, after) = match after.starts_with('[') {
                            true => {
                                let (inside, after) = bracket(after)?;
                                (array(inside)?, after)
                            }
                            false => {
                                let (name, after) = name(after);
                                (named(name), after)
                            }
                        };
                        steps.push(Step::Deep([step].into()));
                        after
                    }
                    None => {
                        let (name, after) = name(rest.strip_prefix('.').unwrap_or(rest));
                        if !name.is_empty() {
                            steps.push(named(name));
                        }
                        after
                    }
                },
                ' ' | '\t' => rest.trim_start(),
                c if c.is_alphabetic() && steps.is_empty() => return Err(PathError::Identifier(name(rest).0)),
                c => return Err(PathError::Unexpected(c)),
            };
        }
        Ok(Self(steps))
    }

    /// Field by field, from the root to the last, and nothing else.
    pub fn fields(&self) -> Option<Vec<String>> {
        let name = |step: &'_ Step| match step {
            Step::Field(name) => Some(name.clone()),
            _ => None,
        };
        self.0.iter().map(name).collect()
    }

    /// Everything the path leads to.
    pub fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let start = vec![root];
        self.0.iter().fold(start, |found, step| found.into_iter().flat_map(|value| step.from(value)).collect())
    }
}

impl Step {
    fn from<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Field(name), Value::Object(map)) => map.get(name).into_iter().collect(),
            (Self::All, Value::Object(map)) => map.values().collect(),
            (Self::All, Value::Array(items)) => items.iter().collect(),
            (Self::Index(index), Value::Array(items)) => at(items, *index).into_iter().collect(),
            (Self::Slice(from, to, by), Value::Array(items)) => slice(items, *from, *to, *by),
            (Self::Either(steps), value) => steps.iter().flat_map(|step| step.from(value)).collect(),
            (Self::Deep(steps), value) => {
                let mut found: Vec<&Value> = steps.iter().flat_map(|step| step.from(value)).collect();
                let inner: Vec<&Value> = match value {
                    Value::Object(map) => map.values().collect(),
                    Value::Array(items) => items.iter().collect(),
                    _ => Vec::new(),
                };
                found.extend(inner.into_iter().flat_map(|value| self.from(value)));
                found
            }
            (Self::Filter(path, test), Value::Array(items)) => {
                items.iter().filter(|item| passes(item, path, test.as_ref())).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn at(items: &[Value], index: i64) -> Option<&Value> {
    let length = i64::try_from(items.len()).ok()?;
    items.get(usize::try_from(if index < 0 { index + length } else { index }).ok()?)
}

fn slice(items: &[Value], from: Option<i64>, to: Option<i64>, by: i64) -> Vec<&Value> {
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let place =
        |index: i64| usize::try_from(if index < 0 { index + length } else { index }.clamp(0, length)).unwrap_or(0);
    let (from, to) = (place(from.unwrap_or(0)), place(to.unwrap_or(length)));
    let by = usize::try_from(by).unwrap_or(1).max(1);
    items.get(from..to.max(from)).unwrap_or_default().iter().step_by(by).collect()
}

fn passes(item: &Value, path: &JsonPath, test: Option<&(Comparison, Operand)>) -> bool {
    let found = path.find(item);
    let Some((comparison, operand)) = test else { return !found.is_empty() };
    let other = match operand {
        Operand::Literal(value) => Some(value),
        Operand::Path(path) => path.find(item).first().copied(),
    };
    let (Some(left), Some(right)) = (found.first().copied(), other) else { return false };
    let order = match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64().partial_cmp(&right.as_f64()),
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (left, right) => (left == right).then_some(std::cmp::Ordering::Equal),
    };
    match comparison {
        Comparison::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
        Comparison::NotEqual => !order.is_some_and(std::cmp::Ordering::is_eq),
        Comparison::Less => order.is_some_and(std::cmp::Ordering::is_lt),
        Comparison::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
        Comparison::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
        Comparison::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
    }
}

fn named(name: String) -> Step {
    if name == "*" { Step::All } else { Step::Field(name) }
}

/// A name up to what ends it; a backslash takes what follows as it is.
fn name(text: &str) -> (String, &str) {
    let mut out = String::new();
    let mut rest = text.chars();
    loop {
        let after = rest.as_str();
        match rest.next() {
            Some('\\') => out.extend(rest.next()),
            Some(c) if ENDS.contains(&c) => return (out, after),
            Some(c) => out.push(c),
            None => return (out, ""),
        }
    }
}

/// What is inside a bracket, and what follows it.
fn bracket(text: &str) -> Result<(&str, &str), PathError> {
    let is_filter = text.starts_with("[?(");
    let (mut depth, mut quote) = (0, None);
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => drop(chars.next()),
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => (),
            (None, '\'' | '"') => quote = Some(c),
            (None, '[' | '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, ']') => {
                depth -= 1;
                if depth == 0 {
                    return Ok((text.get(1..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default()));
                }
            }
            _ => (),
        }
    }
    Err(if is_filter { PathError::UnterminatedFilter } else { PathError::UnterminatedArray })
}

fn array(inside: &str) -> Result<Step, PathError> {
    let text = inside.trim();
    if let Some(test) = text.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        return filter(test.trim());
    }
    let quoted = |text: &str| {
        let inner = text.strip_prefix(['\'', '"'])?.strip_suffix(['\'', '"'])?;
        Some(inner.replace("\\'", "'").replace("\\\"", "\""))
    };
    let one = |text: &str| match (text, quoted(text)) {
        ("*", _) => Ok(Step::All),
        (_, Some(name)) => Ok(Step::Field(name)),
        _ => text.parse().map(Step::Index).map_err(|_| PathError::Index(text.to_owned())),
    };
    if text.contains(',') {
        return Ok(Step::Either(text.split(',').map(|part| one(part.trim())).collect::<Result<_, _>>()?));
    }
    if text.contains(':') && quoted(text).is_none() {
        let number = |text: &str| match text.trim() {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| PathError::Index(text.to_owned())),
        };
        let mut parts = text.split(':');
        let (from, to) = (number(parts.next().unwrap_or_default())?, number(parts.next().unwrap_or_default())?);
        return Ok(Step::Slice(from, to, number(parts.next().unwrap_or_default())?.unwrap_or(1)));
    }
    one(text)
}

fn filter(text: &str) -> Result<Step, PathError> {
    const COMPARISONS: [(&str, Comparison); 6] = [
        ("==", Comparison::Equal),
        ("!=", Comparison::NotEqual),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    let found = COMPARISONS.iter().filter_map(|(sign, what)| Some((text.find(sign)?, sign.len(), *what)));
    let Some((at, length, comparison)) = found.min_by_key(|(at, length, _)| (*at, usize::MAX - length)) else {
        return Ok(Step::Filter(JsonPath::parse(text)?, None));
    };
    let (left, right) = (text.get(..at).unwrap_or_default(), text.get(at + length..).unwrap_or_default().trim());
    let operand = match right.chars().next() {
        Some('@' | '$' | '.') => Operand::Path(JsonPath::parse(right)?),
        Some('\'') => Operand::Literal(right.trim_matches('\'').into()),
        _ => Operand::Literal(serde_json::from_str(right).map_err(|_| PathError::Identifier(right.to_owned()))?),
    };
    Ok(Step::Filter(JsonPath::parse(left.trim())?, Some((comparison, operand))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_to_values() {
        check(".spec.replicas", "3");
        check("$.spec.replicas", "3");
        check(".spec.none", "");
        check(r".metadata.labels.a\.b/c", r#""x""#);
        check(".metadata.labels['a.b/c']", r#""x""#);
        check(r#".status.conditions[?(@.type=="Ready")].status"#, r#""True""#);
        check(r".status.conditions[?(@.type=='Old')].status", r#""False""#);
        check(".status.conditions[?(@.n>1)].type", r#""Old""#);
        check(".status.conditions[0].type", r#""Ready""#);
        check(".status.conditions[-1].type", r#""Old""#);
        check(".status.conditions[*].type", r#""Ready" "Old""#);
        check(".status.conditions[0:1].type", r#""Ready""#);
        check(".status.conditions[0,1].n", "1 2");
        check("..n", "1 2");
        check(".spec.*", "3");
    }

    #[track_caller]
    fn check(path: &str, want: &str) {
        let object = json!({
            "metadata": {"labels": {"a.b/c": "x"}}, "spec": {"replicas": 3},
            "status": {"conditions": [{"type": "Ready", "status": "True", "n": 1}, {"type": "Old", "status": "False", "n": 2}]},
        });
        let found = JsonPath::parse(path).unwrap();
        let found: Vec<String> = found.find(&object).iter().map(ToString::to_string).collect();
        assert_eq!(found.join(" "), want, "{path}");
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for text in [".a[", ".a[x]", "a.b", ".a[?(@.b==)]", ".a]"] {
            assert!(JsonPath::parse(text).is_err(), "{text}");
        }
        assert_eq!(JsonPath::parse(".a.b").unwrap().fields(), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(JsonPath::parse(".a[0]").unwrap().fields(), None);
    }
}

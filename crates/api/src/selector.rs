//! Label and field selectors: parsing with upstream's grammar and messages, and matching.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

pub type Labels = BTreeMap<String, String>;

/// All requirements must hold. An empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector {
    requirements: Vec<Requirement>,
    /// `matchLabels: null` selects nothing, which no list of requirements can say.
    nothing: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("unable to parse requirement: found '{found}', expected: {expected}")]
    Unexpected { found: String, expected: &'static str },
    #[error("\"{0}\" is not a valid label selector operator")]
    Operator(String),
    #[error("values: Invalid value: [{0}]: for 'Gt', 'Lt' operators, the value must be an integer")]
    NotInteger(String),
    #[error("invalid field selector: \"{0}\"; can't understand it")]
    Field(String),
    #[error("field label not supported: {0}")]
    UnsupportedField(String),
}

impl Selector {
    pub fn everything() -> Self {
        Self::default()
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// `a=b, c!=d, e in (f, g), h, !i, j>1`
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let tokens = tokenize(text);
        let mut tokens = tokens.iter().map(String::as_str).peekable();
        let mut requirements = Vec::new();
        while let Some(token) = tokens.next() {
            requirements.push(requirement(token, &mut tokens)?);
            match tokens.next() {
                None => break,
                Some(",") if tokens.peek().is_some() => (),
                Some(",") => return Err(unexpected("", "identifier after ','")),
                Some(found) => return Err(unexpected(found, "',' or 'end of string'")),
            }
        }
        Ok(Self { requirements, nothing: false })
    }

    /// Exactly these labels, as a Service or ReplicationController selects.
    pub fn from_labels(labels: &Labels) -> Self {
        let requirements = labels.iter().map(|(key, value)| Requirement {
            key: key.clone(),
            operator: Operator::In,
            values: vec![value.clone()],
        });
        Self { requirements: requirements.collect(), nothing: false }
    }

    /// A LabelSelector object; an absent one selects nothing, an empty one everything.
    pub fn from_label_selector(selector: Option<&LabelSelector>) -> Result<Self, SelectorError> {
        let Some(selector) = selector else { return Ok(Self { requirements: Vec::new(), nothing: true }) };
        let mut all = selector.match_labels.as_ref().map(Self::from_labels).unwrap_or_default();
        for expression in selector.match_expressions.iter().flatten() {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(SelectorError::Operator(other.to_owned())),
            };
            let values = expression.values.clone().unwrap_or_default();
            all.requirements.push(Requirement { key: expression.key.clone(), operator, values });
        }
        Ok(all)
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.matches_by(|key| labels.get(key).map(String::as_str))
    }

    /// `label` answers a label's value.
    pub fn matches_by<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(label(&r.key)))
    }
}

impl Requirement {
    fn matches(&self, value: Option<&str>) -> bool {
        let among = |value: &str| self.values.iter().any(|wanted| wanted == value);
        match (self.operator, value) {
            (Operator::In, value) => value.is_some_and(among),
            (Operator::NotIn, value) => !value.is_some_and(among),
            (Operator::Exists, value) => value.is_some(),
            (Operator::DoesNotExist, value) => value.is_none(),
            (Operator::GreaterThan, value) => self.compare(value).is_some_and(|(own, wanted)| own > wanted),
            (Operator::LessThan, value) => self.compare(value).is_some_and(|(own, wanted)| own < wanted),
        }
    }

    fn compare(&self, value: Option<&str>) -> Option<(i64, i64)> {
        Some((value?.parse().ok()?, self.values.first()?.parse().ok()?))
    }
}

fn unexpected(found: &str, expected: &'static str) -> SelectorError {
    SelectorError::Unexpected { found: found.to_owned(), expected }
}

fn tokenize(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(&c) = chars.peek() {
        if c.is_whitespace() {
            chars.next();
        } else if "(),".contains(c) {
            tokens.push(c.to_string());
            chars.next();
        } else {
            let special = "=!<>".contains(c);
            let mut token = String::new();
            while let Some(&c) = chars.peek() {
                if c.is_whitespace() || "(),".contains(c) || "=!<>".contains(c) != special {
                    break;
                }
                token.push(c);
                chars.next();
                if special && token == "!" && chars.peek() != Some(&'=') {
                    break;
                }
            }
            tokens.push(token);
        }
    }
    tokens
}

fn requirement<'a>(
    token: &'a str,
    tokens: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>,
) -> Result<Requirement, SelectorError> {
    let is_name = |token: &str| !token.is_empty() && !token.contains(['=', '!', '<', '>', '(', ')', ',']);
    let require = |key: &str, operator, values| Ok(Requirement { key: key.to_owned(), operator, values });
    if token == "!" {
        let key = tokens.next().filter(|key| is_name(key)).ok_or_else(|| unexpected("!", "identifier"))?;
        return require(key, Operator::DoesNotExist, Vec::new());
    }
    if !is_name(token) {
        return Err(unexpected(token, "!, identifier, or 'end of string'"));
    }
    let operator = match tokens.peek().copied() {
        None | Some(",") => return require(token, Operator::Exists, Vec::new()),
        Some("=" | "==" | "in") => Operator::In,
        Some("!=" | "notin") => Operator::NotIn,
        Some(">") => Operator::GreaterThan,
        Some("<") => Operator::LessThan,
        Some(other) => return Err(unexpected(other, "in, notin, =, ==, !=, gt, lt")),
    };
    let is_set = matches!(tokens.next(), Some("in" | "notin"));
    if is_set {
        return require(token, operator, value_set(tokens)?);
    }
    // `key=` selects the empty value.
    let value = tokens.next_if(|next| is_name(next)).unwrap_or_default().to_owned();
    if matches!(operator, Operator::GreaterThan | Operator::LessThan) && value.parse::<i64>().is_err() {
        return Err(SelectorError::NotInteger(value));
    }
    require(token, operator, vec![value])
}

fn value_set<'a>(
    tokens: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>,
) -> Result<Vec<String>, SelectorError> {
    if tokens.next() != Some("(") {
        return Err(unexpected("", "'('"));
    }
    let mut values = Vec::new();
    loop {
        match tokens.next() {
            Some(")") => return Ok(values),
            Some(",") => (),
            Some(value) if value != "(" => values.push(value.to_owned()),
            found => return Err(unexpected(found.unwrap_or_default(), "',' or ')'")),
        }
    }
}

/// `metadata.name=a,status.phase!=Running`: requirements on selectable fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldSelector(pub Vec<FieldRequirement>);

#[derive(Clone, Debug, PartialEq)]
pub struct FieldRequirement {
    pub field: String,
    pub equals: bool,
    pub value: String,
}

impl FieldSelector {
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for term in split_unescaped(text) {
            if term.is_empty() {
                continue;
            }
            let parts = [("!=", false), ("==", true), ("=", true)]
                .into_iter()
                .find_map(|(operator, equals)| term.split_once(operator).map(|(field, value)| (field, value, equals)));
            let (field, value, equals) = parts.ok_or_else(|| SelectorError::Field(text.to_owned()))?;
            let value = value.replace("\\,", ",").replace("\\=", "=").replace("\\\\", "\\");
            requirements.push(FieldRequirement { field: field.trim().to_owned(), equals, value });
        }
        Ok(Self(requirements))
    }

    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// `get` answers the value of a selectable field; an absent one reads as empty.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> &'a str) -> bool {
        self.0.iter().all(|r| (get(&r.field) == r.value) == r.equals)
    }

    /// The one name an equality on `metadata.name` allows.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|r| r.equals && r.field == field).map(|r| r.value.as_str())
    }
}

fn split_unescaped(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        if c == ',' && !escaped {
            terms.push(String::new());
        } else if let Some(term) = terms.last_mut() {
            term.push(c);
        }
        escaped = c == '\\' && !escaped;
    }
    terms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_selectors_match_as_upstream() {
        check("", "a=1", true);
        check("a=1", "a=1,b=2", true);
        check("a==2", "a=1", false);
        check("a!=2", "b=1", true);
        check("a in (1, 2),b", "a=2,b=", true);
        check("a notin (1,2)", "a=2", false);
        check("!a", "b=1", true);
        check("a", "b=1", false);
        check("n>4", "n=5", true);
        check("n<4", "n=5", false);
        check("a=", "a=", true);
        check("app.kubernetes.io/name=web", "app.kubernetes.io/name=web", true);
    }

    #[track_caller]
    fn check(selector: &str, labels: &str, want: bool) {
        let labels: Labels =
            labels.split(',').filter_map(|l| l.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
        assert_eq!(Selector::parse(selector).unwrap().matches(&labels), want, "{selector}");
    }

    #[test]
    fn malformed_selectors_are_refused() {
        for bad in ["a=1,", "a in 1", "=a", "a in (1", "n>x", "a b"] {
            assert!(Selector::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn field_selectors_compare_fields() {
        let get = |field: &str| if field == "status.phase" { "Running" } else { "" };
        assert!(FieldSelector::parse("status.phase=Running,spec.nodeName!=a").unwrap().matches(get));
        assert!(!FieldSelector::parse("status.phase!=Running").unwrap().matches(get));
        assert!(FieldSelector::parse("oops").is_err());
    }
}

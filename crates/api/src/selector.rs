//! Label and field selectors: parsing with upstream's grammar and messages, and matching.

mod parse;

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
    #[error("{0}")]
    List(String),
    #[error("unable to parse requirement: {0}")]
    Requirement(String),
    #[error("\"{0}\" is not a valid label selector operator")]
    Operator(String),
    #[error("invalid selector: '{0}'; can't understand '{1}'")]
    Field(String, String),
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    #[error("invalid field selector: unescaped character in value: {0}")]
    Unescaped(u32),
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
        Ok(Self { requirements: parse::requirements(text)?, nothing: false })
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
            let (field, equals, value) =
                split_term(&term).ok_or_else(|| SelectorError::Field(text.to_owned(), term.clone()))?;
            requirements.push(FieldRequirement { field: field.to_owned(), equals, value: unescaped(value)? });
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

/// At the first operator that there is.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = |(index, _): (usize, char)| {
        let (field, rest) = term.split_at_checked(index)?;
        let operators = [("!=", false), ("==", true), ("=", true)];
        operators.iter().find_map(|(operator, equals)| Some((field, *equals, rest.strip_prefix(operator)?)))
    };
    term.char_indices().find_map(at)
}

fn unescaped(value: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => {
                    return Err(SelectorError::Escape(
                        other.into_iter().fold("\\".to_owned(), |text, c| text + &c.to_string()),
                    ));
                }
            },
            ',' | '=' => return Err(SelectorError::Unescaped(c.into())),
            c => out.push(c),
        }
    }
    Ok(out)
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

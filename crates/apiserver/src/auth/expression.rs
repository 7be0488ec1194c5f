//! Expressions in the configurations of authentication and authorization: over claims, users and requests.

use cel::{Env, PER_CALL_LIMIT, Program, Type, Value as Cel};
use serde_json::Value;

/// One expression over one variable.
pub(super) struct Expression {
    program: Program,
    text: String,
    /// What is said where it does not hold.
    message: String,
}

impl Expression {
    /// `wanted` are the types it may have; what is only known when it is evaluated is checked then.
    pub(super) fn compile(text: &str, variable: &str, wanted: &[Type], message: &str) -> Result<Self, String> {
        let variable_type = if variable == "claims" { Type::map(Type::String, Type::Dyn) } else { Type::Dyn };
        let env = Env::default().variable(variable, variable_type);
        let program = env.compile(text).map_err(|error| format!("compilation failed: {error}"))?;
        if *program.output() != Type::Dyn && !wanted.contains(program.output()) {
            return Err(format!("Invalid value: {text:?}: the expression has a type that cannot be used here"));
        }
        Ok(Self { program, text: text.to_owned(), message: message.to_owned() })
    }

    fn evaluate<'a>(&'a self, variable: &'a Value) -> Result<Cel<'a>, String> {
        let found = self.program.eval(&[Some(Cel::json(variable))], PER_CALL_LIMIT);
        found.result.map_err(|error| format!("expression {:?} resulted in error: {error}", self.text))
    }

    pub(super) fn text(&self, variable: &Value) -> Result<String, String> {
        let found = self.evaluate(variable)?;
        found.as_str().map(ToOwned::to_owned).ok_or_else(|| format!("expression {:?} must return a string", self.text))
    }

    /// A text or a list of them; empty ones and nothing are none.
    pub(super) fn texts(&self, variable: &Value) -> Result<Vec<String>, String> {
        let refused = || format!("expression {:?} must return a string or a list of strings", self.text);
        match self.evaluate(variable)? {
            Cel::Null => Ok(Vec::new()),
            Cel::List(list) => {
                let texts = list.iter().map(|item| item.as_str().map(ToOwned::to_owned).ok_or_else(refused));
                let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
                Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
            }
            one => {
                let text = one.as_str().ok_or_else(refused)?;
                Ok(Some(text.to_owned()).filter(|text| !text.is_empty()).into_iter().collect())
            }
        }
    }

    pub(super) fn holds(&self, variable: &Value) -> Result<bool, String> {
        let found = self.evaluate(variable)?;
        found.as_bool().ok_or_else(|| format!("expression {:?} must return a bool", self.text))
    }

    /// Refuses, with the message or else with the expression itself.
    pub(super) fn require(&self, variable: &Value) -> Result<(), String> {
        if self.holds(variable)? {
            return Ok(());
        }
        Err(match self.message.as_str() {
            "" => format!("validation expression '{}' failed", self.text),
            message => format!("validation expression '{}' failed: {message}", self.text),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_are_checked_before_they_are_asked() {
        let compile = |text: &str| Expression::compile(text, "claims", &[Type::String], "");
        assert!(compile("claims.sub + '@x'").is_ok());
        assert!(compile("1 + 1").is_err(), "no text");
        assert!(compile("claims.").is_err(), "no expression");
        assert!(compile("user.name").is_err(), "no such variable");
    }

    #[test]
    fn values_are_what_they_must_be() {
        let claims = json!({"sub": "a", "roles": ["x", "", "y"], "n": 1});
        let of = |text: &str| Expression::compile(text, "claims", &[Type::String, Type::Bool], "because").unwrap();
        assert_eq!(of("claims.sub + '!'").text(&claims), Ok("a!".into()));
        assert!(of("claims.n").text(&claims).is_err());
        assert!(of("claims.missing").text(&claims).is_err());
        assert_eq!(of("claims.roles").texts(&claims), Ok(vec!["x".into(), "y".into()]));
        assert_eq!(of("claims.sub").texts(&claims), Ok(vec!["a".into()]));
        assert!(of("claims.n").texts(&claims).is_err());
        assert_eq!(of("claims.n == 1").require(&claims), Ok(()));
        assert_eq!(
            of("claims.n == 2").require(&claims),
            Err("validation expression 'claims.n == 2' failed: because".into())
        );
    }
}

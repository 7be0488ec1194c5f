//! `$(NAME)` references in commands, arguments, environment values and sub-paths.

use crate::budget::{Budget, Exceeded};

/// Replaces `$(NAME)` by what `lookup` knows; an unknown name stays as written, `$$` is one dollar. The result is taken from `budget`:
/// variables that refer to one another, twice each, would double with every step.
pub(crate) fn expand(
    input: &str,
    budget: &mut Budget,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<String, Exceeded> {
    let mut out = String::with_capacity(input.len());
    let mut push = |text: &str| -> Result<(), Exceeded> {
        budget.take(text.len())?;
        out.push_str(text);
        Ok(())
    };
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        push(before)?;
        let after = from.get(1..).unwrap_or_default();
        if let Some(tail) = after.strip_prefix('$') {
            push("$")?;
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            push(&lookup(name).unwrap_or_else(|| format!("$({name})")))?;
            rest = tail;
        } else {
            push("$")?;
            rest = after;
        }
    }
    push(rest)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &str, want: &str) {
        let lookup = |name: &str| match name {
            "A" => Some("one".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        assert_eq!(expand(input, &mut Budget::of_process(), lookup).as_deref(), Ok(want), "{input}");
    }

    #[test]
    fn references() {
        check("$(A)", "one");
        check("x-$(A)-$(A)$(EMPTY)", "x-one-one");
        check("$(B)", "$(B)");
        check("$$(A)", "$(A)");
        check("$$$(A)", "$one");
        check("$A $", "$A $");
        check("$(A", "$(A");
        check("", "");
    }

    #[test]
    fn references_that_double_meet_a_bound() {
        let mut budget = Budget::of_process();
        let mut value = "x".to_owned();
        let doubled = (0..40).try_for_each(|_| {
            value = expand("$(V)$(V)", &mut budget, |_| Some(value.clone()))?;
            Ok(())
        });
        assert_eq!(doubled, Err(Exceeded::Process));
        assert!(value.len() <= 6 << 20);
    }
}

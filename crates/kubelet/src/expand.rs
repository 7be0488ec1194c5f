//! `$(NAME)` references in commands, arguments, environment values and sub-paths.

/// Replaces `$(NAME)` by what `lookup` knows; an unknown name stays as written, `$$` is one dollar.
pub(crate) fn expand(input: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let after = from.get(1..).unwrap_or_default();
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            out.push_str(&lookup(name).unwrap_or_else(|| format!("$({name})")));
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
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
        assert_eq!(expand(input, lookup), want, "{input}");
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
}

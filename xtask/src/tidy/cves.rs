//! The list of published vulnerabilities: each has a test that exists, or a reason why it needs none.

use std::collections::HashSet;

pub(super) const CVES: &str = "docs/security/cves.md";

/// What is wrong with the list, given the names of all tests.
pub(super) fn problems(list: &str, tests: &HashSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen = HashSet::new();
    for row in list.lines().filter(|line| line.starts_with("| CVE-")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [id, what, here] = cells.as_slice() else {
            problems.push(format!("{CVES}: a row needs three cells: {row}"));
            continue;
        };
        if !is_id(id) {
            problems.push(format!("{CVES}: {id:?} is no CVE's number"));
        }
        if !seen.insert(*id) {
            problems.push(format!("{CVES}: {id} has two rows"));
        }
        if what.is_empty() || here.is_empty() {
            problems.push(format!("{CVES}: {id} says neither what it was nor what tests it here"));
        }
        let missing = named(here).filter(|name| !tests.contains(*name));
        problems.extend(missing.map(|name| format!("{CVES}: {id}: there is no test {name}")));
    }
    if seen.is_empty() {
        problems.push(format!("{CVES} has no rows"));
    }
    problems
}

/// `CVE-`, a year, and at least four digits.
fn is_id(id: &str) -> bool {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = id.strip_prefix("CVE-").and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(year, rest)| year.len() == 4 && rest.len() >= 4 && number(year) && number(rest))
}

/// The tests in a text: what is between backticks and written as functions are.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let is_function = |word: &&str| {
        word.matches('_').count() >= 2
            && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    text.split('`').skip(1).step_by(2).filter(is_function)
}

/// The names of the test functions in a source file.
pub(super) fn tests(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((_, after)) = line.split_once("fn ").filter(|_| is_test) {
            found.extend(after.split('(').next().map(ToOwned::to_owned));
            is_test = false;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_tests_or_reasons_are_found() {
        let known = tests(
            "#[test]\nfn a_known_test() {\n}\n#[tokio::test]\nasync fn the_other_one() {}\nfn no_test_at_all() {}",
        );
        assert_eq!(known, ["a_known_test", "the_other_one"]);
        let known: HashSet<String> = known.into_iter().collect();
        let check = |row: &str, want: usize| {
            let found = problems(&format!("{row}\n"), &known);
            assert_eq!(found.len(), want, "{row}: {found:?}");
        };
        check("| CVE-2019-5736 | what | `a_known_test`, `the_other_one`; `/proc` |", 0);
        check("| CVE-2019-5736 | what | Linux only |", 0);
        check("| CVE-2019-5736 | what | `no_test_at_all` |", 1);
        check("| CVE-2019-5736 | what | `a_known_test`, `a_test_that_went` |", 1);
        check("| CVE-2019-5736 | what | |", 1);
        check("| CVE-19-5736 | what | why |", 1);
        check("| CVE-2019-5736 | why |", 2);
        check("| CVE-2019-5736 | what | why |\n| CVE-2019-5736 | what | why |", 1);
        check("", 1);
    }
}

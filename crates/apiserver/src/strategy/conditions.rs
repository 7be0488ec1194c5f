//! Conditions of the one shape that newer kinds share.

use api::field::FieldError;
use api::validation::is_qualified_name;

use super::check::At;

const LONGEST_REASON: usize = 1024;
const LONGEST_MESSAGE: usize = 32 << 10;

/// The rules of every condition in the list.
pub(super) fn conditions(list: &At<'_>) {
    for (index, condition) in list.items().iter().enumerate() {
        let kind = condition.field("type");
        let before = list.items().into_iter().take(index).any(|other| other.field("type").text() == kind.text());
        if before {
            kind.complain(FieldError::duplicate(kind.path(), kind.text()));
        }
        kind.named(is_qualified_name);
        condition.field("status").one_of(&["False", "True", "Unknown"]);
        let generation = condition.field("observedGeneration");
        if generation.number().is_some_and(|number| number < 0) {
            generation.invalid("must be greater than or equal to zero");
        }
        condition.field("lastTransitionTime").needed();
        let (reason, message) = (condition.field("reason"), condition.field("message"));
        reason.needed_named(is_reason);
        for (text, longest) in [(reason, LONGEST_REASON), (message, LONGEST_MESSAGE)] {
            if text.text().len() > longest {
                text.complain(FieldError::too_long(text.path(), longest));
            }
        }
    }
}

fn is_reason(text: &str) -> Vec<String> {
    const MESSAGE: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";
    let within = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ',' | ':');
    let fine =
        text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(within) && !text.ends_with([',', ':']);
    if fine { Vec::new() } else { vec![MESSAGE.to_owned()] }
}

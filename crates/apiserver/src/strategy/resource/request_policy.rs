//! How much of a capacity may be asked for at once: one of some amounts, or steps in a range.

use api::quantity::Quantity;
use serde_json::json;

use super::set;
use crate::strategy::check::At;

const MOST_OPTIONS: usize = 10;

pub(super) fn check(at: &At<'_>, capacity: &At<'_>) {
    let (options, range, default) = (at.field("validValues"), at.field("validRange"), at.field("default"));
    let (Some(most), usual) = (capacity.quantity(), default.quantity()) else { return };
    if !options.is_empty() && range.exists() {
        at.forbidden(
            "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time",
        );
    } else if !options.is_empty() {
        match usual {
            None => default.required("required when validValues is defined"),
            Some(usual) => policy_options(&options, (most, capacity.text()), (usual, default.text())),
        }
    } else if range.exists() {
        match usual {
            None => default.required("required when validRange is defined"),
            Some(usual) => policy_range(&range, (most, capacity.text()), (usual, default.text())),
        }
    }
}

fn policy_options(at: &At<'_>, most: (Quantity, &str), usual: (Quantity, &str)) {
    let amounts: Vec<Option<Quantity>> = at.items().iter().map(At::quantity).collect();
    for (option, pair) in at.items().iter().skip(1).zip(amounts.windows(2)) {
        if let [before, this] = pair
            && before > this
        {
            option.invalid("values must be sorted in ascending order");
        }
    }
    let key = |option: &At<'_>| json!(option.quantity().map_or(0, |amount| amount.value()).to_string());
    set(at, MOST_OPTIONS, key, |option| {
        if option.quantity().is_some_and(|amount| amount > most.0) {
            option.invalid(format!("option is larger than capacity value: {}", most.1));
        }
    });
    let is_found = at.count() <= MOST_OPTIONS && amounts.contains(&Some(usual.0));
    if !is_found {
        at.invalid_shown(usual.1, "default value is not valid according to the requestPolicy");
    }
}

fn policy_range(at: &At<'_>, (most, most_text): (Quantity, &str), (usual, usual_text): (Quantity, &str)) {
    let [least_at, top_at, step_at] = ["min", "max", "step"].map(|name| at.field(name));
    let Some(least) = least_at.quantity() else { return least_at.required("required when validRange is defined") };
    let least_text = least_at.text();
    if least > most {
        least_at.invalid(format!("min is larger than capacity value: {most_text}"));
    }
    if usual < least {
        least_at.invalid_shown(usual_text, &format!("default is less than min: {least_text}"));
    }
    let top = top_at.quantity();
    if let Some(top) = top {
        if least > top {
            top_at.invalid_shown(least_text, &format!("min is larger than max: {}", top_at.text()));
        }
        if top > most {
            top_at.invalid(format!("max is larger than capacity value: {most_text}"));
        }
        if usual > top {
            top_at.invalid_shown(usual_text, &format!("default is more than max: {}", top_at.text()));
        }
    }
    let Some(step) = step_at.quantity() else { return };
    let one = least.plus(step);
    if one > most {
        step_at.invalid(format!("one step {one} is larger than capacity value: {most_text}"));
    }
    let steps = |amount: Quantity, text: &str| {
        let over = amount.value().wrapping_sub(least.value()).checked_rem(step.value());
        if over.is_some_and(|over| over != 0) {
            let why = format!("value is not a multiple of a given step ({}) from ({least_text})", step_at.text());
            step_at.invalid_shown(text, &why);
        }
    };
    steps(usual, usual_text);
    if let Some(top) = top {
        steps(top, top_at.text());
    }
}

//! Numbers: their range, their bounds, and how messages write them.

use serde_json::Number;

use super::validate::{Complaint, Outcome};
use super::{Kind, Rules};

/// As messages write a number: the shortest form, with an exponent only where it is large or tiny.
pub(super) fn go_float(number: f64) -> String {
    let exponent = if number == 0.0 { 0 } else { number.abs().log10().floor() as i32 };
    if (-4..21).contains(&exponent) {
        return number.to_string();
    }
    let text = format!("{number:e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
    format!("{digits}e{sign}{power:0>2}")
}

/// Every rule about a number.
pub(super) fn numbers(number: &Number, kind: Kind, format: &str, rules: &Rules, path: &str, outcome: &mut Outcome) {
    let value = number.as_f64().unwrap_or_default();
    let integer = number.as_i64();
    let shown = integer.map_or_else(|| go_float(value), |integer| integer.to_string());
    if !in_range(integer, value, kind, format) {
        outcome.add(out_of_range("Checked", kind, format, path));
    }
    let complain = |outcome: &mut Outcome, what: &str, bound: f64| {
        // The bound of whole numbers is taken as whole.
        let bound = if integer.is_some() { bound.trunc() } else { bound };
        let why = format!("{path} in body should be {what} {}", go_float(bound));
        outcome.add(Complaint::invalid(path, shown.clone(), why));
    };
    if let Some(factor) = rules.multiple_of {
        bound_in_range("MultipleOf", factor, kind, format, path, outcome);
        match integer {
            // Of whole numbers the factor is taken as whole, too.
            Some(_) if factor.trunc() <= 0.0 => {
                let why = format!("factor MultipleOf declared for {path} must be positive: 0");
                outcome.add(Complaint::invalid(path, "0".into(), why));
            }
            Some(integer) if integer % (factor.trunc() as i64) != 0 => complain(outcome, "a multiple of", factor),
            None if !is_multiple(value, factor) => complain(outcome, "a multiple of", factor),
            _ => (),
        }
    }
    if let Some(min) = rules.minimum {
        bound_in_range("Minimum boundary", min, kind, format, path, outcome);
        match (below(integer, value, min), rules.exclusive_minimum) {
            (Some(std::cmp::Ordering::Less), false) => complain(outcome, "greater than or equal to", min),
            (Some(std::cmp::Ordering::Less | std::cmp::Ordering::Equal), true) => {
                complain(outcome, "greater than", min);
            }
            _ => (),
        }
    }
    if let Some(max) = rules.maximum {
        bound_in_range("Maximum boundary", max, kind, format, path, outcome);
        match (below(integer, value, max), rules.exclusive_maximum) {
            (Some(std::cmp::Ordering::Greater), false) => complain(outcome, "less than or equal to", max),
            (Some(std::cmp::Ordering::Greater | std::cmp::Ordering::Equal), true) => {
                complain(outcome, "less than", max);
            }
            _ => (),
        }
    }
}

fn is_multiple(value: f64, factor: f64) -> bool {
    let times = if factor < 1.0 { 1.0 / factor * value } else { value / factor };
    times.fract() == 0.0
}

fn below(integer: Option<i64>, value: f64, bound: f64) -> Option<std::cmp::Ordering> {
    match integer {
        Some(integer) => Some(integer.cmp(&(bound as i64))),
        None => value.partial_cmp(&bound),
    }
}

fn in_range(integer: Option<i64>, value: f64, kind: Kind, format: &str) -> bool {
    match (kind, format) {
        (Kind::Integer, "int32") => match integer {
            Some(integer) => i32::try_from(integer).is_ok(),
            None => value.fract() == 0.0 && value.abs() <= f64::from(i32::MAX),
        },
        (Kind::Integer, _) => integer.is_some() || (value.fract() == 0.0 && value.abs() < 9.3e18),
        (Kind::Number, "float") => value.abs() <= f64::from(f32::MAX),
        _ => true,
    }
}

fn bound_in_range(what: &str, bound: f64, kind: Kind, format: &str, path: &str, outcome: &mut Outcome) {
    if !in_range(None, bound, kind, format) {
        outcome.add(out_of_range(what, kind, format, path));
    }
}

fn out_of_range(what: &str, kind: Kind, format: &str, path: &str) -> Complaint {
    let form = if format.is_empty() { "(default format)".to_owned() } else { format!("with format {format}") };
    Complaint::general(format!("{what} value must be of type {} {form} in {path}", kind.as_str()))
}

#[cfg(test)]
mod tests {
    use super::go_float;

    #[test]
    fn numbers_are_written_as_upstream_writes_them() {
        for (number, want) in [(5.0, "5"), (1.5, "1.5"), (1e21, "1e+21"), (1e-7, "1e-07"), (0.0, "0"), (-2.25, "-2.25")]
        {
            assert_eq!(go_float(number), want);
        }
    }
}

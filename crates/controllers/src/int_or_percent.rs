//! Numbers that may be given as a percentage of something: `3` or `25%`.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

#[derive(Clone, Copy)]
pub(crate) enum Round {
    Up,
    Down,
}

/// What validation lets through always parses; anything else counts as zero.
pub(crate) fn scaled(value: Option<&IntOrString>, total: i32, round: Round) -> i32 {
    match value {
        None => 0,
        Some(IntOrString::Int(value)) => *value,
        Some(IntOrString::String(text)) => {
            let percent = text.strip_suffix('%').and_then(|number| number.parse::<i64>().ok()).unwrap_or(0);
            let hundredths = percent * i64::from(total);
            let scaled = match round {
                Round::Up => hundredths.div_euclid(100) + i64::from(hundredths.rem_euclid(100) != 0),
                Round::Down => hundredths.div_euclid(100),
            };
            i32::try_from(scaled).unwrap_or(i32::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_as_asked() {
        let check = |text: &str, total, up, down| {
            let value = text.parse().map_or_else(|_| IntOrString::String(text.into()), IntOrString::Int);
            assert_eq!(scaled(Some(&value), total, Round::Up), up, "{text} of {total}, up");
            assert_eq!(scaled(Some(&value), total, Round::Down), down, "{text} of {total}, down");
        };
        check("3", 10, 3, 3);
        check("25%", 3, 1, 0);
        check("25%", 4, 1, 1);
        check("50%", 5, 3, 2);
        check("100%", 7, 7, 7);
        check("0%", 7, 0, 0);
    }
}

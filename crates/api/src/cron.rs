//! Cron schedules as upstream reads them: five fields or a descriptor.

/// The minutes, hours, days and months at which something happens, a bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    Fields {
        minutes: u64,
        hours: u64,
        days: u64,
        months: u64,
        weekdays: u64,
    },
    /// Every so many seconds.
    Every(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CronError(String);

struct Bounds {
    least: u32,
    most: u32,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [Bounds; 5] = [
    Bounds { least: 0, most: 59, names: &[] },
    Bounds { least: 0, most: 23, names: &[] },
    Bounds { least: 1, most: 31, names: &[] },
    Bounds { least: 1, most: 12, names: &MONTHS },
    Bounds { least: 0, most: 6, names: &WEEKDAYS },
];

impl Schedule {
    pub fn parse(text: &str) -> Result<Self, CronError> {
        if text.is_empty() {
            return Err(CronError("empty spec string".into()));
        }
        if text.starts_with('@') {
            return descriptor(text);
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = words.as_slice() else {
            let shown = words.join(" ");
            return Err(CronError(format!("expected exactly 5 fields, found {}: [{shown}]", words.len())));
        };
        let [of_minutes, of_hours, of_days, of_months, of_weekdays] = &FIELDS;
        Ok(Self::Fields {
            minutes: field(minutes, of_minutes)?,
            hours: field(hours, of_hours)?,
            days: field(days, of_days)?,
            months: field(months, of_months)?,
            weekdays: field(weekdays, of_weekdays)?,
        })
    }
}

fn descriptor(text: &str) -> Result<Schedule, CronError> {
    match text {
        "@yearly" | "@annually" => Schedule::parse("0 0 1 1 *"),
        "@monthly" => Schedule::parse("0 0 1 * *"),
        "@weekly" => Schedule::parse("0 0 * * 0"),
        "@daily" | "@midnight" => Schedule::parse("0 0 * * *"),
        "@hourly" => Schedule::parse("0 * * * *"),
        _ => match text.strip_prefix("@every ") {
            Some(duration) => seconds(duration).map(Schedule::Every).ok_or_else(|| {
                CronError(format!("failed to parse duration {text}: time: invalid duration {duration:?}"))
            }),
            None => Err(CronError(format!("unrecognized descriptor: {text}"))),
        },
    }
}

/// `1h30m10s`, at least a second.
fn seconds(text: &str) -> Option<u64> {
    let mut total = 0_u64;
    let mut number = String::new();
    for letter in text.chars() {
        let unit = match letter {
            '0'..='9' => {
                number.push(letter);
                continue;
            }
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(unit)?)?;
        number.clear();
    }
    (number.is_empty() && !text.is_empty()).then_some(total.max(1))
}

fn field(text: &str, bounds: &Bounds) -> Result<u64, CronError> {
    text.split(',').filter(|part| !part.is_empty()).try_fold(0, |bits, part| Ok(bits | range(part, bounds)?))
}

/// `*`, `5`, `1-5`, each with `/step`.
fn range(text: &str, bounds: &Bounds) -> Result<u64, CronError> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts.first().copied().unwrap_or_default().split('-').collect();
    let wild = matches!(ends.first(), Some(&("*" | "?")));
    let (start, end) = match ends.as_slice() {
        _ if wild => (bounds.least, bounds.most),
        [one] => {
            let number = value(one, bounds)?;
            (number, number)
        }
        [first, last] => (value(first, bounds)?, value(last, bounds)?),
        _ => return Err(CronError(format!("too many hyphens: {text}"))),
    };
    let (end, step) = match parts.as_slice() {
        [_] => (end, 1),
        // A single value with a step goes on to the end.
        [_, step] => (if ends.len() == 1 { bounds.most } else { end }, number(step)?),
        _ => return Err(CronError(format!("too many slashes: {text}"))),
    };
    if start < bounds.least {
        let least = bounds.least;
        return Err(CronError(format!("beginning of range ({start}) below minimum ({least}): {text}")));
    }
    if end > bounds.most {
        return Err(CronError(format!("end of range ({end}) above maximum ({}): {text}", bounds.most)));
    }
    if start > end {
        return Err(CronError(format!("beginning of range ({start}) beyond end of range ({end}): {text}")));
    }
    let step = usize::try_from(step).unwrap_or(0);
    if step == 0 {
        return Err(CronError(format!("step of range should be a positive number: {text}")));
    }
    Ok((start..=end).step_by(step).fold(0, |bits, bit| bits | 1 << bit))
}

fn value(text: &str, bounds: &Bounds) -> Result<u32, CronError> {
    let named = bounds.names.iter().position(|name| name.eq_ignore_ascii_case(text));
    match named.and_then(|index| u32::try_from(index).ok()) {
        Some(index) => Ok(index + bounds.least),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u32, CronError> {
    let why = |_| CronError(format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"));
    match text.parse::<i64>().map_err(why)? {
        negative if negative < 0 => Err(CronError(format!("negative number ({negative}) not allowed: {text}"))),
        number => Ok(u32::try_from(number).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read_as_upstream_reads_them() {
        let weekdays = |text: &str| match Schedule::parse(text) {
            Ok(Schedule::Fields { weekdays, .. }) => weekdays,
            other => panic!("{text}: {other:?}"),
        };
        let minutes = |text: &str| match Schedule::parse(text) {
            Ok(Schedule::Fields { minutes, .. }) => minutes,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(minutes("*/20 * * * *"), 1 | 1 << 20 | 1 << 40);
        assert_eq!(minutes("5,10-12 * * * *"), 1 << 5 | 1 << 10 | 1 << 11 | 1 << 12);
        assert_eq!(minutes("50/5 * * * *"), 1 << 50 | 1 << 55);
        assert_eq!(weekdays("0 0 * * mon-FRI"), 0b11_1110);
        assert_eq!(Schedule::parse("@hourly"), Schedule::parse("0 * * * *"));
        assert_eq!(Schedule::parse("@every 1h30m"), Ok(Schedule::Every(5400)));
    }

    #[test]
    fn mistakes_are_told_in_upstreams_words() {
        for (text, wanted) in [
            ("61 * * *", "expected exactly 5 fields, found 4: [61 * * *]"),
            ("61 * * * *", "end of range (61) above maximum (59): 61"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("@never", "unrecognized descriptor: @never"),
            ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
        ] {
            assert_eq!(Schedule::parse(text).unwrap_err().to_string(), wanted, "{text}");
        }
    }
}

//! Timestamps and durations: reading, writing, adding, and the parts of a date.

use std::cmp::Ordering;

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use crate::error::EvalError;

/// The first and the last second of the years 1 to 9999.
const MIN: i128 = -62_135_596_800 * SECOND;
const MAX: i128 = 253_402_300_800 * SECOND - 1;
const SECOND: i128 = 1_000_000_000;
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// A moment, and the offset it was written with, which only matters when it is written again.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    /// Nanoseconds since 1970.
    nanos: i128,
    /// Seconds east of Greenwich.
    offset: i32,
}

impl PartialEq for Time {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Time {
    fn new(nanos: i128) -> Option<Self> {
        (MIN..=MAX).contains(&nanos).then_some(Self { nanos, offset: 0 })
    }

    /// RFC 3339, strictly.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let shape = b"dddd-dd-ddTdd:dd:dd";
        let fits = |(want, is): (&u8, &u8)| if *want == b'd' { is.is_ascii_digit() } else { want == is };
        if bytes.len() <= shape.len() || !shape.iter().zip(bytes).all(fits) || text.get(17..19) == Some("60") {
            return None; // There are no leap seconds.
        }
        let rest = text.get(shape.len()..)?;
        let zone = match rest.strip_prefix('.') {
            Some(fraction) => fraction.trim_start_matches(|c: char| c.is_ascii_digit()),
            None => rest,
        };
        let offset = match zone.as_bytes() {
            b"Z" => 0,
            [sign @ (b'+' | b'-'), a, b, b':', c, d] if [a, b, c, d].iter().all(|b| b.is_ascii_digit()) => {
                let digit = |b: &u8| i32::from(b - b'0');
                let seconds = (digit(a) * 10 + digit(b)) * 3600 + (digit(c) * 10 + digit(d)) * 60;
                if *sign == b'-' { -seconds } else { seconds }
            }
            _ => return None,
        };
        let local: DateTime = text.get(..text.len() - zone.len())?.parse().ok()?;
        let nanos = local.duration_since(EPOCH).as_nanos() - i128::from(offset) * SECOND;
        Self::new(nanos).map(|time| Self { offset, ..time })
    }

    pub(crate) fn from_seconds(seconds: i64) -> Option<Self> {
        Self::new(i128::from(seconds) * SECOND)
    }

    pub(crate) fn seconds(self) -> i64 {
        i64::try_from(self.nanos.div_euclid(SECOND)).unwrap_or_default()
    }

    pub(crate) fn is_zero(self) -> bool {
        self.nanos == MIN
    }

    pub(crate) fn plus(self, nanos: i128) -> Result<Self, EvalError> {
        let sum = Self::new(self.nanos + nanos).ok_or_else(|| EvalError::new("timestamp overflow"))?;
        Ok(Self { offset: self.offset, ..sum })
    }

    pub(crate) fn minus(self, other: Self) -> Result<i64, EvalError> {
        i64::try_from(self.nanos - other.nanos).map_err(|_| EvalError::new("integer overflow"))
    }

    /// The date and time of day at so many seconds east of Greenwich.
    fn local(self, offset: i32) -> DateTime {
        let nanos = self.nanos + i128::from(offset) * SECOND;
        let seconds = i64::try_from(nanos.div_euclid(SECOND)).unwrap_or_default();
        let rest = i32::try_from(nanos.rem_euclid(SECOND)).unwrap_or_default();
        EPOCH.saturating_add(SignedDuration::new(seconds, rest))
    }

    /// A part of the date or the time of day, in a zone by name or by offset (`+01:00`).
    pub(crate) fn part(self, part: &str, zone: Option<&str>) -> Result<i64, EvalError> {
        let offset = match zone {
            None | Some("" | "UTC") => 0,
            Some(name) => self.offset_in(name)?,
        };
        let local = self.local(offset);
        Ok(match part {
            "getFullYear" => i64::from(local.year()),
            "getMonth" => i64::from(local.month()) - 1,
            "getDayOfYear" => i64::from(local.day_of_year()) - 1,
            "getDayOfMonth" => i64::from(local.day()) - 1,
            "getDate" => i64::from(local.day()),
            "getDayOfWeek" => i64::from(local.weekday().to_sunday_zero_offset()),
            "getHours" => i64::from(local.hour()),
            "getMinutes" => i64::from(local.minute()),
            "getSeconds" => i64::from(local.second()),
            _ => i64::from(local.millisecond()),
        })
    }

    fn offset_in(self, zone: &str) -> Result<i32, EvalError> {
        let unknown = || EvalError::new(format!("unknown time zone {zone}"));
        let Some((hours, minutes)) = zone.split_once(':') else {
            let zone = TimeZone::get(zone).map_err(|_| unknown())?;
            let second = self.seconds().clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
            return Timestamp::from_second(second).map(|at| zone.to_offset(at).seconds()).map_err(|_| unknown());
        };
        let east = if hours.starts_with('-') { -1 } else { 1 };
        let hours: i32 = hours.trim_start_matches(['+', '-']).parse().map_err(|_| unknown())?;
        let minutes: i32 = minutes.parse().map_err(|_| unknown())?;
        let seconds = hours.checked_mul(60).and_then(|m| m.checked_add(minutes)).and_then(|m| m.checked_mul(60 * east));
        seconds.and_then(|seconds| Offset::from_seconds(seconds).ok()).map(Offset::seconds).ok_or_else(unknown)
    }
}

/// RFC 3339 in the offset it came with, with as much of the second as there is.
impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let local = self.local(self.offset);
        write!(f, "{:04}-{:02}-{:02}T", local.year(), local.month(), local.day())?;
        write!(f, "{:02}:{:02}:{:02}", local.hour(), local.minute(), local.second())?;
        if local.subsec_nanosecond() > 0 {
            let fraction = format!("{:09}", local.subsec_nanosecond());
            write!(f, ".{}", fraction.trim_end_matches('0'))?;
        }
        match self.offset {
            0 => f.write_str("Z"),
            offset => {
                let sign = if offset < 0 { '-' } else { '+' };
                write!(f, "{sign}{:02}:{:02}", offset.abs() / 3600, offset.abs() / 60 % 60)
            }
        }
    }
}

const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3600 * SECOND),
];

/// `1h30m`, `-1.5s`, `0`: a sum of numbers with units, in nanoseconds.
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut sum = 0_i128;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return None;
        }
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        sum = sum.checked_add(whole.checked_mul(*scale)?)?;
        let digits = fraction.get(..fraction.len().min(18))?;
        if !digits.is_empty() {
            let value: i128 = digits.parse().ok()?;
            sum = sum.checked_add(value * scale / 10_i128.checked_pow(u32::try_from(digits.len()).ok()?)?)?;
        }
        rest = tail;
    }
    i64::try_from(if negative { -sum } else { sum }).ok()
}

/// Seconds, with as much of a fraction as there is.
pub(crate) fn show_duration(nanos: i64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "upstream writes the nearest double as well")]
    let seconds = (nanos / 1_000_000_000) as f64 + (nanos % 1_000_000_000) as f64 / 1e9;
    format!("{seconds}s")
}

//! Resource quantities: `100m`, `1.5Gi`, `1e3`. Exact to a billionth, rounded away from zero beyond, as upstream.

use std::cmp::Ordering;

const NANO: i128 = 1_000_000_000;

/// A quantity and the family of suffixes it is written with.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    DecimalSi,
    BinarySi,
    DecimalExponent,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
pub struct QuantityError;

const DECIMAL: [(&str, i32); 11] =
    [("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3), ("", 0), ("m", -3), ("u", -6), ("n", -9), ("K", 3)];
const BINARY: [(&str, u32); 6] = [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];

impl Quantity {
    pub const ZERO: Self = Self { nanos: 0, format: Format::DecimalSi };
    pub const ONE: Self = Self { nanos: NANO, format: Format::DecimalSi };

    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '+' || c == '-')).unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
            let nanos = scaled(number, 0)?.checked_mul(1_i128 << shift).unwrap_or(i128::MAX);
            return Ok(Self::capped(nanos, Format::BinarySi));
        }
        if let Some((_, power)) = DECIMAL.iter().take(10).find(|(name, _)| *name == suffix) {
            return Ok(Self::capped(scaled(number, *power)?, Format::DecimalSi));
        }
        let exponent =
            suffix.strip_prefix(['e', 'E']).ok_or(QuantityError)?.parse::<i32>().map_err(|_| QuantityError)?;
        Ok(Self::capped(scaled(number, exponent.clamp(-40, 40))?, Format::DecimalExponent))
    }

    /// Nothing is more than the largest number upstream counts with.
    fn capped(nanos: i128, format: Format) -> Self {
        const MAX: i128 = i64::MAX as i128 * NANO;
        Self { nanos: nanos.clamp(-MAX, MAX), format }
    }

    pub fn from_milli(milli: i64) -> Self {
        Self { nanos: i128::from(milli) * (NANO / 1000), format: Format::DecimalSi }
    }

    pub fn from_count(count: usize) -> Self {
        Self { nanos: i128::try_from(count).unwrap_or(i128::MAX).saturating_mul(NANO), format: Format::DecimalSi }
    }

    pub fn from_bytes(bytes: i64) -> Self {
        Self { nanos: i128::from(bytes) * NANO, format: Format::BinarySi }
    }

    pub fn from_whole(units: i64) -> Self {
        Self { nanos: i128::from(units) * NANO, format: Format::DecimalExponent }
    }

    /// The number of units, if it is a whole one that fits.
    pub fn whole(&self) -> Option<i64> {
        (self.nanos % NANO == 0).then(|| i64::try_from(self.nanos / NANO).ok())?
    }

    /// The nearest double.
    #[expect(clippy::cast_precision_loss, reason = "approximate by name")]
    pub fn approximate(&self) -> f64 {
        self.nanos as f64 / NANO as f64
    }

    /// Whole units, rounded up.
    pub fn value(&self) -> i64 {
        round_up(self.nanos, NANO)
    }

    /// Thousandths, rounded up.
    pub fn milli_value(&self) -> i64 {
        round_up(self.nanos, NANO / 1000)
    }

    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    pub fn is_positive(&self) -> bool {
        !self.is_negative() && !self.is_zero()
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos), format }
    }

    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_sub(other.nanos), ..self }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// The canonical form: no fraction, the largest suffix that allows it.
impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let small = self.nanos.abs() < 1024 * NANO;
        match self.format {
            Format::BinarySi if !small => {
                let whole = i128::from(self.value());
                let (suffix, shift) =
                    BINARY.iter().find(|(_, shift)| whole % (1 << shift) == 0).copied().unwrap_or(("", 0));
                write!(f, "{}{suffix}", whole >> shift)
            }
            Format::DecimalExponent => {
                let power = (-9..=18).rev().filter(|p| p % 3 == 0).find(|p| self.divides(*p)).unwrap_or(-9);
                let mantissa = self.nanos / 10_i128.pow((power + 9).unsigned_abs());
                if power == 0 { write!(f, "{mantissa}") } else { write!(f, "{mantissa}e{power}") }
            }
            _ => {
                let (suffix, power) =
                    DECIMAL.iter().take(10).find(|(_, p)| self.divides(*p)).copied().unwrap_or(("n", -9));
                if self.nanos == 0 {
                    return f.write_str("0");
                }
                write!(f, "{}{suffix}", self.nanos / 10_i128.pow((power + 9).unsigned_abs()))
            }
        }
    }
}

impl Quantity {
    fn divides(&self, power: i32) -> bool {
        self.nanos % 10_i128.pow((power + 9).unsigned_abs()) == 0
    }
}

/// A decimal number times a power of ten, in billionths.
fn scaled(number: &str, power: i32) -> Result<i128, QuantityError> {
    let (negative, digits) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{fraction}");
    if all.is_empty() || all.len() > 36 || !all.bytes().all(|b| b.is_ascii_digit()) {
        return Err(QuantityError);
    }
    let mantissa: i128 = all.parse().map_err(|_| QuantityError)?;
    let exponent = power + 9 - i32::try_from(fraction.len()).map_err(|_| QuantityError)?;
    let factor = 10_i128.checked_pow(exponent.unsigned_abs()).ok_or(QuantityError)?;
    let nanos = if exponent >= 0 {
        mantissa.checked_mul(factor).unwrap_or(i128::MAX)
    } else {
        mantissa / factor + i128::from(mantissa % factor != 0)
    };
    Ok(if negative { -nanos } else { nanos })
}

fn round_up(nanos: i128, unit: i128) -> i64 {
    let whole = nanos.div_euclid(unit) + i128::from(nanos.rem_euclid(unit) != 0);
    i64::try_from(whole).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_canonical() {
        check("0.5", "500m", 1);
        check("1000m", "1", 1);
        check("1500m", "1500m", 2);
        check("1024Ki", "1Mi", 1 << 20);
        check("1.5Gi", "1536Mi", 3 << 29);
        check("100Ki", "100Ki", 102_400);
        check("512Ki", "512Ki", 524_288);
        check("1e3", "1e3", 1000);
        check("12000", "12k", 12_000);
        check("0", "0", 0);
        check("0Ki", "0", 0);
        check("-1", "-1", -1);
        check("0.0000000001", "1n", 1);
        check("1M", "1M", 1_000_000);
    }

    #[track_caller]
    fn check(text: &str, canonical: &str, value: i64) {
        let quantity = Quantity::parse(text).unwrap();
        assert_eq!((quantity.to_string().as_str(), quantity.value()), (canonical, value), "{text}");
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["", "m", "1x", "1.2.3", "--1", "1 Gi", "1K"] {
            assert_eq!(Quantity::parse(bad), Err(QuantityError), "{bad}");
        }
    }
}

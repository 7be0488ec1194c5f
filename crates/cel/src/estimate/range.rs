//! A number of which only the least and the most is known.

/// Of a size or of a cost. Nothing wraps around: what is too much stays the most there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    pub min: u64,
    pub max: u64,
}

impl Estimate {
    pub(crate) const UNKNOWN: Self = Self { min: 0, max: u64::MAX };

    pub(crate) const fn exactly(value: u64) -> Self {
        Self { min: value, max: value }
    }

    /// What a union begins with.
    pub(crate) fn nothing(is_empty: bool) -> Self {
        Self { min: if is_empty { 0 } else { u64::MAX }, max: 0 }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(crate) fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Times a factor, rounded up.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self { min: scale(self.min, factor), max: scale(self.max, factor) }
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "upstream computes in doubles too, and the cast saturates"
)]
fn scale(value: u64, factor: f64) -> u64 {
    let scaled = value as f64;
    if scaled > 0.0 && factor > 0.0 && scaled > u64::MAX as f64 / factor {
        return u64::MAX;
    }
    (scaled * factor).ceil() as u64
}

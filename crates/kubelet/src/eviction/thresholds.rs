//! Eviction thresholds: `memory.available<100Mi,nodefs.available<10%`, and which of them are met. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use api::quantity::Quantity;

/// What is measured of the node. The order is that in which thresholds are acted on: memory before all else, as upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Signal {
    MemoryAvailable,
    /// Of the memory that pods may use together. Upstream adds it to every threshold of `memory.available`.
    AllocatableMemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
    PidAvailable,
}

/// The signals that can be named.
const NAMES: [(&str, Signal); 6] = [
    ("memory.available", Signal::MemoryAvailable),
    ("nodefs.available", Signal::NodeFsAvailable),
    ("nodefs.inodesFree", Signal::NodeFsInodesFree),
    ("imagefs.available", Signal::ImageFsAvailable),
    ("imagefs.inodesFree", Signal::ImageFsInodesFree),
    ("pid.available", Signal::PidAvailable),
];

/// A node condition that starved resources turn on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Pressure {
    Memory,
    Disk,
    Pid,
}

impl Pressure {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }
}

impl Signal {
    pub(crate) fn pressure(self) -> Pressure {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Pressure::Memory,
            Self::PidAvailable => Pressure::Pid,
            _ => Pressure::Disk,
        }
    }

    /// The resource that is starved, as events and messages name it.
    pub(crate) fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodeFsAvailable | Self::ImageFsAvailable => "ephemeral-storage",
            Self::NodeFsInodesFree | Self::ImageFsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    fn is_counted_in_bytes(self) -> bool {
        !matches!(self, Self::NodeFsInodesFree | Self::ImageFsInodesFree | Self::PidAvailable)
    }

    pub(crate) fn quantity(self, amount: i64) -> Quantity {
        if self.is_counted_in_bytes() { Quantity::from_bytes(amount) } else { Quantity::from_whole(amount) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Least {
    Amount(i64),
    /// Of the capacity, from 0 to 1.
    Share(f64),
}

impl Least {
    fn of(self, capacity: i64) -> i64 {
        match self {
            Self::Amount(amount) => amount,
            Self::Share(share) => (capacity as f64 * share) as i64,
        }
    }
}

/// Hard eviction thresholds: upstream's `--eviction-hard`.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds(BTreeMap<Signal, Least>);

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ThresholdError {
    #[error("invalid eviction threshold syntax {0}, expected <signal><operator><value>")]
    Syntax(String),
    #[error(
        "unsupported eviction signal {0}: there are memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree and pid.available"
    )]
    Signal(String),
    #[error("found duplicate eviction threshold for signal {0}")]
    Duplicate(String),
    #[error("eviction threshold {0} must be a positive amount, or a share from 0% to 100%")]
    Value(String),
}

impl Default for Thresholds {
    /// Upstream's defaults for Linux.
    fn default() -> Self {
        Self(BTreeMap::from([
            (Signal::MemoryAvailable, Least::Amount(100 << 20)),
            (Signal::NodeFsAvailable, Least::Share(0.1)),
            (Signal::NodeFsInodesFree, Least::Share(0.05)),
            (Signal::ImageFsAvailable, Least::Share(0.15)),
            (Signal::ImageFsInodesFree, Least::Share(0.05)),
        ]))
    }
}

impl FromStr for Thresholds {
    type Err = ThresholdError;

    /// Shares of 0% and 100% turn a signal off, and so does leaving it out.
    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        let mut all = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('<').ok_or_else(|| ThresholdError::Syntax(part.to_owned()))?;
            let signal = NAMES.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal);
            let signal = signal.ok_or_else(|| ThresholdError::Signal(name.to_owned()))?;
            let invalid = || ThresholdError::Value(part.to_owned());
            let least = match value.strip_suffix('%') {
                Some(percent) => {
                    let percent: f64 = percent.parse().map_err(|_| invalid())?;
                    if !(0.0..=100.0).contains(&percent) {
                        return Err(invalid());
                    }
                    Least::Share(percent / 100.0)
                }
                None => {
                    let amount = Quantity::parse(value).map_err(|_| invalid())?;
                    if amount.is_negative() {
                        return Err(invalid());
                    }
                    Least::Amount(amount.value())
                }
            };
            if all.insert(signal, least).is_some() {
                return Err(ThresholdError::Duplicate(name.to_owned()));
            }
        }
        all.retain(|_, least| ![Least::Share(0.0), Least::Share(1.0)].contains(least));
        Ok(Self(all))
    }
}

/// What a signal says now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observation {
    pub(crate) available: i64,
    pub(crate) capacity: i64,
}

pub(crate) type Observations = BTreeMap<Signal, Observation>;

/// A threshold that is met: how little there is, and how much there should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Met {
    pub(crate) signal: Signal,
    pub(crate) threshold: i64,
    pub(crate) available: i64,
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [threshold, available] = [self.threshold, self.available].map(|amount| self.signal.quantity(amount));
        write!(f, "Threshold quantity: {threshold}, available: {available}. ")
    }
}

impl Thresholds {
    fn least(&self, signal: Signal, capacity: i64) -> Option<i64> {
        let named = if signal == Signal::AllocatableMemoryAvailable { Signal::MemoryAvailable } else { signal };
        self.0.get(&named).map(|least| least.of(capacity))
    }

    /// The amount that `memory.available` keeps back of what pods may be scheduled on.
    pub(crate) fn memory(&self, capacity: i64) -> i64 {
        self.least(Signal::MemoryAvailable, capacity).unwrap_or(0)
    }

    /// As [`Self::memory`], of the disk.
    pub(crate) fn storage(&self, capacity: i64) -> i64 {
        self.least(Signal::NodeFsAvailable, capacity).unwrap_or(0)
    }

    /// The thresholds that are met, in the order in which they are acted on.
    pub(crate) fn met(&self, observations: &Observations) -> Vec<Met> {
        let met = observations.iter().filter_map(|(signal, observation)| {
            let threshold = self.least(*signal, observation.capacity)?;
            let is_met = observation.available < threshold;
            is_met.then_some(Met { signal: *signal, threshold, available: observation.available })
        });
        met.collect()
    }

    /// Whether any resource that was this much more available `before` would be starved after the same time once more.
    pub(crate) fn is_soon_met(&self, before: &Observations, now: &Observations) -> bool {
        now.iter().any(|(signal, observation)| {
            let Some(threshold) = self.least(*signal, observation.capacity) else { return false };
            let fallen = before.get(signal).map_or(0, |before| before.available - observation.available);
            fallen > 0 && observation.available - fallen < threshold
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_parsed_as_upstream_does() {
        let parse = |text: &str| text.parse::<Thresholds>().map_err(|error| error.to_string());
        let default = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%";
        assert_eq!(parse(default), Ok(Thresholds::default()));
        assert_eq!(parse("nodefs.available<0%, imagefs.available<100%"), Ok(Thresholds(BTreeMap::new())));
        assert_eq!(parse(""), Ok(Thresholds(BTreeMap::new())));
        for bad in [
            "memory.available>100Mi",
            "memory.available",
            "cpu.available<1",
            "memory.available<-1",
            "memory.available<x",
            "nodefs.available<101%",
            "nodefs.available<-1%",
            "pid.available<1,pid.available<2",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_threshold_is_met_when_less_is_left() {
        let thresholds: Thresholds = "memory.available<100,nodefs.available<10%".parse().expect("thresholds");
        let seen = |signal, available, capacity| Observations::from([(signal, Observation { available, capacity })]);
        assert!(thresholds.met(&seen(Signal::NodeFsAvailable, 100, 1000)).is_empty());
        let met = thresholds.met(&seen(Signal::NodeFsAvailable, 99, 1000));
        assert_eq!(met.first().map(ToString::to_string).as_deref(), Some("Threshold quantity: 100, available: 99. "));
        assert!(!thresholds.met(&seen(Signal::AllocatableMemoryAvailable, 99, 1000)).is_empty());
        assert!(thresholds.met(&seen(Signal::PidAvailable, 0, 1000)).is_empty());
    }

    #[test]
    fn what_falls_fast_is_soon_met() {
        let thresholds: Thresholds = "nodefs.available<100".parse().expect("thresholds");
        let seen =
            |available| Observations::from([(Signal::NodeFsAvailable, Observation { available, capacity: 1000 })]);
        assert!(!thresholds.is_soon_met(&Observations::new(), &seen(200)));
        assert!(!thresholds.is_soon_met(&seen(300), &seen(300)));
        assert!(!thresholds.is_soon_met(&seen(300), &seen(250)));
        assert!(thresholds.is_soon_met(&seen(350), &seen(200)));
    }
}

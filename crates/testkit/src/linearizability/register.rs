//! What a key is, and what an operation on it may answer.

/// A value that no two writes share, and the revision of its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub value: u64,
    pub revision: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Read { found: Option<Version> },
    Write { expected: Expected, value: u64, outcome: Outcome },
    Delete { expected: Expected, outcome: Outcome },
}

/// The condition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Absent,
    At(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// At this revision, if it was told.
    Done(Option<i64>),
    /// The condition did not hold.
    Refused,
    Unknown,
}

/// The register between two operations. A revision is not known while only a write of unknown outcome, or a change whose
/// revision was not told, can have made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Register {
    Absent,
    Present { value: u64, revision: Option<i64> },
}

impl Register {
    /// The register after `action`, if the action can answer what it did.
    pub(super) fn after(self, action: &Action) -> Option<Register> {
        match *action {
            Action::Read { found: None } => (self == Register::Absent).then_some(self),
            Action::Read { found: Some(found) } => self.known_as(found),
            Action::Write { expected, outcome: Outcome::Refused, .. }
            | Action::Delete { expected, outcome: Outcome::Refused } => (!self.must_be(expected)).then_some(self),
            Action::Write { expected, value, outcome } => {
                let revision = self.changed(expected, outcome)?;
                Some(Register::Present { value, revision })
            }
            Action::Delete { expected, outcome } => self.changed(expected, outcome).map(|_| Register::Absent),
        }
    }

    fn known_as(self, found: Version) -> Option<Register> {
        let Register::Present { value, revision } = self else { return None };
        let fits = value == found.value && revision.is_none_or(|revision| revision == found.revision);
        fits.then_some(Register::Present { value, revision: Some(found.revision) })
    }

    /// The revision of a change that is made now, if it can be.
    fn changed(self, expected: Expected, outcome: Outcome) -> Option<Option<i64>> {
        let told = match outcome {
            Outcome::Done(revision) => revision,
            Outcome::Refused | Outcome::Unknown => None,
        };
        let after = |before: Option<i64>| told.zip(before).is_none_or(|(told, before)| told > before);
        match (self, expected) {
            (Register::Absent, Expected::Absent) => Some(told),
            (Register::Present { revision, .. }, Expected::At(at)) => {
                (revision.is_none_or(|revision| revision == at) && after(Some(at))).then_some(told)
            }
            _ => None,
        }
    }

    /// The condition holds for certain.
    fn must_be(self, expected: Expected) -> bool {
        match (self, expected) {
            (Register::Absent, Expected::Absent) => true,
            (Register::Present { revision, .. }, Expected::At(at)) => revision == Some(at),
            _ => false,
        }
    }
}

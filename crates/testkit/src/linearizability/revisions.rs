//! The order across all keys: revisions follow real time.

use super::Operation;
use super::register::{Action, Outcome};

/// A revision that a client was told of, and when.
#[derive(Clone, Copy, Debug)]
pub struct Sighting {
    pub called: u64,
    pub answered: u64,
    pub revision: i64,
    /// It is the client's own change; otherwise the store was at least there.
    pub made: bool,
}

impl Sighting {
    /// What an operation tells of revisions, if anything.
    pub fn of(operation: &Operation) -> Option<Sighting> {
        let (revision, made) = match operation.action {
            Action::Write { outcome: Outcome::Done(revision), .. }
            | Action::Delete { outcome: Outcome::Done(revision), .. } => (revision?, true),
            Action::Read { found } => (found?.revision, false),
            _ => return None,
        };
        Some(Sighting { called: operation.called, answered: operation.answered?, revision, made })
    }
}

/// A change called after another revision was told of must have a higher one, and no two changes share theirs.
///
/// # Errors
/// The two that contradict each other.
pub fn check_revisions(sightings: &[Sighting]) -> Result<(), (Sighting, Sighting)> {
    let mut made: Vec<Sighting> = sightings.iter().filter(|one| one.made).copied().collect();
    made.sort_by_key(|one| one.revision);
    if let Some([first, second]) = made.array_windows().find(|[first, second]| first.revision == second.revision) {
        return Err((*first, *second));
    }
    made.sort_by_key(|one| one.called);
    let mut told = sightings.to_vec();
    told.sort_by_key(|one| one.answered);
    let mut told = told.into_iter().peekable();
    let mut highest: Option<Sighting> = None;
    for change in made {
        while let Some(earlier) = told.next_if(|one| one.answered < change.called) {
            highest = highest.filter(|highest| highest.revision >= earlier.revision).or(Some(earlier));
        }
        if let Some(highest) = highest.filter(|highest| highest.revision >= change.revision) {
            return Err((highest, change));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_change_has_a_higher_revision() {
        check("0-1 made@2 | 2-3 made@3", true);
        check("0-1 made@3 | 2-3 made@2", false);
        check("0-3 made@3 | 2-4 made@2", true);
        check("0-1 made@3 | 2-4 made@3", false);
        check("0-1 saw@5 | 2-4 made@5", false);
        check("0-1 saw@5 | 2-4 made@6", true);
    }

    #[track_caller]
    fn check(text: &str, want: bool) {
        let one = |text: &str| {
            let (times, what) = text.trim().split_once(' ').unwrap();
            let ((called, answered), (made, revision)) =
                (times.split_once('-').unwrap(), what.split_once('@').unwrap());
            let (called, answered) = (called.parse().unwrap(), answered.parse().unwrap());
            Sighting { called, answered, revision: revision.parse().unwrap(), made: made == "made" }
        };
        let all: Vec<Sighting> = text.split('|').map(one).collect();
        assert_eq!(check_revisions(&all).is_ok(), want, "{text}");
    }
}

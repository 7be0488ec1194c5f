//! The search for an order.

use std::collections::HashSet;
use std::fmt;

use super::Operation;
use super::register::Register;

/// No order explains the history: the longest part that one explains, and what comes after it.
#[derive(Debug)]
pub struct Violation {
    pub explained: Vec<Operation>,
    pub left: Vec<Operation>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "not linearizable; {} operations are explained, the last of them:", self.explained.len())?;
        for operation in self.explained.iter().rev().take(5).rev() {
            writeln!(f, "  {operation:?}")?;
        }
        writeln!(f, "none of these can come next:")?;
        for operation in self.left.iter().take(8) {
            writeln!(f, "  {operation:?}")?;
        }
        Ok(())
    }
}

/// Checks the operations on one key, which was absent at first.
///
/// # Errors
/// There is no order.
pub fn check(history: &[Operation]) -> Result<(), Violation> {
    let mut operations = history.to_vec();
    operations.sort_by_key(|operation| operation.called);
    let mut search = Search { operations: &operations, tried: HashSet::new(), longest: Vec::new() };
    match search.run() {
        true => Ok(()),
        false => {
            let explained = search.longest.clone();
            let of = |indexes: &[usize]| indexes.iter().filter_map(|index| operations.get(*index).cloned()).collect();
            let left: Vec<usize> = (0..operations.len()).filter(|index| !explained.contains(index)).collect();
            Err(Violation { explained: of(&explained), left: of(&left) })
        }
    }
}

struct Search<'a> {
    /// By time of call.
    operations: &'a [Operation],
    /// Sets of operations with the register they lead to, from which no order was found.
    tried: HashSet<(Vec<u64>, Register)>,
    longest: Vec<usize>,
}

/// One operation that was put next, and the choices that are left in its stead.
struct Step {
    register: Register,
    choices: Vec<usize>,
    taken: Option<usize>,
}

impl Search<'_> {
    fn run(&mut self) -> bool {
        let mut done = Set::new(self.operations.len());
        let first = Register::Absent;
        let mut steps = vec![Step { register: first, choices: self.choices(&done), taken: None }];
        loop {
            if self.is_complete(&done) {
                return true;
            }
            let Some(step) = steps.last_mut() else { return false };
            let Some(index) = step.choices.pop() else {
                if let Some(taken) = step.taken {
                    done.remove(taken);
                }
                steps.pop();
                continue;
            };
            let Some(operation) = self.operations.get(index) else { continue };
            let Some(register) = step.register.after(&operation.action) else { continue };
            done.insert(index);
            if !self.tried.insert((done.0.clone(), register)) {
                done.remove(index);
                continue;
            }
            let choices = self.choices(&done);
            steps.push(Step { register, choices, taken: Some(index) });
            if steps.len() > self.longest.len() + 1 {
                self.longest = steps.iter().filter_map(|step| step.taken).collect();
            }
        }
    }

    /// All that was answered is placed.
    fn is_complete(&self, done: &Set) -> bool {
        self.operations.iter().enumerate().all(|(index, one)| one.answered.is_none() || done.contains(index))
    }

    /// What can come next: whatever was called before the first answer among those not yet placed. The best guess is last:
    /// what was answered first; those of unknown outcome only if nothing else fits.
    fn choices(&self, done: &Set) -> Vec<usize> {
        let mut first_answer = u64::MAX;
        let mut choices = Vec::new();
        for (index, operation) in self.operations.iter().enumerate() {
            if operation.called > first_answer {
                break;
            }
            if done.contains(index) {
                continue;
            }
            choices.push(index);
            first_answer = first_answer.min(operation.answered.unwrap_or(u64::MAX));
        }
        let answered = |index: &usize| self.operations.get(*index).and_then(|one| one.answered).unwrap_or(u64::MAX);
        choices.sort_by_key(|index| std::cmp::Reverse(answered(index)));
        choices
    }
}

/// A set of small numbers.
struct Set(Vec<u64>);

impl Set {
    fn new(size: usize) -> Set {
        Set(vec![0; size.div_ceil(64)])
    }

    fn contains(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    fn insert(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word |= 1 << (index % 64);
        }
    }

    fn remove(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word &= !(1 << (index % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linearizability::{Action, Expected, Outcome, Version};

    #[test]
    fn operations_one_after_the_other_are_judged_by_what_they_answer() {
        check_all(
            "0-1 create 7 done@2 | 2-3 read 7@2 | 4-5 put@2 8 done@5 | 6-7 read 8@5 | 8-9 delete@5 done@6 | 10-11 read none",
            true,
        );
        check_all("0-1 create 7 done@2 | 2-3 read none", false);
        check_all("0-1 create 7 done@2 | 2-3 read 7@3", false);
        check_all("0-1 create 7 done@2 | 2-3 put@2 8 done@3 | 4-5 read 7@2", false);
        check_all("0-1 create 7 done@2 | 2-3 create 8 refused", true);
        check_all("0-1 create 7 done@2 | 2-3 put@2 8 refused", false);
        check_all("0-1 create 7 done@3 | 2-3 put@3 8 done@2", false);
    }

    #[test]
    fn of_two_writes_on_the_same_revision_one_is_refused() {
        check_all("0-1 create 7 done@2 | 2-9 put@2 8 done@3 | 3-8 put@2 9 refused", true);
        check_all("0-1 create 7 done@2 | 2-9 put@2 8 done@3 | 3-8 put@2 9 done@4", false);
        check_all("0-9 create 7 done@2 | 0-9 create 8 done@3", false);
    }

    #[test]
    fn a_read_during_a_write_may_see_either_but_not_back_and_forth() {
        check_all("0-1 create 7 done@2 | 2-9 put@2 8 done@3 | 3-4 read 7@2 | 5-6 read 8@3", true);
        check_all("0-1 create 7 done@2 | 2-9 put@2 8 done@3 | 3-4 read 8@3 | 5-6 read 7@2", false);
    }

    #[test]
    fn an_unknown_write_may_happen_late_or_never_but_not_twice() {
        check_all("0-1 create 7 done@2 | 2-? put@2 8 unknown | 4-5 read 7@2 | 6-7 read 8@9", true);
        check_all("0-1 create 7 done@2 | 2-? put@2 8 unknown | 4-5 read 7@2", true);
        check_all("0-1 create 7 done@2 | 2-? put@2 8 unknown | 4-5 read 8@9 | 6-7 read 7@2", false);
        check_all("0-1 create 7 done@2 | 2-? put@2 8 unknown | 4-5 put@2 9 done@3 | 6-7 read 8@9", false);
        check_all("0-1 create 7 done@2 | 2-? delete@2 unknown | 4-5 read none | 6-7 read none", true);
        check_all("0-1 create 7 done@2 | 4-5 read 8@9 | 6-? put@2 8 unknown", false);
    }

    /// `CALL-ANSWER what` with `|` between; each by a client of its own.
    #[track_caller]
    fn check_all(text: &str, linearizable: bool) {
        let history: Vec<Operation> =
            text.split('|').enumerate().map(|(client, one)| parse(client, one.trim())).collect();
        assert_eq!(check(&history).is_ok(), linearizable, "{text}");
    }

    fn parse(client: usize, text: &str) -> Operation {
        let words: Vec<&str> = text.split(' ').collect();
        let (called, answered) = words[0].split_once('-').unwrap();
        let revision = |word: &str| word.split_once('@').map(|(_, revision)| revision.parse().unwrap());
        let outcome = |word: &str| match word.split('@').next().unwrap() {
            "done" => Outcome::Done(revision(word)),
            "refused" => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        let version = |word: &str| {
            let (value, revision) = word.split_once('@')?;
            Some(Version { value: value.parse().unwrap(), revision: revision.parse().unwrap() })
        };
        let action = match words[1].split('@').next().unwrap() {
            "read" => Action::Read { found: version(words[2]) },
            "delete" => {
                Action::Delete { expected: Expected::At(revision(words[1]).unwrap()), outcome: outcome(words[2]) }
            }
            name => Action::Write {
                expected: if name == "create" { Expected::Absent } else { Expected::At(revision(words[1]).unwrap()) },
                value: words[2].parse().unwrap(),
                outcome: outcome(words[3]),
            },
        };
        Operation { client, called: called.parse().unwrap(), answered: answered.parse().ok(), action }
    }
}

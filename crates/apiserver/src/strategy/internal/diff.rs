//! Two texts told as one: which lines go, which come, and a few around them.
//!
//! As upstream's library matches lines, so that the same hunks are told: the longest run that both have, and then the same
//! on either side of it; in a long text, lines that come often begin no run.

use std::collections::HashMap;
use std::fmt::Write as _;

const CONTEXT: usize = 3;
/// From so many lines on, those that come often begin no run.
const LONG: usize = 200;

/// So many lines that are the same, from here on in each text.
#[derive(Clone, Copy, Default)]
struct Run {
    old: usize,
    new: usize,
    length: usize,
}

/// A part of both texts that is the same, or is not.
#[derive(Clone, Copy)]
struct Part {
    same: bool,
    old: (usize, usize),
    new: (usize, usize),
}

struct Matcher<'a> {
    old: Vec<&'a str>,
    new: Vec<&'a str>,
    /// Where a line is in the new text.
    places: HashMap<&'a str, Vec<usize>>,
}

pub(super) fn unified(old: &str, new: &str) -> String {
    let matcher = Matcher::new(old, new);
    let mut out = String::new();
    for hunk in hunks(parts(&matcher.runs())) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let (from, to) = (range(first.old.0, last.old.1), range(first.new.0, last.new.1));
        // Writing to a string cannot fail.
        let _ = writeln!(out, "@@ -{from} +{to} @@");
        for part in hunk {
            let mut tell = |sign: char, lines: &[&str], (from, to): (usize, usize)| {
                for line in lines.get(from..to).unwrap_or_default() {
                    let _ = writeln!(out, "{sign}{line}");
                }
            };
            if part.same {
                tell(' ', &matcher.old, part.old);
            } else {
                tell('-', &matcher.old, part.old);
                tell('+', &matcher.new, part.new);
            }
        }
    }
    out
}

fn range(from: usize, to: usize) -> String {
    match to - from {
        1 => (from + 1).to_string(),
        // Nothing is where the line before it is.
        0 => format!("{from},0"),
        count => format!("{},{count}", from + 1),
    }
}

impl<'a> Matcher<'a> {
    fn new(old: &'a str, new: &'a str) -> Self {
        let (old, new): (Vec<&str>, Vec<&str>) = (old.split('\n').collect(), new.split('\n').collect());
        let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, line) in new.iter().enumerate() {
            places.entry(line).or_default().push(index);
        }
        if new.len() >= LONG {
            let often = new.len() / 100 + 1;
            places.retain(|_, indexes| indexes.len() <= often);
        }
        Self { old, new, places }
    }

    fn same(&self, old: usize, new: usize) -> bool {
        self.old.get(old) == self.new.get(new)
    }

    /// The longest run between these lines, the first of them in both texts.
    fn longest(&self, old: (usize, usize), new: (usize, usize)) -> Run {
        let mut best = Run { old: old.0, new: new.0, length: 0 };
        let mut before: HashMap<usize, usize> = HashMap::new();
        for index in old.0..old.1 {
            let mut ending = HashMap::new();
            let places = self.old.get(index).and_then(|line| self.places.get(line)).into_iter().flatten();
            for place in places.copied().filter(|place| (new.0..new.1).contains(place)) {
                let length = place.checked_sub(1).and_then(|place| before.get(&place)).copied().unwrap_or(0) + 1;
                ending.insert(place, length);
                if length > best.length {
                    best = Run { old: index + 1 - length, new: place + 1 - length, length };
                }
            }
            before = ending;
        }
        while best.old > old.0 && best.new > new.0 && self.same(best.old - 1, best.new - 1) {
            best = Run { old: best.old - 1, new: best.new - 1, length: best.length + 1 };
        }
        while best.old + best.length < old.1
            && best.new + best.length < new.1
            && self.same(best.old + best.length, best.new + best.length)
        {
            best.length += 1;
        }
        best
    }

    fn matched(&self, old: (usize, usize), new: (usize, usize), found: &mut Vec<Run>) {
        let run = self.longest(old, new);
        if run.length == 0 {
            return;
        }
        if old.0 < run.old && new.0 < run.new {
            self.matched((old.0, run.old), (new.0, run.new), found);
        }
        found.push(run);
        let (old_end, new_end) = (run.old + run.length, run.new + run.length);
        if old_end < old.1 && new_end < new.1 {
            self.matched((old_end, old.1), (new_end, new.1), found);
        }
    }

    /// Every run, those that touch as one, and an empty one at the end.
    fn runs(&self) -> Vec<Run> {
        let mut found = Vec::new();
        self.matched((0, self.old.len()), (0, self.new.len()), &mut found);
        let (mut joined, mut open): (Vec<Run>, Run) = (Vec::new(), Run::default());
        for run in found {
            if open.old + open.length == run.old && open.new + open.length == run.new {
                open.length += run.length;
                continue;
            }
            joined.extend(Some(open).filter(|open| open.length > 0));
            open = run;
        }
        joined.extend(Some(open).filter(|open| open.length > 0));
        joined.push(Run { old: self.old.len(), new: self.new.len(), length: 0 });
        joined
    }
}

fn parts(runs: &[Run]) -> Vec<Part> {
    let (mut old, mut new, mut parts) = (0, 0, Vec::new());
    for run in runs {
        if old < run.old || new < run.new {
            parts.push(Part { same: false, old: (old, run.old), new: (new, run.new) });
        }
        (old, new) = (run.old + run.length, run.new + run.length);
        if run.length > 0 {
            parts.push(Part { same: true, old: (run.old, old), new: (run.new, new) });
        }
    }
    parts
}

/// Changes that are near each other, with a few lines around them.
fn hunks(mut parts: Vec<Part>) -> Vec<Vec<Part>> {
    if let Some(first) = parts.first_mut().filter(|part| part.same) {
        first.old.0 = first.old.0.max(first.old.1.saturating_sub(CONTEXT));
        first.new.0 = first.new.0.max(first.new.1.saturating_sub(CONTEXT));
    }
    if let Some(last) = parts.last_mut().filter(|part| part.same) {
        last.old.1 = last.old.1.min(last.old.0 + CONTEXT);
        last.new.1 = last.new.1.min(last.new.0 + CONTEXT);
    }
    let (mut hunks, mut hunk) = (Vec::new(), Vec::new());
    for part in parts {
        let mut part = part;
        if part.same && part.old.1 - part.old.0 > 2 * CONTEXT {
            let (old, new) = (part.old.1.min(part.old.0 + CONTEXT), part.new.1.min(part.new.0 + CONTEXT));
            hunk.push(Part { same: true, old: (part.old.0, old), new: (part.new.0, new) });
            hunks.push(std::mem::take(&mut hunk));
            part.old.0 = part.old.0.max(part.old.1.saturating_sub(CONTEXT));
            part.new.0 = part.new.0.max(part.new.1.saturating_sub(CONTEXT));
        }
        hunk.push(part);
    }
    // What is the same is no change.
    if hunk.len() > 1 || hunk.iter().any(|part| !part.same) {
        hunks.push(hunk);
    }
    hunks
}

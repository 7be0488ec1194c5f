//! Sets of completion indexes in the form a Job's status writes them: `0,2-5,9`.

use std::collections::BTreeSet;

pub(super) fn parse(text: &str) -> BTreeSet<i32> {
    let mut all = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            all.extend(first..=last);
        }
    }
    all
}

pub(super) fn format(all: &BTreeSet<i32>) -> String {
    let mut ranges: Vec<(i32, i32)> = Vec::new();
    for index in all {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let text = |(first, last): &(i32, i32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_written_as_ranges() {
        for (text, canonical) in [("", ""), ("3", "3"), ("0,1", "0,1"), ("0,1,2", "0-2"), ("9,2-5,0", "0,2-5,9")] {
            assert_eq!(format(&parse(text)), canonical);
        }
    }
}

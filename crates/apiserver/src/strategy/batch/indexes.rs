//! Indexes of an indexed job as text: `1,3-5`.

/// How many indexes `text` names, all below `completions` and in order, or what is wrong with it.
pub(super) fn count(text: &str, completions: i64) -> Result<i64, String> {
    let mut last: Option<i64> = None;
    let mut total = 0;
    for interval in intervals(text) {
        let (from, to) = parse(interval, completions)?;
        if let Some(last) = last.filter(|last| *last >= from) {
            return Err(format!("non-increasing order, previous: {last}, current: {from}"));
        }
        total += to - from + 1;
        last = Some(to);
    }
    Ok(total)
}

/// The first index that both name; what cannot be read is passed over.
pub(super) fn overlap(completed: &str, failed: &str, completions: i64) -> Option<i64> {
    let read = |text| -> Vec<(i64, i64)> {
        intervals(text).filter_map(|interval| parse(interval, completions).ok()).collect()
    };
    let (completed, failed) = (read(completed), read(failed));
    let (mut completed, mut failed) = (completed.iter().peekable(), failed.iter().peekable());
    while let (Some(c), Some(f)) = (completed.peek(), failed.peek()) {
        if c.0 <= f.1 && f.0 <= c.1 {
            return Some(c.0.max(f.0));
        }
        if c.0 <= f.0 {
            completed.next()
        } else {
            failed.next()
        };
    }
    None
}

fn intervals(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(move |_| !text.is_empty())
}

fn parse(interval: &str, completions: i64) -> Result<(i64, i64), String> {
    let limits: Vec<&str> = interval.split('-').collect();
    let number = |text: &str| -> Result<i64, String> {
        let index = text.parse().map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
        if index >= completions { Err(format!("too large index: {text:?}")) } else { Ok(index) }
    };
    match *limits.as_slice() {
        [one] => number(one).map(|index| (index, index)),
        [from, to] => match (number(from)?, number(to)?) {
            (from, to) if from >= to => Err(format!("non-increasing order, previous: {from}, current: {to}")),
            both => Ok(both),
        },
        _ => Err(format!(
            "the fragment {interval:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_counted_in_order() {
        check("", Ok(0));
        check("0,2-3", Ok(3));
        check("3,2", Err("non-increasing order, previous: 3, current: 2"));
        check("2-2", Err("non-increasing order, previous: 2, current: 2"));
        check("4", Err("too large index: \"4\""));
        check("a", Err("cannot convert string to integer for index: \"a\""));
    }

    #[track_caller]
    fn check(text: &str, want: Result<i64, &str>) {
        assert_eq!(count(text, 4), want.map_err(str::to_owned), "{text}");
    }

    #[test]
    fn an_index_is_either_completed_or_failed() {
        assert_eq!(overlap("0,2-3", "1", 4), None);
        assert_eq!(overlap("0,2-3", "1,3", 4), Some(3));
        assert_eq!(overlap("x,2", "2", 4), Some(2));
    }
}

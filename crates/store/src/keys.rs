//! An interval of keys in etcd's notation.

use std::ops::Bound;

use bytes::Bytes;

/// `end` `None`: the one key; `Some("\0")`: from `start` to the last key; otherwise `[start, end)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    pub start: Bytes,
    pub end: Option<Bytes>,
}

type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

impl Keys {
    pub fn new(start: Bytes, end: Option<Bytes>) -> Keys {
        Keys { start, end }
    }

    /// Every key that begins with `prefix`; all keys if it is empty.
    pub fn prefix(prefix: Bytes) -> Keys {
        let mut end = prefix.to_vec();
        while end.pop_if(|last| *last == u8::MAX).is_some() {}
        match end.last_mut() {
            Some(last) => *last += 1,
            None => end.push(0),
        }
        let start = if prefix.is_empty() { Bytes::from_static(b"\0") } else { prefix };
        Keys { start, end: Some(end.into()) }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        match self.end.as_deref() {
            None => self.start == key,
            Some(b"\0") => self.start <= key,
            Some(end) => self.start <= key && key < end,
        }
    }

    /// Bounds for an ordered map, which panics on a start behind its end; `None` if no key can match.
    pub(crate) fn bounds(&self) -> Option<Bounds<'_>> {
        let start = Bound::Included(self.start.as_ref());
        match self.end.as_deref() {
            None => Some((start, Bound::Included(self.start.as_ref()))),
            Some(b"\0") => Some((start, Bound::Unbounded)),
            Some(end) => (self.start < end).then_some((start, Bound::Excluded(end))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_holds_exactly_the_keys_that_begin_with_it() {
        check(Keys::prefix("a".into()), "a ab a\u{ff}", "b `");
        check(Keys::prefix("".into()), "a z", "");
        check(Keys::prefix(Bytes::from_static(b"\xff")), "", "a z");
    }

    #[test]
    fn an_end_is_exclusive_and_none_is_one_key() {
        check(Keys::new("b".into(), None), "b", "a bb c");
        check(Keys::new("b".into(), Some("d".into())), "b bb c", "a d");
        check(Keys::new("b".into(), Some("\0".into())), "b c zzz", "a");
        check(Keys::new("d".into(), Some("b".into())), "", "a b c d");
    }

    #[track_caller]
    fn check(keys: Keys, inside: &str, outside: &str) {
        for (list, want) in [(inside, true), (outside, false)] {
            for key in list.split_whitespace() {
                assert_eq!(keys.contains(key.as_bytes()), want, "{keys:?} {key}");
                let in_bounds =
                    keys.bounds().is_some_and(|b| std::ops::RangeBounds::<[u8]>::contains(&b, key.as_bytes()));
                assert_eq!(in_bounds, want, "bounds of {keys:?} {key}");
            }
        }
    }
}

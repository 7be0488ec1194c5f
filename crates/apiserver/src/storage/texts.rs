//! Several short texts in one allocation: what selectors ask for, kept for every object there is.

/// A list of texts that does not change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Texts {
    joined: Box<str>,
    /// Where each one ends.
    ends: Box<[u32]>,
}

impl Texts {
    pub(crate) fn new<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Self {
        let (mut joined, mut ends) = (String::new(), Vec::new());
        for text in texts {
            joined.push_str(text.as_ref());
            // Objects are far smaller than 4 GB.
            ends.push(u32::try_from(joined.len()).unwrap_or(u32::MAX));
        }
        Self { joined: joined.into(), ends: ends.into() }
    }

    /// The text at `index`; empty where there is none.
    pub(crate) fn get(&self, index: usize) -> &str {
        let end = |index: usize| self.ends.get(index).map(|end| *end as usize);
        let start = index.checked_sub(1).map_or(Some(0), end);
        start.zip(end(index)).and_then(|(start, end)| self.joined.get(start..end)).unwrap_or_default()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).map(|index| self.get(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_as_they_were() {
        let check = |texts: &[&str]| {
            let kept = Texts::new(texts);
            assert_eq!(kept.iter().collect::<Vec<_>>(), texts);
            assert_eq!(kept.get(texts.len()), "");
        };
        check(&[]);
        check(&[""]);
        check(&["a", "", "ß", "long enough", ""]);
    }
}

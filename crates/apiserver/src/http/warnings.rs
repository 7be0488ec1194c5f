//! Upstream's `Warning: 299 - "…"` headers: each once, and together no longer than clients put up with.

use std::collections::HashSet;

use http::{HeaderValue, Response, header};

use super::Body;

/// Characters of all together; where there are more, each is cut.
const MOST: usize = 4096;
const MOST_OF_ONE: usize = 256;

pub(crate) fn add_warnings(response: &mut Response<Body>, warnings: &[String]) {
    for warning in told(warnings) {
        let escaped = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

fn told(warnings: &[String]) -> Vec<String> {
    let mut known = HashSet::new();
    let each: Vec<&String> = warnings.iter().filter(|text| !text.is_empty() && known.insert(*text)).collect();
    let mut total = 0;
    let too_many = each.iter().position(|text| {
        total += text.chars().count();
        total > MOST
    });
    let Some(at) = too_many else { return each.into_iter().cloned().collect() };
    // Those up to the one that was too much are told in any case, then as many as there is room for.
    let mut written = 0;
    let cut = each.into_iter().enumerate().map_while(|(index, text)| {
        let text: String = text.chars().take(MOST_OF_ONE).collect();
        let is_told = index <= at || written < MOST;
        written += text.chars().count();
        is_told.then_some(text)
    });
    cut.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(warnings: &[(&str, usize)], want: &[usize]) {
        let warnings: Vec<String> = warnings.iter().map(|(text, count)| text.repeat(*count)).collect();
        let told: Vec<usize> = told(&warnings).iter().map(|text| text.chars().count()).collect();
        assert_eq!(told, want, "{warnings:?}");
    }

    #[test]
    fn each_is_told_once_and_all_are_cut_where_they_are_too_long() {
        check(&[("a", 1), ("b", 1), ("a", 1), ("", 1)], &[1, 1]);
        check(&[("a", 4000), ("b", 96)], &[4000, 96]);
        check(&[("a", 4000), ("ö", 97), ("c", 300)], &[256, 97, 256]);
        let long: Vec<(String, usize)> = (0..40).map(|index| (char::from(b'A' + index).to_string(), 300)).collect();
        let long: Vec<(&str, usize)> = long.iter().map(|(text, count)| (text.as_str(), *count)).collect();
        check(&long, &[256; 16]);
    }
}

//! Leases, and who would like to hold one.

use api::field::FieldError;
use api::validation::{NameRule, is_qualified_name};
use api::{Object, ObjectExt as _};

use super::Strategy;
use super::check::{At, check};

/// Elections among candidates are held only where a feature is on that upstream leaves off.
const COORDINATED: [&str; 2] = ["strategy", "preferredHolder"];
const OLDEST: &str = "OldestEmulationVersion";

pub(super) struct Leases;

impl Strategy for Leases {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn prepare_for_create(&self, object: &mut Object) {
        for field in COORDINATED {
            object.remove_at(&["spec", field]);
        }
    }

    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        for field in COORDINATED.iter().filter(|field| old.at(&["spec", field]).is_none()) {
            new.remove_at(&["spec", field]);
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            spec.field("leaseDurationSeconds").positive();
            spec.field("leaseTransitions").not_negative();
            if spec.field("strategy").exists() {
                strategy(&spec.field("strategy"));
            }
            if !spec.field("preferredHolder").is_empty() && spec.field("strategy").is_empty() {
                spec.field("preferredHolder").forbidden("may only be specified if `strategy` is defined");
            }
        })
    }
}

pub(super) struct LeaseCandidates;

impl Strategy for LeaseCandidates {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn name_rule(&self) -> NameRule {
        NameRule::ConfigKey
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| candidate(&at.field("spec")))
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        super::fixed_at(new, old, &["spec", "leaseName"])
    }
}

fn candidate(spec: &At<'_>) {
    let (emulated, binary, how) = (spec.field("emulationVersion"), spec.field("binaryVersion"), spec.field("strategy"));
    spec.field("leaseName").needed();
    let read = |at: &At<'_>| {
        let version = Version::parse(at.text());
        if version.is_none() {
            at.invalid("must be a valid semantic version");
        }
        // What cannot be read counts as no version at all.
        version.unwrap_or_default()
    };
    let older = if emulated.is_empty() { Version::default() } else { read(&emulated) };
    let newer = if binary.needed() { read(&binary) } else { Version::default() };
    if !binary.is_empty() && !emulated.is_empty() && newer < older {
        binary.invalid("must be greater than or equal to `emulationVersion`");
    }
    if how.needed() {
        if how.text() == OLDEST && older == Version::default() {
            emulated.required("must be specified when `strategy` is 'OldestEmulationVersion'");
        }
        strategy(&how);
    }
}

/// Ours is called as it is, those of others have a domain before the name. Upstream names the field twice.
fn strategy(at: &At<'_>) {
    let place = at.called(at.path().child("strategy"));
    match at.text().contains('/') {
        true => place.named(is_qualified_name),
        false => place.one_of(&[OLDEST]),
    }
}

/// A version of three numbers, with what comes before its release.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    numbers: [u64; 3],
    /// A release is newer than anything before it.
    is_release: Release,
    before: Vec<Part>,
}

#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
enum Release {
    Before,
    #[default]
    Release,
}

/// Numbers are older than words.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64),
    Word(String),
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
        let (numbers, before) = text.split_once('-').map_or((text, None), |(text, before)| (text, Some(before)));
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !build.is_none_or(|build| build.split('.').all(is_word)) {
            return None;
        }
        let mut parts = numbers.split('.');
        let mut number = || number_of(parts.next()?);
        let numbers = [number()?, number()?, number()?];
        if parts.next().is_some() {
            return None;
        }
        let words = before.into_iter().flat_map(|before| before.split('.'));
        let before: Option<Vec<Part>> = words
            .map(|word| match word.bytes().all(|b| b.is_ascii_digit()) {
                true => number_of(word).map(Part::Number),
                false => is_word(word).then(|| Part::Word(word.to_owned())),
            })
            .collect();
        let before = before?;
        let is_release = if before.is_empty() { Release::Release } else { Release::Before };
        Some(Self { numbers, is_release, before })
    }
}

/// A number without zeros before it.
fn number_of(text: &str) -> Option<u64> {
    let is_plain = text == "0" || (!text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()));
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn versions_come_in_the_order_of_their_release() {
        let order = ["0.9.0", "1.0.0-1", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0", "1.0.1", "1.10.0"];
        for (older, newer) in order.iter().zip(order.iter().skip(1)) {
            assert!(Version::parse(older).unwrap() < Version::parse(newer).unwrap(), "{older} {newer}");
        }
        for wrong in ["", "1", "1.0", "1.0.0.0", "01.0.0", "1.0.x", "v1.0.0", "1.0.0-", "1.0.0+", "1.0.0-01"] {
            assert!(Version::parse(wrong).is_none(), "{wrong}");
        }
    }
}

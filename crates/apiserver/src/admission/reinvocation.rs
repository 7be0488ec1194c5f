//! Who has been asked to change a request, and who of them is to be asked once more because others changed it since.

use std::collections::BTreeSet;

use api::Object;

/// Of one plugin that asks many: its policies or its webhooks, by their keys.
#[derive(Default)]
pub(crate) struct Reinvocation {
    is_second: bool,
    /// Those that want to be asked again should anything change after them.
    invoked: BTreeSet<String>,
    again: BTreeSet<String>,
    /// What the first round made of the object.
    output: Option<Object>,
}

impl Reinvocation {
    /// From now on only those are asked that are to be asked again.
    pub(super) fn reinvoke(&mut self) {
        self.is_second = true;
    }

    pub(super) fn round(&self) -> u8 {
        u8::from(self.is_second)
    }

    /// A round begins with this object.
    pub(super) fn begin(&mut self, object: &Object) {
        if self.is_second && self.output.as_ref() != Some(object) {
            self.changed();
        }
    }

    pub(super) fn is_asked(&self, key: &str) -> bool {
        !self.is_second || self.again.contains(key)
    }

    /// The object was changed: whoever saw it before may see it again.
    pub(super) fn changed(&mut self) {
        self.again.append(&mut self.invoked);
    }

    /// One that wants to be asked again was asked.
    pub(super) fn invoked(&mut self, key: &str) {
        self.invoked.insert(key.to_owned());
    }

    /// A round ended with this object.
    pub(super) fn end(&mut self, object: &Object) {
        self.output = Some(object.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Object {
        Object::from_iter([("a".to_owned(), text.into())])
    }

    #[test]
    fn those_are_asked_again_after_whom_something_changed() {
        let mut round = Reinvocation::default();
        round.begin(&object("0"));
        round.invoked("first");
        round.changed();
        round.invoked("second");
        round.end(&object("1"));
        round.reinvoke();
        round.begin(&object("1"));
        assert_eq!((round.is_asked("first"), round.is_asked("second"), round.is_asked("new")), (true, false, false));
        round.begin(&object("2"));
        assert!(round.is_asked("second"), "others changed it between the rounds");
    }
}

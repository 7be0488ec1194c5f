//! Rules in the order upstream checks them, one line each: a place in the object, and what must hold there.

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::IpAddr;

use api::field::{FieldError, Path};
use api::quantity::Quantity;
use api::{Object, addresses, validation};
use serde_json::Value;

use super::internal;

static NULL: Value = Value::Null;
const IMMUTABLE: &str = "field is immutable";
const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const PORT: &str = "must be between 1 and 65535, inclusive";
const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
pub(super) const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// What is wrong with text, in upstream's words.
type TextRule = fn(&str) -> Vec<String>;

/// Every complaint that `rules` makes about `object`.
pub(super) fn check(object: &Object, rules: impl FnOnce(At<'_>)) -> Vec<FieldError> {
    let errors = RefCell::default();
    // The root is only ever asked for its fields.
    rules(At { value: &NULL, root: Some(object), path: Path::default(), errors: &errors });
    errors.into_inner()
}

/// A place in an object: the value there (null where there is none), its path, and where complaints go.
#[derive(Clone)]
pub(super) struct At<'a> {
    value: &'a Value,
    root: Option<&'a Object>,
    path: Path,
    errors: &'a RefCell<Vec<FieldError>>,
}

impl<'a> At<'a> {
    fn object(&self) -> Option<&'a Object> {
        self.root.or_else(|| self.value.as_object())
    }

    fn with(&self, value: &'a Value, path: Path) -> Self {
        Self { value, root: None, path, errors: self.errors }
    }

    pub(super) fn field(&self, name: &str) -> Self {
        let value = self.object().and_then(|object| object.get(name)).unwrap_or(&NULL);
        self.with(value, self.path.child(name))
    }

    /// `field` along a path.
    pub(super) fn at(&self, names: &[&str]) -> Self {
        names.iter().fold(self.clone(), |at, name| at.field(name))
    }

    /// The same value, complained about under another name.
    pub(super) fn called(&self, path: Path) -> Self {
        Self { path, ..self.clone() }
    }

    pub(super) fn items(&self) -> Vec<Self> {
        let items = self.value.as_array().into_iter().flatten().enumerate();
        items.map(|(index, value)| self.with(value, self.path.index(index))).collect()
    }

    /// The items of the list field `name`.
    pub(super) fn each(&self, name: &str) -> Vec<Self> {
        self.field(name).items()
    }

    /// The entries of a map, in the order of their keys.
    pub(super) fn entries(&self) -> Vec<(&'a str, Self)> {
        let entries = self.object().into_iter().flatten();
        entries.map(|(key, value)| (key.as_str(), self.with(value, self.path.key(key)))).collect()
    }

    pub(super) fn value(&self) -> &'a Value {
        self.value
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or_default()
    }

    pub(super) fn number(&self) -> Option<i64> {
        self.value.as_i64()
    }

    pub(super) fn is_true(&self) -> bool {
        self.value == &Value::Bool(true)
    }

    pub(super) fn count(&self) -> usize {
        self.value.as_array().map_or(0, Vec::len)
    }

    /// Something is there, even if it is empty.
    pub(super) fn exists(&self) -> bool {
        !self.value.is_null()
    }

    /// Nothing, or nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        match self.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        }
    }

    /// How many complaints there are so far.
    pub(super) fn complaints(&self) -> usize {
        self.errors.borrow().len()
    }

    pub(super) fn complain(&self, error: FieldError) {
        self.errors.borrow_mut().push(error);
    }

    pub(super) fn extend(&self, errors: Vec<FieldError>) {
        self.errors.borrow_mut().extend(errors);
    }

    pub(super) fn invalid(&self, detail: impl Into<String>) {
        self.complain(FieldError::invalid(&self.path, self.value.clone(), detail));
    }

    /// The same, shown as upstream's type `kind` shows it.
    pub(super) fn invalid_as(&self, kind: &str, detail: impl Into<String>) {
        self.complain(internal::invalid(kind, &self.path, self.value, detail));
    }

    /// Invalid as `shown`, where what is there is not what upstream shows.
    pub(super) fn invalid_shown(&self, shown: impl Into<Value>, detail: &str) {
        self.complain(FieldError::invalid(&self.path, shown, detail));
    }

    pub(super) fn required(&self, detail: &str) {
        self.complain(FieldError::required(&self.path, detail));
    }

    pub(super) fn forbidden(&self, detail: impl Into<String>) {
        self.complain(FieldError::forbidden(&self.path, detail));
    }

    pub(super) fn duplicate(&self) {
        self.complain(FieldError::duplicate(&self.path, self.value.clone()));
    }

    /// Complains where nothing is; tells whether something is.
    pub(super) fn needed(&self) -> bool {
        if self.is_empty() {
            self.required("");
        }
        !self.is_empty()
    }

    /// One of `allowed`; nothing is not one of them.
    pub(super) fn one_of(&self, allowed: &[&str]) {
        if !allowed.contains(&self.text()) {
            self.complain(FieldError::not_supported(&self.path, self.text(), allowed));
        }
    }

    /// Not what it is, told as `shown`, but one of `allowed`.
    pub(super) fn one_of_values(&self, shown: &str, allowed: &[&str]) {
        let mut error = FieldError::not_supported(&self.path, shown, allowed);
        error.value = shown.to_owned();
        self.complain(error);
    }

    pub(super) fn one_of_if_set(&self, allowed: &[&str]) {
        if self.exists() {
            self.one_of(allowed);
        }
    }

    /// Something, and one of `allowed`.
    pub(super) fn needed_one_of(&self, allowed: &[&str]) {
        if self.needed() {
            self.one_of(allowed);
        }
    }

    pub(super) fn not_negative(&self) {
        if self.number().is_some_and(|number| number < 0) {
            self.invalid(NOT_NEGATIVE);
        }
    }

    /// The fields named are not negative.
    pub(super) fn none_negative(&self, names: &[&str]) {
        names.iter().for_each(|name| self.field(name).not_negative());
    }

    pub(super) fn positive(&self) {
        if self.number().is_some_and(|number| number <= 0) {
            self.invalid("must be greater than 0");
        }
    }

    pub(super) fn between(&self, least: i64, most: i64) {
        if self.number().is_some_and(|number| !(least..=most).contains(&number)) {
            self.invalid(format!("must be between {least} and {most}, inclusive"));
        }
    }

    /// A port's number, which must be there.
    pub(super) fn port_number(&self) {
        let number = self.number().unwrap_or(0);
        if !(1..=65535).contains(&number) {
            self.complain(FieldError::invalid(&self.path, number, PORT));
        }
    }

    /// A port by number or name.
    pub(super) fn port(&self) {
        match self.value {
            Value::String(_) => self.named(validation::is_port_name),
            _ => self.port_number(),
        }
    }

    pub(super) fn named(&self, rule: TextRule) {
        for detail in rule(self.text()) {
            self.complain(FieldError::invalid(&self.path, self.text(), detail));
        }
    }

    pub(super) fn named_if_set(&self, rule: TextRule) {
        if !self.text().is_empty() {
            self.named(rule);
        }
    }

    pub(super) fn needed_named(&self, rule: TextRule) {
        if self.needed() {
            self.named(rule);
        }
    }

    pub(super) fn labels(&self) {
        self.extend(validation::labels(Some(self.value), &self.path));
    }

    /// An address; tells whether it is one.
    pub(super) fn ip(&self) -> bool {
        self.ip_unless(&[])
    }

    /// An address. One of `known`, which the object had before, may be what older servers allowed.
    pub(super) fn ip_unless(&self, known: &[Value]) -> bool {
        let complaint = addresses::complaint(self.text()).filter(|_| !known.contains(self.value));
        if let Some(detail) = complaint {
            self.complain(FieldError::invalid(&self.path, self.text(), detail));
        }
        complaint.is_none()
    }

    /// A range of addresses; tells whether it is one.
    pub(super) fn cidr(&self) -> bool {
        self.cidr_unless(&[])
    }

    pub(super) fn cidr_unless(&self, known: &[Value]) -> bool {
        let complaint = addresses::range_complaint(self.text()).filter(|_| !known.contains(self.value));
        if let Some(detail) = complaint {
            self.complain(FieldError::invalid(&self.path, self.text(), detail));
        }
        complaint.is_none()
    }

    pub(super) fn not_an_address(&self) {
        if addresses::lenient(self.text()).is_some() {
            self.invalid("must be a DNS name, not an IP address");
        }
    }

    /// An address that a pod or machine can be reached at from elsewhere.
    pub(super) fn endpoint_ip(&self) {
        let Some(address) = addresses::lenient(self.text()).map(|address| address.to_canonical()) else {
            self.invalid("must be a valid IP address");
            return;
        };
        let local = match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let multicast = match address {
            IpAddr::V4(v4) => v4.octets().starts_with(&[224, 0, 0]),
            IpAddr::V6(v6) => v6.segments().first().is_some_and(|first| first & 0xff0f == 0xff02),
        };
        if address.is_unspecified() {
            self.invalid(format!("may not be unspecified ({})", self.text()));
        }
        if address.is_loopback() {
            self.invalid("may not be in the loopback range (127.0.0.0/8, ::1/128)");
        }
        if local {
            self.invalid("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
        }
        if multicast {
            self.invalid("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
        }
    }

    /// Neither the number nor the percentage may be negative; tells whether it can be read.
    pub(super) fn number_or_percent(&self) -> bool {
        match self.value {
            Value::String(text) if !is_percent(text) => self.invalid(PERCENT),
            Value::String(_) => return true,
            _ => {
                self.not_negative();
                return self.number().is_none_or(|number| number >= 0);
            }
        }
        false
    }

    pub(super) fn at_most_100_percent(&self) {
        let percent =
            Some(self.text()).filter(|text| is_percent(text)).and_then(|text| text.trim_end_matches('%').parse().ok());
        if percent.is_some_and(|percent: i64| percent > 100) {
            self.invalid("must not be greater than 100%");
        }
    }

    pub(super) fn quantity(&self) -> Option<Quantity> {
        Quantity::parse(self.text()).ok()
    }

    pub(super) fn quantity_not_negative(&self) {
        if self.quantity().is_some_and(|quantity| quantity.is_negative()) {
            self.invalid(NOT_NEGATIVE);
        }
    }

    /// A label selector: its labels, and its expressions.
    pub(super) fn selector(&self) {
        self.field("matchLabels").labels();
        for expression in self.each("matchExpressions") {
            let (operator, values) = (expression.field("operator"), expression.field("values"));
            match operator.text() {
                "In" | "NotIn" if values.is_empty() => {
                    values.required("must be specified when `operator` is 'In' or 'NotIn'");
                }
                "Exists" | "DoesNotExist" if !values.is_empty() => {
                    values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
                }
                "In" | "NotIn" | "Exists" | "DoesNotExist" => (),
                _ => operator.invalid("not a valid selector operator"),
            }
            expression.field("key").named(validation::is_qualified_name);
            for value in values.items() {
                value.named(validation::is_label_value);
            }
        }
    }

    /// Whether `rules` have nothing to complain of here; nobody is told what they have.
    pub(super) fn is_fine(&self, rules: impl FnOnce(&At<'_>)) -> bool {
        let errors = RefCell::default();
        rules(&At { errors: &errors, ..self.clone() });
        errors.into_inner().is_empty()
    }

    /// Must be what it is in `old`, an object of the same kind.
    pub(super) fn immutable(&self, old: &At<'_>) {
        if self.value != old.value {
            self.invalid(IMMUTABLE);
        }
    }
}

/// Complains about every place whose value came before.
pub(super) fn unique<'a>(places: impl IntoIterator<Item = At<'a>>) {
    let mut seen = HashSet::new();
    for place in places {
        if place.exists() && !seen.insert(place.value.to_string()) {
            place.duplicate();
        }
    }
}

/// A struct as upstream keeps it, for what is shown of it whole: each field by both its names, with what stands for none.
pub(super) fn shown(value: &Value, fields: &[(&str, &str, &str)]) -> String {
    let parts = fields.iter().map(|(kept, name, none)| {
        let value = value.get(name).filter(|value| !value.is_null());
        format!("{kept:?}:{}", value.map_or((*none).to_owned(), ToString::to_string))
    });
    api::field::escaped(&format!("{{{}}}", parts.collect::<Vec<_>>().join(",")))
}

fn is_percent(text: &str) -> bool {
    text.strip_suffix('%').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(object: &Value, rules: impl FnOnce(At<'_>)) -> Vec<String> {
        check(object.as_object().unwrap(), rules).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn complaints_come_in_the_order_of_the_rules_and_name_the_place() {
        let object =
            json!({"spec": {"count": -1, "kind": "Odd", "ports": [{"port": 0}, {"port": 80}], "share": "120%"}});
        let found = told(&object, |at| {
            let spec = at.field("spec");
            spec.field("kind").one_of(&["A", "B"]);
            spec.field("count").not_negative();
            spec.each("ports").iter().for_each(|port| port.field("port").port());
            spec.field("share").at_most_100_percent();
            assert!(!spec.field("name").needed());
        });
        assert_eq!(
            found,
            [
                "spec.kind: Unsupported value: \"Odd\": supported values: \"A\", \"B\"",
                "spec.count: Invalid value: -1: must be greater than or equal to 0",
                "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.share: Invalid value: \"120%\": must not be greater than 100%",
                "spec.name: Required value",
            ]
        );
    }

    #[test]
    fn what_comes_twice_is_told_where_it_comes_again() {
        let object = json!({"list": [{"name": "a"}, {"name": "b"}, {"name": "a"}]});
        let found = told(&object, |at| unique(at.each("list").iter().map(|item| item.field("name"))));
        assert_eq!(found, ["list[2].name: Duplicate value: \"a\""]);
    }
}

//! A policy and a binding as they are used: read once, compiled once.

use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::generation;
use crate::admission::rules::{Criteria, strings};
use cel::Program;
use cel::policy::{Compiled, Compiler, Returns, place};

pub(crate) struct Policy {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) generation: i64,
    /// What goes wrong in it is passed over.
    pub(super) ignores_failure: bool,
    pub(super) criteria: Result<Criteria, String>,
    /// API version and kind of its parameters.
    pub(super) param_kind: Option<(String, String)>,
    pub(super) variables: Vec<(String, Compiled)>,
    pub(super) conditions: Vec<Expression>,
    pub(super) validations: Vec<Validation>,
    pub(super) annotations: Vec<(String, Expression)>,
    pub(super) mutations: Vec<Mutation>,
    pub(super) reinvoked: bool,
    /// What takes a while to make is only made where some expression reads it.
    pub(super) reads_request: bool,
    pub(super) reads_namespace: bool,
}

pub(crate) struct Expression {
    pub(crate) text: String,
    pub(crate) compiled: Compiled,
}

pub(super) struct Validation {
    pub(super) expression: Expression,
    pub(super) message: String,
    pub(super) message_expression: Option<Expression>,
    pub(super) reason: String,
}

pub(super) struct Mutation {
    pub(super) expression: Expression,
    pub(super) is_json_patch: bool,
}

pub(crate) struct Binding {
    pub(super) name: String,
    pub(super) policy: String,
    pub(super) actions: Vec<String>,
    pub(super) criteria: Result<Criteria, String>,
    pub(super) params: Option<Object>,
}

fn items<'a>(object: &'a Object, path: &[&str]) -> impl Iterator<Item = &'a Object> {
    object.at(path).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

fn criteria(object: &Object, path: &[&str]) -> Result<Criteria, String> {
    let empty = Object::new();
    let value = object.at(path).and_then(Value::as_object).unwrap_or(&empty);
    Criteria::of(value, "resourceRules").map_err(|error| error.to_string())
}

/// The conditions that narrow down a policy or a webhook.
pub(crate) fn conditions<'a>(list: impl Iterator<Item = &'a Object>, compiler: &Compiler) -> Vec<Expression> {
    list.map(|condition| expression(condition.text(&["expression"]), Returns::Bool, true, compiler)).collect()
}

fn expression(text: &str, returns: Returns, authorizer: bool, compiler: &Compiler) -> Expression {
    Expression { text: text.to_owned(), compiled: compiler.compile(text, returns, authorizer) }
}

impl Policy {
    pub(super) fn of(object: &Object, mutating: bool) -> Self {
        let kind = object.at(&["spec", "paramKind"]).and_then(Value::as_object);
        let mut compiler = Compiler::new(kind.is_some(), true);
        let mut variables = Vec::new();
        for variable in items(object, &["spec", "variables"]) {
            let name = variable.text(&["name"]).to_owned();
            let compiled = compiler.variable(&name, variable.text(&["expression"]));
            variables.push((name, compiled));
        }
        let validation = |one: &Object| Validation {
            expression: expression(one.text(&["expression"]), Returns::Bool, true, &compiler),
            message: one.text(&["message"]).trim().to_owned(),
            message_expression: Some(one.text(&["messageExpression"]))
                .filter(|text| !text.is_empty())
                .map(|text| expression(text, Returns::String, false, &compiler)),
            reason: one.text(&["reason"]).to_owned(),
        };
        let mutation = |one: &Object| {
            let is_json_patch = one.text(&["patchType"]) == "JSONPatch";
            let (field, returns) = match is_json_patch {
                true => ("jsonPatch", Returns::JsonPatch),
                false => ("applyConfiguration", Returns::ApplyConfiguration),
            };
            let expression = expression(one.text(&[field, "expression"]), returns, true, &compiler);
            Mutation { expression, is_json_patch }
        };
        let annotation = |one: &Object| {
            let value = expression(one.text(&["valueExpression"]), Returns::StringOrNull, true, &compiler);
            (one.text(&["key"]).to_owned(), value)
        };
        let mut policy = Self {
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
            generation: generation(object),
            ignores_failure: object.text(&["spec", "failurePolicy"]) == "Ignore",
            criteria: criteria(object, &["spec", "matchConstraints"]),
            param_kind: kind.map(|kind| (kind.text(&["apiVersion"]).to_owned(), kind.text(&["kind"]).to_owned())),
            conditions: conditions(items(object, &["spec", "matchConditions"]), &compiler),
            validations: items(object, &["spec", "validations"]).map(validation).collect(),
            annotations: items(object, &["spec", "auditAnnotations"]).map(annotation).collect(),
            mutations: items(object, &["spec", "mutations"]).filter(|_| mutating).map(mutation).collect(),
            reinvoked: object.text(&["spec", "reinvocationPolicy"]) == "IfNeeded",
            reads_request: false,
            reads_namespace: false,
            variables,
        };
        (policy.reads_request, policy.reads_namespace) = (policy.reads(place::REQUEST), policy.reads(place::NAMESPACE));
        policy
    }

    /// Whether any expression reads what is at this place.
    fn reads(&self, place: usize) -> bool {
        self.programs().any(|program| program.reads(place))
    }

    fn programs(&self) -> impl Iterator<Item = &Program> {
        let validations =
            self.validations.iter().flat_map(|one| [Some(&one.expression), one.message_expression.as_ref()]);
        let annotations = self.annotations.iter().map(|(_, value)| value);
        let mutations = self.mutations.iter().map(|one| &one.expression);
        let expressions = self.conditions.iter().chain(validations.flatten()).chain(annotations).chain(mutations);
        let variables = self.variables.iter().map(|(_, compiled)| compiled);
        expressions
            .map(|expression| &expression.compiled)
            .chain(variables)
            .filter_map(|compiled| compiled.as_ref().ok())
    }
}

impl Binding {
    pub(super) fn of(object: &Object) -> Self {
        Self {
            name: object.name().to_owned(),
            policy: object.text(&["spec", "policyName"]).to_owned(),
            actions: strings(object.at(&["spec", "validationActions"])),
            criteria: criteria(object, &["spec", "matchResources"]),
            params: object.at(&["spec", "paramRef"]).and_then(Value::as_object).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What an expression reads that is overlooked would be null for it.
    #[test]
    fn whatever_any_expression_reads_is_made() {
        for (field, place) in [("request.name", place::REQUEST), ("namespaceObject.metadata", place::NAMESPACE)] {
            let (truth, text) = (format!("has({field})"), format!("string(has({field}))"));
            let patch = format!("[JSONPatch{{op: 'add', path: '/a', value: {truth}}}]");
            let constant = |field: &str, value: &str| json!({"expression": "true", field: value});
            let specs = [
                json!({"variables": [{"name": "v", "expression": truth}]}),
                json!({"validations": [{"expression": truth}]}),
                json!({"validations": [constant("messageExpression", &text)]}),
                json!({"auditAnnotations": [{"key": "k", "valueExpression": text}]}),
                json!({"mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}]}),
                json!({"matchConditions": [{"name": "c", "expression": truth}]}),
            ];
            for spec in specs {
                let object = json!({"metadata": {"name": "p"}, "spec": spec});
                let policy = Policy::of(object.as_object().unwrap(), true);
                let reads = (policy.reads_request, policy.reads_namespace);
                assert_eq!(reads, (place == place::REQUEST, place == place::NAMESPACE), "{object}");
            }
        }
        let nothing = json!({"spec": {"validations": [{"expression": "object.a == 1"}]}});
        let policy = Policy::of(nothing.as_object().unwrap(), false);
        assert!(!policy.reads_request && !policy.reads_namespace);
    }
}

//! Rules in the schemas of custom resources: what is accepted of them, and what they accept.

mod support;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use support::Api;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const PATIENCE: Duration = Duration::from_secs(20);

fn definition(spec: Value) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "versions": versions,
            "names": {"plural": "widgets", "kind": "Widget"}},
    })
}

/// Creates the definition and waits until its objects are served.
async fn served(api: &Api, spec: Value) -> Result<()> {
    let watch = api.send(&format!("GET {DEFINITIONS}?watch=true&resourceVersion=0"), &[], "").await?;
    let (code, created) = api.json(&format!("POST {DEFINITIONS}"), &[], Some(&definition(spec))).await?;
    ensure!(code == 201, "{created}");
    let (mut body, mut seen) = (watch.into_body(), String::new());
    while !seen.contains("InitialNamesAccepted") {
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await?.context("the watch ended")?;
        let bytes = frame.map_err(|error| anyhow::anyhow!(error))?.into_data().unwrap_or_default();
        seen.push_str(&String::from_utf8_lossy(&bytes));
    }
    Ok(())
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

/// The code and the causes, field and message.
async fn put(api: &Api, what: &str, object: &Value) -> Result<(u16, Vec<String>)> {
    let headers = [("content-type", "application/merge-patch+json")];
    let headers = if what.starts_with("PATCH") { &headers[..] } else { &[] };
    let (code, answer) = api.json(what, headers, Some(object)).await?;
    let causes = answer.pointer("/details/causes").and_then(Value::as_array).cloned().unwrap_or_default();
    let told = |cause: &Value| {
        let text = |key: &str| cause.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        format!("{}: {}", text("field"), text("message"))
    };
    Ok((code, causes.iter().map(told).collect()))
}

async fn create(api: &Api, name: &str, spec: Value) -> Result<(u16, Vec<String>)> {
    put(api, &format!("POST {WIDGETS}"), &widget(name, spec)).await
}

fn refused(cause: &str) -> (u16, Vec<String>) {
    (422, vec![cause.to_owned()])
}

#[tokio::test]
async fn an_object_that_fails_a_rule_is_refused_with_its_message() -> Result<()> {
    let api = Api::start().await?;
    let spec = json!({"type": "object",
    "properties": {
        "min": {"type": "integer"}, "max": {"type": "integer"}, "mode": {"type": "string", "maxLength": 10},
        "since": {"type": "string", "format": "date-time"},
        "list": {"type": "array", "maxItems": 10, "items": {"type": "object", "properties": {"n": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "self.n > 0", "messageExpression": "self.n < 0 ? 'n is below zero' : 'n is zero'"}]}},
        "map": {"type": "object", "maxProperties": 10, "additionalProperties": {"type": "string", "maxLength": 10,
            "x-kubernetes-validations": [{"rule": "self != 'bad'"}]}},
    },
    "x-kubernetes-validations": [
        {"rule": "!has(self.min) || !has(self.max) || self.min <= self.max", "message": "min is above max", "fieldPath": ".min"},
        {"rule": "!has(self.mode) || self.mode in ['a', 'b']", "reason": "FieldValueForbidden", "message": "no such mode"},
        {"rule": "!has(self.since) || self.since.getFullYear() > 2000"},
    ]});
    served(&api, spec).await?;
    assert_eq!(
        create(&api, "fine", json!({"min": 1, "max": 2, "mode": "a", "list": [{"n": 1}], "map": {"x": "y"}})).await?.0,
        201
    );
    assert_eq!(
        create(&api, "w", json!({"min": 3, "max": 2})).await?,
        refused("spec.min: Invalid value: min is above max")
    );
    assert_eq!(create(&api, "w", json!({"mode": "z"})).await?, refused("spec: Forbidden: no such mode"));
    let text = "spec: Invalid value: failed rule: !has(self.since) || self.since.getFullYear() > 2000";
    assert_eq!(create(&api, "w", json!({"since": "1999-01-01T00:00:00Z"})).await?, refused(text));
    assert_eq!(
        create(&api, "w", json!({"list": [{"n": 1}, {"n": -1}]})).await?,
        refused("spec.list[1]: Invalid value: n is below zero")
    );
    let text = "spec.map[k]: Invalid value: \"bad\": failed rule: self != 'bad'";
    assert_eq!(create(&api, "w", json!({"map": {"k": "bad"}})).await?, refused(text));
    // What cannot be evaluated is an error as well.
    let text = "spec.list[0]: Invalid value: \"object\": no such key: n evaluating rule: self.n > 0";
    assert_eq!(create(&api, "w", json!({"list": [{}]})).await?, refused(text));
    Ok(())
}

#[tokio::test]
async fn rules_about_a_change_are_put_to_changes_only() -> Result<()> {
    let api = Api::start().await?;
    let spec = json!({"type": "object", "properties": {
        "size": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "may not shrink"}]},
        "once": {"type": "string", "maxLength": 10, "x-kubernetes-validations": [
            {"rule": "oldSelf.hasValue() || self == 'new'", "optionalOldSelf": true, "message": "must begin as new"}]},
        "ports": {"type": "array", "maxItems": 10, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"],
                "properties": {"name": {"type": "string", "maxLength": 10}, "port": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": "self.port == oldSelf.port", "message": "port is fixed"}]}},
    }});
    served(&api, spec).await?;
    let text = "spec.once: Invalid value: \"old\": must begin as new";
    assert_eq!(create(&api, "w", json!({"once": "old"})).await?, refused(text));
    let first = json!({"size": 3, "once": "new", "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]});
    assert_eq!(create(&api, "w", first).await?.0, 201);
    let change = |spec: Value| {
        let api = &api;
        async move { put(api, &format!("PATCH {WIDGETS}/w"), &json!({"spec": spec})).await }
    };
    assert_eq!(change(json!({"size": 2})).await?, refused("spec.size: Invalid value: 2: may not shrink"));
    assert_eq!(change(json!({"size": 4, "once": "other"})).await?.0, 200);
    let moved = json!([{"name": "b", "port": 2}, {"name": "c", "port": 9}]);
    assert_eq!(change(json!({"ports": moved})).await?.0, 200);
    let text = "spec.ports[0]: Invalid value: port is fixed";
    assert_eq!(change(json!({"ports": [{"name": "b", "port": 3}]})).await?, refused(text));
    Ok(())
}

#[tokio::test]
async fn what_was_wrong_before_may_stay_as_it_is() -> Result<()> {
    let api = Api::start().await?;
    let with = |rules: Value| {
        json!({"type": "object", "properties": {
            "a": {"type": "string", "maxLength": 10, "x-kubernetes-validations": rules}, "b": {"type": "integer"},
        }})
    };
    served(&api, with(json!([]))).await?;
    assert_eq!(create(&api, "w", json!({"a": "bad", "b": 1})).await?.0, 201);
    let new = definition(with(json!([{"rule": "self != 'bad'", "message": "bad"}])));
    let path = format!("PATCH {DEFINITIONS}/widgets.example.com");
    assert_eq!(put(&api, &path, &json!({"spec": {"versions": new["spec"]["versions"]}})).await?.0, 200);
    api.json(&format!("GET {DEFINITIONS}"), &[], None).await?;
    assert_eq!(create(&api, "x", json!({"a": "bad"})).await?, refused("spec.a: Invalid value: \"bad\": bad"));
    assert_eq!(put(&api, &format!("PATCH {WIDGETS}/w"), &json!({"spec": {"b": 2}})).await?, (200, vec![]));
    Ok(())
}

#[tokio::test]
async fn a_definition_with_rules_that_cannot_work_is_refused() -> Result<()> {
    let api = Api::start().await?;
    let refuse = |spec: Value| {
        let api = &api;
        async move { put(api, &format!("POST {DEFINITIONS}"), &definition(spec)).await }
    };
    let ruled = |rule: Value| {
        json!({"type": "object", "properties": {"n": {"type": "integer"}, "namespace": {"type": "string"}},
            "x-kubernetes-validations": [rule]})
    };
    let at = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]";
    let whole = |rule: &str| {
        // Escaped as upstream's JSON is.
        let rule = Value::from(rule).to_string().replace('>', "\\u003e").replace('&', "\\u0026");
        format!(
            "{{\"Rule\":{rule},\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}}"
        )
    };
    let (code, causes) = refuse(ruled(json!({"rule": "self.m > 0"}))).await?;
    let text = format!(
        "{at}.rule: Invalid value: {}: compilation failed: ERROR: <input>:1:5: undefined field 'm'\n | self.m > 0\n | ....^",
        whole("self.m > 0")
    );
    assert_eq!((code, causes), (422, vec![text]));
    let (_, causes) = refuse(ruled(json!({"rule": "self.n"}))).await?;
    assert_eq!(
        causes,
        [format!("{at}.rule: Invalid value: {}: cel expression must evaluate to a bool", whole("self.n"))]
    );
    let (_, causes) = refuse(ruled(json!({"rule": "self.n > 0", "optionalOldSelf": true}))).await?;
    assert_eq!(
        causes,
        [format!("{at}.optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule")]
    );
    // A word that is kept free may be spelled in both ways, and means the same.
    let both = ruled(json!({"rule": "self.__namespace__ == self.namespace && self.namespace == 'a'"}));
    assert_eq!(refuse(both).await?, (201, vec![]));
    Ok(())
}

#[tokio::test]
async fn a_rule_that_can_cost_too_much_is_refused() -> Result<()> {
    let api = Api::start().await?;
    let unbounded = json!({"type": "object", "properties": {"list": {"type": "array", "items": {"type": "string"}}},
        "x-kubernetes-validations": [{"rule": "self.list.all(x, self.list.all(y, x == y))"}]});
    let (code, causes) = put(&api, &format!("POST {DEFINITIONS}"), &definition(unbounded)).await?;
    let at = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule";
    let hint = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are \
                declared)";
    let wanted = [
        format!("{at}: Forbidden: estimated rule cost exceeds budget by factor of more than 100x {hint}"),
        format!(
            "{at}: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
        ),
        format!(
            "spec.validation.openAPIV3Schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire \
             OpenAPIv3 schema exceeds budget by factor of more than 100x {hint}"
        ),
    ];
    assert_eq!((code, causes), (422, wanted.to_vec()));
    Ok(())
}

//! Admission policies: what they judge, what they change, and what they say.

mod support;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use support::Api;

const PATH: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn policy(name: &str, spec: Value) -> Value {
    let mut whole = json!({"matchConstraints": {"resourceRules": [{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE", "DELETE"], "resources": ["configmaps"],
    }]}});
    merge(&mut whole, spec);
    json!({"metadata": {"name": name}, "spec": whole})
}

fn binding(name: &str, policy: &str, spec: Value) -> Value {
    let mut whole = json!({"policyName": policy});
    merge(&mut whole, spec);
    json!({"metadata": {"name": name}, "spec": whole})
}

fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

fn map(name: &str, data: Value) -> Value {
    json!({"metadata": {"name": name}, "data": data})
}

async fn created(api: &Api, path: &str, object: &Value) -> Result<Value> {
    let (code, answer) = api.json(&format!("POST {path}"), &[], Some(object)).await?;
    ensure!(code == 201, "{code} {answer}");
    // A read waits for what was written, which is then what admission sees.
    api.json(&format!("GET {path}"), &[], None).await?;
    Ok(answer)
}

async fn validating(api: &Api, name: &str, spec: Value, bound: Value) -> Result<()> {
    created(api, &format!("{PATH}/validatingadmissionpolicies"), &policy(name, spec)).await?;
    created(api, &format!("{PATH}/validatingadmissionpolicybindings"), &binding(name, name, bound)).await?;
    Ok(())
}

async fn mutating(api: &Api, name: &str, spec: Value) -> Result<()> {
    let rules = json!([{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"],
    }]);
    let mut whole = json!({"matchConstraints": {"resourceRules": rules}, "reinvocationPolicy": "Never"});
    merge(&mut whole, spec);
    let policy = json!({"metadata": {"name": name}, "spec": whole});
    created(api, &format!("{PATH}/mutatingadmissionpolicies"), &policy).await?;
    created(api, &format!("{PATH}/mutatingadmissionpolicybindings"), &binding(name, name, json!({}))).await?;
    Ok(())
}

/// The code and the message of an attempt to create.
async fn attempt(api: &Api, object: &Value) -> Result<(u16, String)> {
    let (code, answer) = api.json(&format!("POST {MAPS}"), &[], Some(object)).await?;
    Ok((code, answer.get("message").and_then(Value::as_str).unwrap_or_default().to_owned()))
}

fn denied(name: &str, policy: &str, why: &str) -> (u16, String) {
    let message = format!(
        "configmaps \"{name}\" is forbidden: ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {why}"
    );
    (422, message)
}

#[tokio::test]
async fn a_request_that_fails_a_validation_is_denied_with_its_message() -> Result<()> {
    let api = Api::start().await?;
    let validations = json!([
        {"expression": "!has(object.data) || !('a' in object.data)"},
        {"expression": "!has(object.data) || !('b' in object.data)", "message": "no b", "reason": "Forbidden"},
        {"expression": "!has(object.data) || !('c' in object.data)", "messageExpression": "'no c in ' + object.metadata.name"},
        {"expression": "object.data['d'] != 'x'"},
    ]);
    let spec = json!({"validations": validations, "matchConditions": [
        {"name": "not-exempt", "expression": "!object.metadata.name.startsWith('exempt')"},
        {"name": "not-deleted", "expression": "request.operation != 'DELETE'"},
    ]});
    validating(&api, "p", spec, json!({"validationActions": ["Deny"]})).await?;
    let fine = json!({"d": "y"});
    assert_eq!(attempt(&api, &map("fine", fine)).await?.0, 201);
    let text = "failed expression: !has(object.data) || !('a' in object.data)";
    assert_eq!(attempt(&api, &map("a", json!({"a": "", "d": ""}))).await?, denied("a", "p", text));
    let (_, forbidden) = denied("b", "p", "no b");
    assert_eq!(attempt(&api, &map("b", json!({"b": "", "d": ""}))).await?, (403, forbidden));
    assert_eq!(attempt(&api, &map("c", json!({"c": "", "d": ""}))).await?, denied("c", "p", "no c in c"));
    let text = "expression 'object.data['d'] != 'x'' resulted in error: no such key: d";
    assert_eq!(attempt(&api, &map("e", json!({"e": ""}))).await?, denied("e", "p", text));
    assert_eq!(attempt(&api, &map("exempt-1", json!({"a": ""}))).await?.0, 201);
    let (code, answer) = api.json(&format!("POST {MAPS}"), &[], Some(&map("a", json!({"a": "", "d": ""})))).await?;
    assert_eq!((code, answer["reason"].as_str()), (422, Some("Invalid")));
    assert_eq!(
        answer["details"]["causes"][0]["message"].as_str().map(|text| text.starts_with("Validating")),
        Some(true)
    );
    // Not in force any more once the binding is gone.
    api.json(&format!("DELETE {PATH}/validatingadmissionpolicybindings/p"), &[], None).await?;
    api.json(&format!("GET {PATH}/validatingadmissionpolicybindings"), &[], None).await?;
    assert_eq!(attempt(&api, &map("a", json!({"a": "", "d": ""}))).await?.0, 201);
    Ok(())
}

#[tokio::test]
async fn an_update_sees_the_old_object_and_a_deletion_only_that() -> Result<()> {
    let api = Api::start().await?;
    let validations = json!([
        {"expression": "request.operation != 'UPDATE' || object.data.x == oldObject.data.x", "message": "x is immutable"},
        {"expression": "request.operation != 'DELETE' || (object == null && oldObject.data.x != 'keep')", "message": "kept"},
        {"expression": "request.operation != 'CREATE' || oldObject == null"},
        {"expression": "request.kind.kind == 'ConfigMap' && request.resource.resource == 'configmaps' && \
                        request.userInfo.username == 'admin' && 'system:masters' in request.userInfo.groups && \
                        !request.dryRun && namespaceObject.metadata.name == request.namespace"},
    ]);
    validating(&api, "p", json!({"validations": validations}), json!({"validationActions": ["Deny"]})).await?;
    assert_eq!(attempt(&api, &map("m", json!({"x": "keep"}))).await?, (201, String::new()));
    let merge = [("content-type", "application/merge-patch+json")];
    let change = json!({"data": {"x": "other"}});
    let (code, answer) = api.json(&format!("PATCH {MAPS}/m"), &merge, Some(&change)).await?;
    assert_eq!(
        (code, answer["message"].as_str().map(str::to_owned)),
        (422, Some(denied("m", "p", "x is immutable").1))
    );
    let (code, answer) = api.json(&format!("DELETE {MAPS}/m"), &[], None).await?;
    assert_eq!((code, answer["message"].as_str().map(str::to_owned)), (422, Some(denied("m", "p", "kept").1)));
    Ok(())
}

#[tokio::test]
async fn variables_are_evaluated_when_they_are_needed() -> Result<()> {
    let api = Api::start().await?;
    let spec = json!({
        "variables": [
            {"name": "size", "expression": "has(object.data) ? object.data.size() : 0"},
            {"name": "double", "expression": "variables.size * 2"},
            {"name": "broken", "expression": "object.data.nothing"},
        ],
        "validations": [{"expression": "variables.double < 4", "messageExpression": "'twice ' + string(variables.size)"},
            {"expression": "variables.size == 0 || object.metadata.name != 'use' || variables.broken == ''"}],
    });
    validating(&api, "p", spec, json!({"validationActions": ["Deny"]})).await?;
    assert_eq!(attempt(&api, &map("one", json!({"a": ""}))).await?.0, 201);
    assert_eq!(attempt(&api, &map("two", json!({"a": "", "b": ""}))).await?, denied("two", "p", "twice 2"));
    let text = "expression 'variables.size == 0 || object.metadata.name != 'use' || variables.broken == ''' resulted in error: \
                composited variable \"broken\" fails to evaluate: no such key: nothing";
    assert_eq!(attempt(&api, &map("use", json!({"a": ""}))).await?, denied("use", "p", text));
    Ok(())
}

#[tokio::test]
async fn parameters_come_from_the_binding() -> Result<()> {
    let api = Api::start().await?;
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "not-params", "expression": "!object.metadata.name.startsWith('param')"}],
        "validations": [{"expression": "object.data.size() <= int(params.data.max)", "messageExpression": "'more than ' + params.data.max"}],
    });
    let bound = json!({"validationActions": ["Deny"],
        "paramRef": {"name": "param", "namespace": "default", "parameterNotFoundAction": "Deny"}});
    validating(&api, "p", spec.clone(), bound).await?;
    let text = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    let one = map("one", json!({"a": ""}));
    assert_eq!(attempt(&api, &one).await?, denied("one", "p", text));
    let bound = json!({"validationActions": ["Deny"], "policyName": "p",
        "paramRef": {"name": "param", "namespace": "default", "parameterNotFoundAction": "Allow"}});
    let path = format!("PATCH {PATH}/validatingadmissionpolicybindings/p");
    let merge = [("content-type", "application/merge-patch+json")];
    api.json(&path, &merge, Some(&json!({"spec": bound}))).await?;
    api.json(&format!("GET {PATH}/validatingadmissionpolicybindings"), &[], None).await?;
    created(&api, MAPS, &map("param", json!({"max": "1"}))).await?;
    assert_eq!(attempt(&api, &one).await?.0, 201);
    assert_eq!(attempt(&api, &map("two", json!({"a": "", "b": ""}))).await?, denied("two", "p", "more than 1"));
    // A kind that nothing serves.
    let unknown = json!({"paramKind": {"apiVersion": "example.com/v1", "kind": "Limit"}, "validations": [{"expression": "true"}]});
    validating(&api, "q", unknown, json!({"validationActions": ["Deny"]})).await?;
    let (code, message) = attempt(&api, &map("three", json!({"a": ""}))).await?;
    let text = "configmaps \"three\" is forbidden: ValidatingAdmissionPolicy 'q' denied request: failed to configure policy: \
                failed to find resource referenced by paramKind: 'example.com/v1, Kind=Limit'";
    assert_eq!((code, message.as_str()), (422, text));
    Ok(())
}

#[tokio::test]
async fn a_binding_may_only_warn() -> Result<()> {
    let api = Api::start().await?;
    let spec = json!({"validations": [{"expression": "false", "message": "never"}]});
    validating(&api, "p", spec, json!({"validationActions": ["Warn", "Audit"]})).await?;
    let body = serde_json::to_vec(&map("m", json!({})))?;
    let response = api.send(&format!("POST {MAPS}"), &[("content-type", "application/json")], body).await?;
    assert_eq!(response.status().as_u16(), 201);
    let warning = response.headers().get("warning").context("a warning")?.to_str()?.to_owned();
    assert_eq!(warning, "299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p': never\"");
    Ok(())
}

#[tokio::test]
async fn a_failure_is_passed_over_where_the_policy_says_so() -> Result<()> {
    let api = Api::start().await?;
    let spec = json!({"failurePolicy": "Ignore", "validations": [{"expression": "object.data.nothing == 'x'"}]});
    validating(&api, "p", spec, json!({"validationActions": ["Deny"]})).await?;
    assert_eq!(attempt(&api, &map("m", json!({"a": ""}))).await?.0, 201);
    assert_eq!(attempt(&api, &map("n", json!({"nothing": ""}))).await?.0, 422);
    Ok(())
}

#[tokio::test]
async fn rules_and_selectors_narrow_down_what_is_judged() -> Result<()> {
    let api = Api::start().await?;
    let constraints = json!({
        "resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["configmaps"]}],
        "excludeResourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"],
            "resourceNames": ["spared"]}],
        "objectSelector": {"matchLabels": {"judge": "me"}},
        "namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["default"]}]},
    });
    let spec = json!({"matchConstraints": constraints, "validations": [{"expression": "false", "message": "no"}]});
    validating(&api, "p", spec, json!({"validationActions": ["Deny"]})).await?;
    let labelled = |name: &str| json!({"metadata": {"name": name, "labels": {"judge": "me"}}});
    assert_eq!(attempt(&api, &labelled("m")).await?, denied("m", "p", "no"));
    assert_eq!(attempt(&api, &labelled("spared")).await?.0, 201);
    assert_eq!(attempt(&api, &map("unlabelled", json!({}))).await?.0, 201);
    let elsewhere = "/api/v1/namespaces/kube-system/configmaps";
    created(&api, elsewhere, &labelled("m")).await?;
    Ok(())
}

#[tokio::test]
async fn a_policy_for_one_version_judges_the_others_too() -> Result<()> {
    let api = Api::start().await?;
    let rules = json!([{"apiGroups": ["autoscaling"], "apiVersions": ["v2"], "operations": ["*"],
        "resources": ["horizontalpodautoscalers"]}]);
    let spec = json!({"matchConstraints": {"resourceRules": rules}, "validations": [
        {"expression": "object.spec.metrics[0].resource.target.averageUtilization < 80",
         "messageExpression": "request.kind.version + ' seen from ' + request.requestKind.version"}]});
    validating(&api, "p", spec, json!({"validationActions": ["Deny"]})).await?;
    let object = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 2, "targetCPUUtilizationPercentage": 90,
        "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}});
    let path = "POST /apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let (code, answer) = api.json(path, &[], Some(&object)).await?;
    let message = answer["message"].as_str().unwrap_or_default();
    assert!(code == 422 && message.ends_with("denied request: v2 seen from v1"), "{code} {answer}");
    Ok(())
}

#[tokio::test]
async fn expressions_may_ask_what_the_user_may_do() -> Result<()> {
    let api = Api::start().await?;
    let spec = json!({"validations": [
        {"expression": "authorizer.group('').resource('secrets').namespace('default').check('get').allowed()", "message": "admins"},
        {"expression": "!authorizer.serviceAccount('default', 'nobody').group('').resource('secrets').check('get').allowed()"},
        {"expression": "authorizer.requestResource.check('create').allowed() && authorizer.path('/healthz').check('get').allowed()"},
    ]});
    validating(&api, "p", spec, json!({"validationActions": ["Deny"]})).await?;
    assert_eq!(attempt(&api, &map("m", json!({}))).await?, (201, String::new()));
    Ok(())
}

#[tokio::test]
async fn a_policy_is_changed_by_an_applied_configuration_or_a_patch() -> Result<()> {
    let api = Api::start().await?;
    let apply = json!({"mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {
        "expression": "Object{metadata: Object.metadata{labels: {'by': 'apply'}}}"}}]});
    mutating(&api, "a", apply).await?;
    let patch = json!({"reinvocationPolicy": "IfNeeded", "mutations": [{"patchType": "JSONPatch", "jsonPatch": {
        "expression": "has(object.data) && has(object.data.n) && object.data.n == '1' ? \
            [JSONPatch{op: 'test', path: '/data/n', value: '1'}, JSONPatch{op: 'replace', path: '/data/n', value: '2'}] : \
            [JSONPatch{op: 'add', path: '/metadata/annotations', value: {'by': 'patch'}}, \
             JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('a/b'), value: 'x'}]"}}]});
    mutating(&api, "b", patch).await?;
    let (code, made) = api.json(&format!("POST {MAPS}"), &[], Some(&map("m", json!({"n": "1"})))).await?;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["metadata"]["labels"], json!({"by": "apply"}));
    // Asked again, it finds what it changed itself.
    assert_eq!(made["data"], json!({"n": "2"}));
    assert_eq!(made["metadata"]["annotations"], json!({"by": "patch", "a/b": "x"}));
    Ok(())
}

#[tokio::test]
async fn a_mutation_that_cannot_be_made_is_told() -> Result<()> {
    let api = Api::start().await?;
    let wrong = json!({"mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {
        "expression": "Object{metadata: Object.spec{labels: {'a': 'b'}}}"}}]});
    mutating(&api, "p", wrong).await?;
    let (code, message) = attempt(&api, &map("m", json!({}))).await?;
    let text = "policy 'p' with binding 'p' denied request: type mismatch: unexpected type name \"Object.spec\", expected \
                \"Object.metadata\", which matches field name path from root Object type";
    assert_eq!((code, message.as_str()), (403, text));
    Ok(())
}

#[tokio::test]
async fn expressions_are_checked_when_a_policy_is_written() -> Result<()> {
    let api = Api::start().await?;
    let refused = |kind: &'static str, spec: Value| {
        let api = &api;
        async move {
            let (code, answer) = api.json(&format!("POST {PATH}/{kind}"), &[], Some(&policy("p", spec))).await?;
            anyhow::Ok((
                code,
                answer["details"]["causes"][0]["field"].clone(),
                answer["details"]["causes"][0]["message"].clone(),
            ))
        }
    };
    const KIND: &str = "validatingadmissionpolicies";
    let (code, field, message) = refused(KIND, json!({"validations": [{"expression": "object.x == nothing"}]})).await?;
    assert_eq!((code, field), (422, json!("spec.validations[0].expression")));
    let text = "Invalid value: \"object.x == nothing\": compilation failed: ERROR: <input>:1:13: undeclared reference to \
                'nothing' (in container '')\n | object.x == nothing\n | ............^";
    assert_eq!(message, json!(text));
    let (_, _, message) = refused(KIND, json!({"validations": [{"expression": "1"}]})).await?;
    assert_eq!(message, json!("Invalid value: \"1\": must evaluate to bool but got int"));
    let (_, field, message) =
        refused(KIND, json!({"validations": [{"expression": "true", "messageExpression": "1"}]})).await?;
    assert_eq!(
        (field, message),
        (
            json!("spec.validations[0].messageExpression"),
            json!("Invalid value: \"1\": must evaluate to string but got int")
        )
    );
    let audit = json!({"auditAnnotations": [{"key": "a", "valueExpression": "1"}]});
    let (_, _, message) = refused(KIND, audit).await?;
    assert_eq!(message, json!("Invalid value: \"1\": must evaluate to one of [string null_type] but got int"));
    let variables =
        json!({"variables": [{"name": "a", "expression": "variables.b"}], "validations": [{"expression": "true"}]});
    let (_, field, message) = refused(KIND, variables).await?;
    assert_eq!(field, json!("spec.variables[0].expression"));
    assert!(message.as_str().is_some_and(|text| text.contains("undefined field 'b'")), "{message}");
    let conditions =
        json!({"matchConditions": [{"name": "a", "expression": "params.x"}], "validations": [{"expression": "true"}]});
    let (_, field, message) = refused(KIND, conditions).await?;
    assert_eq!(field, json!("spec.matchConditions[0].expression"));
    assert!(message.as_str().is_some_and(|text| text.contains("undeclared reference to 'params'")), "{message}");
    Ok(())
}

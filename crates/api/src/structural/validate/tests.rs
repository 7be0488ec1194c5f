//! Values against schemas, and what is said of them.

use serde_json::{Value, json};

use super::*;

#[track_caller]
fn check(schema: Value, value: Value, want: &str) {
    check_update(schema, value, None, want);
}

#[track_caller]
fn check_update(schema: Value, value: Value, old: Option<Value>, want: &str) {
    let root = json!({"type": "object", "properties": {"a": schema}});
    let schema = Structural::parse(root.as_object().unwrap());
    let old = old.map(|old| json!({"a": old}));
    let errors = validate(&json!({"a": value}), old.as_ref(), &schema, &Path::default());
    let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(told.join("\n"), want);
}

#[test]
fn types() {
    check(
        json!({"type": "string"}),
        json!(1),
        r#"a: Invalid value: "integer": a in body must be of type string: "integer""#,
    );
    check(
        json!({"type": "integer"}),
        json!("1"),
        r#"a: Invalid value: "string": a in body must be of type integer: "string""#,
    );
    check(json!({"type": "integer"}), json!(1.0), "");
    check(json!({"type": "number"}), json!(1), "");
    check(
        json!({"type": "boolean"}),
        json!(null),
        r#"a: Invalid value: "null": a in body must be of type boolean: "null""#,
    );
    check(json!({"type": "boolean", "nullable": true}), json!(null), "");
    check(json!({"x-kubernetes-int-or-string": true}), json!("50%"), "");
    check(
        json!({"x-kubernetes-int-or-string": true}),
        json!(true),
        r#"a: Invalid value: "boolean": a in body must be of type integer,string: "boolean""#,
    );
    check(
        json!({"type": "array", "items": {"type": "string"}}),
        json!(["x", 1]),
        r#"a[1]: Invalid value: "integer": a[1] in body must be of type string: "integer""#,
    );
    check(
        json!({"type": "integer", "format": "int32"}),
        json!(4_294_967_296_i64),
        r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in a"#,
    );
}

#[test]
fn bounds() {
    check(
        json!({"type": "integer", "minimum": 1}),
        json!(0),
        "a: Invalid value: 0: a in body should be greater than or equal to 1",
    );
    check(
        json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}),
        json!(1),
        "a: Invalid value: 1: a in body should be greater than 1",
    );
    check(
        json!({"type": "number", "maximum": 1.5}),
        json!(2.5),
        "a: Invalid value: 2.5: a in body should be less than or equal to 1.5",
    );
    check(
        json!({"type": "integer", "multipleOf": 3}),
        json!(4),
        "a: Invalid value: 4: a in body should be a multiple of 3",
    );
    check(json!({"type": "string", "maxLength": 1}), json!("ab"), "a: Too long: may not be more than 1 bytes");
    check(
        json!({"type": "string", "minLength": 3}),
        json!("ab"),
        "a: Invalid value: \"ab\": a in body should be at least 3 chars long",
    );
    check(
        json!({"type": "string", "pattern": "^x"}),
        json!("ab"),
        "a: Invalid value: \"ab\": a in body should match '^x'",
    );
    check(
        json!({"type": "string", "enum": ["x", "y"]}),
        json!("ab"),
        r#"a: Unsupported value: "ab": supported values: "x", "y""#,
    );
    check(
        json!({"type": "string", "format": "date"}),
        json!("ab"),
        r#"a: Invalid value: "ab": a in body must be of type date: "ab""#,
    );
    check(json!({"type": "string", "format": "unheard-of"}), json!("ab"), "");
    check(
        json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
        json!(["a", "b"]),
        "a: Too many: 2: must have at most 1 item",
    );
    check(
        json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
        json!([]),
        "a: Invalid value: 0: a in body should have at least 1 items",
    );
    check(
        json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
        json!(["a", "a"]),
        "a: Invalid value: \"\": a in body shouldn't contain duplicates",
    );
    check(
        json!({"type": "object", "minProperties": 1}),
        json!({}),
        "a: Invalid value: 0: a in body should have at least 1 properties",
    );
    check(json!({"type": "object", "required": ["b"]}), json!({}), "a.b: Required value");
    check(
        json!({"type": "object", "additionalProperties": {"type": "integer"}}),
        json!({"x": "y"}),
        r#"a.x: Invalid value: "string": a.x in body must be of type integer: "string""#,
    );
}

#[test]
fn combinations() {
    let either = json!([{"required": ["b"]}, {"required": ["c"]}]);
    let object = |key: &str| json!({"type": "object", "properties": {"b": {"type": "string"}, "c": {"type": "string"}}, key: either});
    check(object("anyOf"), json!({"b": ""}), "");
    check(
        object("anyOf"),
        json!({}),
        "<nil>: Invalid value: \"\": \"a\" must validate at least one schema (anyOf)\na.b: Required value",
    );
    check(
        object("oneOf"),
        json!({"b": "", "c": ""}),
        "<nil>: Invalid value: \"\": \"a\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
    );
    check(
        object("allOf"),
        json!({"b": ""}),
        "a.c: Required value\n<nil>: Invalid value: \"\": \"a\" must validate all the schemas (allOf)",
    );
    check(
        json!({"type": "string", "not": {"pattern": "x"}}),
        json!("x"),
        "<nil>: Invalid value: \"\": \"a\" must not validate the schema (not)",
    );
}

#[test]
fn what_did_not_change_is_let_be() {
    let schema =
        json!({"type": "object", "properties": {"x": {"type": "string", "maxLength": 1}, "y": {"type": "string"}}});
    check_update(schema.clone(), json!({"x": "ab", "y": "new"}), Some(json!({"x": "ab", "y": "old"})), "");
    check_update(schema, json!({"x": "abc"}), Some(json!({"x": "ab"})), "a.x: Too long: may not be more than 1 bytes");
    let list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string", "maxLength": 1}}}});
    check_update(
        list.clone(),
        json!([{"k": "b", "v": "x"}, {"k": "a", "v": "ab"}]),
        Some(json!([{"k": "a", "v": "ab"}])),
        "",
    );
    check_update(
        list,
        json!([{"k": "b", "v": "ab"}]),
        Some(json!([{"k": "a", "v": "ab"}])),
        "a[0].v: Too long: may not be more than 1 bytes",
    );
}

//! Expressions and what they mean: `tests/*.txt` hold an expression, its type, its value or error, and its cost.

#![allow(clippy::unwrap_used)] // clippy lets only #[test] functions unwrap, and these share theirs.

use std::fmt::Write as _;

use cel::{Env, Map, Opaque, Type, Value};
use serde_json::{Value as Json, json};

/// Lines of four: the expression (`␤` is a line break), `type` or `compile`, `value` or `error` or `program`, `cost`.
#[test]
fn expressions_mean_what_the_tables_say() {
    let tables = [
        include_str!("language.txt"),
        include_str!("libraries.txt"),
        include_str!("errors.txt"),
        include_str!("comprehensions.txt"),
    ];
    let mut wrong = String::new();
    let mut count = 0;
    for case in tables.iter().flat_map(|table| table.split("\n\n")).filter(|case| !case.trim().is_empty()) {
        let (expression, wanted) = case.trim_matches('\n').split_once('\n').unwrap();
        let is = answer(&expression.replace('␤', "\n"));
        count += 1;
        if is != wanted {
            writeln!(wrong, "{expression}\n--- want\n{wanted}\n--- is\n{is}\n").unwrap();
        }
    }
    assert!(count > 300, "only {count} cases");
    assert!(wrong.is_empty(), "{wrong}");
}

fn answer(expression: &str) -> String {
    let json = object();
    let program = match env().compile(expression) {
        Ok(program) => program,
        Err(error @ cel::CompileError::Check(_)) => return format!("compile {}", error.to_string().replace('\n', "␤")),
        Err(error) => return format!("program {error}"),
    };
    let strings = json!(["b", "a", "c"]);
    let ints = json!([3, 1, 2]);
    let map = json!({"k": "v", "x": "y"});
    let variables =
        [&json, &json!(7), &json!(3), &json!(2.5), &json!("hello"), &json!(true), &strings, &ints, &map, &json!(9)];
    let variables: Vec<Option<Value<'_>>> = variables
        .iter()
        .enumerate()
        .map(|(index, value)| match (index, Value::json(value)) {
            (2, Value::Int(value)) => Some(Value::Uint(u64::try_from(value).unwrap())),
            (_, value) => Some(value),
        })
        .collect();
    let evaluated = program.eval(&variables, u64::MAX);
    let outcome = match &evaluated.result {
        Ok(value) => format!("value {}", show(value)),
        Err(error) => format!("error {error}"),
    };
    let estimate = env().estimate(expression, &cel::NoSizes).unwrap();
    let estimate = format!("{}..{}", estimate.min, estimate.max);
    format!("type {}\n{outcome}\ncost {} of {estimate}", program.output(), evaluated.cost)
}

fn env() -> Env {
    Env::default()
        .variable("self", Type::Dyn)
        .variable("i", Type::Int)
        .variable("u", Type::Uint)
        .variable("d", Type::Double)
        .variable("s", Type::String)
        .variable("b", Type::Bool)
        .variable("ls", Type::list(Type::String))
        .variable("li", Type::list(Type::Int))
        .variable("ms", Type::map(Type::String, Type::String))
        .variable("a.b", Type::Int)
}

fn object() -> Json {
    serde_json::from_str(include_str!("object.json")).unwrap()
}

fn show(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => format!("{value}u"),
        Value::Double(value) => format!("double({})", go_double(*value)),
        Value::String(text) => serde_json::to_string(&**text).unwrap(),
        Value::Bytes(bytes) => format!("b{:?}", String::from_utf8_lossy(bytes)),
        Value::Timestamp(time) => format!("timestamp({time})"),
        Value::Duration(nanos) => format!("duration({nanos})"),
        Value::Type(name) => format!("type({})", &**name),
        Value::Optional(None) => "optional.none".to_owned(),
        Value::Optional(Some(value)) => format!("optional({})", show(value)),
        Value::List(list) => format!("[{}]", list.iter().map(|item| show(&item)).collect::<Vec<_>>().join(", ")),
        Value::Map(map) => show_map(map),
        Value::Lazy(_) => "lazy".to_owned(),
        Value::Opaque(opaque) => match &**opaque {
            Opaque::Quantity(quantity) => format!("quantity({quantity})"),
            Opaque::Ip(ip) => format!("ip({ip})"),
            Opaque::Cidr(cidr) => format!("cidr({cidr})"),
            Opaque::Semver(version) => format!("semver({version})"),
            _ => "opaque".to_owned(),
        },
    }
}

fn show_map(map: &Map<'_>) -> String {
    let mut entries: Vec<String> = map
        .keys()
        .iter()
        .map(|key| format!("{}: {}", show(key), map.find(key).ok().flatten().map_or_else(String::new, |v| show(&v))))
        .collect();
    entries.sort();
    format!("{{{}}}", entries.join(", "))
}

fn go_double(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    format!("{value}")
}

//! Whatever is written, compiling and evaluating it ends, and neither panics nor overflows a small stack.

use std::time::Duration;

use cel::{Env, EvalError, Type, Value};
use proptest::prelude::*;
use serde_json::json;

fn env() -> Env {
    Env::default().variable("self", Type::Dyn).variable("n", Type::Int).variable("l", Type::list(Type::String))
}

/// Compiles, and evaluates what compiles within a budget.
fn run(text: &str) {
    let object = json!({"a": {"b": [1, 2, 3]}, "s": "text", "n": 1.5});
    let list = json!(["x", "y"]);
    if let Ok(program) = env().compile(text) {
        let variables = [Some(Value::json(&object)), Some(Value::Int(3)), Some(Value::json(&list))];
        let evaluated = program.eval(&variables, 10_000);
        assert!(evaluated.cost <= 1_000_000 || evaluated.result.is_err(), "{text} cost {}", evaluated.cost);
    }
}

const TOKENS: [&str; 60] = [
    "self",
    "n",
    "l",
    ".a",
    ".b",
    ".s",
    "[0]",
    "[?1]",
    ".?a",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "?",
    "+",
    "-",
    "*",
    "/",
    "%",
    "==",
    "!=",
    "<",
    ">=",
    "&&",
    "||",
    "!",
    "in",
    "true",
    "null",
    "1",
    "2u",
    "1.5",
    "'x'",
    "b'y'",
    "has(",
    ".map(x, ",
    ".all(x, ",
    ".exists(x, ",
    ".filter(x, ",
    "x",
    ".size()",
    "size(",
    ".matches('a+')",
    ".split('')",
    ".join('-')",
    ".format([",
    "lists.range(",
    "duration('1s')",
    "timestamp('2024-01-01T00:00:00Z')",
    ".optMap(x, ",
    ".sortBy(x, ",
    ".transformMap(i, x, ",
    "quantity('1k')",
    "ip('::1')",
    "url('http://a/')",
    ".orValue(",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_answered(text in ".{0,60}") {
        run(&text);
    }

    #[test]
    fn any_tokens_are_answered(picks in prop::collection::vec(0..TOKENS.len(), 1..24)) {
        let text: String = picks.iter().map(|pick| TOKENS[*pick]).collect::<Vec<_>>().join(" ");
        run(&text);
    }

    #[test]
    fn any_tokens_close_together_are_answered(picks in prop::collection::vec(0..TOKENS.len(), 1..12)) {
        run(&picks.iter().map(|pick| TOKENS[*pick]).collect::<String>());
    }
}

/// The stack of a worker of the API server.
const STACK: usize = 2 << 20;

#[test]
fn depth_is_bounded() {
    let nests = [
        ("(", "1", ")"),
        ("[", "1", "]"),
        ("{'a': ", "1", "}"),
        ("!(", "true", ")"),
        ("-(", "1", ")"),
        ("size([", "1", "]).foo("),
        ("[1].map(x, ", "x", ")"),
        ("[1].all(x, ", "true", ")"),
        ("[1].exists(x, true && ", "true", ")"),
        ("[1].filter(x, x in ", "[1]", ")"),
        ("true ? ", "1", " : 2"),
        ("self[", "'a'", "]"),
        ("optional.of(1).optMap(x, ", "x", ")"),
        ("dyn(", "1", ")"),
        ("1 + (", "1", ")"),
        ("", "self", ".a"),
        ("", "self", "[0]"),
        ("", "1", " + 1"),
        ("", "true", " && true"),
        ("", "1 == 1", " == true"),
        ("", "optional.of(1)", ".optMap(x, x)"),
        ("false ? 1 : ", "1", ""),
    ];
    let deep = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        for (open, middle, close) in nests {
            for depth in [10, 60, 120, 200, 249, 300, 5000] {
                run(&format!("{}{middle}{}", open.repeat(depth), close.repeat(depth)));
            }
        }
    });
    deep.unwrap().join().unwrap();
}

#[test]
fn what_upstream_accepts_in_depth_is_accepted() {
    for (open, middle, close, depth) in
        [("(", "1", ")", 200), ("[", "1", "]", 200), ("", "1", " + 1", 200), ("", "true", " && true", 2000)]
    {
        let text = format!("{}{middle}{}", open.repeat(depth), close.repeat(depth));
        assert!(env().compile(&text).is_ok(), "{open}{middle}{close} {depth} times");
    }
    let long = env().compile(&format!("'{}' == ''", "x".repeat(100_000))).err().unwrap();
    assert_eq!(
        long.to_string(),
        "ERROR: <input>:-1:0: expression code point size exceeds limit: size: 100008, limit 100000"
    );
    let deep = env().compile(&"(".repeat(300)).err().unwrap();
    assert_eq!(deep.to_string(), "ERROR: <input>:-1:0: expression recursion limit exceeded: 250");
}

#[test]
fn an_evaluation_stops_when_its_budget_is_gone() {
    let numbers = json!((0..1000).collect::<Vec<i64>>());
    let program = env().compile("self.all(x, self.all(y, self.all(z, x + y + z >= 0)))").unwrap();
    let start = std::time::Instant::now();
    let evaluated = program.eval(&[Some(Value::json(&numbers)), None, None], 100_000);
    assert_eq!(evaluated.result.err(), Some(EvalError::CostLimit));
    assert!(evaluated.cost <= 100_010, "{}", evaluated.cost);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let text = EvalError::CostLimit.to_string();
    assert_eq!(text, "operation cancelled: actual cost limit exceeded");
}

/// Running out of budget must not be taken for a mere `false`.
#[test]
fn nothing_absorbs_an_empty_budget() {
    for text in ["self.all(x, x > 0) || true", "self.exists(x, x > 0) && false", "self.map(x, x).size() > 0 || true"] {
        let numbers = json!((1..1000).collect::<Vec<i64>>());
        let program = env().compile(text).unwrap();
        let evaluated = program.eval(&[Some(Value::json(&numbers)), None, None], 50);
        let absorbed = evaluated.result.is_ok() && text.starts_with("self.exists");
        assert!(absorbed || evaluated.result.err() == Some(EvalError::CostLimit), "{text}");
    }
}

/// Twenty microseconds are the bar for a policy in the release build; a debug build is given more.
#[test]
fn an_ordinary_policy_is_cheap() {
    let object = json!({"metadata": {"name": "web", "labels": {"app": "web", "tier": "front"}},
        "spec": {"replicas": 3, "template": {"spec": {"containers": [
            {"name": "a", "image": "registry.example.com/a:1", "resources": {"limits": {"cpu": "1"}}},
            {"name": "b", "image": "registry.example.com/b:1", "resources": {"limits": {"cpu": "1"}}},
            {"name": "c", "image": "registry.example.com/c:1", "resources": {"limits": {"cpu": "1"}}}]}}}});
    let text = "self.spec.replicas <= 5 && self.metadata.labels.exists(k, k == 'app') && \
                self.spec.template.spec.containers.all(c, c.image.startsWith('registry.example.com/') && \
                has(c.resources) && has(c.resources.limits) && 'cpu' in c.resources.limits)";
    let program = env().compile(text).unwrap();
    let variables = [Some(Value::json(&object)), None, None];
    let rounds = 2000;
    let start = std::time::Instant::now();
    for _ in 0..rounds {
        assert_eq!(program.eval(&variables, u64::MAX).result.ok().and_then(|v| v.as_bool()), Some(true));
    }
    let each = start.elapsed() / rounds;
    let bar = if cfg!(debug_assertions) { 400 } else { 20 };
    assert!(each < Duration::from_micros(bar), "{each:?}");
}

//! Parses JSON like serde_json, and tells which fields an object has twice; the last one counts, as upstream.

mod syntax;

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

pub use self::syntax::complaint;

/// The value, and the paths of its duplicate fields.
pub fn parse(bytes: &[u8]) -> serde_json::Result<(Value, Vec<String>)> {
    let mut duplicates = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Tracked(&mut duplicates).deserialize(&mut deserializer)?;
    deserializer.end()?;
    let paths = duplicates.into_iter().map(|path| path.trim_start_matches('.').to_owned());
    Ok((value, paths.collect()))
}

/// Duplicates are found at the bottom and get their path on the way up: what has none costs nothing.
struct Tracked<'a>(&'a mut Vec<String>);

impl Tracked<'_> {
    fn below(&mut self, since: usize, step: impl fmt::Display) {
        for path in self.0.iter_mut().skip(since) {
            path.insert_str(0, &step.to_string());
        }
    }
}

impl<'de> DeserializeSeed<'de> for Tracked<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tracked<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let since = self.0.len();
            let Some(item) = items.next_element_seed(Tracked(self.0))? else { return Ok(Value::Array(list)) };
            self.below(since, format_args!("[{}]", list.len()));
            list.push(item);
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let since = self.0.len();
            let value = entries.next_value_seed(Tracked(self.0))?;
            self.below(since, format_args!(".{key}"));
            if map.contains_key(&key) {
                self.0.push(format!(".{key}"));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_come_twice_are_told_with_their_path() {
        check(r#"{"a":1,"b":{"c":[1,-2,2.5,null,true,"x"]}}"#, "");
        check(r#"{"a":1,"a":2}"#, "a");
        check(r#"{"spec":{"replicas":2,"x":{},"replicas":3,"replicas":3}}"#, "spec.replicas spec.replicas");
        check(r#"{"l":[{},{"i":[{"n":1,"n":2}]}],"m":{"k":0,"k":1}}"#, "l[1].i[0].n m.k");
    }

    #[track_caller]
    fn check(text: &str, duplicates: &str) {
        let (value, found) = parse(text.as_bytes()).unwrap();
        assert_eq!(found.join(" "), duplicates);
        assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn what_is_not_json_is_refused_as_ever() {
        for text in ["", "{", "{} x", "[1,]", "{\"a\":}"] {
            let ours = parse(text.as_bytes()).unwrap_err().to_string();
            assert_eq!(ours, serde_json::from_str::<Value>(text).unwrap_err().to_string());
        }
    }
}

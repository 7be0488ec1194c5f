//! `metadata.managedFields`: who set which fields, how and when.

use serde_json::{Map, Value};

use super::fields::{self, Fields};

/// Beyond this many updaters the oldest are merged into one.
const MAX_UPDATERS: usize = 10;
const ANCIENT: &str = "ancient-changes";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// Who wrote, through which path, in which version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    pub name: String,
    pub operation: Operation,
    pub subresource: String,
    pub api_version: String,
}

impl Manager {
    /// Appliers are the same in whatever version they apply.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.name == other.name
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// As conflicts name it.
    pub(super) fn display(&self) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            text += &format!(" with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            text += &format!(" using {}", self.api_version);
        }
        text
    }

    /// What upstream orders managers by in messages.
    pub(super) fn sort_key(&self) -> String {
        let mut map = Map::new();
        map.insert("manager".into(), self.name.clone().into());
        let version = if self.operation == Operation::Apply { "" } else { &self.api_version };
        format!("{}{}{version}{}", Value::Object(map), self.operation.as_str(), self.subresource)
    }
}

/// One entry: a manager and its fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Managed {
    pub manager: Manager,
    pub time: Option<String>,
    pub fields: Fields,
}

/// Why a list of managed fields cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagersError {
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    #[error("apiVersion must not be empty")]
    ApiVersion,
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    #[error("invalid fieldsType {0:?} in managed fields entry {1}")]
    FieldsType(String, usize),
    #[error("error decoding versioned set: {0}")]
    Fields(String),
}

/// Reads the list; null is empty.
pub fn decode(list: Value) -> Result<Vec<Managed>, ManagersError> {
    let Value::Array(items) = list else { return Ok(Vec::new()) };
    let mut found: Vec<Managed> = Vec::with_capacity(items.len());
    for (index, mut item) in items.into_iter().enumerate() {
        let text = |key: &str| item.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let operation = match text("operation").as_str() {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err(ManagersError::Operation),
        };
        let api_version = text("apiVersion");
        if api_version.is_empty() {
            return Err(ManagersError::ApiVersion);
        }
        match text("fieldsType").as_str() {
            "FieldsV1" => (),
            "" => return Err(ManagersError::NoFieldsType(index)),
            other => return Err(ManagersError::FieldsType(other.to_owned(), index)),
        }
        let manager = Manager { name: text("manager"), operation, subresource: text("subresource"), api_version };
        let time = item.get("time").and_then(Value::as_str).map(ToOwned::to_owned);
        let fields = match item.get_mut("fieldsV1").map(Value::take) {
            None | Some(Value::Null) => Fields::new(),
            Some(Value::Object(fields)) => {
                check(&fields)?;
                fields
            }
            Some(other) => return Err(ManagersError::Fields(format!("{other} is not an object"))),
        };
        found.retain(|known| !known.manager.is(&manager));
        found.push(Managed { manager, time, fields });
    }
    Ok(found)
}

/// Path elements are ours to believe only if they have the form we write.
fn check(fields: &Fields) -> Result<(), ManagersError> {
    for (key, value) in fields {
        let fits = match key.split_once(':') {
            Some(("f", _)) => true,
            Some(("v", json)) => serde_json::from_str::<Value>(json).is_ok(),
            Some(("k", json)) => serde_json::from_str::<Map<String, Value>>(json).is_ok(),
            Some(("i", number)) => number.parse::<i64>().is_ok(),
            Some(_) => return Err(ManagersError::Fields("unknown path element type".into())),
            None if key == "." => true,
            None => return Err(ManagersError::Fields(format!("missing colon: {key}"))),
        };
        let (true, Value::Object(below)) = (fits, value) else {
            return Err(ManagersError::Fields(format!("{key} is malformed")));
        };
        check(below)?;
    }
    Ok(())
}

/// Writes the list in upstream's order; `None` where nobody manages anything.
pub fn encode(mut managed: Vec<Managed>) -> Option<Value> {
    managed.sort_by(|a, b| {
        let key = |m: &Managed| (m.manager.operation, m.time.clone().unwrap_or_default());
        let rest = |m: &Managed| (m.manager.name.clone(), m.manager.api_version.clone(), m.manager.subresource.clone());
        key(a).cmp(&key(b)).then_with(|| rest(a).cmp(&rest(b)))
    });
    let entries: Vec<Value> = managed.into_iter().map(entry).collect();
    (!entries.is_empty()).then_some(Value::Array(entries))
}

fn entry(managed: Managed) -> Value {
    let Managed { manager, time, fields } = managed;
    let mut map = Map::new();
    map.insert("apiVersion".into(), manager.api_version.into());
    map.insert("fieldsType".into(), "FieldsV1".into());
    map.insert("fieldsV1".into(), Value::Object(fields));
    if !manager.name.is_empty() {
        map.insert("manager".into(), manager.name.into());
    }
    map.insert("operation".into(), manager.operation.as_str().into());
    if !manager.subresource.is_empty() {
        map.insert("subresource".into(), manager.subresource.into());
    }
    if let Some(time) = time {
        map.insert("time".into(), time.into());
    }
    Value::Object(map)
}

/// Merges the oldest updaters, by version, until few enough are left.
pub(super) fn cap(managed: &mut Vec<Managed>) {
    let mut updaters: Vec<Managed> = Vec::new();
    let is_update = |m: &Managed| m.manager.operation == Operation::Update;
    if managed.iter().filter(|m| is_update(m)).count() <= MAX_UPDATERS {
        return;
    }
    managed.retain(|m| {
        if is_update(m) {
            updaters.push(m.clone());
        }
        !is_update(m)
    });
    updaters.sort_by_key(|m| (m.time.clone().unwrap_or_default(), m.manager.sort_key()));
    let mut length = updaters.len();
    // The first of each version waits for a second before it becomes ancient.
    let mut kept: Vec<Managed> = Vec::new();
    for updater in updaters {
        let known = kept.iter().position(|m| m.manager.api_version == updater.manager.api_version);
        match known.and_then(|index| kept.get_mut(index)) {
            Some(bucket) if length > MAX_UPDATERS => {
                bucket.fields = fields::union(&updater.fields, &bucket.fields);
                bucket.time = updater.time;
                bucket.manager.name = ANCIENT.to_owned();
                bucket.manager.subresource = String::new();
                length -= 1;
            }
            _ => kept.push(updater),
        }
    }
    managed.extend(kept);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn updater(index: usize) -> Managed {
        let manager = Manager {
            name: format!("m{index:02}"),
            operation: Operation::Update,
            subresource: String::new(),
            api_version: "v1".into(),
        };
        let fields = fields::of_paths(&[&["data", &format!("k{index}")]]);
        Managed { manager, time: Some(format!("2026-01-01T00:00:{index:02}Z")), fields }
    }

    #[test]
    fn the_oldest_updaters_become_one() {
        let mut managed: Vec<Managed> = (0..12).map(updater).collect();
        cap(&mut managed);
        assert_eq!(managed.len(), 10);
        assert_eq!(managed[0].manager.name, ANCIENT);
        assert_eq!(managed[0].time.as_deref(), Some("2026-01-01T00:00:02Z"));
        assert_eq!(Value::Object(managed[0].fields.clone()), json!({"f:data": {"f:k0": {}, "f:k1": {}, "f:k2": {}}}));
        let mut few: Vec<Managed> = (0..10).map(updater).collect();
        cap(&mut few);
        assert_eq!(few, (0..10).map(updater).collect::<Vec<_>>());
    }

    #[test]
    fn the_list_reads_as_it_was_written() {
        let list = encode((0..3).map(updater).collect());
        assert_eq!(encode(decode(list.clone().unwrap_or_default()).unwrap()), list);
        let bad = |change: Value| {
            let mut entry =
                json!({"operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
            crate::patch::merge_patch(&mut entry, &change);
            decode(json!([entry])).unwrap_err().to_string()
        };
        assert_eq!(bad(json!({"operation": "Delete"})), "operation must be `Apply` or `Update`");
        assert_eq!(bad(json!({"fieldsType": "V2"})), "invalid fieldsType \"V2\" in managed fields entry 0");
        assert_eq!(bad(json!({"fieldsV1": {"x": {}}})), "error decoding versioned set: missing colon: x");
    }
}

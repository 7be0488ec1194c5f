//! Server-side apply as its users see it, and against a model that knows only keys and owners.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

struct One(&'static Type);

impl Versions for One {
    fn schema(&self, api_version: &str) -> Option<&Type> {
        (api_version == "v1" || api_version == "apps/v1").then_some(self.0)
    }

    fn convert(&self, object: &Object, _: &str, _: &str) -> Object {
        object.clone()
    }
}

/// An object and its managers, written step by step.
struct Story {
    versions: One,
    version: &'static str,
    object: Object,
    managed: Vec<Managed>,
    clock: u32,
}

impl Story {
    fn new(group: &str, kind: &str) -> Self {
        let schema = crate::schema::of_kind(group, "v1", kind).unwrap();
        let version = if group.is_empty() { "v1" } else { "apps/v1" };
        let object = crate::decode::blank(schema);
        Self { versions: One(schema), version, object, managed: Vec::new(), clock: 0 }
    }

    fn write<T>(&mut self, name: &str, operation: Operation, work: impl FnOnce(&Write<'_>, &mut Self) -> T) -> T {
        self.clock += 1;
        let now = format!("t{}", self.clock);
        let manager =
            Manager { name: name.into(), operation, subresource: String::new(), api_version: self.version.into() };
        let versions = One(self.versions.0);
        work(&Write { versions: &versions, manager, reset: Reset::Fields(&[&["status"]]), now: Some(&now) }, self)
    }

    fn update(&mut self, name: &str, new: Value) {
        let mut new = new;
        crate::decode::conform(&mut new, self.versions.0).unwrap();
        let new = new.as_object().cloned().unwrap();
        self.write(name, Operation::Update, |write, story| {
            update(write, &story.object, &new, &mut story.managed).unwrap();
            story.object = new;
        });
    }

    fn apply(&mut self, name: &str, config: Value, force: bool) -> Result<(), Vec<String>> {
        let config = config.as_object().cloned().unwrap();
        self.write(name, Operation::Apply, |write, story| {
            let mut managed = story.managed.clone();
            match apply(write, &story.object, &config, &mut managed, force) {
                Ok(object) => {
                    let mut object = Value::Object(object);
                    crate::decode::conform(&mut object, story.versions.0).unwrap();
                    story.object = object.as_object().cloned().unwrap();
                    story.managed = managed;
                    Ok(())
                }
                Err(ApplyError::Conflicts(conflicts)) => {
                    Err(conflicts.iter().map(|c| format!("{}: {}", c.manager_text(), c.path)).collect())
                }
                Err(other) => panic!("{other}"),
            }
        })
    }

    fn fields(&self, name: &str) -> Value {
        let found = self.managed.iter().find(|m| m.manager.name == name);
        found.map_or(Value::Null, |m| Value::Object(m.fields.clone()))
    }
}

#[test]
fn creation_is_tracked_as_upstream_tracks_it() {
    let mut story = Story::new("apps", "Deployment");
    story.update(
        "kubectl-create",
        json!({
            "metadata": {"name": "web", "labels": {"app": "web"}},
            "spec": {
                "replicas": 1, "selector": {"matchLabels": {"app": "web"}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "web", "image": "nginx", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]},
                },
            },
        }),
    );
    assert_eq!(
        story.fields("kubectl-create"),
        json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {
                "f:replicas": {}, "f:selector": {}, "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}}, "f:type": {}},
                "f:template": {
                    "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                    "f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {
                        ".": {}, "f:image": {}, "f:name": {}, "f:resources": {},
                        "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}},
                    }}},
                },
            },
        })
    );
}

#[test]
fn appliers_conflict_share_and_let_go() {
    let mut story = Story::new("apps", "Deployment");
    let config = |replicas: i64, image: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"name": "a", "image": image}]}}},
        })
    };
    story.apply("one", config(1, "x"), false).unwrap();
    let own = json!({"f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {
        "k:{\"name\":\"a\"}": {".": {}, "f:image": {}, "f:name": {}}}}}}});
    assert_eq!(story.fields("one"), own);
    assert_eq!(story.apply("two", config(2, "x"), false), Err(vec!["\"one\": .spec.replicas".to_owned()]));
    story.apply("two", config(1, "x"), false).unwrap();
    assert_eq!(story.fields("two"), own);
    // Both own everything, so that one may leave without anything going.
    story.apply("one", json!({"metadata": {"name": "web"}, "spec": {"replicas": 1}}), false).unwrap();
    assert_eq!(story.object["spec"]["template"]["spec"]["containers"][0]["image"], "x");
    story.apply("two", json!({"metadata": {"name": "web"}, "spec": {"replicas": 1}}), false).unwrap();
    assert!(story.object["spec"]["template"]["spec"].get("containers").is_none(), "{:?}", story.object);
    story.apply("three", json!({"spec": {"replicas": 5}}), true).unwrap();
    assert_eq!(story.fields("one"), Value::Null);
    story.update("scaler", {
        let mut object = story.object.clone();
        object["spec"]["replicas"] = 7.into();
        Value::Object(object)
    });
    assert_eq!(
        story.apply("three", json!({"spec": {"replicas": 5}}), false),
        Err(vec!["\"scaler\" using apps/v1: .spec.replicas".to_owned()])
    );
}

#[test]
fn a_write_that_changes_nothing_keeps_its_time() {
    let mut story = Story::new("", "ConfigMap");
    story.update("a", json!({"metadata": {"name": "x"}, "data": {"k": "1"}}));
    let before = story.managed.clone();
    story.update("a", Value::Object(story.object.clone()));
    story.update("b", Value::Object(story.object.clone()));
    assert_eq!(story.managed, before);
    story.update("b", json!({"metadata": {"name": "x"}, "data": {"k": "2"}}));
    assert_eq!(story.fields("a"), json!({"f:data": {}}));
    assert_eq!(story.fields("b"), json!({"f:data": {"f:k": {}}}));
    story.update("c", json!({"metadata": {"name": "x"}}));
    assert!(story.managed.is_empty(), "{:?}", story.managed);
}

#[test]
fn sets_and_atomic_values() {
    let mut story = Story::new("", "Pod");
    let finalizers = |names: &[&str]| json!({"metadata": {"name": "x", "finalizers": names}});
    story.apply("one", finalizers(&["a/a", "b/b"]), false).unwrap();
    story.apply("two", finalizers(&["b/b", "c/c"]), false).unwrap();
    assert_eq!(story.object["metadata"]["finalizers"], json!(["a/a", "b/b", "c/c"]));
    story.apply("one", finalizers(&[]), false).unwrap();
    assert_eq!(story.object["metadata"]["finalizers"], json!(["b/b", "c/c"]));
    assert_eq!(story.fields("two"), json!({"f:metadata": {"f:finalizers": {"v:\"b/b\"": {}, "v:\"c/c\"": {}}}}));
    let args = |args: &[&str]| json!({"spec": {"containers": [{"name": "a", "args": args}]}});
    story.apply("one", args(&["x"]), false).unwrap();
    assert_eq!(
        story.apply("two", args(&["x", "y"]), false),
        Err(vec!["\"one\": .spec.containers[name=\"a\"].args".to_owned()])
    );
}

/// Keys of a map with their values and owners: all that apply is about, without trees.
#[derive(Default)]
struct Model {
    data: BTreeMap<String, String>,
    owners: BTreeMap<(String, bool), BTreeSet<String>>,
}

impl Model {
    fn update(&mut self, name: &str, new: &BTreeMap<String, String>) {
        let old = std::mem::replace(&mut self.data, new.clone());
        let changed: BTreeSet<String> =
            new.iter().filter(|(k, v)| old.get(*k) != Some(v)).map(|(k, _)| k.clone()).collect();
        for keys in self.owners.values_mut() {
            keys.retain(|key| new.contains_key(key) && !changed.contains(key));
        }
        self.owners.entry((name.into(), false)).or_default().extend(changed);
        self.owners.retain(|_, keys| !keys.is_empty());
    }

    fn apply(&mut self, name: &str, config: &BTreeMap<String, String>, force: bool) -> bool {
        let me = (name.to_owned(), true);
        let before = self.owners.get(&me).cloned().unwrap_or_default();
        let others = |key: &String, owners: &BTreeMap<(String, bool), BTreeSet<String>>| {
            owners.iter().any(|(owner, keys)| *owner != me && keys.contains(key))
        };
        let changed: BTreeSet<String> =
            config.iter().filter(|(k, v)| self.data.get(*k) != Some(v)).map(|(k, _)| k.clone()).collect();
        if !force && changed.iter().any(|key| others(key, &self.owners)) {
            return false;
        }
        for (owner, keys) in &mut self.owners {
            if *owner != me {
                keys.retain(|key| !changed.contains(key));
            }
        }
        self.data.extend(config.clone());
        for key in before.iter().filter(|key| !config.contains_key(*key)) {
            if !others(key, &self.owners) {
                self.data.remove(key);
            }
        }
        self.owners.insert(me, config.keys().cloned().collect());
        self.owners.retain(|_, keys| !keys.is_empty());
        true
    }
}

proptest! {
    #[test]
    fn keys_and_owners_are_the_model(steps in proptest::collection::vec(
        (0..3_u8, "[ab]", proptest::collection::btree_map("[k-n]", "[12]", 0..4)), 1..12)
    ) {
        let mut story = Story::new("", "ConfigMap");
        let mut model = Model::default();
        story.update("start", json!({"metadata": {"name": "x"}, "data": {"z": "1"}}));
        model.update("start", &BTreeMap::from([("z".to_owned(), "1".to_owned())]));
        for (kind, name, data) in steps {
            match kind {
                0 => {
                    let mut data = data;
                    data.insert("z".into(), "1".into());
                    story.update(&name, json!({"metadata": {"name": "x"}, "data": data}));
                    model.update(&name, &data);
                }
                kind => {
                    let force = kind == 2;
                    let config = json!({"metadata": {"name": "x"}, "data": data});
                    prop_assert_eq!(story.apply(&name, config, force).is_ok(), model.apply(&name, &data, force));
                }
            }
            let got: BTreeMap<String, String> = serde_json::from_value(story.object["data"].clone()).unwrap();
            prop_assert_eq!(&got, &model.data);
            let owned: BTreeMap<(String, bool), BTreeSet<String>> = story.managed.iter().map(|m| {
                let keys = m.fields.get("f:data").and_then(Value::as_object);
                let keys = keys.into_iter().flat_map(|f| f.keys()).filter_map(|k| k.strip_prefix("f:")).map(ToOwned::to_owned);
                ((m.manager.name.clone(), m.manager.operation == Operation::Apply), keys.collect())
            }).filter(|(_, keys): &(_, BTreeSet<String>)| !keys.is_empty()).collect();
            prop_assert_eq!(&owned, &model.owners);
        }
    }
}

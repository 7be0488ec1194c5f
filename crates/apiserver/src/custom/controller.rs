//! Follows the definitions: decides their status, serves what is established, and ends what is deleted.
//!
//! A resource is served before its definition says that it is established, so whoever reads that can use it at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::{ApiError, Object, ObjectExt as _};
use parking_lot::Mutex;

use super::conditions::{self, Taken};
use super::definition::Names;
use super::{Definition, finalizer};
use crate::field_manager::Tracking;
use crate::handlers::Writer;
use crate::registry::Served;
use crate::server::{ApiServer, store_error};
use crate::storage::{Cache, Place};

const GROUP: &str = "apiextensions.k8s.io";
/// How long a store that cannot be written is left alone.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// Serves what is defined already, then follows what changes.
pub(crate) async fn start(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let served = server.registry.stored(GROUP, "customresourcedefinitions").ok_or_else(ApiError::no_such_resource)?;
    let Some(cache) = served.cache.clone() else { return Ok(()) };
    let controller = Controller { server: server.clone(), served: served.clone(), cache, held: Mutex::default() };
    // A watch from now on cannot be too old.
    let Ok((place, snapshot)) = controller.cache.watch_from(None) else { return Ok(()) };
    snapshot.objects.values().for_each(|stored| controller.hold(&stored.decode()));
    let all = snapshot.objects.keys().map(|name| controller.sync(name));
    futures::future::join_all(all).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    server.tasks.spawn(server.drain.clone().run_until_cancelled_owned(controller.run(place)));
    Ok(())
}

struct Controller {
    server: Arc<ApiServer>,
    served: Arc<Served>,
    cache: Arc<Cache>,
    held: Mutex<BTreeMap<String, Held>>,
}

/// The names that a definition holds, and whether it got all it wants.
struct Held {
    group: String,
    names: Names,
    is_content: bool,
}

impl Controller {
    async fn run(self, mut place: Place) {
        let mut failed: BTreeSet<String> = BTreeSet::new();
        loop {
            let pending = !failed.is_empty();
            let names: BTreeSet<String> = tokio::select! {
                changes = place.next() => match changes {
                    Ok(changes) => changes.iter().map(|change| change.object.key.to_string()).collect(),
                    Err(_) => match self.cache.watch_from(None) {
                        // It was loaded again: everything may have changed, and some may be gone.
                        Ok((now, snapshot)) => {
                            place = now;
                            let known = self.server.custom.names();
                            snapshot.objects.keys().map(ToString::to_string).chain(known).collect()
                        }
                        Err(_) => return,
                    },
                },
                () = tokio::time::sleep(RETRY), if pending => std::mem::take(&mut failed),
            };
            for name in names {
                if let Err(error) = self.sync(&name).await {
                    tracing::error!(definition = %name, message = %error.message, "a definition cannot be served");
                    failed.insert(name);
                }
            }
        }
    }

    /// Brings one definition to where it should be, and those that waited for its names.
    async fn sync(&self, name: &str) -> Result<(), ApiError> {
        let mut waiting = vec![name.to_owned()];
        while let Some(name) = waiting.pop() {
            let freed = match self.cache.get(&name) {
                Some(_) => self.settle(&name).await?,
                None => {
                    let group = self.server.custom.entry(&name).map(|entry| entry.definition.group.clone());
                    self.server.custom.remove(&self.server.feed, &name);
                    self.held.lock().remove(&name);
                    group.or_else(|| name.split_once('.').map(|(_, group)| group.to_owned()))
                }
            };
            if let Some(group) = freed {
                waiting.extend(self.unaccepted(&group, &name));
            }
        }
        Ok(())
    }

    /// Answers the group whose names changed hands.
    async fn settle(&self, name: &str) -> Result<Option<String>, ApiError> {
        let Some(stored) = self.cache.get(name) else { return Ok(None) };
        let object = stored.decode();
        self.hold(&object);
        let wanted = self.decided(&object);
        let definition = Definition::read(&wanted, &stored);
        if definition.is_established || conditions::is_true(&wanted, "NamesAccepted") {
            self.server.custom.put(&self.server.feed, definition).await.map_err(store_error)?;
        }
        let mut freed = None;
        if wanted != object {
            let change = |current: &Object| Ok(self.decided(current));
            match self.writer("status").update("", name, change).await {
                Err(error) if error.code == 404 => (),
                written => {
                    let written = written?;
                    self.hold(&written);
                    let names = |object: &Object| object.at(&["status", "acceptedNames"]).cloned();
                    freed = (names(&written) != names(&object)).then(|| object.text(&["spec", "group"]).to_owned());
                }
            }
        }
        if object.is_terminating() && object.finalizers().contains(&conditions::CLEANUP) {
            finalizer::start(&self.server, &self.served, &object);
        }
        Ok(freed)
    }

    fn hold(&self, definition: &Object) {
        let held = Held {
            group: definition.text(&["spec", "group"]).to_owned(),
            names: Names::read(definition.at(&["status", "acceptedNames"])),
            is_content: conditions::is_true(definition, "NamesAccepted"),
        };
        self.held.lock().insert(definition.name().to_owned(), held);
    }

    fn decided(&self, definition: &Object) -> Object {
        let group = definition.text(&["spec", "group"]);
        let mut taken = Taken::default();
        for (_, other) in
            self.held.lock().iter().filter(|(name, other)| *name != definition.name() && other.group == group)
        {
            let names = &other.names;
            taken.resources.extend([&names.plural, &names.singular].into_iter().chain(&names.short_names).cloned());
            taken.kinds.extend([names.kind.clone(), names.list_kind.clone()]);
        }
        conditions::decide(definition, &taken)
    }

    /// The definitions of a group that wait for names.
    fn unaccepted(&self, group: &str, but: &str) -> Vec<String> {
        let held = self.held.lock();
        let waiting = held.iter().filter(|(name, held)| *name != but && held.group == group && !held.is_content);
        waiting.map(|(name, _)| name.clone()).collect()
    }

    fn writer<'a>(&'a self, subresource: &'a str) -> Writer<'a> {
        let tracking = Tracking::Update("kube-apiserver");
        Writer { server: &self.server, served: &self.served, subresource, dry_run: false, tracking, context: None }
    }
}

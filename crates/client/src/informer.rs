//! Shared informers: one list and watch per type and selector, one decoded copy of each object per process.
//!
//! Guarantees: a subscriber sees every object once as `Added`, then its changes in order, whenever it subscribes; a handler may
//! read any informer (the change is already in the cache), but must not block and must not subscribe to its own.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::follow::{Event, Target, follow};
use crate::store::{IndexFn, Store};
use crate::{Change, Drain, Key};

/// An object type that can be listed and watched.
pub trait Object:
    kube::Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static
{
}
impl<K> Object for K where
    K: kube::Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static
{
}

/// One informer per type and selector per process.
#[derive(Clone)]
pub struct Informers {
    client: kube::Client,
    drain: Drain,
    running: Arc<Mutex<HashMap<Selected, Running>>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Selected {
    kind: TypeId,
    labels: String,
    fields: String,
}

struct Running {
    informer: Box<dyn Any + Send + Sync>,
    synced: watch::Receiver<bool>,
}

impl Informers {
    pub fn new(client: kube::Client, drain: Drain) -> Self {
        Self { client, drain, running: Arc::default() }
    }

    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// Everything, in all namespaces; the list and watch start at the first call.
    pub fn of<K: Object>(&self) -> Informer<K> {
        self.selected("", "")
    }

    pub fn selected<K: Object>(&self, labels: &str, fields: &str) -> Informer<K> {
        let selected = Selected { kind: TypeId::of::<K>(), labels: labels.into(), fields: fields.into() };
        let mut running = self.running.lock();
        let known = running.get(&selected).and_then(|known| known.informer.downcast_ref::<Informer<K>>());
        if let Some(informer) = known {
            return informer.clone();
        }
        let (synced, seen) = watch::channel(false);
        let shared = Shared { store: RwLock::default(), handlers: Mutex::default(), synced: seen.clone() };
        let informer = Informer { shared: Arc::new(shared) };
        let path = K::url_path(&(), None);
        let target = Target { path, labels: labels.to_owned(), fields: fields.to_owned(), metadata_only: false };
        let mut reflector = Reflector { shared: informer.shared.clone(), synced, listed: Vec::new() };
        let client = self.client.clone();
        let following = async move { follow(&client, &target, &mut |event| reflector.handle(event)).await };
        tokio::spawn(self.drain.clone().run_until_cancelled_owned(following));
        running.insert(selected, Running { informer: Box::new(informer.clone()), synced: seen });
        informer
    }

    /// Every informer asked for so far has listed.
    pub async fn synced(&self) {
        let waiting: Vec<_> = self.running.lock().values().map(|running| running.synced.clone()).collect();
        for synced in waiting {
            wait(synced).await;
        }
    }
}

/// Never resolves if the informer was drained before its first list: its callers are being drained too.
async fn wait(mut synced: watch::Receiver<bool>) {
    if synced.wait_for(|synced| *synced).await.is_err() {
        std::future::pending::<()>().await;
    }
}

type Handler<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

struct Shared<K> {
    store: RwLock<Store<K>>,
    /// Held while the store changes and the change is told, so that a new subscriber neither misses nor repeats one.
    handlers: Mutex<Vec<Handler<K>>>,
    synced: watch::Receiver<bool>,
}

/// A cache of all objects of one type (and selector), with subscriptions.
pub struct Informer<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<K: Object> Informer<K> {
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.shared.store.read().get(key)
    }

    pub fn list(&self) -> Vec<Arc<K>> {
        self.shared.store.read().list()
    }

    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.shared.store.read().in_namespace(namespace)
    }

    /// Objects can be looked up by each value `of` gives. The first function given under a name stays.
    pub fn add_index(&self, name: &'static str, of: IndexFn<K>) {
        self.shared.store.write().add_index(name, of);
    }

    pub fn by_index(&self, name: &'static str, value: &str) -> Vec<Arc<K>> {
        self.shared.store.read().by_index(name, value)
    }

    /// What is already known is replayed as `Added` before this returns.
    pub fn subscribe(&self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        let mut handlers = self.shared.handlers.lock();
        for object in self.list() {
            handler(&Change::Added(object));
        }
        handlers.push(Box::new(handler));
    }

    pub async fn synced(&self) {
        wait(self.shared.synced.clone()).await;
    }
}

impl<K: Object> Shared<K> {
    fn change(&self, change: impl FnOnce(&mut Store<K>) -> Vec<Change<K>>) {
        let handlers = self.handlers.lock();
        let changes = change(&mut self.store.write());
        for change in &changes {
            for handler in handlers.iter() {
                handler(change);
            }
        }
    }
}

/// Keeps one cache equal to the server's state.
struct Reflector<K> {
    shared: Arc<Shared<K>>,
    synced: watch::Sender<bool>,
    /// What the list in progress has given so far.
    listed: Vec<K>,
}

impl<K: Object> Reflector<K> {
    fn handle(&mut self, event: Event<&str>) -> ControlFlow<()> {
        match event {
            Event::Begin => self.listed.clear(),
            Event::Listed(object) => self.listed.extend(read(object)),
            Event::End => {
                let listed = std::mem::take(&mut self.listed);
                self.shared.change(|store| store.replace(listed));
                self.synced.send_replace(true);
            }
            Event::Applied(object) => {
                self.shared.change(|store| read(object).map_or_else(Vec::new, |o| store.apply(o)))
            }
            Event::Deleted(object) => {
                self.shared.change(|store| read(object).map_or_else(Vec::new, |o| store.delete(o)))
            }
        }
        ControlFlow::Continue(())
    }
}

/// Without managed fields: often half of an object, and read by no component; an update without them leaves the server's as they are.
/// An object that is not of its type hides only itself.
fn read<K: Object>(object: &str) -> Option<K> {
    let read = serde_json::from_str(object).inspect_err(|error| {
        tracing::error!(kind = %K::kind(&()), %error, object, "an object that cannot be read");
    });
    let mut object: K = read.ok()?;
    object.meta_mut().managed_fields = None;
    Some(object)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use tokio::sync::mpsc;

    use std::time::Duration;

    use super::*;
    use crate::fake_api::FakeApi;

    fn subscribe(informer: &Informer<ConfigMap>) -> mpsc::UnboundedReceiver<String> {
        let (told, changes) = mpsc::unbounded_channel();
        let value = |object: &ConfigMap| object.data.as_ref().unwrap()["v"].clone();
        informer.subscribe(move |change| {
            let name = Key::of(&**change.object()).name;
            let text = match change {
                Change::Added(new) => format!("+{name}={}", value(new)),
                Change::Updated { old, new } => format!("~{name}={}->{}", value(old), value(new)),
                Change::Deleted(old) => format!("-{name}={}", value(old)),
            };
            told.send(text).unwrap();
        });
        changes
    }

    #[tokio::test]
    async fn a_subscriber_sees_what_is_known_then_every_change() {
        let api = FakeApi::default();
        api.put("a", "1");
        let drain = Drain::new();
        let informers = Informers::new(api.client("system:test"), drain.clone());
        let informer = informers.of::<ConfigMap>();
        informers.synced().await;
        let mut early = subscribe(&informer);
        assert_eq!(early.recv().await.unwrap(), "+a=1");
        while api.requests("GET /api/v1/configmaps?watch=true") == 0 {
            tokio::task::yield_now().await;
        }
        api.put("a", "2");
        api.put("b", "1");
        api.delete("a");
        for want in ["~a=1->2", "+b=1", "-a=2"] {
            assert_eq!(early.recv().await.unwrap(), want);
        }
        let mut late = subscribe(&informers.of::<ConfigMap>());
        assert_eq!(late.recv().await.unwrap(), "+b=1");
        assert!(late.is_empty());
        assert_eq!(informer.in_namespace("default").len(), 1);
        assert!(api.users().iter().all(|user| user == "system:test"));
        assert_eq!(api.requests("GET"), 2, "one list and one watch serve everybody");
        drain.cancel();
    }

    /// A watch that starts too late is refused with 410, as a status or as an event; both must end in a new list.
    #[tokio::test(start_paused = true)]
    async fn an_expired_watch_becomes_a_relist_told_as_a_difference() {
        let api = FakeApi::default();
        api.put("a", "1");
        api.put("b", "1");
        let drain = Drain::new();
        let informers = Informers::new(api.client("system:test"), drain.clone());
        let informer = informers.of::<ConfigMap>();
        informer.synced().await;
        let mut changes = subscribe(&informer);
        for want in ["+a=1", "+b=1"] {
            assert_eq!(changes.recv().await.unwrap(), want);
        }
        api.silently(|api| {
            api.delete("a");
            api.put("b", "2");
            api.put("c", "1");
        });
        api.break_watches(&[410]);
        for want in ["-a=1", "~b=1->2", "+c=1"] {
            assert_eq!(changes.recv().await.unwrap(), want);
        }
        drain.cancel();
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_comes_late_is_waited_for() {
        let api = FakeApi::default();
        api.set_down(true);
        let drain = Drain::new();
        let informer = Informers::new(api.client("system:test"), drain.clone()).of::<ConfigMap>();
        let waited = tokio::time::timeout(Duration::from_millis(100), informer.synced()).await;
        assert!(waited.is_err());
        api.put("a", "1");
        api.set_down(false);
        informer.synced().await;
        assert_eq!(informer.list().len(), 1);
        drain.cancel();
    }
}

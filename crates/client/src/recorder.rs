//! Records events about objects: what `kubectl describe` and `kubectl get events` show.
//!
//! Recording never blocks and never fails the caller: when the bounded queue is full or the server says no, the event is dropped.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use tokio::sync::mpsc;

use crate::Drain;
use crate::correlator::{Correlator, Record, Said};

const QUEUE: usize = 1000;
/// client-go's numbers for a server that cannot be reached.
const MAX_TRIES: u32 = 12;
const RETRY: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Said>,
}

impl Recorder {
    pub fn new(client: kube::Client, component: &'static str, host: &str, drain: Drain) -> Self {
        let (queue, said) = mpsc::channel(QUEUE);
        let writer = Writer { client, component, host: host.to_owned(), correlator: Correlator::default() };
        tokio::spawn(drain.run_until_cancelled_owned(writer.run(said)));
        Self { queue }
    }

    pub fn normal(&self, object: &ObjectReference, reason: &str, message: String) {
        self.say("Normal", object, reason, message);
    }

    pub fn warning(&self, object: &ObjectReference, reason: &str, message: String) {
        self.say("Warning", object, reason, message);
    }

    fn say(&self, kind: &'static str, object: &ObjectReference, reason: &str, message: String) {
        let said = Said { object: object.clone(), kind, reason: reason.to_owned(), message, at: Timestamp::now() };
        if self.queue.try_send(said).is_err() {
            tracing::debug!(reason, "event dropped, the queue is full or draining");
        }
    }
}

/// How events, owner lookups and `kubectl describe` name an object.
pub fn reference<K: kube::Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

struct Writer {
    client: kube::Client,
    component: &'static str,
    host: String,
    correlator: Correlator,
}

impl Writer {
    async fn run(mut self, mut said: mpsc::Receiver<Said>) {
        while let Some(said) = said.recv().await {
            let mut record = self.correlator.correlate(&said);
            for _ in 0..MAX_TRIES {
                match self.write(&said, &record).await {
                    Ok(()) => break,
                    Err(kube::Error::Api(status))
                        if status.is_not_found() && matches!(record, Record::Raise { .. }) =>
                    {
                        if let Record::Raise { name, .. } = &record {
                            self.correlator.lost(&said, name);
                        }
                        record = self.correlator.correlate(&said);
                    }
                    Err(kube::Error::Api(status)) => {
                        tracing::debug!(reason = said.reason, %status, "event rejected");
                        break;
                    }
                    Err(error) => {
                        tracing::debug!(reason = said.reason, %error, "event not written, trying again");
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
        }
    }

    async fn write(&self, said: &Said, record: &Record) -> kube::Result<()> {
        let namespace = said.object.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        match record {
            Record::Create { name, message } => {
                let event = self.event(said, namespace, name, message);
                api.create(&PostParams::default(), &event).await.map(drop)
            }
            Record::Raise { name, message, count, .. } => {
                let patch = serde_json::json!({ "count": count, "lastTimestamp": Time(said.at), "message": message });
                api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
            }
            Record::Drop => Ok(()),
        }
    }

    fn event(&self, said: &Said, namespace: &str, name: &str, message: &str) -> Event {
        Event {
            metadata: ObjectMeta { name: Some(name.into()), namespace: Some(namespace.into()), ..Default::default() },
            involved_object: said.object.clone(),
            type_: Some(said.kind.into()),
            reason: Some(said.reason.clone()),
            message: Some(message.into()),
            count: Some(1),
            first_timestamp: Some(Time(said.at)),
            last_timestamp: Some(Time(said.at)),
            source: Some(EventSource {
                component: Some(self.component.into()),
                host: Some(self.host.clone()).filter(|host| !host.is_empty()),
            }),
            reporting_component: Some(self.component.into()),
            reporting_instance: Some(self.host.clone()),
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;
    use crate::fake_api::FakeApi;

    async fn settle(api: &FakeApi, requests: usize) {
        while api.requests("") < requests {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_repeated_event_is_one_object_with_a_count() {
        let (api, drain) = (FakeApi::default(), Drain::new());
        let recorder = Recorder::new(api.client("system:node:a"), "kubelet", "node-a", drain.clone());
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".into());
        pod.metadata.namespace = Some("shop".into());
        pod.metadata.uid = Some("u1".into());
        for _ in 0..3 {
            recorder.warning(&reference(&pod), "BackOff", "restarting failed container".into());
        }
        settle(&api, 3).await;
        assert_eq!(api.requests("POST /api/v1/namespaces/shop/events"), 1);
        assert_eq!(api.requests("PATCH /api/v1/namespaces/shop/events/web."), 2);
        let [event] = &api.objects()[..] else { panic!("more than one event") };
        let event: Event = serde_json::from_value(event.clone()).unwrap();
        assert_eq!(event.count, Some(3));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.involved_object.kind.as_deref(), Some("Pod"));
        assert_eq!(event.reporting_component.as_deref(), Some("kubelet"));
        assert_eq!(event.source.unwrap().host.as_deref(), Some("node-a"));
        assert!(event.first_timestamp <= event.last_timestamp);

        let name = event.metadata.name.unwrap();
        api.delete(&name);
        recorder.warning(&reference(&pod), "BackOff", "restarting failed container".into());
        settle(&api, 5).await;
        assert_eq!(api.requests("POST"), 2, "an expired event is created anew");
        drain.cancel();
    }
}

//! All pods of the node: one worker each, fed with API changes and runtime events; what nobody knows any more is removed.

mod orphans;
mod runtime_events;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use client::{Change, Drain, Informer, Key};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::context::Context;
use crate::pod::worker::{Handle, Rejection, Signal, Worker};
use crate::spec;

/// What the dispatcher reacts to.
#[derive(Debug)]
pub(crate) enum Input {
    Changed(Arc<Pod>),
    Removed(Arc<Pod>),
    /// The runtime has news about the pod with this uid.
    Runtime(String),
    /// Events may have been missed: every pod looks.
    RuntimeLost,
    /// The node ends the pod with this uid.
    Evicted(String, Rejection),
}

/// How long workers may take to come to rest when the node drains.
const DRAIN_GRACE: Duration = Duration::from_secs(3);

const REPLACE_AFTER: Duration = Duration::from_secs(10);

pub(crate) struct Pods {
    context: Arc<Context>,
    workers: HashMap<String, Handle>,
    tasks: JoinSet<()>,
    running: HashMap<tokio::task::Id, Arc<Pod>>,
    /// Counts runtime events, for those who follow logs.
    news: watch::Sender<u64>,
    drain: Drain,
}

impl Pods {
    pub(crate) fn new(context: Arc<Context>, news: watch::Sender<u64>, drain: Drain) -> Self {
        Self { context, workers: HashMap::new(), tasks: JoinSet::new(), running: HashMap::new(), news, drain }
    }

    /// Runs until the drain. `inputs` also carries what does not come from the API: static pods.
    pub(crate) async fn run(
        mut self,
        informer: Informer<Pod>,
        tell: mpsc::UnboundedSender<Input>,
        mut inputs: mpsc::UnboundedReceiver<Input>,
    ) {
        let drain = self.drain.clone();
        if drain.run_until_cancelled(informer.synced()).await.is_none() {
            return;
        }
        let events = tokio::spawn(runtime_events::follow(self.context.cri.clone(), tell.clone(), drain.clone()));
        let again = tell.clone();
        informer.subscribe(move |change| {
            let object = change.object().clone();
            // A mirror only shows a static pod, which has a worker of its own.
            if spec::is_mirror(&object) {
                return;
            }
            let input = match change {
                Change::Added(_) | Change::Updated { .. } => Input::Changed(object),
                Change::Deleted(_) => Input::Removed(object),
            };
            // The dispatcher outlives the informer, except at drain.
            let _ = tell.send(input);
        });
        self.take_known(&mut inputs);
        orphans::remove(&self.context, self.workers.keys().cloned().collect()).await;
        loop {
            tokio::select! {
                biased;
                () = drain.cancelled() => break,
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended, &informer, &again),
                Some(input) = inputs.recv() => self.take(input),
            }
        }
        let rest = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_GRACE, rest).await.is_err() {
            tracing::warn!("some pods were still being synced at the drain");
        }
        events.abort();
    }

    fn take_known(&mut self, inputs: &mut mpsc::UnboundedReceiver<Input>) {
        while let Ok(input) = inputs.try_recv() {
            self.take(input);
        }
    }

    fn take(&mut self, input: Input) {
        if matches!(input, Input::Runtime(_) | Input::RuntimeLost) {
            self.news.send_modify(|count| *count += 1);
        }
        match input {
            Input::Changed(pod) => match self.workers.get(spec::uid(&pod)) {
                Some(worker) => worker.send(Signal::Pod(pod)),
                None => self.start(pod),
            },
            Input::Removed(pod) => {
                if let Some(worker) = self.workers.get(spec::uid(&pod)) {
                    worker.send(Signal::Gone);
                }
            }
            Input::Runtime(uid) => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.send(Signal::Runtime);
                }
            }
            Input::Evicted(uid, rejection) => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.send(Signal::Evicted(rejection));
                }
            }
            Input::RuntimeLost => self.workers.values().for_each(|worker| worker.send(Signal::Runtime)),
        }
    }

    fn start(&mut self, pod: Arc<Pod>) {
        let (handle, worker) = Worker::new(self.context.clone(), pod.clone(), self.drain.clone());
        self.workers.insert(spec::uid(&pod).to_owned(), handle);
        let task = self.tasks.spawn(worker.run());
        self.running.insert(task.id(), pod);
    }

    /// A worker that panicked is replaced after a while, so that one bad pod neither stops others nor spins.
    fn ended(
        &mut self,
        ended: Result<(tokio::task::Id, ()), tokio::task::JoinError>,
        informer: &Informer<Pod>,
        tell: &mpsc::UnboundedSender<Input>,
    ) {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        let Some(pod) = self.running.remove(&id) else { return };
        self.workers.remove(spec::uid(&pod));
        let Err(error) = ended else { return };
        tracing::error!(pod = %spec::display(&pod), %error, "a pod worker failed");
        let (informer, tell) = (informer.clone(), tell.clone());
        tokio::spawn(async move {
            tokio::time::sleep(REPLACE_AFTER).await;
            let newest = informer.get(&Key::of(&*pod)).filter(|newest| newest.metadata.uid == pod.metadata.uid);
            let gone = newest.is_none() && !spec::is_static(&pod);
            // Nobody listens any more at the drain.
            let _ = tell.send(Input::Changed(newest.unwrap_or_else(|| pod.clone())));
            if gone {
                let _ = tell.send(Input::Removed(pod));
            }
        });
    }
}

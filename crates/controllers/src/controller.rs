//! What every controller is built from, and how it is started.

use std::sync::Arc;

use client::{Drain, Informers, Reconciler, Recorder, WorkQueue, run_reconciler};
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;

use crate::certificates::Signing;
use crate::node_ipam::NodeCidrs;

/// A client for a service account of `kube-system`, so that no controller has more rights than it needs.
pub type Accounts = Arc<dyn Fn(&str) -> kube::Client + Send + Sync>;

/// The time, for decisions; a simulation has its own.
pub(crate) type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What a controller is built with: a client of its own, and one cache per type that all share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) client: kube::Client,
    pub(crate) accounts: Accounts,
    pub(crate) informers: Informers,
    pub(crate) drain: Drain,
    pub(crate) root_ca: String,
    pub(crate) node_cidrs: NodeCidrs,
    pub(crate) signing: Option<Arc<Signing>>,
    pub(crate) clock: Clock,
}

impl Context {
    /// The same, acting as the account.
    pub(crate) fn of(&self, account: &str) -> Self {
        Self { client: (self.accounts)(account), ..self.clone() }
    }

    pub(crate) fn recorder(&self, component: &'static str) -> Recorder {
        Recorder::new(self.client.clone(), component, "", self.drain.clone())
    }

    /// Subscribes a controller to what it watches; the future that is returned does its work.
    pub(crate) fn start<C: Controller>(&self) -> BoxFuture<'static, ()> {
        let queue = WorkQueue::new();
        let controller = Arc::new(C::build(&self.of(C::ACCOUNT), queue.clone()));
        run_reconciler(controller, queue, C::WORKERS, self.drain.clone()).boxed()
    }
}

pub(crate) trait Controller: Reconciler {
    /// The service account it acts as; upstream's role of that name is all it may do.
    const ACCOUNT: &'static str;
    /// How many objects are reconciled at the same time.
    const WORKERS: usize;
    /// Asks for informers and subscribes; spawns nothing and waits for nothing.
    fn build(context: &Context, queue: WorkQueue) -> Self;
}

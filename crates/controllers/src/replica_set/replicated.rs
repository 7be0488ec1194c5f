//! What ReplicaSet and ReplicationController have in common, seen from their controller.

use std::fmt::Debug;

use api::selector::{Selector, SelectorError};
use client::Object;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition};
use k8s_openapi::api::core::v1::{
    PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};

use super::status::Status;

pub(crate) trait Replicated:
    Object + kube::Resource<Scope = NamespaceResourceScope> + serde::Serialize + Debug
{
    /// The name under which its events are reported.
    const COMPONENT: &'static str;
    fn replicas(&self) -> i32;
    fn selector(&self) -> Result<Selector, SelectorError>;
    fn template(&self) -> Option<&PodTemplateSpec>;
    fn min_ready_seconds(&self) -> i32;
    fn status(&self) -> Status;
    fn with_status(&self, status: Status) -> Self;
}

impl Replicated for ReplicaSet {
    const COMPONENT: &'static str = "replicaset-controller";

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn selector(&self) -> Result<Selector, SelectorError> {
        Selector::from_label_selector(self.spec.as_ref().map(|spec| &spec.selector))
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn status(&self) -> Status {
        Status::normalized(self.status.clone().unwrap_or_default())
    }

    fn with_status(&self, status: Status) -> Self {
        Self { status: Some(status.0), ..self.clone() }
    }
}

impl Replicated for ReplicationController {
    const COMPONENT: &'static str = "replication-controller";

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn selector(&self) -> Result<Selector, SelectorError> {
        match self.spec.as_ref().and_then(|spec| spec.selector.as_ref()) {
            Some(labels) => Ok(Selector::from_labels(labels)),
            None => Selector::from_label_selector(None),
        }
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn status(&self) -> Status {
        let status = self.status.clone().unwrap_or_default();
        Status::normalized(k8s_openapi::api::apps::v1::ReplicaSetStatus {
            available_replicas: status.available_replicas,
            conditions: status.conditions.map(|all| all.into_iter().map(to_replica_set).collect()),
            fully_labeled_replicas: status.fully_labeled_replicas,
            observed_generation: status.observed_generation,
            ready_replicas: status.ready_replicas,
            replicas: status.replicas,
            terminating_replicas: None,
        })
    }

    fn with_status(&self, Status(status): Status) -> Self {
        let status = ReplicationControllerStatus {
            available_replicas: status.available_replicas,
            conditions: status.conditions.map(|all| all.into_iter().map(from_replica_set).collect()),
            fully_labeled_replicas: status.fully_labeled_replicas,
            observed_generation: status.observed_generation,
            ready_replicas: status.ready_replicas,
            replicas: status.replicas,
        };
        Self { status: Some(status), ..self.clone() }
    }
}

fn to_replica_set(condition: ReplicationControllerCondition) -> ReplicaSetCondition {
    ReplicaSetCondition {
        last_transition_time: condition.last_transition_time,
        message: condition.message,
        reason: condition.reason,
        status: condition.status,
        type_: condition.type_,
    }
}

fn from_replica_set(condition: ReplicaSetCondition) -> ReplicationControllerCondition {
    ReplicationControllerCondition {
        last_transition_time: condition.last_transition_time,
        message: condition.message,
        reason: condition.reason,
        status: condition.status,
        type_: condition.type_,
    }
}

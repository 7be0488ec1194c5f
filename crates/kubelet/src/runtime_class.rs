//! The runtime handler that a pod's RuntimeClass names, and what that handler can do.

use client::{Informer, Key};
use cri::v1::{RuntimeHandlerFeatures, StatusRequest};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;

use crate::spec;

#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum HandlerError {
    #[error("runtimeclass.node.k8s.io \"{0}\" not found")]
    NotFound(String),
    #[error("can't set `spec.hostUsers: false`, {}", no_user_namespaces(.0))]
    UserNamespaces(String),
}

fn no_user_namespaces(handler: &str) -> String {
    match handler {
        "" => "runtime does not support user namespaces".to_owned(),
        handler => format!("RuntimeClass handler {handler:?} does not support user namespaces"),
    }
}

/// The handler for the pod's sandbox; `""` is the runtime's default.
///
/// # Errors
/// If the pod's RuntimeClass does not exist, or the pod wants a user namespace: this kubelet gives out no id ranges, and a pod
/// must never run with the node's users where admission was told that it does not.
pub(crate) async fn handler(pod: &Pod, classes: &Informer<RuntimeClass>) -> Result<String, HandlerError> {
    let handler = match spec::spec(pod).runtime_class_name.as_deref().filter(|name| !name.is_empty()) {
        None => String::new(),
        Some(name) => {
            classes.synced().await;
            let class = classes.get(&Key::new("", name));
            class.ok_or_else(|| HandlerError::NotFound(name.to_owned()))?.handler.clone()
        }
    };
    match spec::spec(pod).host_users {
        Some(false) => Err(HandlerError::UserNamespaces(handler)),
        _ => Ok(handler),
    }
}

/// What the runtime says that the handler can do; nothing if it does not say.
pub(crate) async fn features(cri: &dyn cri::Cri, handler: &str) -> RuntimeHandlerFeatures {
    let status = cri.status(StatusRequest::default()).await;
    let handlers = status.map(|status| status.runtime_handlers).unwrap_or_default();
    handlers.into_iter().find(|known| known.name == handler).and_then(|known| known.features).unwrap_or_default()
}

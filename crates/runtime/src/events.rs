//! Container events for whoever listens: the kubelet, `crictl events`.

use cri::v1::ContainerEventResponse;
use futures::stream;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tonic::Status;

/// What a listener may fall behind before its stream is ended; it lists again then.
const BUFFERED: usize = 1024;

pub(crate) struct Events {
    sender: broadcast::Sender<ContainerEventResponse>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self { sender: broadcast::channel(BUFFERED).0 }
    }

    pub(crate) fn send(&self, event: ContainerEventResponse) {
        // Nobody listening is fine.
        let _ = self.sender.send(event);
    }

    pub(crate) fn has_listeners(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    /// Events from now on. Ends with an error when the listener was too slow.
    pub(crate) fn subscribe(&self) -> cri::Events {
        let stream = stream::unfold(Some(self.sender.subscribe()), |receiver| async {
            let mut receiver = receiver?;
            match receiver.recv().await {
                Ok(event) => Some((Ok(event), Some(receiver))),
                Err(RecvError::Lagged(missed)) => {
                    Some((Err(Status::data_loss(format!("{missed} events were missed: list again"))), None))
                }
                Err(RecvError::Closed) => None,
            }
        });
        Box::pin(stream)
    }
}

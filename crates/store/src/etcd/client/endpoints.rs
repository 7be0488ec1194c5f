//! Which endpoint is asked, and when the next one is.

use std::{error::Error, time::Duration};

use tokio::{sync::watch, time::Instant};
use tonic::{Code, Status, transport::Channel};

/// An endpoint that has not answered by then is passed over; etcd itself gives up after 7 s.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A question that may be asked again is asked elsewhere after this time: a machine that lost its power does not say so.
const IMPATIENCE: Duration = Duration::from_secs(3);
/// How long a request goes round the endpoints before it fails: an election passes in this time.
const PATIENCE: Duration = Duration::from_secs(5);
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(20);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// When a request may be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// It changes nothing, or nothing more the second time.
    Always,
    /// Only if the first one cannot have arrived.
    IfNotSent,
}

pub(super) struct Endpoints {
    channels: Vec<(String, Channel)>,
    /// Requests made anywhere go here, modulo the number of channels; raised when that endpoint fails.
    current: watch::Sender<usize>,
}

impl Endpoints {
    pub(super) fn new(channels: Vec<(String, Channel)>) -> Endpoints {
        Endpoints { channels, current: watch::Sender::new(0) }
    }

    /// The channel to use now, and the turn to give up with [`Endpoints::pass`].
    pub(super) fn channel(&self) -> Option<(usize, &str, Channel)> {
        let turn = *self.current.borrow();
        let (name, channel) = self.channels.get(turn.checked_rem(self.channels.len())?)?;
        Some((turn, name, channel.clone()))
    }

    /// The endpoint of this turn has failed; whoever notices first moves on.
    pub(super) fn pass(&self, turn: usize) {
        self.current.send_if_modified(|current| {
            let mine = *current == turn;
            *current = current.wrapping_add(usize::from(mine));
            mine
        });
    }

    /// Resolves when somebody has noticed that the endpoint of this turn has failed.
    pub(super) async fn passed(&self, turn: usize) {
        // The sender lives as long as `self`.
        let _ = self.current.subscribe().wait_for(|current| *current != turn).await;
    }

    /// Asks one endpoint after the other until one answers.
    pub(super) async fn call<T, F>(&self, retry: Retry, ask: impl Fn(Channel) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let until = Instant::now() + PATIENCE;
        let mut pause = FIRST_PAUSE;
        let mut tried = 0;
        loop {
            let (turn, name, channel) = self.channel().ok_or_else(|| Status::unavailable("no endpoint"))?;
            let patience = match retry {
                // Each endpoint once; then whoever is slow is waited for.
                Retry::Always if tried + 1 < self.channels.len() => IMPATIENCE,
                _ => ANSWER_TIMEOUT,
            };
            let answer = tokio::time::timeout(patience, ask(channel)).await;
            let status = match answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time"))) {
                Err(status) if is_failure(&status) => status,
                answer => return answer,
            };
            self.pass(turn);
            tried += 1;
            if (retry == Retry::IfNotSent && !not_sent(&status)) || Instant::now() >= until {
                return Err(Status::unavailable(format!("{name}: {}", causes(&status))));
            }
            if tried % self.channels.len() == 0 {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// The endpoint has failed, not the request.
pub(super) fn is_failure(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled) || status.source().is_some()
}

/// The request cannot have reached the endpoint.
fn not_sent(status: &Status) -> bool {
    chain(status).any(|cause| {
        cause.is::<tonic::ConnectError>() || cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled)
    })
}

fn chain(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(status.source(), |cause: &&(dyn Error + 'static)| (*cause).source())
}

/// The status with the reasons below it, each once.
pub(super) fn causes(status: &Status) -> String {
    let mut text = status.message().to_owned();
    for cause in chain(status).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

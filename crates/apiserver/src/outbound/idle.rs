//! Lines on which nobody waits for anything, for whoever asks next.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::line::Line;

/// How many are kept.
const MAX_IDLE: usize = 32;
/// Upstream's client lets go of a connection that was not used for so long.
const TIMEOUT: Duration = Duration::from_secs(90);

#[derive(Default)]
pub(super) struct Idle(Arc<Mutex<Lines>>);

#[derive(Default)]
struct Lines {
    /// By where they lead, the one that was used last at the end.
    idle: Vec<(String, Instant, Line)>,
    /// Somebody lets go of what is not used.
    has_keeper: bool,
}

impl std::fmt::Debug for Idle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Idle").field(&self.0.lock().idle.len()).finish()
    }
}

impl Idle {
    /// The one that was used last: it is the least likely to be closed.
    pub(super) fn take(&self, key: &str) -> Option<Line> {
        let mut lines = self.0.lock();
        while let Some(found) = lines.idle.iter().rposition(|(known, ..)| known == key) {
            let (_, _, mut line) = lines.idle.remove(found);
            if line.is_free() {
                return Some(line);
            }
        }
        None
    }

    pub(super) fn keep(&self, key: String, line: Line) {
        // Where nothing runs any more nobody will ask again.
        let Ok(runtime) = Handle::try_current() else { return };
        let mut lines = self.0.lock();
        if lines.idle.len() == MAX_IDLE {
            lines.idle.remove(0);
        }
        lines.idle.push((key, Instant::now(), line));
        if !std::mem::replace(&mut lines.has_keeper, true) {
            runtime.spawn(let_go(Arc::downgrade(&self.0)));
        }
    }
}

/// Closes what was not used for a time, until nothing is left.
async fn let_go(lines: Weak<Mutex<Lines>>) {
    let mut next = Instant::now() + TIMEOUT;
    loop {
        tokio::time::sleep_until(next).await;
        let Some(lines) = lines.upgrade() else { return };
        let mut lines = lines.lock();
        lines.idle.retain_mut(|(_, since, line)| since.elapsed() < TIMEOUT && line.is_free());
        match lines.idle.first() {
            Some((_, since, _)) => next = *since + TIMEOUT,
            None => return lines.has_keeper = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use ::http::Request;
    use bytes::Bytes;
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::body::Frame;
    use hyper::client::conn::http1::handshake;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;
    use crate::http::{Body, BoxError, full};

    async fn line() -> (Line, DuplexStream) {
        let (near, far) = tokio::io::duplex(1024);
        let (sender, connection) = handshake(TokioIo::new(near)).await.unwrap();
        (Line::new(sender, Box::pin(connection)), far)
    }

    /// Answers one request with nothing.
    async fn answer(far: &mut DuplexStream) {
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(far.read_u8().await.unwrap());
        }
        far.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
    }

    async fn asks(line: &mut Line, far: &mut DuplexStream) -> bool {
        asks_with(full(Bytes::new()), line, far).await
    }

    async fn asks_with(body: Body, line: &mut Line, far: &mut DuplexStream) -> bool {
        let request = Request::post("/").header("host", "x").body(body).unwrap();
        let (response, ()) = tokio::join!(line.ask(request), answer(far));
        response.is_ok_and(|response| response.status() == 204)
    }

    #[tokio::test]
    async fn a_line_is_used_again_unless_it_was_closed() {
        let idle = Idle::default();
        let (mut first, mut far) = line().await;
        assert!(asks(&mut first, &mut far).await);
        idle.keep("a".into(), first);
        assert!(idle.take("b").is_none(), "it leads elsewhere");
        let mut again = idle.take("a").unwrap();
        assert!(asks(&mut again, &mut far).await);
        idle.keep("a".into(), again);
        drop(far);
        assert!(idle.take("a").is_none(), "the other side closed it");
    }

    #[tokio::test]
    async fn a_line_on_which_a_request_is_still_sent_is_not_used_again() {
        let idle = Idle::default();
        let (mut first, mut far) = line().await;
        let endless = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, BoxError>>());
        assert!(asks_with(endless.boxed_unsync(), &mut first, &mut far).await);
        idle.keep("a".into(), first);
        assert!(idle.take("a").is_none(), "whoever asked on it would wait for another one's upload");
    }

    #[tokio::test]
    async fn only_so_many_are_kept_the_oldest_go() {
        let idle = Idle::default();
        let mut others = Vec::new();
        for index in 0..=MAX_IDLE {
            let (line, far) = line().await;
            others.push(far);
            idle.keep(index.to_string(), line);
        }
        assert!(idle.take("0").is_none());
        assert!(idle.take("1").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_used_for_a_time_is_closed() {
        let idle = Idle::default();
        let (first, mut far) = line().await;
        idle.keep("a".into(), first);
        tokio::time::sleep(TIMEOUT / 2).await;
        let (second, _far) = line().await;
        idle.keep("b".into(), second);
        // The other side sees it end, and not before its time.
        let begun = Instant::now();
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
        assert!((TIMEOUT / 2..TIMEOUT).contains(&begun.elapsed()));
        assert!(idle.take("a").is_none());
        assert!(idle.take("b").is_some(), "this one was used later");
    }
}

//! Many streams over one connection: who is open, what waits for whom, and the end of it.
//!
//! One task reads and one writes; both end with the connection, and the connection with them. Dropping [`Connection`] ends
//! it at once, [`Connection::close`] after the peer had the chance to read everything.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::frame::{Decoder, Encoder, Frame};
use crate::headers::Headers;

/// A browser behind a port-forward opens a handful; what is over this is refused.
const MAX_STREAMS: usize = 1024;
/// Streams that nobody has accepted yet.
const MAX_BACKLOG: usize = 64;
/// Pieces that wait in a stream before the connection is held up.
const MAX_WAITING: usize = 2;
const READ_BYTES: usize = 16 << 10;
const REPLY_PATIENCE: Duration = Duration::from_secs(30);
/// How long a peer that was told goodbye may take to read what was sent before.
const LINGER: Duration = Duration::from_secs(5);

const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 3;
const CANCEL: u32 = 5;

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens streams.
    Client,
    /// Accepts them.
    Server,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the connection is closed")]
    Closed,
    #[error("the peer refused the stream")]
    Refused,
    #[error("timed out waiting for the peer to accept the stream")]
    Timeout,
}

/// The table's side of a stream.
struct Entry {
    /// Gone once the peer has sent its last.
    data: Option<mpsc::Sender<Bytes>>,
    reply: Option<oneshot::Sender<()>>,
    is_written: bool,
    ended: CancellationToken,
}

struct Shared {
    frames: mpsc::Sender<Frame>,
    streams: Mutex<HashMap<u32, Entry>>,
    next: Mutex<u32>,
    closed: CancellationToken,
}

pub struct Connection {
    shared: Arc<Shared>,
    incoming: mpsc::Receiver<Stream>,
}

pub struct Stream {
    pub id: u32,
    pub headers: Headers,
    pub reader: StreamReader,
    pub writer: StreamWriter,
}

pub struct StreamReader(mpsc::Receiver<Bytes>);

impl StreamReader {
    /// What the peer sent next; nothing once it has sent its last, reset the stream, or is gone.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.0.recv().await
    }
}

pub struct StreamWriter {
    id: u32,
    shared: Arc<Shared>,
    ended: CancellationToken,
    is_finished: bool,
}

impl StreamWriter {
    /// False when the peer does not want it any more.
    pub async fn send(&self, data: Bytes) -> bool {
        let frame = Frame::Data { stream: self.id, fin: false, data };
        let sent = self.ended.run_until_cancelled(self.shared.frames.send(frame)).await;
        sent.is_some_and(|sent| sent.is_ok())
    }

    /// Nothing more will be sent; what the peer sends still arrives.
    pub async fn finish(mut self) {
        self.is_finished = true;
        if !self.ended.is_cancelled() {
            let _ = self.shared.frames.send(Frame::Data { stream: self.id, fin: true, data: Bytes::new() }).await;
        }
        self.shared.written(self.id);
    }

    /// Ends both directions at once.
    pub async fn reset(mut self) {
        self.is_finished = true;
        if !self.ended.is_cancelled() {
            let _ = self.shared.frames.send(Frame::RstStream { stream: self.id, status: CANCEL }).await;
        }
        self.shared.remove(self.id);
    }

    /// Waits for the peer's reset, or for the end of the connection.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            // With a full queue the peer learns of it when the connection ends.
            let _ = self.shared.frames.try_send(Frame::RstStream { stream: self.id, status: CANCEL });
            self.shared.remove(self.id);
        }
    }
}

impl Shared {
    fn remove(&self, id: u32) {
        if let Some(entry) = self.streams.lock().remove(&id) {
            entry.ended.cancel();
        }
    }

    /// Our side of a stream is at its end; with the peer's it is over.
    fn written(&self, id: u32) {
        let mut streams = self.streams.lock();
        if let Some(entry) = streams.get_mut(&id) {
            entry.is_written = true;
            if entry.data.is_none() {
                streams.remove(&id);
            }
        }
    }

    /// The peer's side is.
    fn read(&self, id: u32) {
        let mut streams = self.streams.lock();
        if let Some(entry) = streams.get_mut(&id) {
            entry.data = None;
            if entry.is_written {
                streams.remove(&id);
            }
        }
    }

    /// Enters a stream into the table.
    fn add(self: &Arc<Self>, id: u32, headers: Headers, reply: Option<oneshot::Sender<()>>) -> Stream {
        let (data, reader) = mpsc::channel(MAX_WAITING);
        let ended = self.closed.child_token();
        let entry = Entry { data: Some(data), reply, is_written: false, ended: ended.clone() };
        self.streams.lock().insert(id, entry);
        let writer = StreamWriter { id, shared: Arc::clone(self), ended, is_finished: false };
        Stream { id, headers, reader: StreamReader(reader), writer }
    }
}

impl Connection {
    pub fn new(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, role: Role) -> Self {
        let (reader, writer) = tokio::io::split(Box::new(io) as Box<dyn Io>);
        let (frames, queue) = mpsc::channel(16);
        let (found, incoming) = mpsc::channel(MAX_BACKLOG);
        let closed = CancellationToken::new();
        let shared =
            Arc::new(Shared { frames, streams: Mutex::default(), next: Mutex::new(1), closed: closed.clone() });
        tokio::spawn(closed.clone().run_until_cancelled_owned(write(writer, queue, closed)));
        let reading = read(reader, Arc::clone(&shared), role, found);
        let ending = Arc::clone(&shared);
        tokio::spawn(async move {
            ending.closed.run_until_cancelled(reading).await;
            ending.closed.cancel();
            ending.streams.lock().clear();
        });
        Self { shared, incoming }
    }

    /// The next stream that the peer opened; nothing once it is gone.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.incoming.recv().await
    }

    /// Opens a stream and waits until the peer has taken it.
    ///
    /// # Errors
    /// When the peer refuses, does not answer, or is gone.
    pub async fn open(&self, headers: Headers) -> Result<Stream, OpenError> {
        let permit = self.shared.frames.reserve().await.map_err(|_| OpenError::Closed)?;
        let (reply, replied) = oneshot::channel();
        let stream = {
            // Numbers must rise on the wire, so a number is taken and sent without another in between.
            let mut next = self.shared.next.lock();
            let id = *next;
            *next = next.wrapping_add(2);
            let stream = self.shared.add(id, headers.clone(), Some(reply));
            permit.send(Frame::SynStream { stream: id, fin: false, headers });
            stream
        };
        let answer = tokio::time::timeout(REPLY_PATIENCE, replied);
        match self.shared.closed.run_until_cancelled(answer).await {
            None => Err(OpenError::Closed),
            Some(Ok(Ok(()))) => Ok(stream),
            Some(Ok(Err(_))) => Err(OpenError::Refused),
            Some(Err(_)) => Err(OpenError::Timeout),
        }
    }

    /// Fires when the connection is at its end, whoever ended it.
    pub fn closed(&self) -> CancellationToken {
        self.shared.closed.clone()
    }

    /// Says goodbye after everything sent so far, and waits for the peer to hang up.
    pub async fn close(self) {
        let goodbye = Frame::GoAway { last_good: 0, status: 0 };
        let farewell = async {
            let _ = self.shared.frames.send(goodbye).await;
            self.shared.closed.cancelled().await;
        };
        let _ = tokio::time::timeout(LINGER, farewell).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.closed.cancel();
    }
}

/// Writes frames until the goodbye, and then ends our side of the connection.
async fn write(mut to: WriteHalf<Box<dyn Io>>, mut frames: mpsc::Receiver<Frame>, closed: CancellationToken) {
    let mut encoder = Encoder::default();
    let mut buffer = BytesMut::new();
    while let Some(frame) = frames.recv().await {
        let is_last = matches!(frame, Frame::GoAway { .. });
        buffer.clear();
        if encoder.encode(&frame, &mut buffer).is_err() || to.write_all(&buffer).await.is_err() {
            closed.cancel();
            return;
        }
        if is_last {
            break;
        }
        if frames.is_empty() && to.flush().await.is_err() {
            closed.cancel();
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// Hands on what arrives until the peer says goodbye, hangs up, or talks nonsense.
async fn read(mut from: ReadHalf<Box<dyn Io>>, shared: Arc<Shared>, role: Role, found: mpsc::Sender<Stream>) {
    let mut decoder = Decoder::default();
    let mut buffer = BytesMut::new();
    let mut last = 0;
    loop {
        match decoder.decode(&mut buffer) {
            Ok(Some(Frame::GoAway { .. })) | Err(_) => return,
            Ok(Some(frame)) => receive(&shared, role, &found, &mut last, frame).await,
            Ok(None) => {
                buffer.reserve(READ_BYTES);
                if !matches!(from.read_buf(&mut buffer).await, Ok(1..)) {
                    return;
                }
            }
        }
    }
}

async fn receive(shared: &Arc<Shared>, role: Role, found: &mpsc::Sender<Stream>, last: &mut u32, frame: Frame) {
    match frame {
        Frame::SynStream { stream, fin, headers } => {
            let status = if role == Role::Client || stream.is_multiple_of(2) || stream <= *last {
                Some(PROTOCOL_ERROR)
            } else if shared.streams.lock().len() >= MAX_STREAMS {
                Some(REFUSED_STREAM)
            } else {
                None
            };
            if let Some(status) = status {
                let _ = shared.frames.send(Frame::RstStream { stream, status }).await;
                return;
            }
            *last = stream;
            let opened = shared.add(stream, headers, None);
            if fin {
                shared.read(stream);
            }
            let reply = Frame::SynReply { stream, fin: false, headers: Headers::default() };
            let _ = shared.frames.send(reply).await;
            // One that finds no place is dropped, and so reset.
            let _ = found.try_send(opened);
        }
        Frame::SynReply { stream, fin, .. } => {
            let reply = shared.streams.lock().get_mut(&stream).and_then(|entry| entry.reply.take());
            if let Some(reply) = reply {
                let _ = reply.send(());
            }
            if fin {
                shared.read(stream);
            }
        }
        Frame::Data { stream, fin, data } => {
            let to =
                shared.streams.lock().get(&stream).and_then(|entry| Some((entry.data.clone()?, entry.ended.clone())));
            if let Some((to, ended)) = to
                && !data.is_empty()
            {
                // A reader that is gone does not want it.
                let _ = ended.run_until_cancelled(to.send(data)).await;
            }
            if fin {
                shared.read(stream);
            }
        }
        Frame::Headers { stream, fin: true, .. } => shared.read(stream),
        Frame::RstStream { stream, .. } => shared.remove(stream),
        Frame::Ping(id) => {
            // An answer to one of ours has our parity; we send none.
            if (id % 2 == 1) == (role == Role::Server) {
                let _ = shared.frames.send(Frame::Ping(id)).await;
            }
        }
        Frame::Headers { .. } | Frame::GoAway { .. } | Frame::Settings | Frame::WindowUpdate { .. } => (),
    }
}

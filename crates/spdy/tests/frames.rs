//! Frames and connections under arbitrary input: what was encoded is decoded, and nothing that arrives does harm.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // clippy lets only #[test] functions do so; these share theirs.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use spdy::{Connection, Decoder, Encoder, Frame, FrameError, Headers, MAX_CONTROL_BYTES, MAX_HEADER_BYTES, Role};

fn headers() -> impl Strategy<Value = Headers> {
    prop::collection::vec(("[a-z-]{1,20}", "[ -~]{0,40}"), 0..8).prop_map(Headers)
}

fn frame() -> impl Strategy<Value = Frame> {
    let stream = 1u32..1 << 31;
    let number = 0u32..1 << 31;
    let data = prop::collection::vec(any::<u8>(), 0..2000).prop_map(Bytes::from);
    prop_oneof![
        (stream.clone(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| Frame::SynStream {
            stream,
            fin,
            headers
        }),
        (stream.clone(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| Frame::SynReply {
            stream,
            fin,
            headers
        }),
        (stream.clone(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| Frame::Headers {
            stream,
            fin,
            headers
        }),
        (stream.clone(), number.clone()).prop_map(|(stream, status)| Frame::RstStream { stream, status }),
        (stream.clone(), any::<bool>(), data).prop_map(|(stream, fin, data)| Frame::Data { stream, fin, data }),
        (1u32..).prop_map(Frame::Ping),
        (number.clone(), number.clone()).prop_map(|(last_good, status)| Frame::GoAway { last_good, status }),
        Just(Frame::Settings),
        (number.clone(), number).prop_map(|(stream, delta)| Frame::WindowUpdate { stream, delta }),
    ]
}

/// Feeds bytes in pieces; the pieces of one data frame are put together again.
fn decode(bytes: &[u8], piece: usize) -> (Vec<Frame>, Result<(), FrameError>) {
    let (mut decoder, mut buffer, mut frames) = (Decoder::default(), BytesMut::new(), Vec::new());
    let mut left = 0;
    for chunk in bytes.chunks(piece.max(1)) {
        buffer.extend_from_slice(chunk);
        loop {
            // How much of a data frame is due is in its own head.
            if left == 0 && buffer.len() >= 8 && buffer[0] & 0x80 == 0 {
                left = usize::try_from(u32::from_be_bytes([0, buffer[5], buffer[6], buffer[7]])).unwrap() + 1;
            }
            match decoder.decode(&mut buffer) {
                Ok(None) => break,
                Ok(Some(Frame::Data { stream, fin, data })) => {
                    let is_first = !matches!(frames.last(), Some((Frame::Data { .. }, true)));
                    left -= data.len();
                    let more = left > 1;
                    left = if more { left } else { 0 };
                    match frames.last_mut() {
                        Some((Frame::Data { fin: last, data: before, .. }, open)) if !is_first => {
                            *before = [&before[..], &data[..]].concat().into();
                            (*last, *open) = (fin, more);
                        }
                        _ => frames.push((Frame::Data { stream, fin, data }, more)),
                    }
                }
                Ok(Some(frame)) => frames.push((frame, false)),
                Err(error) => return (frames.into_iter().map(|(frame, _)| frame).collect(), Err(error)),
            }
        }
        assert!(buffer.len() <= MAX_CONTROL_BYTES + 8 + piece, "what waits is bounded");
    }
    (frames.into_iter().map(|(frame, _)| frame).collect(), Ok(()))
}

fn encode(frames: &[Frame]) -> BytesMut {
    let (mut encoder, mut buffer) = (Encoder::default(), BytesMut::new());
    frames.iter().for_each(|frame| encoder.encode(frame, &mut buffer).unwrap());
    buffer
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(frames in prop::collection::vec(frame(), 0..12), piece in 1usize..3000) {
        prop_assert_eq!(decode(&encode(&frames), piece), (frames, Ok(())));
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..4000), piece in 1usize..500) {
        let _ = decode(&bytes, piece);
    }

    #[test]
    fn damaged_frames_do_no_harm(
        frames in prop::collection::vec(frame(), 1..8), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut bytes = encode(&frames);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = decode(&bytes, 700);
    }
}

#[test]
fn headers_that_inflate_without_end_are_refused() {
    use std::io::Write;
    let mut bomb = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    bomb.write_all(&vec![0; 8 * MAX_HEADER_BYTES]).unwrap();
    let block = bomb.finish().unwrap();
    let mut bytes = vec![0x80, 3, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1];
    bytes.extend_from_slice(&block);
    let length = u32::try_from(bytes.len() - 8).unwrap().to_be_bytes();
    bytes[5..8].copy_from_slice(&length[1..]);
    assert_eq!(decode(&bytes, 9000).1, Err(FrameError::HeadersTooLarge));
    assert_eq!(decode(&[0x80, 3, 0, 1, 0, 1, 0, 0], 8).1, Err(FrameError::TooLarge(1 << 16)));
    assert_eq!(decode(&[0x80, 2, 0, 1, 0, 0, 0, 0], 8).1, Err(FrameError::Unknown));
}

/// A client and a server that sends back what it gets, stream by stream, until each is at its end.
async fn echo() -> Connection {
    let (near, far) = tokio::io::duplex(1 << 10);
    tokio::spawn(async move {
        let mut server = Connection::new(far, Role::Server);
        while let Some(stream) = server.accept().await {
            tokio::spawn(async move {
                let mut reader = stream.reader;
                while let Some(data) = reader.next().await {
                    stream.writer.send(data).await;
                }
                stream.writer.finish().await;
            });
        }
    });
    Connection::new(near, Role::Client)
}

#[tokio::test]
async fn streams_are_independent_and_end_half_by_half() {
    let client = echo().await;
    let open = async |name: &str| client.open(Headers::new(&[("streamtype", name)])).await.unwrap();
    let (one, two) = (open("one").await, open("two").await);
    assert_eq!((one.id, two.id), (1, 3));
    let (mut one_reader, mut two_reader) = (one.reader, two.reader);
    let big = Bytes::from(vec![7; 100_000]);
    let send = async {
        assert!(one.writer.send(big.clone()).await);
        one.writer.finish().await;
    };
    let receive = async {
        let mut total = 0;
        while let Some(piece) = one_reader.next().await {
            total += piece.len();
        }
        total
    };
    let ((), total) = tokio::join!(send, receive);
    assert_eq!(total, 100_000);
    assert!(two.writer.send(Bytes::from_static(b"still here")).await);
    assert_eq!(two_reader.next().await.as_deref(), Some(&b"still here"[..]));
    let closed = client.closed();
    client.close().await;
    assert!(closed.is_cancelled());
    assert_eq!(two_reader.next().await, None);
    assert!(!two.writer.send(Bytes::new()).await);
}

#[tokio::test]
async fn nonsense_ends_the_connection() {
    let (mut near, far) = tokio::io::duplex(1 << 10);
    let mut server = Connection::new(far, Role::Server);
    tokio::io::AsyncWriteExt::write_all(&mut near, b"GET / HTTP/1.1\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff")
        .await
        .unwrap();
    drop(near);
    assert!(server.accept().await.is_none());
}

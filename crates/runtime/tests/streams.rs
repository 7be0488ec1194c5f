//! Exec, attach and port-forward over the streaming server, in the words of the Kubernetes channel protocols.

mod support;

use anyhow::{Context, Result};
use cri::Cri;
use cri::v1::*;
use futures::{SinkExt, StreamExt};
use support::*;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

struct Client(WebSocketStream<TcpStream>);

impl Client {
    async fn open(url: &str, protocol: &'static str) -> Result<Self> {
        let address = url.strip_prefix("http://").context("not http")?;
        let host = address.split('/').next().context("no host")?;
        let mut request = format!("ws://{address}").into_client_request()?;
        request.headers_mut().insert("Sec-WebSocket-Protocol", protocol.parse()?);
        let (socket, response) = tokio_tungstenite::client_async(request, TcpStream::connect(host).await?).await?;
        anyhow::ensure!(response.headers().get("Sec-WebSocket-Protocol").is_some_and(|p| p == protocol));
        Ok(Self(socket))
    }

    async fn send(&mut self, channel: u8, data: &[u8]) -> Result<()> {
        Ok(self.0.send(Message::Binary([&[channel], data].concat().into())).await?)
    }

    /// Reads until one channel has said `text`.
    async fn hear(&mut self, channel: u8, text: &str) -> Result<()> {
        let mut heard = String::new();
        let wait = async {
            while !heard.contains(text) {
                let message = self.0.next().await.with_context(|| format!("closed before {text:?}"))??;
                if let Message::Binary(bytes) = message
                    && let Some((of, data)) = bytes.split_first()
                    && *of == channel
                {
                    heard.push_str(&String::from_utf8_lossy(data));
                }
            }
            Ok::<_, anyhow::Error>(())
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), wait)
            .await
            .with_context(|| format!("{text:?} was not heard"))?
    }

    /// Everything until the server closes, per channel.
    async fn rest(mut self) -> Result<[String; 4]> {
        let mut all: [String; 4] = Default::default();
        while let Some(Ok(message)) = self.0.next().await {
            if let Message::Binary(bytes) = message
                && let Some((channel, data)) = bytes.split_first()
                && let Some(text) = all.get_mut(usize::from(*channel))
            {
                text.push_str(&String::from_utf8_lossy(data));
            }
        }
        Ok(all)
    }
}

fn words(cmd: &[&str]) -> Vec<String> {
    cmd.iter().map(|s| (*s).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_answers_output_and_exit_code() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("web").await?;
    let id = bed.run(&sandbox, &["sleep"]).await?;
    let answer = bed.exec(&id, &["/helper", "both"]).await?;
    assert_eq!((answer.stdout.as_slice(), answer.stderr.as_slice()), (&b"to stdout\n"[..], &b"to stderr\n"[..]));
    assert_eq!(bed.exec(&id, &["/helper", "exit", "3"]).await?.exit_code, 3);
    assert_eq!(bed.exec(&id, &["/helper", "lines", "20000"]).await?.stdout.len(), 208_890);
    let missing = bed.exec(&id, &["nonsense"]).await.err().context("it ran")?;
    assert!(missing.to_string().contains("executable file not found in $PATH"), "{missing}");
    let late = ExecSyncRequest { container_id: id.clone(), cmd: words(&["/helper", "sleep"]), timeout: 1 };
    assert_eq!(bed.runtime.exec_sync(late).await.err().context("it ended")?.code(), tonic::Code::DeadlineExceeded);
    let request = ExecRequest {
        container_id: id.clone(),
        cmd: words(&["/helper", "both"]),
        stdout: true,
        stderr: true,
        ..Default::default()
    };
    let url = bed.runtime.exec(request).await?.url;
    let [_, out, err, status] = Client::open(&url, "v5.channel.k8s.io").await?.rest().await?;
    assert_eq!((out.as_str(), err.as_str()), ("to stdout\n", "to stderr\n"));
    assert!(status.contains("Success"), "{status}");
    // A URL works once.
    assert!(Client::open(&url, "v5.channel.k8s.io").await.is_err());
    let request =
        ExecRequest { container_id: id, cmd: words(&["/helper", "exit", "7"]), stdout: true, ..Default::default() };
    let [.., status] = Client::open(&bed.runtime.exec(request).await?.url, "v4.channel.k8s.io").await?.rest().await?;
    assert!(status.contains("NonZeroExitCode") && status.contains(r#""message":"7""#), "{status}");
    bed.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_passes_input_and_its_end() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("web").await?;
    let id = bed.run(&sandbox, &["sleep"]).await?;
    let request = ExecRequest {
        container_id: id,
        cmd: words(&["/helper", "cat"]),
        stdin: true,
        stdout: true,
        ..Default::default()
    };
    let mut client = Client::open(&bed.runtime.exec(request).await?.url, "v5.channel.k8s.io").await?;
    client.send(0, b"over there\n").await?;
    client.hear(1, "over there\n").await?;
    client.send(255, &[0]).await?;
    let [.., status] = client.rest().await?;
    assert!(status.contains("Success"), "{status}");
    bed.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_with_a_terminal_can_be_resized() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("web").await?;
    let id = bed.run(&sandbox, &["sleep"]).await?;
    let request = ExecRequest {
        container_id: id,
        cmd: words(&["/helper", "ask"]),
        tty: true,
        stdin: true,
        stdout: true,
        ..Default::default()
    };
    let mut client = Client::open(&bed.runtime.exec(request).await?.url, "v4.channel.k8s.io").await?;
    client.hear(1, "terminal 0x0").await?;
    client.send(4, br#"{"Width":132,"Height":43}"#).await?;
    client.send(0, b"hello\n").await?;
    client.hear(1, "heard hello at 132x43").await?;
    let [.., status] = client.rest().await?;
    assert!(status.contains("Success"), "{status}");
    bed.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_reaches_the_containers_own_streams() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("web").await?;
    let config = ContainerConfig { stdin: true, stdin_once: true, ..container("cat", &["cat"]) };
    let id = bed.run_with(&sandbox, config).await?;
    let request = AttachRequest { container_id: id.clone(), stdin: true, stdout: true, stderr: true, tty: false };
    let mut client = Client::open(&bed.runtime.attach(request).await?.url, "v4.channel.k8s.io").await?;
    client.send(0, b"typed\n").await?;
    client.hear(1, "typed\n").await?;
    // The first client leaves, so the container's input is at its end.
    client.0.close(None).await?;
    let status = bed.ended(&id).await?;
    assert_eq!((status.exit_code, log(&status)?.as_str()), (0, "stdout F typed"));

    let config = ContainerConfig { stdin: true, tty: true, ..container("ask", &["ask"]) };
    let id = bed.run_with(&sandbox, config).await?;
    let request = AttachRequest { container_id: id.clone(), stdin: true, stdout: true, stderr: false, tty: true };
    let mut client = Client::open(&bed.runtime.attach(request).await?.url, "v5.channel.k8s.io").await?;
    client.send(4, br#"{"Width":80,"Height":24}"#).await?;
    client.send(0, b"hi\n").await?;
    client.hear(1, "heard hi at 80x24").await?;
    let status = bed.ended(&id).await?;
    assert!(log(&status)?.contains("heard hi at 80x24"));
    bed.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded_into_the_pods_network() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("web").await?;
    let id = bed.run(&sandbox, &["listen", "8080"]).await?;
    logged(&bed.status(&id).await?, "listening").await?;
    let request = PortForwardRequest { pod_sandbox_id: sandbox, port: vec![8080, 9] };
    let mut client = Client::open(&bed.runtime.port_forward(request).await?.url, "v4.channel.k8s.io").await?;
    client.send(0, b"through").await?;
    client.hear(3, "dial tcp4 127.0.0.1:9: connect: connection refused").await?;
    client.hear(0, "through").await?;
    bed.finish().await
}

/// The same server, spoken to with SPDY.
async fn spdy_client(url: &str, protocols: &str) -> Result<(spdy::Connection, String)> {
    let address = url.strip_prefix("http://").context("not http")?;
    let (host, path) = address.split_once('/').context("no path")?;
    let io = hyper_util::rt::TokioIo::new(TcpStream::connect(host).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    tokio::spawn(connection.with_upgrades());
    let request = hyper::Request::post(format!("/{path}"))
        .header("host", host)
        .header("connection", "Upgrade")
        .header("upgrade", spdy::PROTOCOL)
        .header(spdy::STREAM_PROTOCOL_VERSION, protocols)
        .body(http_body_util::Empty::<bytes::Bytes>::new())?;
    let response = sender.send_request(request).await?;
    anyhow::ensure!(response.status() == 101, "{}", response.status());
    let chosen = response.headers().get(spdy::STREAM_PROTOCOL_VERSION).context("no protocol")?.to_str()?.to_owned();
    let io = hyper_util::rt::TokioIo::new(hyper::upgrade::on(response).await?);
    Ok((spdy::Connection::new(io, spdy::Role::Client), chosen))
}

async fn open(connection: &spdy::Connection, headers: &[(&str, &str)]) -> Result<spdy::Stream> {
    Ok(connection.open(spdy::Headers::new(headers)).await?)
}

async fn all(mut reader: spdy::StreamReader) -> Result<String> {
    let mut text = String::new();
    let read = async {
        while let Some(data) = reader.next().await {
            text.push_str(&String::from_utf8_lossy(&data));
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), read).await.context("the stream does not end")?;
    Ok(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_over_spdy_in_every_version() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("web").await?;
    let id = bed.run(&sandbox, &["sleep"]).await?;
    let request = ExecRequest {
        container_id: id.clone(),
        cmd: words(&["/helper", "cat"]),
        stdin: true,
        stdout: true,
        ..Default::default()
    };
    let url = bed.runtime.exec(request).await?.url;
    let (connection, chosen) = spdy_client(&url, "v5.channel.k8s.io, v4.channel.k8s.io, v3.channel.k8s.io").await?;
    assert_eq!(chosen, "v4.channel.k8s.io");
    let error = open(&connection, &[("streamtype", "error")]).await?;
    let stdin = open(&connection, &[("streamtype", "stdin")]).await?;
    let stdout = open(&connection, &[("streamtype", "stdout")]).await?;
    assert!(stdin.writer.send("over ".into()).await && stdin.writer.send("there".into()).await);
    stdin.writer.finish().await;
    assert_eq!(all(stdout.reader).await?, "over there");
    assert!(all(error.reader).await?.contains(r#""status":"Success""#));
    for (protocol, want) in [
        ("v4.channel.k8s.io", r#""reason":"NonZeroExitCode""#),
        ("v2.channel.k8s.io", "command terminated with non-zero exit code: exit status 7"),
        ("channel.k8s.io", "command terminated with non-zero exit code: exit status 7"),
    ] {
        let cmd = words(&["/helper", "exit", "7"]);
        let request = ExecRequest { container_id: id.clone(), cmd, stderr: true, ..Default::default() };
        let (connection, chosen) = spdy_client(&bed.runtime.exec(request).await?.url, protocol).await?;
        assert_eq!(chosen, protocol);
        let error = open(&connection, &[("streamtype", "error")]).await?;
        let _stderr = open(&connection, &[("streamtype", "stderr")]).await?;
        let said = all(error.reader).await?;
        assert!(
            said.contains(want) && said.starts_with('{') == (protocol == "v4.channel.k8s.io"),
            "{protocol}: {said}"
        );
    }
    let request =
        ExecRequest { container_id: id, cmd: words(&["/helper", "both"]), stdout: true, ..Default::default() };
    assert!(spdy_client(&bed.runtime.exec(request).await?.url, "v9.channel.k8s.io").await.is_err());
    bed.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded_over_spdy_connection_by_connection() -> Result<()> {
    let bed = Bed::start().await?;
    let sandbox = bed.sandbox("web").await?;
    let id = bed.run(&sandbox, &["listen", "8080"]).await?;
    logged(&bed.status(&id).await?, "listening").await?;
    let request = PortForwardRequest { pod_sandbox_id: sandbox, port: vec![] };
    let url = bed.runtime.port_forward(request).await?.url;
    let (connection, _) = spdy_client(&url, "portforward.k8s.io").await?;
    let pair = async |port: &str, id: &str| -> Result<(spdy::Stream, spdy::Stream)> {
        let error = open(&connection, &[("streamtype", "error"), ("port", port), ("requestid", id)]).await?;
        Ok((open(&connection, &[("streamtype", "data"), ("port", port), ("requestid", id)]).await?, error))
    };
    let (closed, error) = pair("9", "0").await?;
    assert!(all(error.reader).await?.contains("dial tcp4 127.0.0.1:9: connect: connection refused"));
    assert_eq!(all(closed.reader).await?, "");
    // The connection that failed has not ended the others.
    for id in ["1", "2"] {
        let (mut data, error) = pair("8080", id).await?;
        assert!(data.writer.send("through".into()).await);
        let mut heard = Vec::new();
        while heard.len() < 7 {
            heard.extend_from_slice(&data.reader.next().await.context("the stream ended")?);
        }
        assert_eq!(heard, b"through");
        data.writer.finish().await;
        assert_eq!((all(data.reader).await?.as_str(), all(error.reader).await?.as_str()), ("", ""));
    }
    bed.finish().await
}

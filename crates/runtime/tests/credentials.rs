//! To whom a pull sends credentials: the registry, and the token service that the registry itself names. Nobody else.

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use runtime::{Credentials, Digest, Runtime};
use serde_json::json;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A server of fixed answers that writes down each request and its `Authorization`.
struct Server {
    address: String,
    seen: Seen,
}

type Seen = Arc<Mutex<Vec<(String, Option<String>)>>>;
/// By path: an answer without credentials, and one with the right ones.
type Answers = BTreeMap<String, (Answer, Answer)>;

#[derive(Clone)]
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

fn ok(body: impl Into<Vec<u8>>) -> Answer {
    Answer { status: 200, headers: Vec::new(), body: body.into() }
}

fn challenge(value: &str) -> Answer {
    Answer { status: 401, headers: vec![("WWW-Authenticate", value.to_owned())], body: Vec::new() }
}

fn redirect(to: &str) -> Answer {
    Answer { status: 307, headers: vec![("Location", to.to_owned())], body: Vec::new() }
}

/// A server whose address is known, so that others can name it before it answers.
struct Bound {
    listener: tokio::net::TcpListener,
    address: String,
}

impl Bound {
    async fn new() -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        Ok(Self { address: listener.local_addr()?.to_string(), listener })
    }

    /// `expected` is the only `Authorization` that counts.
    fn serve<const N: usize>(self, expected: &str, answers: [(&str, Answer, Answer); N]) -> Server {
        let answers = answers.map(|(path, without, with)| (path.to_owned(), (without, with)));
        let (answers, seen) = (Arc::new(Answers::from(answers)), Seen::default());
        let (written, expected) = (seen.clone(), expected.to_owned());
        tokio::spawn(async move {
            while let Ok((stream, _)) = self.listener.accept().await {
                tokio::spawn(serve(stream, answers.clone(), written.clone(), expected.clone()));
            }
        });
        Server { address: self.address, seen }
    }
}

impl Server {
    fn seen(&self) -> Vec<(String, Option<String>)> {
        self.seen.lock().expect("not poisoned").clone()
    }

    /// The paths that were asked for with credentials.
    fn trusted_with(&self) -> Vec<String> {
        self.seen().into_iter().filter(|(_, authorization)| authorization.is_some()).map(|(path, _)| path).collect()
    }
}

async fn serve(mut stream: tokio::net::TcpStream, answers: Arc<Answers>, seen: Seen, expected: String) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head)?;
    let path = head.split(' ').nth(1).context("no path")?.to_owned();
    let authorization = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("authorization").then(|| value.to_owned())
    });
    let known = answers.get(path.split('?').next().unwrap_or_default()).cloned();
    let missing = Answer { status: 404, headers: Vec::new(), body: Vec::new() };
    let (without, with) = known.unwrap_or((missing.clone(), missing));
    let answer = if authorization.as_deref() == Some(&expected) { with } else { without };
    seen.lock().expect("not poisoned").push((path, authorization));
    let mut response =
        format!("HTTP/1.1 {} -\r\nContent-Length: {}\r\nConnection: close\r\n", answer.status, answer.body.len());
    for (name, value) in answer.headers {
        response.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(&[response.as_bytes(), b"\r\n", &answer.body].concat()).await?;
    Ok(stream.shutdown().await?)
}

fn basic() -> Credentials {
    Credentials::Basic { username: "user".to_owned(), password: "secret".to_owned() }
}

/// `user:secret`
const BASIC: &str = "Basic dXNlcjpzZWNyZXQ=";

/// A configuration and the manifest of an image without layers.
fn image() -> (Vec<u8>, Vec<u8>) {
    let config = json!({ "rootfs": { "type": "layers", "diff_ids": [] } }).to_string().into_bytes();
    let descriptor = json!({ "digest": Digest::of(&config).to_string(), "size": config.len() });
    let manifest = json!({ "schemaVersion": 2, "config": descriptor, "layers": [] }).to_string().into_bytes();
    (config, manifest)
}

async fn pull(registry: &Server) -> Result<Result<(), String>> {
    let directory = Scratch::new()?;
    let runtime = Runtime::open(config(directory.path())).await?;
    let pulled = runtime.images().pull(&format!("{}/app:v1", registry.address), Some(&basic())).await;
    Ok(pulled.map(drop).map_err(|error| error.to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_target_gets_no_credentials_whatever_it_asks_for() -> Result<()> {
    let (config, manifest) = image();
    let blob = format!("/v2/app/blobs/{}", Digest::of(&config));
    let thief = Bound::new().await?.serve("", [("/token", ok("{}"), ok("{}"))]);
    let realm = format!("Bearer realm=\"http://{}/token\",service=\"x\"", thief.address);
    for ask in ["Basic realm=\"x\"", &realm] {
        let storage = Bound::new().await?.serve("", [("/blob", challenge(ask), challenge(ask))]);
        let ours = challenge("Basic realm=\"registry\"");
        let away = redirect(&format!("http://{}/blob", storage.address));
        let registry = Bound::new()
            .await?
            .serve(BASIC, [("/v2/app/manifests/v1", ours.clone(), ok(manifest.clone())), (&blob, ours, away)]);
        let refused = pull(&registry).await?.err().context("pulled")?;
        assert!(
            refused.contains(&format!("{}, to which the registry redirects, refused", storage.address)),
            "{refused}"
        );
        assert_eq!(registry.trusted_with(), ["/v2/app/manifests/v1", &blob]);
        assert_eq!(storage.seen(), [("/blob".to_owned(), None)]);
    }
    assert_eq!(thief.seen(), []);
    Ok(())
}

/// Nobody but the registry chooses what it is asked for with credentials.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_from_elsewhere_has_no_credentials() -> Result<()> {
    let (config, manifest) = image();
    let blob = format!("/v2/app/blobs/{}", Digest::of(&config));
    let (registry, storage) = (Bound::new().await?, Bound::new().await?);
    let ours = challenge("Basic realm=\"registry\"");
    let (away, back) =
        (redirect(&format!("http://{}/blob", storage.address)), redirect(&format!("http://{}/back", registry.address)));
    let storage = storage.serve("", [("/blob", back, ok(""))]);
    let answers = [
        ("/v2/app/manifests/v1", ours.clone(), ok(manifest)),
        (&blob, ours.clone(), away),
        ("/back", ours, ok(config)),
    ];
    let registry = registry.serve(BASIC, answers);
    let refused = pull(&registry).await?.err().context("pulled")?;
    assert!(refused.contains("pull access denied"), "{refused}");
    assert_eq!(registry.trusted_with(), ["/v2/app/manifests/v1", &blob]);
    assert_eq!(registry.seen().last().context("nothing was asked for")?, &("/back".to_owned(), None));
    assert_eq!(storage.seen(), [("/blob".to_owned(), None)]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_service_gets_the_credentials_and_storage_gets_neither_these_nor_the_token() -> Result<()> {
    let (config, manifest) = image();
    let blob = format!("/v2/app/blobs/{}", Digest::of(&config));
    let refused = Answer { status: 401, headers: Vec::new(), body: Vec::new() };
    let tokens = Bound::new().await?.serve(BASIC, [("/token", refused, ok(r#"{"token":"t0ken"}"#))]);
    let storage = Bound::new().await?.serve("", [("/blob", ok(config), ok(""))]);
    let ours = challenge(&format!("Bearer realm=\"http://{}/token\",service=\"registry\"", tokens.address));
    let registry = Bound::new().await?;
    // Within the registry a redirect is its own.
    let (moved, away) = (
        redirect(&format!("http://{}/moved", registry.address)),
        redirect(&format!("http://{}/blob", storage.address)),
    );
    let answers =
        [("/v2/app/manifests/v1", ours.clone(), moved), ("/moved", ours.clone(), ok(manifest)), (&blob, ours, away)];
    let registry = registry.serve("Bearer t0ken", answers);
    pull(&registry).await?.map_err(anyhow::Error::msg)?;
    assert_eq!(tokens.trusted_with(), ["/token?scope=repository:app:pull&service=registry"]);
    assert_eq!(registry.trusted_with(), ["/v2/app/manifests/v1", "/moved", &blob]);
    assert_eq!(storage.seen(), [("/blob".to_owned(), None)]);
    // The password is for the token service alone.
    let sent = registry.seen().into_iter().filter_map(|(_, authorization)| authorization);
    assert!(sent.into_iter().all(|authorization| authorization == "Bearer t0ken"));
    Ok(())
}

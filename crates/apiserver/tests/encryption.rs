//! Encryption at rest: what the store holds, what clients see, keys that change, and a KMS plugin on a socket.

mod support;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use apiserver::EncryptionSettings;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use prost::Message;
use serde_json::{Value, json};
use store::{Embedded, Op, Range, Store, Txn};
use support::Api;
use tokio_util::sync::CancellationToken;

const ONE: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const TWO: &str = "YWJjZGVmMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODk=";

/// A store, and a folder for the configuration of whoever uses it.
struct Bench {
    dir: tempfile::TempDir,
    store: Arc<dyn Store>,
}

impl Bench {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let store = Arc::new(Embedded::open(&dir.path().join("store"), store::Options::default())?);
        Ok(Self { dir, store })
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("config").join("encryption.yaml")
    }

    /// `resources: providers`, a line each.
    fn write(&self, rules: &[(&str, &str)]) -> Result<()> {
        let rules: Vec<String> =
            rules.iter().map(|(of, by)| format!("- resources: {of}\n  providers: {by}\n")).collect();
        let head = "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n";
        std::fs::create_dir_all(self.path().parent().context("a folder")?)?;
        std::fs::write(self.path(), format!("{head}{}", rules.concat()))?;
        Ok(())
    }

    async fn start(&self, reload: bool) -> Result<Api> {
        let settings = EncryptionSettings { path: self.path(), reload };
        Api::start_on(self.store.clone(), |config| config.encryption = Some(settings)).await
    }

    async fn at_rest(&self, key: &str) -> Result<Bytes> {
        let found = self.store.range(Range::key(format!("/registry/{key}"))).await?;
        Ok(found.kvs.first().context("nothing there")?.value.clone())
    }

    async fn starts_with(&self, key: &str, prefix: &str) -> Result<bool> {
        Ok(self.at_rest(key).await?.starts_with(prefix.as_bytes()))
    }
}

fn keys(provider: &str, keys: &[(&str, &str)]) -> String {
    let keys: Vec<String> = keys.iter().map(|(name, secret)| format!("{{name: {name}, secret: {secret}}}")).collect();
    format!("{{{provider}: {{keys: [{}]}}}}", keys.join(", "))
}

fn secret(name: &str) -> Value {
    json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": name}, "stringData": {"word": "hush"}})
}

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

async fn create(api: &Api, path: &str, object: &Value) -> Result<()> {
    let (code, answer) =
        api.json(&format!("POST {path}"), &[("content-type", "application/json")], Some(object)).await?;
    anyhow::ensure!(code == 201, "{code} {answer}");
    Ok(())
}

async fn word(api: &Api, name: &str) -> Result<String> {
    let (code, answer) = api.json(&format!("GET {SECRETS}/{name}"), &[], None).await?;
    Ok(format!("{code} {}", answer.pointer("/data/word").and_then(Value::as_str).unwrap_or_default()))
}

/// Writes a secret as it is.
async fn touch(api: &Api, name: &str) -> Result<()> {
    let (_, current) = api.json(&format!("GET {SECRETS}/{name}"), &[], None).await?;
    let put = format!("PUT {SECRETS}/{name}");
    let (code, answer) = api.json(&put, &[("content-type", "application/json")], Some(&current)).await?;
    anyhow::ensure!(code == 200, "{code} {answer}");
    Ok(())
}

async fn start_error(bench: &Bench) -> Result<String> {
    match bench.start(false).await {
        Ok(_) => anyhow::bail!("it started"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

#[tokio::test]
async fn every_provider_keeps_its_resources_and_no_others() -> Result<()> {
    let bench = Bench::new()?;
    bench.write(&[
        ("[secrets]", &format!("[{}, {{identity: {{}}}}]", keys("aescbc", &[("one", ONE)]))),
        ("['*.apps']", &format!("[{}, {{identity: {{}}}}]", keys("aesgcm", &[("one", ONE)]))),
        ("['*.']", &format!("[{}, {{identity: {{}}}}]", keys("secretbox", &[("one", ONE)]))),
    ])?;
    let api = bench.start(false).await?;
    create(&api, SECRETS, &secret("a")).await?;
    let map = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "m"}, "data": {"a": "b"}});
    create(&api, "/api/v1/namespaces/default/configmaps", &map).await?;
    let labels = json!({"app": "a"});
    let set = json!({
        "kind": "ReplicaSet", "apiVersion": "apps/v1", "metadata": {"name": "r"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    });
    create(&api, "/apis/apps/v1/namespaces/default/replicasets", &set).await?;
    assert!(bench.starts_with("secrets/default/a", "k8s:enc:aescbc:v1:one:").await?);
    assert!(bench.starts_with("configmaps/default/m", "k8s:enc:secretbox:v1:one:").await?);
    assert!(bench.starts_with("replicasets/default/r", "k8s:enc:aesgcm:v1:one:").await?);
    assert!(bench.starts_with("clusterroles/view", "{").await?);
    // As upstream, which has no transformer for them.
    assert!(bench.starts_with("masterleases/192.0.2.1", "{").await?);
    assert_eq!(word(&api, "a").await?, "200 aHVzaA==");
    let (code, list) = api.json(&format!("GET {SECRETS}"), &[], None).await?;
    assert_eq!((code, list.pointer("/items/0/data/word")), (200, Some(&json!("aHVzaA=="))));
    // Another server with the same keys reads all of it.
    assert_eq!(word(&bench.start(false).await?, "a").await?, "200 aHVzaA==");
    Ok(())
}

#[tokio::test]
async fn a_server_without_the_key_refuses_to_start() -> Result<()> {
    let bench = Bench::new()?;
    bench.write(&[("[secrets]", &format!("[{}]", keys("aesgcm", &[("one", ONE)])))])?;
    create(&bench.start(false).await?, SECRETS, &secret("a")).await?;
    bench.write(&[("[secrets]", &format!("[{}]", keys("aesgcm", &[("one", TWO)])))])?;
    assert!(start_error(&bench).await?.contains("/registry/secrets/default/a was written with an encryption"));
    let plain = Api::start_on(bench.store.clone(), |_| ()).await;
    assert!(plain.is_err(), "no configuration at all");
    // Moved to another name, a value is no longer believed.
    let moved = bench.at_rest("secrets/default/a").await?;
    bench.write(&[("[secrets]", &format!("[{}]", keys("aesgcm", &[("one", ONE)])))])?;
    let put = Op::put("/registry/secrets/default/b", moved);
    bench.store.txn(Txn { success: vec![put], ..Txn::default() }).await?;
    assert!(start_error(&bench).await?.contains("/registry/secrets/default/b"));
    bench.write(&[("[secrets]", "[]")])?;
    assert!(start_error(&bench).await?.contains("resources[0].providers: Required value"));
    Ok(())
}

/// Waits until writing a secret as it is brings it to this prefix.
async fn rewritten(api: &Api, bench: &Bench, prefix: &str) -> Result<()> {
    let attempts = async {
        loop {
            touch(api, "a").await?;
            if bench.starts_with("secrets/default/a", prefix).await? {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), attempts).await.context("it was never rewritten")?
}

#[tokio::test]
async fn a_changed_file_is_taken_over_and_old_values_are_rewritten() -> Result<()> {
    let bench = Bench::new()?;
    bench.write(&[("[secrets]", "[{identity: {}}]")])?;
    let api = bench.start(true).await?;
    create(&api, SECRETS, &secret("a")).await?;
    let before = bench.at_rest("secrets/default/a").await?;
    touch(&api, "a").await?;
    assert_eq!(bench.at_rest("secrets/default/a").await?, before, "nothing to be done");
    bench.write(&[("[secrets]", &format!("[{}, {{identity: {{}}}}]", keys("secretbox", &[("one", ONE)])))])?;
    rewritten(&api, &bench, "k8s:enc:secretbox:v1:one:").await?;
    let both = keys("secretbox", &[("two", TWO), ("one", ONE)]);
    bench.write(&[("[secrets]", &format!("[{both}]"))])?;
    rewritten(&api, &bench, "k8s:enc:secretbox:v1:two:").await?;
    // Files that make no sense change nothing.
    bench.write(&[("[secrets]", "[]")])?;
    let failed = async {
        loop {
            let (_, _, text) = api.call("GET /metrics", &[], "").await?;
            let wanted = "apiserver_encryption_config_controller_automatic_reloads_total{status=\"failure\"} 0";
            if !String::from_utf8_lossy(&text).contains(wanted) {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), failed).await.context("it was never refused")??;
    assert_eq!(word(&api, "a").await?, "200 aHVzaA==");
    let back = keys("secretbox", &[("two", TWO)]);
    bench.write(&[("[secrets]", &format!("[{{identity: {{}}}}, {back}]"))])?;
    rewritten(&api, &bench, "{").await
}

#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(bytes = "vec", tag = "1")]
    text: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(bytes = "vec", tag = "1")]
    text: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct StatusAnswer {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    healthz: String,
    #[prost(string, tag = "3")]
    key_id: String,
}

/// A plugin whose encryption is to turn the bits around, and that counts what it is asked.
#[derive(Default)]
struct Plugin {
    encrypted: AtomicUsize,
    decrypted: AtomicUsize,
    sick: AtomicBool,
    /// It decrypts nothing.
    away: AtomicBool,
}

#[derive(Clone)]
struct Service(Arc<Plugin>);

impl tonic::server::NamedService for Service {
    const NAME: &'static str = "v2.KeyManagementService";
}

impl tower::Service<http::Request<tonic::body::Body>> for Service {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let plugin = self.0.clone();
        let turned = |text: &[u8]| text.iter().map(|byte| !byte).collect();
        async move {
            if request.uri().path().ends_with("/Status") {
                let healthz = if plugin.sick.load(Ordering::Relaxed) { "unwell" } else { "ok" };
                let service = tower::service_fn(move |_: tonic::Request<Question>| async move {
                    let answer = StatusAnswer { version: "v2".into(), healthz: healthz.into(), key_id: "1".into() };
                    Ok::<_, tonic::Status>(tonic::Response::new(answer))
                });
                let codec = tonic_prost::ProstCodec::<StatusAnswer, Question>::default();
                return Ok(tonic::server::Grpc::new(codec).unary(service, request).await);
            }
            let encrypts = request.uri().path().ends_with("/Encrypt");
            let service = tower::service_fn(move |question: tonic::Request<Question>| {
                let counter = if encrypts { &plugin.encrypted } else { &plugin.decrypted };
                counter.fetch_add(1, Ordering::Relaxed);
                let is_away = plugin.away.load(Ordering::Relaxed);
                let annotations = BTreeMap::from([("version.example.com".to_owned(), b"7".to_vec())]);
                async move {
                    if is_away && !encrypts {
                        return Err(tonic::Status::unavailable("it is away"));
                    }
                    let question = question.into_inner();
                    let known = encrypts || (question.key_id == "1" && question.annotations == annotations);
                    let text = turned(&question.text);
                    let answer = Answer { text, key_id: "1".into(), annotations };
                    known.then(|| tonic::Response::new(answer)).ok_or_else(|| tonic::Status::not_found("no such key"))
                }
            });
            let codec = tonic_prost::ProstCodec::<Answer, Question>::default();
            Ok(tonic::server::Grpc::new(codec).unary(service, request).await)
        }
        .boxed()
    }
}

fn serve(plugin: &Arc<Plugin>, socket: &Path) -> Result<CancellationToken> {
    let listener = tokio::net::UnixListener::bind(socket)?;
    let incoming = futures::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    let stop = CancellationToken::new();
    let server = tonic::transport::Server::builder().add_service(Service(plugin.clone()));
    tokio::spawn(stop.clone().run_until_cancelled_owned(server.serve_with_incoming(incoming)));
    Ok(stop)
}

#[tokio::test]
async fn a_kms_plugin_is_asked_once_for_each_seed_and_its_health_is_told() -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.dir.path().join("kms.sock");
    let kms = format!("{{kms: {{apiVersion: v2, name: guard, endpoint: 'unix://{}', timeout: 2s}}}}", socket.display());
    bench.write(&[("[secrets]", &format!("[{kms}, {{identity: {{}}}}]"))])?;
    let plugin = Arc::new(Plugin::default());
    let stop = serve(&plugin, &socket)?;
    let _stop = stop.drop_guard();
    let asked = || (plugin.encrypted.load(Ordering::Relaxed), plugin.decrypted.load(Ordering::Relaxed));
    let api = bench.start(false).await?;
    for name in ["a", "b", "c"] {
        create(&api, SECRETS, &secret(name)).await?;
    }
    assert!(bench.starts_with("secrets/default/a", "k8s:enc:kms:v2:guard:").await?);
    assert_eq!(word(&api, "b").await?, "200 aHVzaA==");
    assert_eq!(asked(), (1, 0), "one seed, which is known");
    let before = bench.at_rest("secrets/default/a").await?;
    touch(&api, "a").await?;
    assert_eq!(bench.at_rest("secrets/default/a").await?, before, "the key is the same");
    let (code, _, text) = api.call("GET /readyz?verbose", &[], "").await?;
    assert!(code == 200 && String::from_utf8_lossy(&text).contains("[+]kms-providers ok"));
    drop(api);
    // A new server has a seed of its own, and asks for the other one once.
    plugin.sick.store(true, Ordering::Relaxed);
    let api = bench.start(false).await?;
    assert_eq!(word(&api, "c").await?, "200 aHVzaA==");
    assert_eq!(asked(), (2, 1));
    let (code, _, text) = api.call("GET /healthz/kms-providers", &[], "").await?;
    assert_eq!((code, String::from_utf8_lossy(&text).starts_with("internal server error: ")), (500, true));
    Ok(())
}

/// The code of an answer, which must come at once, and its message.
async fn outcome(api: &Api, what: &str, body: Option<&Value>) -> Result<(u16, String)> {
    let answer = tokio::time::timeout(Duration::from_secs(10), api.json(what, &[], body)).await;
    let (code, answer) = answer.with_context(|| format!("{what} was not answered"))??;
    Ok((code, answer.get("message").and_then(Value::as_str).unwrap_or_default().to_owned()))
}

async fn is_listed(api: &Api) -> Result<()> {
    let listed = async {
        while outcome(api, &format!("GET {SECRETS}"), None).await?.0 != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(20), listed).await.context("secrets stay unreadable")?
}

/// A value that this server cannot decrypt concerns nobody but those who ask for it, and can be read once its key is back.
#[tokio::test]
async fn an_absent_kms_plugin_stops_only_what_it_has_to_decrypt() -> Result<()> {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let bench = Bench::new()?;
    let socket = bench.dir.path().join("kms.sock");
    let kms = format!("{{kms: {{apiVersion: v2, name: guard, endpoint: 'unix://{}', timeout: 2s}}}}", socket.display());
    bench.write(&[("[secrets]", &format!("[{kms}]"))])?;
    let plugin = Arc::new(Plugin::default());
    let _stop = serve(&plugin, &socket)?.drop_guard();
    let (other, api) = (bench.start(false).await?, bench.start(false).await?);
    create(&api, SECRETS, &secret("own")).await?;
    plugin.away.store(true, Ordering::Relaxed);
    // With a seed of its own, which this server would have to ask for.
    create(&other, SECRETS, &secret("a")).await?;
    let why = "unable to transform key \"/registry/secrets/default/a\": failed to decrypt DEK, error: rpc error: code = Unavailable desc = it is away";
    let refused = (500, why.to_owned());
    for what in [format!("GET {SECRETS}"), format!("GET {SECRETS}/a"), format!("GET {SECRETS}?watch=1")] {
        assert_eq!(outcome(&api, &what, None).await?, refused, "{what}");
    }
    assert_eq!(outcome(&api, "GET /api/v1/secrets?limit=1", None).await?, refused);
    assert_eq!(outcome(&api, &format!("DELETE {SECRETS}/a"), None).await?, refused);
    assert_eq!(outcome(&api, &format!("DELETE {SECRETS}"), None).await?, refused);
    assert_eq!(outcome(&api, &format!("PUT {SECRETS}/a"), Some(&secret("a"))).await?, refused);
    assert_eq!(outcome(&api, &format!("POST {SECRETS}"), Some(&secret("a"))).await?.0, 409);
    assert_eq!(outcome(&api, &format!("POST {SECRETS}?dryRun=All"), Some(&secret("a"))).await?.0, 409);
    // Everything else goes on, other secrets included.
    assert_eq!(word(&api, "own").await?, "200 aHVzaA==");
    create(&api, SECRETS, &secret("more")).await?;
    assert_eq!(outcome(&api, "GET /api/v1/namespaces/kube-system/secrets", None).await?.0, 200);
    let map = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "m"}});
    create(&api, MAPS, &map).await?;
    assert_eq!(outcome(&api, &format!("GET {MAPS}"), None).await?.0, 200);
    // A server that starts meanwhile is no worse off.
    let late = bench.start(false).await?;
    assert_eq!(outcome(&late, &format!("GET {SECRETS}/a"), None).await?.0, 500);
    assert_eq!(outcome(&late, &format!("GET {MAPS}/m"), None).await?.0, 200);
    plugin.away.store(false, Ordering::Relaxed);
    for api in [&api, &late] {
        is_listed(api).await?;
        assert_eq!(word(api, "a").await?, "200 aHVzaA==");
    }
    assert_eq!(outcome(&api, &format!("DELETE {SECRETS}/a"), None).await?.0, 200);
    Ok(())
}

/// While a rule of admission is unknown nothing is admitted that it might refuse.
#[tokio::test]
async fn a_webhook_that_was_never_readable_admits_nothing() -> Result<()> {
    let bench = Bench::new()?;
    let key = "/registry/validatingwebhookconfigurations/guard";
    bench.store.txn(Txn { success: vec![Op::put(key, "k8s\0\u{1}broken")], ..Txn::default() }).await?;
    let api = Api::start_on(bench.store.clone(), |_| ()).await?;
    let (code, why) = outcome(&api, &format!("POST {SECRETS}"), Some(&secret("a"))).await?;
    assert!(code == 500 && why.contains(key), "{code} {why}");
    bench.store.txn(Txn { success: vec![Op::Delete { key: key.into(), end: None }], ..Txn::default() }).await?;
    assert_eq!(outcome(&api, &format!("POST {SECRETS}"), Some(&secret("a"))).await?.0, 201);
    Ok(())
}

/// Bytes that are no object are an error until somebody writes others; they are neither gone nor deleted in circles.
#[tokio::test]
async fn a_malformed_value_is_an_error_and_not_absent() -> Result<()> {
    const KEY: &str = "/registry/secrets/default/a";
    let bench = Bench::new()?;
    let api = Api::start_on(bench.store.clone(), |_| ()).await?;
    create(&api, SECRETS, &secret("a")).await?;
    let whole = bench.at_rest("secrets/default/a").await?;
    bench.store.txn(Txn { success: vec![Op::put(KEY, "k8s\0\u{1}broken")], ..Txn::default() }).await?;
    let late = Api::start_on(bench.store.clone(), |_| ()).await?;
    // Upstream has this option behind a gate that is off, and ignores it.
    let unsafely =
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "ignoreStoreReadErrorWithClusterBreakingPotential": true});
    for api in [&api, &late] {
        let delete = format!("DELETE {SECRETS}/a");
        for (what, body) in [(&delete, None), (&delete, Some(&unsafely)), (&format!("GET {SECRETS}"), None)] {
            let (code, why) = outcome(api, what, body).await?;
            assert!(
                code == 500 && why.starts_with(&format!("unable to decode the object at key {KEY:?}: ")),
                "{code} {why}"
            );
        }
    }
    assert!(bench.starts_with("secrets/default/a", "k8s").await?);
    bench.store.txn(Txn { success: vec![Op::put(KEY, whole)], ..Txn::default() }).await?;
    assert_eq!(word(&late, "a").await?, "200 aHVzaA==");
    assert_eq!(outcome(&api, &format!("DELETE {SECRETS}/a"), None).await?.0, 200);
    Ok(())
}

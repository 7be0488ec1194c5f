//! The client when endpoints go: requests find another, watches go on without gap or repeat; and TLS on both ends.

use std::{path::Path, sync::Arc};

use futures::StreamExt;
use store::{
    Embedded, Op, Options, Revision, Store, StoreError, Txn,
    etcd::{Client, ConnectError, EtcdConfig, Listener},
};
use tokio::net::{TcpListener, UnixListener};

use crate::etcd::{Etcd, Served, connect, tool};

async fn put(store: &dyn Store, key: &'static str) -> Result<Revision, StoreError> {
    Ok(store.txn(Txn { success: vec![Op::put(key, "")], ..Txn::default() }).await?.revision)
}

/// A server of its own for the same store, on `dir/NAME/socket`.
fn serve(dir: &Path, name: &str, store: &Arc<Embedded>) -> Served {
    let dir = dir.join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let _ = std::fs::remove_file(dir.join("socket"));
    Served::with(&dir, store.clone(), Listener::Unix(UnixListener::bind(dir.join("socket")).unwrap()))
}

#[tokio::test]
async fn requests_and_watches_move_to_another_endpoint() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Embedded::open(&dir.path().join("data"), Options::default()).unwrap());
    let mut servers = [serve(dir.path(), "0", &store), serve(dir.path(), "1", &store)];
    let client = connect(servers.iter().map(Served::endpoint).collect()).await;
    let mut watch = client.watch("a".into(), None, 2).await.unwrap();
    let mut revision = 1;
    for round in 0..10 {
        revision += 1;
        assert_eq!(put(&client, "a").await.unwrap(), revision);
        assert_eq!(watch.next().await.unwrap().unwrap().revision, revision);
        let [first, second] = servers;
        servers = match round % 2 {
            0 => {
                first.stop().await;
                // What happens while the watch looks for its new place is not lost.
                revision = put(store.as_ref(), "a").await.unwrap();
                [serve(dir.path(), "0", &store), second]
            }
            _ => {
                second.stop().await;
                revision = put(store.as_ref(), "a").await.unwrap();
                [first, serve(dir.path(), "1", &store)]
            }
        };
        assert_eq!(watch.next().await.unwrap().unwrap().revision, revision);
    }
    for server in servers {
        server.stop().await;
    }
    assert!(matches!(put(&client, "a").await, Err(StoreError::Unavailable(_))));
}

/// Every member dies once while writes go on; what was acknowledged is there, and the watch tells it all in order.
#[tokio::test]
async fn a_cluster_of_three_goes_on_when_any_member_dies() {
    const WRITES: usize = 20;
    let Some(binary) = tool("etcd") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut members = Etcd::cluster(&binary, dir.path(), 3);
    let client = connect(members.iter().map(|member| member.endpoint.clone()).collect()).await;
    let mut watch = client.watch("a".into(), None, 2).await.unwrap();
    let mut last = 1;
    for member in &mut members {
        member.kill();
        let mut acknowledged = Vec::new();
        while acknowledged.len() < WRITES {
            // A write that was on its way when its member died has an unknown outcome; the next one goes elsewhere.
            match put(&client, "a").await {
                Ok(revision) => acknowledged.push(revision),
                Err(error) => assert!(matches!(error, StoreError::Unavailable(_)), "{error}"),
            }
        }
        for revision in acknowledged {
            while last < revision {
                let batch = watch.next().await.unwrap().unwrap();
                assert_eq!(batch.revision, last + 1);
                last = batch.revision;
            }
        }
        assert!(client.revision().await.unwrap() >= last);
        member.start();
    }
}

/// A member that hangs says nothing and keeps its connections: a question moves on first, and takes the watch with it.
#[tokio::test]
async fn a_member_that_hangs_is_passed_over() {
    let Some(binary) = tool("etcd") else { return };
    let dir = tempfile::tempdir().unwrap();
    let members = Etcd::cluster(&binary, dir.path(), 3);
    let endpoints: Vec<_> = members.iter().map(|member| member.endpoint.clone()).collect();
    let client = connect(endpoints.clone()).await;
    let other = connect(endpoints[1..].to_vec()).await;
    let mut watch = client.watch("a".into(), None, 0).await.unwrap();
    members[0].pause();
    let begun = std::time::Instant::now();
    let written = loop {
        // The one that hangs may have led the others.
        if let Ok(revision) = put(&other, "a").await {
            break revision;
        }
    };
    assert!(client.revision().await.unwrap() >= written);
    while watch.next().await.unwrap().unwrap().revision < written {}
    // Without the question the connection would be given up after 15 s.
    assert!(begun.elapsed() < std::time::Duration::from_secs(12), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_watch_that_was_away_too_long_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Embedded::open(&dir.path().join("data"), Options::default()).unwrap());
    let server = serve(dir.path(), "0", &store);
    let client = connect(vec![server.endpoint()]).await;
    let mut watch = client.watch("a".into(), None, 0).await.unwrap();
    server.stop().await;
    for _ in 0..3 {
        put(store.as_ref(), "a").await.unwrap();
    }
    store.compact(4).await.unwrap();
    let server = serve(dir.path(), "0", &store);
    assert!(matches!(watch.next().await, Some(Err(StoreError::SlowWatcher))));
    assert!(watch.next().await.is_none());
    server.stop().await;
}

#[tokio::test]
async fn a_bad_configuration_is_refused_with_its_reason() {
    let config = |endpoint: &str| EtcdConfig { endpoints: vec![endpoint.into()], ..EtcdConfig::default() };
    let refusal = async |config| Client::connect(config).await.err().expect("refused");
    assert!(matches!(refusal(EtcdConfig::default()).await, ConnectError::NoEndpoints));
    assert!(matches!(refusal(config("localhost:2379")).await, ConnectError::Endpoint(_)));
    assert!(matches!(refusal(config("https://localhost:2379")).await, ConnectError::NoCa(_)));
    let missing = EtcdConfig { ca: Some("/nowhere/ca.pem".into()), ..config("https://localhost:2379") };
    assert!(matches!(refusal(missing).await, ConnectError::Pem { .. }));
}

#[tokio::test]
async fn tls_with_client_certificates_works_and_strangers_are_turned_away() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoints = vec![format!("https://{}", listener.local_addr().unwrap())];
    let store = Arc::new(Embedded::open(&dir.path().join("data"), Options::default()).unwrap());
    let served = Served::with(dir.path(), store, Listener::Tls(listener, pki.server));
    let file = |name: &str| Some(dir.path().join(name));
    let known = EtcdConfig { endpoints: endpoints.clone(), ca: file("ca"), cert: file("cert"), key: file("key") };
    let client = Client::connect(known).await.unwrap();
    assert_eq!(put(&client, "a").await.unwrap(), 2);
    let stranger = EtcdConfig { endpoints, ca: file("ca"), ..EtcdConfig::default() };
    assert!(matches!(Client::connect(stranger).await, Err(ConnectError::NoAnswer { .. })));
    served.stop().await;
}

/// A CA, a server configuration that wants certificates of it, and files `ca`, `cert`, `key` for a client.
struct Pki {
    server: Arc<rustls::ServerConfig>,
}

impl Pki {
    fn new(dir: &Path) -> Pki {
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut ca = rcgen::CertificateParams::new(vec![]).unwrap();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_cert = ca.self_signed(&ca_key).unwrap();
        let issuer = rcgen::Issuer::new(ca, ca_key);
        let signed = || {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            (params.signed_by(&key, &issuer).unwrap(), key)
        };
        let (cert, key) = signed();
        for (name, pem) in [("ca", ca_cert.pem()), ("cert", cert.pem()), ("key", key.serialize_pem())] {
            std::fs::write(dir.join(name), pem).unwrap();
        }
        let (cert, key) = signed();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca_cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.build().unwrap())
            .with_single_cert(vec![cert.der().clone()], key.serialize_der().try_into().unwrap())
            .unwrap();
        Pki { server: Arc::new(server) }
    }
}

//! Real connections through service addresses, between network namespaces.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // clippy lets only #[test] functions do so; these share theirs.

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::Key;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proxy::{Applier, Node, Table, plan};
use serde_json::{Value, json};
use support::{Pod, on_node};
use tokio::sync::{mpsc, oneshot};

const TIMEOUT: Duration = Duration::from_millis(1500);

fn sh(script: &str) {
    assert!(Command::new("sh").args(["-ec", script]).status().unwrap().success(), "{script}");
}

/// A server that answers each client with `name` and the address it came from.
fn serve(name: &'static str, port: u16) {
    let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            drop(write!(stream, "{name} saw {}", peer.ip()));
        }
    });
}

fn ask(to: impl Into<SocketAddr>) -> String {
    let connect = || {
        let mut stream = TcpStream::connect_timeout(&to.into(), TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    match connect() {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => "refused".into(),
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => "nothing".into(),
        Err(error) => error.to_string(),
    }
}

/// A node with two pods, 10.244.0.2 and .3, at 192.0.2.1 on a link to the world at 192.0.2.9.
struct Site {
    a: Pod,
    b: Pod,
    world: Pod,
    table: Table,
    applier: Option<Applier>,
}

impl Site {
    fn new(directory: &Path) -> Self {
        let pod = |name| Pod::new(directory, name);
        Self { a: pod("a"), b: pod("b"), world: pod("world"), table: Table::default(), applier: None }
    }

    /// On the node's own thread.
    fn connect(&mut self) {
        sh("ip link set lo up; ip link add br0 type bridge; ip address add 10.244.0.1/24 dev br0; ip link set br0 up
            ip route add 10.96.0.0/16 dev br0 src 10.244.0.1
            echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv4/conf/br0/route_localnet
            echo 0 > /proc/sys/net/ipv4/conf/all/send_redirects; echo 0 > /proc/sys/net/ipv4/conf/br0/send_redirects");
        for (pod, port, address) in [(&self.a, "pa", "10.244.0.2"), (&self.b, "pb", "10.244.0.3")] {
            let netns = pod.netns.display();
            sh(&format!(
                "ip link add {port} type veth peer name eth0 netns {netns}; ip link set {port} master br0 up
                 bridge link set dev {port} hairpin on
                 nsenter --net={netns} sh -ec 'ip link set lo up; ip link set eth0 up; ip address add {address}/32 dev eth0
                 ip route add 10.244.0.1 dev eth0; ip route add default via 10.244.0.1'"
            ));
        }
        let netns = self.world.netns.display();
        sh(&format!(
            "ip link add up0 type veth peer name eth0 netns {netns}; ip address add 192.0.2.1/24 dev up0; ip link set up0 up
             nsenter --net={netns} sh -ec 'ip link set eth0 up; ip address add 192.0.2.9/24 dev eth0
             ip route add default via 192.0.2.1'"
        ));
        self.a.run(|| serve("a", 8080)).join().unwrap();
        self.b.run(|| serve("b", 8080)).join().unwrap();
        let node = Node { name: "here".into(), pod_cidr: Some("10.244.0.0/24".parse().unwrap()) };
        self.applier = Some(Applier::open(node).unwrap());
    }

    /// Programs service `name`; `endpoints` are addresses, with `@there` for another node.
    fn set(&mut self, name: &str, spec: Value, endpoints: &[&str]) {
        self.set_with_status(name, spec, endpoints, json!({}));
    }

    fn set_with_status(&mut self, name: &str, spec: Value, endpoints: &[&str], status: Value) {
        let service = serde_json::from_value(json!({ "metadata": {}, "spec": spec, "status": status })).unwrap();
        self.program(name, &service, slice(endpoints, "TCP"));
    }

    fn set_protocol(&mut self, name: &str, spec: Value, endpoints: &[&str], protocol: &str) {
        let service = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
        self.program(name, &service, slice(endpoints, protocol));
    }

    fn program(&mut self, name: &str, service: &Service, slice: Arc<EndpointSlice>) {
        let node = Node { name: "here".into(), pod_cidr: None };
        self.table.set(&Key::new("default", name), plan(service, &[slice], &node));
        self.sync();
    }

    fn sync(&mut self) {
        self.applier.as_mut().unwrap().sync(&mut self.table).unwrap();
    }
}

fn slice(endpoints: &[&str], protocol: &str) -> Arc<EndpointSlice> {
    let endpoint = |text: &&str| {
        let (address, node) = text.split_once('@').unwrap_or((text, "here"));
        json!({ "addresses": [address], "nodeName": node })
    };
    let endpoints: Vec<_> = endpoints.iter().map(endpoint).collect();
    let slice = json!({ "metadata": {}, "addressType": "IPv4", "ports": [{ "name": "", "port": 8080, "protocol": protocol }], "endpoints": endpoints });
    Arc::new(serde_json::from_value(slice).unwrap())
}

fn vip(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 96, 0, last], 80))
}

fn spec(last: u8, more: Value) -> Value {
    let mut spec = json!({ "clusterIP": format!("10.96.0.{last}"), "ports": [{ "port": 80 }] });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

fn site(test: impl FnOnce(&mut Site) + Send) {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Site::new(directory.path());
    on_node(|| async {
        site.connect();
        test(&mut site);
    });
}

const A: &str = "10.244.0.2";
const B: &str = "10.244.0.3";

#[test]
fn a_cluster_ip_answers_pods_the_node_and_the_pod_behind_it() {
    cluster_ip("0");
}

/// Bridge netfilter is not ours to switch off; translated packets then take another way through the bridge.
#[test]
fn a_cluster_ip_answers_with_bridge_netfilter_too() {
    cluster_ip("1");
}

fn cluster_ip(bridge_netfilter: &str) {
    site(|site| {
        let setting = Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables");
        if setting.exists() {
            std::fs::write(setting, bridge_netfilter).unwrap();
        }
        site.set("web", spec(5, json!({})), &[B]);
        assert_eq!(site.a.run(|| ask(vip(5))).join().unwrap(), "b saw 10.244.0.2", "another pod");
        assert_eq!(site.b.run(|| ask(vip(5))).join().unwrap(), "b saw 10.244.0.1", "itself, masqueraded");
        assert_eq!(ask(vip(5)), "b saw 10.244.0.1", "the node");
        assert_eq!(site.world.run(|| ask(vip(5))).join().unwrap(), "b saw 10.244.0.1", "the world, masqueraded");
    });
}

#[test]
fn connections_are_spread_over_endpoints_and_follow_changes() {
    site(|site| {
        let spread = |site: &mut Site, endpoints: &[&str]| {
            site.set("web", spec(5, json!({})), endpoints);
            let count = || {
                let mut seen = BTreeMap::new();
                (0..100).for_each(|_| *seen.entry(ask(vip(5))).or_insert(0) += 1);
                seen
            };
            site.a.run(count).join().unwrap()
        };
        let both = spread(site, &[A, B]);
        assert!(both.len() == 2 && both.values().all(|count| *count > 20), "{both:?}");
        assert_eq!(spread(site, &[B]).keys().collect::<Vec<_>>(), ["b saw 10.244.0.2"]);
        assert_eq!(spread(site, &[]).keys().collect::<Vec<_>>(), ["refused"]);
        assert_eq!(spread(site, &[A, B]).len(), 2);
        site.table.set(&Key::new("default", "web"), Vec::new());
        site.sync();
        assert_ne!(ask(vip(5)), "b saw 10.244.0.1");
    });
}

#[test]
fn ports_and_services_without_endpoints_are_refused_to_everyone() {
    site(|site| {
        site.set("web", spec(5, json!({})), &[B]);
        site.set("empty", spec(6, json!({ "ports": [{ "port": 80, "nodePort": 30006 }] })), &[]);
        let other_port = SocketAddr::from(([10, 96, 0, 5], 81));
        for to in [vip(6), other_port, SocketAddr::from(([192, 0, 2, 1], 30006))] {
            assert_eq!(ask(to), "refused", "node to {to}");
            assert_eq!(site.a.run(move || ask(to)).join().unwrap(), "refused", "pod to {to}");
            assert_eq!(site.world.run(move || ask(to)).join().unwrap(), "refused", "world to {to}");
        }
    });
}

#[test]
fn node_ports_answer_at_every_address_of_the_node() {
    site(|site| {
        site.set("web", spec(5, json!({ "ports": [{ "port": 80, "nodePort": 30080 }] })), &[B]);
        let (node, loopback) = (SocketAddr::from(([192, 0, 2, 1], 30080)), SocketAddr::from(([127, 0, 0, 1], 30080)));
        assert_eq!(site.world.run(move || ask(node)).join().unwrap(), "b saw 10.244.0.1", "masqueraded");
        assert_eq!(site.a.run(move || ask(node)).join().unwrap(), "b saw 10.244.0.2");
        assert_eq!(ask(node), "b saw 10.244.0.1");
        assert_eq!(ask(loopback), "b saw 10.244.0.1");
    });
}

#[test]
fn external_traffic_policy_local_keeps_the_client_address_and_the_node() {
    site(|site| {
        let local = json!({ "externalTrafficPolicy": "Local", "externalIPs": ["203.0.113.7"], "ports": [{ "port": 80, "nodePort": 30080 }] });
        let external = SocketAddr::from(([203, 0, 113, 7], 80));
        let node_port = SocketAddr::from(([192, 0, 2, 1], 30080));
        site.set("web", spec(5, local.clone()), &[B, "10.244.9.9@there"]);
        for to in [external, node_port] {
            for _ in 0..10 {
                assert_eq!(site.world.run(move || ask(to)).join().unwrap(), "b saw 192.0.2.9", "{to}");
            }
        }
        site.set("web", spec(5, local), &["10.244.0.3@there"]);
        assert_eq!(site.world.run(move || ask(external)).join().unwrap(), "nothing", "no endpoint on this node");
        assert_eq!(site.a.run(move || ask(external)).join().unwrap(), "b saw 10.244.0.2", "pods get the cluster's");
    });
}

#[test]
fn internal_traffic_policy_local_never_leaves_the_node() {
    site(|site| {
        let local = json!({ "internalTrafficPolicy": "Local" });
        site.set("web", spec(5, local.clone()), &["10.244.0.2@there", B]);
        for _ in 0..10 {
            assert_eq!(site.a.run(|| ask(vip(5))).join().unwrap(), "b saw 10.244.0.2");
        }
        site.set("web", spec(5, local), &["10.244.0.2@there"]);
        assert_eq!(ask(vip(5)), "nothing");
    });
}

#[test]
fn load_balancer_addresses_obey_source_ranges() {
    site(|site| {
        let address = SocketAddr::from(([203, 0, 113, 9], 80));
        let status = json!({ "loadBalancer": { "ingress": [{ "ip": "203.0.113.9" }] } });
        let mut set = |ranges: Value| {
            let spec = spec(5, json!({ "type": "LoadBalancer", "loadBalancerSourceRanges": ranges }));
            site.set_with_status("web", spec, &[B], status.clone());
            site.world.run(move || ask(address)).join().unwrap()
        };
        assert_eq!(set(json!([])), "b saw 10.244.0.1");
        assert_eq!(set(json!(["198.51.100.0/24"])), "nothing");
        assert_eq!(set(json!(["198.51.100.0/24", "192.0.2.0/28"])), "b saw 10.244.0.1");
    });
}

#[test]
fn client_affinity_lasts_until_the_endpoint_goes() {
    site(|site| {
        site.set("web", spec(5, json!({ "sessionAffinity": "ClientIP" })), &[A, B]);
        let answers = |site: &Site| site.world.run(|| (0..20).map(|_| ask(vip(5))).collect::<Vec<_>>()).join().unwrap();
        let bound = answers(site);
        assert!(bound.iter().all(|answer| *answer == bound[0]), "{bound:?}");
        let left = if bound[0].starts_with('a') { B } else { A };
        site.set("web", spec(5, json!({ "sessionAffinity": "ClientIP" })), &[left]);
        let moved = answers(site);
        assert!(moved.iter().all(|answer| *answer != bound[0] && answer.contains("saw")), "{moved:?}");
        // The endpoint comes back; the client stays where it was moved to.
        site.set("web", spec(5, json!({ "sessionAffinity": "ClientIP" })), &[A, B]);
        assert_eq!(answers(site), moved);
    });
}

/// A client with one socket, as resolvers and media servers are.
#[test]
fn udp_clients_follow_the_endpoints_though_their_port_stays() {
    site(|site| {
        for (pod, name) in [(&site.a, "a"), (&site.b, "b")] {
            let serve = move || {
                let socket = UdpSocket::bind("0.0.0.0:8080").unwrap();
                std::thread::spawn(move || {
                    let mut buffer = [0; 16];
                    while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
                        socket.send_to(name.as_bytes(), peer).unwrap();
                    }
                });
            };
            pod.run(serve).join().unwrap();
        }
        let open = || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            socket
        };
        let (client, outside) =
            (Arc::new(site.a.run(open).join().unwrap()), Arc::new(site.world.run(open).join().unwrap()));
        let ask = |socket: &UdpSocket, to: SocketAddr| {
            let mut buffer = [0; 16];
            let answer = socket.send_to(b"?", to).and_then(|_| socket.recv(&mut buffer));
            answer
                .map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned())
                .unwrap_or_else(|_| "nothing".into())
        };
        let udp = json!({ "ports": [{ "port": 80, "nodePort": 30080, "protocol": "UDP" }] });
        let node_port = SocketAddr::from(([192, 0, 2, 1], 30080));
        // Before there is a service the packets are tracked as they are.
        assert_eq!(ask(&client, vip(5)), "nothing");
        for (endpoint, want) in [(A, "a"), (B, "b"), (A, "a")] {
            site.set_protocol("udp", spec(5, udp.clone()), &[endpoint], "UDP");
            assert_eq!(ask(&client, vip(5)), want);
            assert_eq!(ask(&outside, node_port), want);
        }
        site.set_protocol("udp", spec(5, udp), &[], "UDP");
        assert_eq!(ask(&client, vip(5)), "nothing");
    });
}

#[test]
fn a_table_that_someone_else_removed_is_written_anew() {
    site(|site| {
        site.set("web", spec(5, json!({})), &[A]);
        proxy::cleanup().unwrap();
        assert_ne!(ask(vip(5)), "a saw 10.244.0.1");
        site.set("web", spec(5, json!({})), &[B]);
        assert_eq!(ask(vip(5)), "b saw 10.244.0.1");
    });
}

#[test]
fn tens_of_thousands_of_services_load_at_once_and_change_one_by_one() {
    const SERVICES: u32 = 20_000;
    site(|site| {
        let node = Node { name: "here".into(), pod_cidr: None };
        let service = |n: u32| -> Service {
            let address = std::net::Ipv4Addr::from_bits(0x0a61_0000 + n);
            serde_json::from_value(
                json!({ "metadata": {}, "spec": { "clusterIP": address, "ports": [{ "port": 80 }] } }),
            )
            .unwrap()
        };
        let endpoints = [slice(&[A, B], "TCP")];
        for n in 0..SERVICES {
            site.table.set(&Key::new("default", n.to_string()), plan(&service(n), &endpoints, &node));
        }
        let start = Instant::now();
        site.sync();
        let load = start.elapsed();
        let last = SocketAddr::from((IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a61_0000 + SERVICES - 1)), 80));
        sh("ip route add 10.97.0.0/16 dev br0 src 10.244.0.1");
        assert!(ask(last).contains("saw"), "{}", ask(last));
        let mut worst = Duration::ZERO;
        for n in 0..50 {
            let start = Instant::now();
            site.set("one", spec(5, json!({})), if n % 2 == 0 { &[A] } else { &[A, B] });
            worst = worst.max(start.elapsed());
        }
        println!("{SERVICES} services in {load:?}, one change in at most {worst:?}");
        assert!(load < Duration::from_secs(5) && worst < Duration::from_millis(200), "{load:?} {worst:?}");
    });
}

type Reply = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, std::io::Error>;

/// A body that is sent at once, or line by line as the test gives them.
fn body(first: Option<Value>, lines: Option<mpsc::UnboundedReceiver<Value>>) -> http::Response<Reply> {
    use http_body_util::BodyExt;
    let stream = futures::stream::unfold((first, lines), |(first, lines)| async move {
        let (value, lines) = match (first, lines) {
            (Some(value), lines) => (value, lines),
            (None, Some(mut lines)) => (lines.recv().await?, Some(lines)),
            (None, None) => return None,
        };
        let frame = http_body::Frame::data(bytes::Bytes::from(format!("{value}\n")));
        Some((Ok(frame), (None, lines)))
    });
    http::Response::new(http_body_util::StreamBody::new(stream).boxed_unsync())
}

#[test]
fn the_running_proxy_follows_the_api_from_the_first_list_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Site::new(directory.path());
    on_node(|| async {
        site.connect();
        let meta = |name: &str, version: &str, labels: Value| json!({ "name": name, "namespace": "default", "uid": name, "resourceVersion": version, "labels": labels });
        let service = json!({ "metadata": meta("web", "1", json!({})), "spec": spec(5, json!({})) });
        let slice = |version: &str, address: &str| {
            let metadata = meta("web-1", version, json!({ "kubernetes.io/service-name": "web" }));
            json!({ "metadata": metadata, "addressType": "IPv4", "ports": [{ "name": "", "port": 8080 }],
                    "endpoints": [{ "addresses": [address] }] })
        };
        let (change, changes) = mpsc::unbounded_channel();
        let changes = std::sync::Mutex::new(Some(changes));
        let first = slice("1", A);
        let handler = move |request: http::Request<client::Body>| {
            let slices = request.uri().path().ends_with("endpointslices");
            let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let item = if slices { first.clone() } else { service.clone() };
            let response = match (watch, slices) {
                (false, _) => body(Some(json!({ "metadata": { "resourceVersion": "1" }, "items": [item] })), None),
                (true, true) => body(None, changes.lock().unwrap().take()),
                (true, false) => body(None, Some(mpsc::unbounded_channel().1)),
            };
            async move { response }
        };
        let drain = client::Drain::new();
        let informers = client::Informers::new(client::in_process(handler, api::UserInfo::default()), drain.clone());
        let (ready, is_ready) = oneshot::channel();
        let node = Node { name: "here".into(), pod_cidr: Some("10.244.0.0/24".parse().unwrap()) };
        let config = proxy::ProxyConfig::new(node);
        let running = tokio::spawn(proxy::run(config, informers, move || ready.send(()).unwrap(), drain.clone()));
        is_ready.await.unwrap();
        assert_eq!(ask(vip(5)), "a saw 10.244.0.1");
        change.send(json!({ "type": "MODIFIED", "object": slice("2", B) })).unwrap();
        let start = Instant::now();
        while tokio::task::spawn_blocking(|| ask(vip(5))).await.unwrap() != "b saw 10.244.0.1" {
            assert!(start.elapsed() < Duration::from_secs(5), "the change never came");
        }
        drain.cancel();
        running.await.unwrap().unwrap();
        assert_eq!(ask(vip(5)), "b saw 10.244.0.1", "services outlive the proxy");
    });
}

//! Pods on a real bridge: they reach each other, the node and the world, and leave nothing behind.
#![allow(clippy::unwrap_used)] // clippy lets only #[test] functions unwrap, and these tests share theirs.

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use network::{Config, PodNetwork, PortMapping, Protocol};
use support::{Pod, on_node};

const TIMEOUT: Duration = Duration::from_secs(5);

fn config(state: &Path) -> Config {
    let mut config = Config::new("10.244.7.0/24".parse().expect("a prefix"), state);
    config.service_cidr = Some("10.96.0.0/16".parse().expect("a prefix"));
    config
}

/// A server in the current namespace that answers each client with the address it came from.
fn echo(port: u16) -> TcpListener {
    let listener = TcpListener::bind(("0.0.0.0", port)).expect("a free port");
    let accepting = listener.try_clone().expect("a clone");
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = accepting.accept() {
            drop(write!(stream, "{}", peer.ip()));
        }
    });
    listener
}

/// The address the server saw, or why it was not reached.
fn ask(address: impl Into<SocketAddr>) -> String {
    let connect = || {
        let mut stream = TcpStream::connect_timeout(&address.into(), TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    connect().unwrap_or_else(|error| error.to_string())
}

fn sh(script: &str) {
    assert!(Command::new("sh").args(["-ec", script]).status().expect("a shell").success(), "{script}");
}

fn links() -> Vec<String> {
    let entries = std::fs::read_to_string("/proc/thread-self/net/dev").expect("the interfaces");
    let name = |line: &str| line.split_once(':').map(|(name, _)| name.trim().to_owned());
    let mut names: Vec<_> =
        entries.lines().filter_map(name).filter(|name| name != "lo" && !name.starts_with("ifb")).collect();
    names.sort();
    names
}

#[test]
fn pods_reach_each_other_and_the_node_under_their_own_addresses() {
    let state = tempfile::tempdir().unwrap();
    let (a, b) = (Pod::new(state.path(), "a"), Pod::new(state.path(), "b"));
    on_node(|| async {
        let network = PodNetwork::open(config(state.path())).await.unwrap();
        let first = network.attach("a", &a.netns, &[]).await.unwrap();
        let second = network.attach("b", &b.netns, &[]).await.unwrap();
        assert_eq!(first.ips, ["10.244.7.2".parse::<IpAddr>().unwrap()]);
        assert_eq!(first.mac, "0a:58:0a:f4:07:02");
        let _server = b.run(|| echo(80)).join().unwrap();
        let _node = echo(81);
        let to = SocketAddr::from((second.ips[0], 80));
        assert_eq!(a.run(move || ask(to)).join().unwrap(), "10.244.7.2", "pod to pod");
        assert_eq!(a.run(|| ask(([10, 244, 7, 1], 81))).join().unwrap(), "10.244.7.2", "pod to node");
        assert_eq!(ask(to), "10.244.7.1", "node to pod");
        assert_eq!(
            a.run(|| {
                let _l = echo(90);
                ask(([127, 0, 0, 1], 90))
            })
            .join()
            .unwrap(),
            "127.0.0.1",
            "loopback"
        );
    });
}

/// CVE-2020-10749: a pod that sent IPv6 router advertisements became the router of the node and of other pods.
#[test]
fn nobody_takes_routes_from_a_pod() {
    let state = tempfile::tempdir().unwrap();
    let a = Pod::new(state.path(), "a");
    on_node(|| async {
        let network = PodNetwork::open(config(state.path())).await.unwrap();
        network.attach("a", &a.netns, &[]).await.unwrap();
        let read = |interface: &'static str| {
            ["accept_ra", "accept_redirects"]
                .map(|name| std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{interface}/{name}")).unwrap())
        };
        assert_eq!(read("ferry0"), ["0\n", "0\n"]);
        assert_eq!(a.run(move || read("eth0")).join().unwrap(), ["0\n", "0\n"]);
    });
}

/// CVE-2020-8558: what listens on the node's 127.0.0.1 only was reached from pods, as the node routes that network.
#[test]
fn a_pod_does_not_reach_the_nodes_loopback() {
    let state = tempfile::tempdir().unwrap();
    let a = Pod::new(state.path(), "a");
    on_node(|| async {
        let network = PodNetwork::open(config(state.path())).await.unwrap();
        network.attach("a", &a.netns, &[]).await.unwrap();
        let _node = echo(83);
        let asked = a.run(|| {
            // The same packets that a process with CAP_NET_RAW could write itself.
            sh("for i in all eth0; do echo 1 > /proc/sys/net/ipv4/conf/$i/route_localnet; done
                ip route del local 127.0.0.0/8 dev lo table local
                ip route del local 127.0.0.1 dev lo table local
                ip route add 127.0.0.1 via 10.244.7.1 dev eth0 src 10.244.7.2");
            let address = SocketAddr::from(([127, 0, 0, 1], 83));
            TcpStream::connect_timeout(&address, Duration::from_secs(2)).map(drop).map_err(|error| error.kind())
        });
        assert_eq!(asked.join().unwrap(), Err(std::io::ErrorKind::TimedOut));
    });
}

#[test]
fn attaching_and_detaching_can_be_repeated_and_leave_nothing() {
    let state = tempfile::tempdir().unwrap();
    let a = Pod::new(state.path(), "a");
    on_node(|| async {
        let network = PodNetwork::open(config(state.path())).await.unwrap();
        let first = network.attach("a", &a.netns, &[]).await.unwrap();
        assert_eq!(network.attach("a", &a.netns, &[]).await.unwrap(), first);
        // After a crash: the same state, opened again.
        let network = PodNetwork::open(config(state.path())).await.unwrap();
        assert_eq!(network.attach("a", &a.netns, &[]).await.unwrap(), first);
        network.check("a", &a.netns, "eth0").await.unwrap();
        assert_eq!(links(), ["ferry0", first.host_interface.as_str()]);
        network.detach("a", &a.netns).await.unwrap();
        network.detach("a", &a.netns).await.unwrap();
        assert!(network.check("a", &a.netns, "eth0").await.is_err());
        assert_eq!(links(), ["ferry0"]);
        network::remove("ferry0").await.unwrap();
        assert_eq!(links(), Vec::<String>::new());
    });
}

#[test]
fn a_pod_that_vanished_is_released() {
    let state = tempfile::tempdir().unwrap();
    let (a, b) = (Pod::new(state.path(), "a"), Pod::new(state.path(), "b"));
    on_node(|| async {
        let network = PodNetwork::open(config(state.path())).await.unwrap();
        network.attach("a", &a.netns, &[]).await.unwrap();
        let kept = network.attach("b", &b.netns, &[]).await.unwrap();
        network.retain(&["b".to_owned()].into()).await.unwrap();
        assert_eq!(links(), ["ferry0", kept.host_interface.as_str()]);
        assert!(network.attach("c", Path::new("/nonexistent"), &[]).await.is_err());
    });
}

#[test]
fn host_ports_lead_into_the_pod_from_the_node_and_from_the_pod_itself() {
    host_ports("0");
}

/// Others on the machine may need bridge netfilter; translated packets then take another way.
#[test]
fn host_ports_lead_into_the_pod_with_bridge_netfilter_too() {
    host_ports("1");
}

fn host_ports(bridge_netfilter: &str) {
    let state = tempfile::tempdir().expect("a directory");
    let (a, b) = (Pod::new(state.path(), "a"), Pod::new(state.path(), "b"));
    on_node(|| async {
        let network = PodNetwork::open(config(state.path())).await.unwrap();
        let setting = Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables");
        if setting.exists() {
            std::fs::write(setting, bridge_netfilter).unwrap();
        }
        let port = PortMapping { protocol: Protocol::Tcp, host_ip: None, host_port: 8080, container_port: 80 };
        network.attach("a", &a.netns, std::slice::from_ref(&port)).await.unwrap();
        network.attach("b", &b.netns, &[]).await.unwrap();
        let _server = a.run(|| echo(80)).join().unwrap();
        sh("ip link set lo up");
        let node = SocketAddr::from(([10, 244, 7, 1], 8080));
        assert_eq!(b.run(move || ask(node)).join().unwrap(), "10.244.7.3", "another pod");
        assert_eq!(a.run(move || ask(node)).join().unwrap(), "10.244.7.1", "the pod itself, masqueraded");
        assert_eq!(ask(node), "10.244.7.1", "the node");
        assert_eq!(ask(([127, 0, 0, 1], 8080)), "10.244.7.1", "the node's loopback, masqueraded");
        network.detach("a", &a.netns).await.unwrap();
        assert_eq!(ask(node), "Connection refused (os error 111)");
    });
}

/// A second namespace stands for the world beyond the node.
#[test]
fn pods_reach_the_world_under_the_nodes_address_and_with_its_mtu() {
    let state = tempfile::tempdir().unwrap();
    let (a, world) = (Pod::new(state.path(), "a"), Pod::new(state.path(), "world"));
    on_node(|| async {
        let far = format!("nsenter --net={}", world.netns.display());
        sh(
            "ip link add up0 mtu 1400 type veth peer name up1 && ip address add 192.0.2.1/24 dev up0 && ip link set up0 up",
        );
        sh(&format!("ip link set up1 netns {}", world.netns.display()));
        sh(&format!("{far} ip address add 192.0.2.9/24 dev up1 && {far} ip link set up1 up"));
        sh("ip route add default via 192.0.2.9");
        let network = PodNetwork::open(config(state.path())).await.unwrap();
        network.attach("a", &a.netns, &[]).await.unwrap();
        let _server = world.run(|| echo(80)).join().unwrap();
        assert_eq!(a.run(|| ask(([192, 0, 2, 9], 80))).join().unwrap(), "192.0.2.1");
        let mtu = a.run(|| Command::new("ip").args(["link", "show", "eth0"]).output().unwrap()).join().unwrap();
        assert!(String::from_utf8(mtu.stdout).unwrap().contains("mtu 1400"));
    });
}

#[test]
fn the_cni_plugin_adds_checks_and_deletes() {
    let state = tempfile::tempdir().unwrap();
    let a = Pod::new(state.path(), "a");
    let directory = state.path().join("cni");
    on_node(|| async {
        let conf = format!(
            r#"{{ "cniVersion": "1.0.0", "name": "pods", "type": "ferry", "podCidr": "10.244.7.0/24", "stateDir": "{}",
                "runtimeConfig": {{ "portMappings": [{{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }}] }} }}"#,
            directory.display()
        );
        let call = |command: &str| {
            let netns = a.netns.display().to_string();
            let env = |name: &str| match name {
                "CNI_COMMAND" => Some(command.to_owned()),
                "CNI_CONTAINERID" => Some("a".to_owned()),
                "CNI_IFNAME" => Some("net7".to_owned()),
                "CNI_NETNS" => Some(netns.clone()),
                _ => None,
            };
            let mut output = Vec::new();
            let code = network::cni::main(env, conf.as_bytes(), &mut output);
            (code, String::from_utf8(output).unwrap())
        };
        let (code, output) = call("ADD");
        assert_eq!(code, 0, "{output}");
        assert!(output.contains(r#""address":"10.244.7.2/32""#) && output.contains(r#""name":"net7""#), "{output}");
        assert_eq!(call("CHECK"), (0, String::new()));
        let _server = a.run(|| echo(80)).join().unwrap();
        assert_eq!(ask(([10, 244, 7, 1], 8080)), "10.244.7.1");
        assert_eq!(call("DEL"), (0, String::new()));
        assert_eq!(call("DEL"), (0, String::new()));
        assert_eq!(call("CHECK").0, 1);
    });
}

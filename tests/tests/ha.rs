//! High availability: three servers on three etcd members, while any one of either is killed or paused.

#![expect(clippy::indexing_slicing, clippy::print_stderr, reason = "a test may panic, and tells how long things took")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::{EtcdCluster, Server, eventually, start_servers};
use testkit::long;

/// A lease of 15 s runs out, is noticed, caches fill; on a machine that has better things to do.
const FAILOVER_LIMIT: Duration = Duration::from_secs(90);
/// Few addresses and ports, so that servers that choose at the same time choose the same.
const FEW: [&str; 4] = ["--service-cluster-ip-range", "10.96.0.0/25", "--service-node-port-range", "30000-30079"];

struct Cluster {
    etcd: EtcdCluster,
    servers: Vec<Server>,
    rounds: usize,
}

/// What happens to a process.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Pause,
}

#[test]
fn three_servers_on_three_members_go_on_whichever_one_goes() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let etcd = EtcdCluster::start(dir.path(), 3)?;
    let servers = start_servers(dir.path(), 3, &etcd.urls(), &FEW)?;
    let mut cluster = Cluster { etcd, servers, rounds: 0 };
    let outcome = cluster.tell();
    if outcome.is_err() {
        for server in &cluster.servers {
            eprintln!("── {}\n{}", server.advertised, run_tail(&server.dir));
        }
    }
    outcome
}

fn run_tail(dir: &std::path::Path) -> String {
    e2e::run("sh", &["-c", &format!("tail -n 15 {}/log-*", dir.display())]).unwrap_or_default()
}

impl Cluster {
    fn tell(&mut self) -> Result<()> {
        self.share_one_authority()?;
        self.are_all_in_the_endpoints(&[0, 1, 2])?;
        self.read_each_others_writes()?;
        self.never_give_an_address_twice()?;
        self.servers[0].apply("node", NODE)?;
        self.servers[0].kubectl(&["patch", "node", "fake", "--subresource=status", "-p", NODE_STATUS])?;
        self.works("at first")?;
        for fault in [Fault::Kill, Fault::Pause] {
            self.loses_servers(fault)?;
        }
        for (fault, members) in [(Fault::Kill, 0..3), (Fault::Pause, 0..3)] {
            let some = if long() { members } else { 0..2 };
            for member in some {
                self.loses_a_member(fault, member)?;
            }
        }
        self.are_all_in_the_endpoints(&[0, 1, 2])
    }

    fn share_one_authority(&self) -> Result<()> {
        let read = |server: &Server, name: &str| std::fs::read(server.dir.join("pki").join(name));
        for server in &self.servers {
            for name in ["ca.crt", "ca.key", "sa.key"] {
                ensure!(read(server, name)? == read(&self.servers[0], name)?, "{name}");
            }
        }
        let stored = self.etcd.ctl(&["get", "/ferry/pki"])?;
        ensure!(stored.contains("sealed") && !stored.contains("PRIVATE"), "{stored}");
        Ok(())
    }

    /// The `kubernetes` service leads to exactly these servers, whichever server is asked.
    fn are_all_in_the_endpoints(&self, live: &[usize]) -> Result<()> {
        let want: BTreeSet<&str> = live.iter().map(|index| self.servers[*index].advertised.as_str()).collect();
        for (kind, path) in
            [("endpoints", "{.subsets[*].addresses[*].ip}"), ("endpointslices", "{.endpoints[*].addresses[*]}")]
        {
            for index in live {
                eventually(&format!("{kind} are {want:?}"), FAILOVER_LIMIT, || {
                    let template = format!("jsonpath={path}");
                    let found = self.servers[*index].kubectl(&["get", kind, "kubernetes", "-o", &template])?;
                    Ok((found.split(' ').collect::<BTreeSet<_>>() == want).then_some(()))
                })?;
            }
        }
        Ok(())
    }

    /// A write through one server is seen at once through every other.
    fn read_each_others_writes(&self) -> Result<()> {
        for (index, writer) in self.servers.iter().enumerate() {
            let name = format!("written-by-{index}");
            writer.kubectl(&["create", "configmap", &name, "--from-literal", &format!("by={index}")])?;
            for reader in &self.servers {
                let found = reader.kubectl(&["get", "configmap", &name, "-o", "jsonpath={.data.by}"])?;
                ensure!(found == index.to_string(), "{found}");
            }
        }
        Ok(())
    }

    fn never_give_an_address_twice(&self) -> Result<()> {
        const EACH: usize = 20;
        std::thread::scope(|scope| {
            let creating = self.servers.iter().enumerate().map(|(index, server)| {
                scope.spawn(move || {
                    let services = (0..EACH).map(|n| {
                        format!("---\n{{apiVersion: v1, kind: Service, metadata: {{name: s-{index}-{n}}}, spec: {{type: NodePort, ports: [{{port: 80}}]}}}}\n")
                    });
                    server.apply("services", &services.collect::<String>())
                })
            });
            let creating: Vec<_> = creating.collect();
            creating.into_iter().try_for_each(|one| one.join().expect("no panic").map(drop))
        })?;
        let all = |path: &str| -> Result<Vec<String>> {
            let found = self.servers[0].kubectl(&["get", "services", "-o", &format!("jsonpath={path}")])?;
            Ok(found.split_whitespace().map(str::to_owned).collect())
        };
        let (addresses, ports) = (all("{.items[*].spec.clusterIP}")?, all("{.items[*].spec.ports[*].nodePort}")?);
        ensure!(addresses.len() == 3 * EACH + 1 && ports.len() == 3 * EACH, "{addresses:?} {ports:?}");
        ensure!(addresses.iter().collect::<BTreeSet<_>>().len() == addresses.len(), "given twice: {addresses:?}");
        ensure!(ports.iter().collect::<BTreeSet<_>>().len() == ports.len(), "given twice: {ports:?}");
        let held = self.servers[1].kubectl(&["get", "ipaddresses", "-o", "jsonpath={.items[*].metadata.name}"])?;
        ensure!(held.split(' ').collect::<BTreeSet<_>>() == addresses.iter().map(String::as_str).collect(), "{held}");
        // One that is deleted by hand is claimed again for its service.
        let address = self.servers[0].kubectl(&["get", "service", "s-0-0", "-o", "jsonpath={.spec.clusterIP}"])?;
        self.servers[0].kubectl(&["delete", "ipaddress", &address, "--wait=false"])?;
        eventually("the address is claimed again", Duration::from_secs(20), || {
            let path = "jsonpath={.spec.parentRef.name}";
            let holder = self.servers[1].kubectl(&["get", "ipaddress", &address, "-o", path])?;
            Ok((holder == "s-0-0").then_some(()))
        })?;
        // What is deleted is given back, with the service and not later.
        self.servers[2].kubectl(&["delete", "services", "--all", "--wait=false"])?;
        eventually("the addresses are given back", Duration::from_secs(10), || {
            let left = self.etcd.ctl(&["get", "/registry/ipaddresses/", "--prefix", "--keys-only"])?;
            let ports = self.etcd.ctl(&["get", "/registry/ranges/", "--prefix", "--keys-only"])?;
            Ok((left.split_whitespace().count() <= 1 && ports.trim().is_empty()).then_some(()))
        })
    }

    /// Controllers make pods of a new Deployment, the scheduler gives them a node; through every live server.
    fn works(&mut self, when: &str) -> Result<()> {
        let begun = Instant::now();
        let live: Vec<usize> = (0..self.servers.len()).filter(|index| self.is_live(*index)).collect();
        for index in live {
            self.rounds += 1;
            let (server, name) = (&self.servers[index], format!("round-{}", self.rounds));
            eventually("a deployment can be made", FAILOVER_LIMIT, || {
                Ok(server.apply(&name, &DEPLOYMENT.replace("NAME", &name)).ok())
            })?;
            let selector = format!("app={name}");
            eventually(&format!("{when}: pods of {name} are scheduled"), FAILOVER_LIMIT, || {
                let nodes =
                    server.kubectl(&["get", "pods", "-l", &selector, "-o", "jsonpath={.items[*].spec.nodeName}"])?;
                Ok((nodes == "fake fake").then_some(()))
            })?;
        }
        eprintln!("{when}: works after {:.1} s", begun.elapsed().as_secs_f64());
        Ok(())
    }

    fn is_live(&self, index: usize) -> bool {
        self.servers[index].process.as_ref().is_some_and(|process| !process.paused)
    }

    /// The server whose controllers lead.
    fn leader(&self) -> Result<usize> {
        eventually("one server leads", FAILOVER_LIMIT, || {
            let index = (0..self.servers.len()).find(|index| self.is_live(*index)).context("none is left")?;
            let path = "jsonpath={.spec.holderIdentity}";
            let holder = self.servers[index].kubectl(&[
                "-n",
                "kube-system",
                "get",
                "lease",
                "kube-controller-manager",
                "-o",
                path,
            ])?;
            Ok((0..self.servers.len()).find(|index| !holder.is_empty() && self.servers[*index].said(&holder)))
        })
    }

    /// The leader goes, then one that does not lead; with all of them the long version.
    fn loses_servers(&mut self, fault: Fault) -> Result<()> {
        for _ in 0..if long() { 3 } else { 1 } {
            let leader = self.leader()?;
            self.loses_a_server(fault, leader)?;
            let other = (0..3).find(|index| self.leader().is_ok_and(|leader| leader != *index)).context("all lead")?;
            self.loses_a_server(fault, other)?;
        }
        Ok(())
    }

    fn loses_a_server(&mut self, fault: Fault, index: usize) -> Result<()> {
        let what = format!("{fault:?} server {index}");
        match fault {
            Fault::Kill => self.servers[index].process.take().context("it runs")?.kill()?,
            Fault::Pause => self.servers[index].process.as_mut().context("it runs")?.pause()?,
        }
        self.works(&what)?;
        let others: Vec<usize> = (0..3).filter(|other| *other != index).collect();
        self.are_all_in_the_endpoints(&others)?;
        match fault {
            Fault::Kill => self.servers[index].start()?,
            Fault::Pause => self.servers[index].process.as_mut().context("it runs")?.resume()?,
        }
        self.servers[index].ready()?;
        self.are_all_in_the_endpoints(&[0, 1, 2])?;
        self.works(&format!("{what}, and it is back"))
    }

    fn loses_a_member(&mut self, fault: Fault, index: usize) -> Result<()> {
        let what = format!("{fault:?} member {index}");
        match fault {
            Fault::Kill => self.etcd.members[index].process.take().context("it runs")?.kill()?,
            Fault::Pause => self.etcd.members[index].process.as_mut().context("it runs")?.pause()?,
        }
        self.works(&what)?;
        match fault {
            Fault::Kill => self.etcd.members[index].start()?,
            Fault::Pause => self.etcd.members[index].process.as_mut().context("it runs")?.resume()?,
        }
        self.etcd.members[index].healthy()?;
        self.works(&format!("{what}, and it is back"))
    }
}

/// A node nobody stands behind: enough for the scheduler to give pods to.
const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: fake}}";
const NODE_STATUS: &str = r#"{"status":{"allocatable":{"cpu":"64","memory":"64Gi","pods":"500"},"capacity":{"cpu":"64","memory":"64Gi","pods":"500"}}}"#;
const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  replicas: 2
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      tolerations: [{operator: Exists}]
      containers: [{name: main, image: example.com/none}]
";

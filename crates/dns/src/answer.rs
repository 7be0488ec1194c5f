//! What to say to a question. Decides without I/O; sections named in comments are those of the Kubernetes DNS specification.

use std::net::IpAddr;

use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use crate::zone::{Endpoint, Port, Records, Zone, dashed};

/// The version of the specification, which `dns-version` tells.
const VERSION: &str = "1.1.0";
const ARPA_LABELS: usize = 2;

/// A question with its name in lower-case labels; answers repeat the name as it was asked.
pub struct Question {
    pub name: Name,
    pub labels: Vec<String>,
    pub kind: RecordType,
    pub class: DNSClass,
}

impl Question {
    pub fn new(query: &Query) -> Self {
        let lower = query.name().to_lowercase();
        let labels = lower.iter().map(|label| String::from_utf8_lossy(label).into_owned()).collect();
        Self { name: query.name().clone(), labels, kind: query.query_type(), class: query.query_class() }
    }
}

#[derive(Debug, PartialEq)]
pub enum Answer {
    Records {
        code: ResponseCode,
        answers: Vec<Record>,
        additionals: Vec<Record>,
        authorities: Vec<Record>,
    },
    /// An alias to a name outside the cluster: its addresses are to be added.
    Alias {
        alias: Box<Record>,
        target: Name,
    },
    /// Not ours: ask the upstream resolvers.
    Forward,
}

pub fn answer(zone: &Zone, question: &Question) -> Answer {
    if question.class != DNSClass::IN {
        return Answer::Records {
            code: ResponseCode::Refused,
            answers: vec![],
            additionals: vec![],
            authorities: vec![],
        };
    }
    if let Some(relative) = question.labels.strip_suffix(zone.domain.as_slice()) {
        let relative: Vec<_> = relative.iter().map(String::as_str).collect();
        return Answering { zone, question }.resolve(&relative);
    }
    match question.name.parse_arpa_name() {
        Ok(net) if question.labels.len() > ARPA_LABELS => Answering { zone, question }.reverse(net.addr()),
        _ => Answer::Forward,
    }
}

struct Answering<'a> {
    zone: &'a Zone,
    question: &'a Question,
}

/// What a name has: nothing at all, or records of which some may be asked for.
enum Found {
    NoSuchName,
    Data(Vec<RData>, Vec<Record>),
}

impl Answering<'_> {
    fn resolve(&self, relative: &[&str]) -> Answer {
        let found = match relative {
            [] => self.apex(),
            // 2.2
            ["dns-version"] => Found::Data(vec![RData::TXT(TXT::new(vec![VERSION.into()]))], vec![]),
            ["dns"] | ["svc"] | ["pod"] => Found::Data(vec![], vec![]),
            ["ns", "dns"] => self.name_server(),
            [namespace, "svc" | "pod"] => self.exists(self.zone.has_namespace(namespace)),
            [address, namespace, "pod"] => self.pod(address, namespace),
            [name, namespace, "svc"] => match self.zone.service(namespace, name) {
                Some(Records { external_name: Some(target), .. }) => return self.alias(target),
                Some(records) => self.service(records, namespace, name),
                None => Found::NoSuchName,
            },
            [first, name, namespace, "svc"] => self.below_service(first, namespace, name),
            [port, protocol, name, namespace, "svc"] => self.named_port(port, protocol, namespace, name),
            _ => Found::NoSuchName,
        };
        self.respond(found)
    }

    fn exists(&self, exists: bool) -> Found {
        if exists { Found::Data(vec![], vec![]) } else { Found::NoSuchName }
    }

    fn apex(&self) -> Found {
        let server = self.name_of(&["ns", "dns"]);
        Found::Data(vec![RData::SOA(self.soa()), RData::NS(NS(server))], vec![])
    }

    fn name_server(&self) -> Found {
        let records = self.zone.service("kube-system", "kube-dns");
        Found::Data(
            records.into_iter().flat_map(|records| records.cluster_ips.iter().map(address_data)).collect(),
            vec![],
        )
    }

    /// 2.3.1 and 2.4.1; a service's SRV records without naming a port are all of them.
    fn service(&self, records: &Records, namespace: &str, name: &str) -> Found {
        if self.question.kind == RecordType::SRV {
            return self.srv(records, namespace, name, |_| true);
        }
        if !records.is_headless() {
            return Found::Data(records.cluster_ips.iter().map(address_data).collect(), vec![]);
        }
        match records.endpoints.is_empty() {
            true => Found::NoSuchName,
            false => {
                Found::Data(records.endpoints.iter().map(|endpoint| address_data(&endpoint.address)).collect(), vec![])
            }
        }
    }

    /// An endpoint by its name, or the `_tcp` between a service and its ports.
    fn below_service(&self, first: &str, namespace: &str, name: &str) -> Found {
        let Some(records) = self.zone.service(namespace, name) else { return Found::NoSuchName };
        if let Some(protocol) = first.strip_prefix('_') {
            return self.exists(ports(records).any(|port| port.protocol == protocol));
        }
        let endpoints =
            records.endpoints.iter().filter(|endpoint| endpoint.name == first || dashed(endpoint.address) == first);
        let data: Vec<_> = endpoints.map(|endpoint| address_data(&endpoint.address)).collect();
        if data.is_empty() { Found::NoSuchName } else { Found::Data(data, vec![]) }
    }

    /// 2.3.2 and 2.4.2
    fn named_port(&self, port: &str, protocol: &str, namespace: &str, name: &str) -> Found {
        let Some(records) = self.zone.service(namespace, name) else { return Found::NoSuchName };
        let (Some(port), Some(protocol)) = (port.strip_prefix('_'), protocol.strip_prefix('_')) else {
            return Found::NoSuchName;
        };
        self.srv(records, namespace, name, |known| known.name == port && known.protocol == protocol)
    }

    fn srv(&self, records: &Records, namespace: &str, name: &str, wanted: impl Fn(&Port) -> bool) -> Found {
        let mut targets: Vec<(Name, u16, Vec<IpAddr>)> = Vec::new();
        if records.is_headless() {
            for endpoint in &records.endpoints {
                let Endpoint { name: host, address, ports } = endpoint;
                let target = self.name_of(&[host, name, namespace, "svc"]);
                targets.extend(
                    ports.iter().filter(|port| wanted(port)).map(|port| (target.clone(), port.port, vec![*address])),
                );
            }
        } else {
            let target = self.name_of(&[name, namespace, "svc"]);
            let ports = records.ports.iter().filter(|port| wanted(port));
            targets.extend(ports.map(|port| (target.clone(), port.port, records.cluster_ips.clone())));
        }
        if targets.is_empty() {
            return Found::NoSuchName;
        }
        let weight = (100 / targets.len()).max(1) as u16;
        let data = targets.iter().map(|(target, port, _)| RData::SRV(SRV::new(0, weight, *port, target.clone())));
        let mut additionals: Vec<Record> = Vec::new();
        for (target, _, addresses) in &targets {
            for record in addresses.iter().map(|address| self.record(target.clone(), address_data(address))) {
                if !additionals.contains(&record) {
                    additionals.push(record);
                }
            }
        }
        Found::Data(data.collect(), additionals)
    }

    /// 2.6: any address in a namespace that exists, as upstream's default.
    fn pod(&self, address: &str, namespace: &str) -> Found {
        let four = address.replace('-', ".").parse::<IpAddr>();
        let address = four.or_else(|_| address.replace('-', ":").parse::<IpAddr>());
        match address {
            Ok(address) if self.zone.has_namespace(namespace) => Found::Data(vec![address_data(&address)], vec![]),
            _ => Found::NoSuchName,
        }
    }

    /// 2.5
    fn alias(&self, target: &str) -> Answer {
        let Ok(mut target) = Name::from_str_relaxed(target) else { return self.respond(Found::NoSuchName) };
        target.set_fqdn(true);
        let alias = self.record(self.question.name.clone(), RData::CNAME(CNAME(target.clone())));
        match self.question.kind {
            RecordType::A | RecordType::AAAA => Answer::Alias { alias: Box::new(alias), target },
            _ => self.records(ResponseCode::NoError, vec![alias], vec![], vec![]),
        }
    }

    /// 2.3.3 and 2.4.3
    fn reverse(&self, address: IpAddr) -> Answer {
        let names = self.zone.names_of(address);
        if names.is_empty() {
            return Answer::Forward;
        }
        let name_of = |name: &Vec<String>| self.name_of(&name.iter().map(String::as_str).collect::<Vec<_>>());
        let data = names.iter().map(|name| RData::PTR(PTR(name_of(name)))).collect();
        self.respond(Found::Data(data, vec![]))
    }

    /// A name that exists but has nothing of the kind asked for is not an error: the client must not look further.
    fn respond(&self, found: Found) -> Answer {
        let soa = || vec![self.record(self.name_of(&[]), RData::SOA(self.soa()))];
        match found {
            Found::NoSuchName => self.records(ResponseCode::NXDomain, vec![], vec![], soa()),
            Found::Data(data, additionals) => {
                let wanted = |data: &RData| {
                    matches!(self.question.kind, RecordType::ANY) || data.record_type() == self.question.kind
                };
                let answers = data.into_iter().filter(wanted).map(|data| self.record(self.question.name.clone(), data));
                let answers: Vec<_> = answers.collect();
                match answers.is_empty() {
                    true => self.records(ResponseCode::NoError, answers, vec![], soa()),
                    false => self.records(ResponseCode::NoError, answers, additionals, vec![]),
                }
            }
        }
    }

    fn records(
        &self,
        code: ResponseCode,
        answers: Vec<Record>,
        additionals: Vec<Record>,
        authorities: Vec<Record>,
    ) -> Answer {
        Answer::Records { code, answers, additionals, authorities }
    }

    fn record(&self, name: Name, data: RData) -> Record {
        Record::from_rdata(name, self.zone.ttl, data)
    }

    fn soa(&self) -> SOA {
        let (server, mailbox) = (self.name_of(&["ns", "dns"]), self.name_of(&["hostmaster"]));
        SOA::new(server, mailbox, self.zone.serial, 7200, 1800, 86_400, self.zone.ttl)
    }

    /// Labels come from names that were asked for or that Kubernetes has validated, so they fit.
    fn name_of(&self, relative: &[&str]) -> Name {
        let labels = relative.iter().copied().chain(self.zone.domain.iter().map(String::as_str));
        let mut name = Name::from_labels(labels.map(str::as_bytes)).unwrap_or_default();
        name.set_fqdn(true);
        name
    }
}

fn ports(records: &Records) -> impl Iterator<Item = &Port> {
    records.ports.iter().chain(records.endpoints.iter().flat_map(|endpoint| &endpoint.ports))
}

fn address_data(address: &IpAddr) -> RData {
    match address {
        IpAddr::V4(address) => RData::A(A(*address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(*address)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use client::Key;
    use serde_json::{Value, json};

    use super::*;

    fn add(zone: &mut Zone, namespace: &str, name: &str, spec: Value, slices: Vec<Value>) {
        let service = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
        let slices: Vec<_> = slices.into_iter().map(|slice| Arc::new(serde_json::from_value(slice).unwrap())).collect();
        zone.set_namespace(namespace, true);
        zone.set_service(&Key::new(namespace, name), Some(Records::of(&service, &slices)));
    }

    fn zone() -> Zone {
        let mut zone = Zone::new("cluster.local", 5);
        let http = json!([{ "name": "http", "port": 80, "protocol": "TCP" }, { "name": "dns", "port": 53, "protocol": "UDP" }]);
        add(
            &mut zone,
            "default",
            "web",
            json!({ "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5", "fd00::5"], "ports": http }),
            vec![],
        );
        let slice = json!({
            "metadata": {}, "addressType": "IPv4", "ports": [{ "name": "db", "port": 5432 }],
            "endpoints": [
                { "addresses": ["10.244.0.7"], "hostname": "db-0" },
                { "addresses": ["10.244.0.8"] },
                { "addresses": ["10.244.0.9"], "conditions": { "ready": false } },
            ]
        });
        let headless =
            json!({ "clusterIP": "None", "clusterIPs": ["None"], "ports": [{ "name": "db", "port": 5432 }] });
        add(&mut zone, "shop", "db", headless.clone(), vec![slice.clone()]);
        let mut eager = headless.clone();
        eager["publishNotReadyAddresses"] = json!(true);
        add(&mut zone, "shop", "eager", eager, vec![slice]);
        add(&mut zone, "shop", "empty", headless, vec![]);
        add(&mut zone, "shop", "out", json!({ "type": "ExternalName", "externalName": "www.example.org" }), vec![]);
        add(&mut zone, "kube-system", "kube-dns", json!({ "clusterIP": "10.96.0.10" }), vec![]);
        zone
    }

    /// `want` is the records' data, `+` before additional ones; or `NXDOMAIN`, `NODATA`, `FORWARD`.
    #[track_caller]
    fn check(kind: RecordType, name: &str, want: &str) {
        let name = Name::from_str_relaxed(name).unwrap();
        let got = match answer(&zone(), &Question::new(&Query::query(name.clone(), kind))) {
            Answer::Forward => "FORWARD".to_owned(),
            Answer::Alias { target, .. } => format!("alias {target}"),
            Answer::Records { code: ResponseCode::NXDomain, answers, authorities, .. } => {
                assert!(answers.is_empty() && authorities.len() == 1, "an SOA lets clients cache the absence");
                "NXDOMAIN".to_owned()
            }
            Answer::Records { answers, authorities, .. } if answers.is_empty() => {
                assert_eq!(authorities.len(), 1);
                "NODATA".to_owned()
            }
            Answer::Records { answers, additionals, .. } => {
                assert!(answers.iter().all(|record| record.name.eq_case(&name) && record.ttl == 5));
                let additionals = additionals.iter().map(|record| format!("+{} {}", record.name, record.data));
                answers.iter().map(|record| record.data.to_string()).chain(additionals).collect::<Vec<_>>().join(", ")
            }
        };
        assert_eq!(got, want, "{kind} {name}");
    }

    #[test]
    fn services_with_a_cluster_ip() {
        check(RecordType::A, "web.default.svc.cluster.local.", "10.96.0.5");
        check(RecordType::AAAA, "web.default.svc.cluster.local.", "fd00::5");
        check(RecordType::A, "WEB.default.SVC.cluster.LOCAL.", "10.96.0.5");
        check(RecordType::MX, "web.default.svc.cluster.local.", "NODATA");
        check(RecordType::A, "nothing.default.svc.cluster.local.", "NXDOMAIN");
        check(RecordType::A, "web.nowhere.svc.cluster.local.", "NXDOMAIN");
        check(
            RecordType::SRV,
            "_http._tcp.web.default.svc.cluster.local.",
            "0 100 80 web.default.svc.cluster.local., +web.default.svc.cluster.local. 10.96.0.5, \
             +web.default.svc.cluster.local. fd00::5",
        );
        check(RecordType::A, "_http._tcp.web.default.svc.cluster.local.", "NODATA");
        check(RecordType::SRV, "_http._udp.web.default.svc.cluster.local.", "NXDOMAIN");
        check(RecordType::SRV, "http.tcp.web.default.svc.cluster.local.", "NXDOMAIN");
        check(RecordType::A, "_tcp.web.default.svc.cluster.local.", "NODATA");
        check(RecordType::A, "_sctp.web.default.svc.cluster.local.", "NXDOMAIN");
    }

    #[test]
    fn headless_services_and_their_endpoints() {
        check(RecordType::A, "db.shop.svc.cluster.local.", "10.244.0.8, 10.244.0.7");
        check(RecordType::AAAA, "db.shop.svc.cluster.local.", "NODATA");
        check(RecordType::A, "eager.shop.svc.cluster.local.", "10.244.0.8, 10.244.0.9, 10.244.0.7");
        check(RecordType::A, "empty.shop.svc.cluster.local.", "NXDOMAIN");
        check(RecordType::A, "db-0.db.shop.svc.cluster.local.", "10.244.0.7");
        check(RecordType::A, "10-244-0-8.db.shop.svc.cluster.local.", "10.244.0.8");
        check(RecordType::A, "db-9.db.shop.svc.cluster.local.", "NXDOMAIN");
        check(
            RecordType::SRV,
            "_db._tcp.db.shop.svc.cluster.local.",
            "0 50 5432 10-244-0-8.db.shop.svc.cluster.local., 0 50 5432 db-0.db.shop.svc.cluster.local., \
             +10-244-0-8.db.shop.svc.cluster.local. 10.244.0.8, +db-0.db.shop.svc.cluster.local. 10.244.0.7",
        );
    }

    #[test]
    fn external_names_are_aliases() {
        check(RecordType::A, "out.shop.svc.cluster.local.", "alias www.example.org.");
        check(RecordType::CNAME, "out.shop.svc.cluster.local.", "www.example.org.");
    }

    #[test]
    fn addresses_lead_back_to_names() {
        check(RecordType::PTR, "5.0.96.10.in-addr.arpa.", "web.default.svc.cluster.local.");
        check(
            RecordType::PTR,
            "7.0.244.10.in-addr.arpa.",
            "db-0.db.shop.svc.cluster.local., db-0.eager.shop.svc.cluster.local.",
        );
        check(RecordType::A, "5.0.96.10.in-addr.arpa.", "NODATA");
        check(RecordType::PTR, "1.2.0.192.in-addr.arpa.", "FORWARD");
        let six = format!("{}.ip6.arpa.", "5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f");
        check(RecordType::PTR, &six, "web.default.svc.cluster.local.");
    }

    #[test]
    fn pods_by_address() {
        check(RecordType::A, "10-244-0-9.shop.pod.cluster.local.", "10.244.0.9");
        check(RecordType::AAAA, "10-244-0-9.shop.pod.cluster.local.", "NODATA");
        check(RecordType::A, "10-244-0-9.nowhere.pod.cluster.local.", "NXDOMAIN");
        check(RecordType::A, "name.shop.pod.cluster.local.", "NXDOMAIN");
    }

    /// Search lists append the cluster's suffixes to every name: what is not there must be denied at once.
    #[test]
    fn the_rest_of_the_zone_and_the_world() {
        check(RecordType::TXT, "dns-version.cluster.local.", "1.1.0");
        check(RecordType::A, "svc.cluster.local.", "NODATA");
        check(RecordType::A, "default.svc.cluster.local.", "NODATA");
        check(RecordType::A, "nowhere.svc.cluster.local.", "NXDOMAIN");
        check(RecordType::A, "www.example.org.default.svc.cluster.local.", "NXDOMAIN");
        check(RecordType::A, "www.example.org.cluster.local.", "NXDOMAIN");
        check(RecordType::NS, "cluster.local.", "ns.dns.cluster.local.");
        check(RecordType::A, "ns.dns.cluster.local.", "10.96.0.10");
        check(RecordType::A, "cluster.local.", "NODATA");
        check(RecordType::A, "www.example.org.", "FORWARD");
        check(RecordType::A, "notcluster.local.", "FORWARD");
        check(RecordType::A, ".", "FORWARD");
    }

    #[test]
    fn a_service_that_goes_takes_its_names_along() {
        let mut zone = zone();
        zone.set_service(&Key::new("default", "web"), None);
        assert!(zone.names_of("10.96.0.5".parse().unwrap()).is_empty());
        assert!(zone.service("default", "web").is_none());
    }
}

//! What can go wrong between a pod and the wire.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("pod CIDR {0} leaves no address for pods")]
    TooSmall(nft::Ipv4Prefix),
    #[error("no free address in pod CIDR {0}")]
    Exhausted(nft::Ipv4Prefix),
    #[error("cannot use network state {path}")]
    State {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {path}")]
    Sysctl {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot enter network namespace {path}")]
    Namespace {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot open a route socket")]
    Socket(#[source] io::Error),
    #[error("cannot {step} {name}")]
    Link {
        step: &'static str,
        name: String,
        #[source]
        source: Box<rtnetlink::Error>,
    },
    #[error("interface {0} is not there")]
    Missing(String),
    #[error("interface {interface} does not have address {address}")]
    WrongAddress { interface: String, address: Ipv4Addr },
    #[error("cannot program the pod network's packet filter")]
    Firewall(#[from] nft::ApplyError),
}

//! Hands out the addresses of the node's pod CIDR: a file per lease, named by its address.
//!
//! The directory is the only state, changed under a file lock and by renames, so that several processes (CNI calls) and any crash
//! leave it whole. A lease belongs to a sandbox id; claiming again gives the same one. Addresses are reused as late as possible.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use nft::Ipv4Prefix;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::{NetworkError, PortMapping};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) id: String,
    pub(crate) address: Ipv4Addr,
    /// The node's end of the pod's veth pair.
    pub(crate) interface: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<PortMapping>,
}

#[derive(Clone)]
pub(crate) struct Ipam {
    directory: PathBuf,
    prefix: Ipv4Prefix,
}

impl Ipam {
    pub(crate) fn open(state: &Path, prefix: Ipv4Prefix) -> Result<Self, NetworkError> {
        // Network, gateway, broadcast, and at least one pod.
        if prefix.length() > 30 {
            return Err(NetworkError::TooSmall(prefix));
        }
        let directory = state.join("leases");
        fs::create_dir_all(&directory).map_err(|source| NetworkError::State { path: directory.clone(), source })?;
        Ok(Self { directory, prefix })
    }

    /// The first address of the network.
    pub(crate) fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.prefix.address().to_bits() + 1)
    }

    pub(crate) fn claim(&self, id: &str, ports: &[PortMapping]) -> Result<Lease, NetworkError> {
        let _lock = self.lock()?;
        let mut leases = self.leases()?;
        if let Some(mut lease) = take(&mut leases, id) {
            if lease.ports != ports {
                lease.ports = ports.to_vec();
                self.write(&lease)?;
            }
            return Ok(lease);
        }
        let last = self.read_last();
        let taken = |address: &Ipv4Addr| leases.iter().any(|lease| lease.address == *address);
        let address =
            self.candidates(last).find(|address| !taken(address)).ok_or(NetworkError::Exhausted(self.prefix))?;
        let lease = Lease { id: id.to_owned(), address, interface: interface_name(id), ports: ports.to_vec() };
        self.write(&lease)?;
        self.put("last", address.to_string().as_bytes())?;
        Ok(lease)
    }

    pub(crate) fn find(&self, id: &str) -> Result<Option<Lease>, NetworkError> {
        Ok(take(&mut self.leases()?, id))
    }

    /// The lease that was given back, if there was one.
    pub(crate) fn release(&self, id: &str) -> Result<Option<Lease>, NetworkError> {
        let _lock = self.lock()?;
        let Some(lease) = self.find(id)? else { return Ok(None) };
        let path = self.directory.join(lease.address.to_string());
        fs::remove_file(&path).map_err(|source| NetworkError::State { path, source })?;
        Ok(Some(lease))
    }

    pub(crate) fn leases(&self) -> Result<Vec<Lease>, NetworkError> {
        let failed = |source| NetworkError::State { path: self.directory.clone(), source };
        let mut leases = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Some(address) = entry.file_name().to_str().and_then(|name| name.parse::<Ipv4Addr>().ok()) else {
                continue;
            };
            // A file that vanished was released; one that a power loss left unreadable belongs to no pod that still runs.
            let lease = fs::read(entry.path()).ok().and_then(|bytes| serde_json::from_slice::<Lease>(&bytes).ok());
            leases.extend(lease.filter(|lease| lease.address == address && self.prefix.contains(address)));
        }
        leases.sort_by_key(|lease| lease.address);
        Ok(leases)
    }

    /// Every address for pods once, beginning after the one given out last.
    fn candidates(&self, last: Option<Ipv4Addr>) -> impl Iterator<Item = Ipv4Addr> + use<> {
        let (first, end) = (self.gateway().to_bits() + 1, self.prefix.last().to_bits());
        let start = last.map_or(first, |last| last.to_bits() + 1).clamp(first, end);
        (start..end).chain(first..start).map(Ipv4Addr::from_bits)
    }

    fn read_last(&self) -> Option<Ipv4Addr> {
        let text = fs::read_to_string(self.directory.join("last")).ok()?;
        text.parse().ok().filter(|address| self.prefix.contains(*address))
    }

    fn write(&self, lease: &Lease) -> Result<(), NetworkError> {
        let path = self.directory.join(lease.address.to_string());
        let bytes = serde_json::to_vec(lease).map_err(|error| NetworkError::State { path, source: error.into() })?;
        self.put(&lease.address.to_string(), &bytes)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), NetworkError> {
        let (path, temporary) = (self.directory.join(name), self.directory.join(".new"));
        let put = || {
            fs::write(&temporary, bytes)?;
            fs::rename(&temporary, &path)
        };
        put().map_err(|source| NetworkError::State { path: path.clone(), source })
    }

    fn lock(&self) -> Result<Flock<File>, NetworkError> {
        let path = self.directory.join(".lock");
        let failed = |source| NetworkError::State { path: path.clone(), source };
        let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| failed(io::Error::from(errno)))
    }
}

fn take(leases: &mut Vec<Lease>, id: &str) -> Option<Lease> {
    let index = leases.iter().position(|lease| lease.id == id)?;
    Some(leases.swap_remove(index))
}

/// `veth` and eleven digits of the id's FNV-1a hash: the kernel takes fifteen characters.
fn interface_name(id: &str) -> String {
    let hash =
        id.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("veth{:011x}", hash >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs "claim a", "release a", "reopen" and joins what each gives.
    #[track_caller]
    fn check(cidr: &str, script: &[&str], want: &str) {
        let state = tempfile::tempdir().unwrap();
        let prefix = cidr.parse().unwrap();
        let mut ipam = Ipam::open(state.path(), prefix).unwrap();
        let got: Vec<_> = script
            .iter()
            .map(|step| match step.split_once(' ') {
                Some(("claim", id)) => match ipam.claim(id, &[]) {
                    Ok(lease) => format!("{}", lease.address.octets()[3]),
                    Err(error) => error.to_string(),
                },
                Some(("release", id)) => match ipam.release(id).unwrap() {
                    Some(lease) => format!("-{}", lease.address.octets()[3]),
                    None => "none".into(),
                },
                _ => {
                    ipam = Ipam::open(state.path(), prefix).unwrap();
                    "reopened".into()
                }
            })
            .collect();
        assert_eq!(got.join(" "), want);
    }

    #[test]
    fn a_sandbox_keeps_its_address_and_gives_it_back_once() {
        check("10.0.0.0/24", &["claim a", "claim b", "claim a"], "2 3 2");
        check("10.0.0.0/24", &["claim a", "reopen", "claim a"], "2 reopened 2");
        check("10.0.0.0/24", &["claim a", "release a", "release a"], "2 -2 none");
    }

    #[test]
    fn addresses_are_reused_as_late_as_possible() {
        check("10.0.0.0/24", &["claim a", "release a", "claim b"], "2 -2 3");
        check("10.0.0.0/24", &["claim a", "release a", "reopen", "claim b"], "2 -2 reopened 3");
        check(
            "10.0.0.0/29",
            &["claim a", "claim b", "claim c", "claim d", "claim e", "release b", "claim f"],
            "2 3 4 5 6 -3 3",
        );
    }

    #[test]
    fn a_full_network_says_so() {
        check("10.0.0.0/30", &["claim a", "claim b"], "2 no free address in pod CIDR 10.0.0.0/30");
        assert!(Ipam::open(Path::new("/nonexistent"), "10.0.0.0/31".parse().unwrap()).is_err());
    }

    #[test]
    fn files_a_crash_left_behind_are_not_leases() {
        let state = tempfile::tempdir().unwrap();
        let ipam = Ipam::open(state.path(), "10.0.0.0/24".parse().unwrap()).unwrap();
        fs::write(state.path().join("leases/10.0.0.2"), "").unwrap();
        fs::write(state.path().join("leases/.new"), "half").unwrap();
        assert_eq!(ipam.leases().unwrap(), vec![]);
        assert_eq!(ipam.claim("a", &[]).unwrap().address.to_string(), "10.0.0.2");
    }

    #[test]
    fn concurrent_claims_never_share_an_address() {
        let state = tempfile::tempdir().unwrap();
        let ipam = Ipam::open(state.path(), "10.0.0.0/24".parse().unwrap()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let ipam = &ipam;
                scope.spawn(move || (0..10).for_each(|n| drop(ipam.claim(&format!("{thread}-{n}"), &[]).unwrap())));
            }
        });
        let leases = ipam.leases().unwrap();
        let mut addresses: Vec<_> = leases.iter().map(|lease| lease.address).collect();
        addresses.dedup();
        assert_eq!((leases.len(), addresses.len()), (80, 80));
    }

    #[test]
    fn interface_names_fit_the_kernel() {
        let name = interface_name("4f0c2d");
        assert_eq!(name.len(), 15);
        assert_ne!(name, interface_name("4f0c2e"));
    }
}

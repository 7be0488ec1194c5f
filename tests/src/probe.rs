//! Asking a cluster from outside: HTTP, DNS, and a steady load that counts failures.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

const PATIENCE: Duration = Duration::from_secs(2);
/// Shorter than the kernel's first retransmission: an address that is gone drops what is sent to it.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);

/// The first processes of `ferry.local/hello` containers, as the host sees them.
pub fn hello_pids() -> BTreeSet<u32> {
    let mut pids = BTreeSet::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if words.starts_with(b"/ferry\0hello\0") {
            pids.extend(entry.file_name().to_string_lossy().parse::<u32>());
        }
    }
    pids
}

/// One request on a connection of its own; answers the whole response.
pub fn http_get(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
    Ok(text)
}

/// The first A record a DNS server gives for a name.
pub fn dns_a(server: IpAddr, name: &str) -> Result<Option<Ipv4Addr>> {
    let mut query = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.trim_end_matches('.').split('.') {
        query.push(u8::try_from(label.len())?);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, 1, 0, 1]);
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send_to(&query, (server, 53))?;
    let mut buffer = [0_u8; 1500];
    let (length, _) = socket.recv_from(&mut buffer)?;
    let answer = buffer.get(..length).context("answer")?;
    let count = answer.get(6..8).context("header")?;
    if count == [0, 0] {
        return Ok(None);
    }
    let tail = answer.get(query.len()..).context("records")?;
    // Name (a pointer), type, class, ttl, length, then the address.
    let address = tail.get(12..16).context("address")?;
    Ok(Some(Ipv4Addr::from(<[u8; 4]>::try_from(address)?)))
}

/// Requests without a pause from one thread, until stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(usize, Vec<String>)>,
}

impl Load {
    pub fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut answered, mut failures) = (0, Vec::new());
            while !flag.load(Ordering::Relaxed) {
                match http_get(address) {
                    Ok(_) => answered += 1,
                    Err(error) => failures.push(format!("{error:#}")),
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            (answered, failures)
        });
        Self { stop, thread }
    }

    /// How many were answered, and what went wrong.
    pub fn stop(self) -> (usize, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

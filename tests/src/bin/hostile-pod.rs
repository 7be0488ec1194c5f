//! The program in the containers of `tests/hostile.rs` and `tests/pod_security.rs`: most of its commands take from the node all
//! they can get, one reports what the container is allowed.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["sleep"] => sleep(),
        ["report"] => report(),
        ["exit", code] => std::process::exit(code.parse().unwrap()),
        ["eat-memory"] => eat_memory(),
        ["fill", path] => fill(path),
        ["make-files", directory] => make_files(directory),
        ["breed"] => breed(),
        ["flood"] => flood(),
        ["one-line"] => one_line(),
        ["sparse", path, bytes] => sparse(path, bytes.parse().unwrap()),
        ["crash-loudly"] => crash_loudly(),
        ["serve-without-end", port] => serve_without_end(port.parse().unwrap()),
        ["hold-connections", address] => hold_connections(address),
        ["flood-dns", address] => flood_dns(address),
        ref other => {
            println!("unknown command {other:?}");
            std::process::exit(2);
        }
    }
}

fn sleep() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Prints how this process is confined, a line for each fact, and stays.
fn report() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    for name in ["Uid", "NoNewPrivs", "CapBnd", "CapEff", "Seccomp"] {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        println!("{name}: {}", line.split_whitespace().next().unwrap());
    }
    for sysctl in ["net.ipv4.ip_unprivileged_port_start", "net.ipv4.tcp_keepalive_time"] {
        let value = fs::read_to_string(format!("/proc/sys/{}", sysctl.replace('.', "/"))).unwrap();
        println!("{sysctl}: {}", value.trim());
    }
    for directory in ["/", "/v"] {
        let error = File::create(format!("{directory}/probe")).err().map(|error| error.kind());
        if error == Some(std::io::ErrorKind::ReadOnlyFilesystem) {
            println!("{directory}: read-only");
        }
    }
    println!("end of report");
    sleep();
}

/// Touches memory until it is killed.
fn eat_memory() {
    let mut eaten = Vec::new();
    loop {
        eaten.push(vec![1_u8; 16 << 20]);
    }
}

/// Writes to one file for ever; space that somebody frees is taken at once.
fn fill(path: &str) {
    let block = vec![b'x'; 1 << 20];
    let mut file = File::options().append(true).create(true).open(path).unwrap();
    loop {
        for size in [1 << 20, 4096, 1] {
            while file.write_all(&block[..size]).is_ok() {}
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Makes empty files for ever.
fn make_files(directory: &str) {
    for number in 0_u64.. {
        if number % 1000 == 0 {
            let _ = fs::create_dir(format!("{directory}/{}", number / 1000));
        }
        while File::create(format!("{directory}/{}/{number}", number / 1000)).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Every process starts more of itself, for ever.
fn breed() {
    loop {
        let _ = Command::new("/hostile").arg("breed").stdout(Stdio::null()).spawn();
    }
}

/// Writes short lines to both outputs for ever.
fn flood() {
    let lines = b"y\n".repeat(32 << 10);
    std::thread::spawn({
        let lines = lines.clone();
        move || while std::io::stderr().write_all(&lines).is_ok() {}
    });
    while std::io::stdout().write_all(&lines).is_ok() {}
}

/// Writes a line that never ends.
fn one_line() {
    let piece = vec![b'x'; 64 << 10];
    while std::io::stdout().write_all(&piece).is_ok() {}
}

fn sparse(path: &str, bytes: u64) {
    File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
    std::process::exit(1);
}

/// Leaves a long last message in its log, and fails.
fn crash_loudly() {
    let _ = std::io::stdout().write_all(&vec![b'!'; 4 << 20]);
    std::process::exit(1);
}

/// Answers every HTTP request with a body that never ends, but for /headers: with headers that never end.
fn serve_without_end(port: u16) {
    let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
    for mut stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap_or(0);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
            if request[..length].starts_with(b"GET /headers") {
                let line = format!("X-More: {}\r\n", "x".repeat(4000));
                while stream.write_all(line.as_bytes()).is_ok() {}
            }
            let _ = stream.write_all(b"Transfer-Encoding: chunked\r\n\r\n");
            let chunk = [b"10000\r\n".as_slice(), &vec![b'x'; 0x10000], b"\r\n"].concat();
            while stream.write_all(&chunk).is_ok() {}
        });
    }
}

/// Opens connections without end and keeps those that it gets; says nothing on them.
fn hold_connections(address: &str) {
    let mut held = Vec::new();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => held.push(stream),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        if held.len() % 1000 == 0 {
            println!("{} connections", held.len());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Sends DNS queries for names that nobody has, and reads no answer.
fn flood_dns(address: &str) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    for number in 0_u32.. {
        let mut query = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let label = format!("x{number}");
        for label in [label.as_str(), "default", "svc", "cluster", "local"] {
            query.push(u8::try_from(label.len()).unwrap());
            query.extend_from_slice(label.as_bytes());
        }
        query.extend_from_slice(&[0, 0, 1, 0, 1]);
        let _ = socket.send_to(&query, address);
    }
}

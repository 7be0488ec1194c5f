//! The tests' other processes: a shim, a runtime behind a socket, and the program inside the test image.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    match words.as_slice() {
        ["shim", rest @ ..] => runtime::shim_main(rest.iter().map(Into::into)),
        ["serve", root] => serve(PathBuf::from(root)),
        ["echo", rest @ ..] => println!("{}", rest.join(" ")),
        ["both"] => {
            println!("to stdout");
            eprintln!("to stderr");
        }
        ["exit", code] => std::process::exit(code.parse().unwrap()),
        ["sleep"] => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        ["say-and-sleep", text] => {
            println!("{text}");
            loop {
                std::thread::sleep(Duration::from_secs(3600));
            }
        }
        ["exit-after", millis, code] => {
            std::thread::sleep(Duration::from_millis(millis.parse().unwrap()));
            std::process::exit(code.parse().unwrap());
        }
        ["on-term", code] => on_term(code.parse().unwrap()),
        ["env"] => std::env::vars().for_each(|(key, value)| println!("{key}={value}")),
        ["read", path] => match std::fs::read_to_string(path) {
            Ok(text) => print!("{text}"),
            Err(error) => fail(&error.to_string()),
        },
        ["write", path, text] => {
            if let Err(error) = std::fs::write(path, text) {
                fail(&error.to_string());
            }
        }
        // Opening it to empty it fails with the kernel's reason before anything is emptied.
        ["overwrite", path] => match std::fs::OpenOptions::new().write(true).truncate(true).open(path) {
            Ok(_) => println!("overwritten"),
            Err(error) => println!("{:?}", error.kind()),
        },
        ["fill", path] => fill(path),
        ["list", path] => {
            let mut names: Vec<_> =
                std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            println!("{}", names.join(" "));
        }
        ["cat"] => drop(std::io::copy(&mut std::io::stdin(), &mut std::io::stdout())),
        ["ask"] => ask(),
        ["hostname"] => print!("{}", std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap()),
        ["listen", port] => listen(port.parse().unwrap()),
        ["eat", megabytes] => eat(megabytes.parse().unwrap()),
        ["lines", count] => (0..count.parse::<u32>().unwrap()).for_each(|n| println!("line {n}")),
        ["flood"] => flood(),
        ["breed"] => breed(),
        ["unshare"] => {
            let done = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUTS);
            println!("{}", done.err().map_or("ok".to_owned(), |e| e.to_string()));
        }
        other => fail(&format!("unknown command {other:?}")),
    }
}

fn fail(reason: &str) {
    eprintln!("{reason}");
    std::process::exit(1);
}

/// Prints a size and a question on a terminal, and answers its first line.
fn ask() {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).map(|s| format!("{}x{}", s.ws_col, s.ws_row));
    println!("terminal {}", size.unwrap_or_else(|_| "none".to_owned()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).map(|s| format!("{}x{}", s.ws_col, s.ws_row));
    println!("heard {} at {}", line.trim(), size.unwrap_or_else(|_| "none".to_owned()));
}

fn on_term(code: i32) {
    let mut mask = nix::sys::signal::SigSet::empty();
    mask.add(nix::sys::signal::Signal::SIGTERM);
    mask.thread_block().unwrap();
    println!("ready");
    mask.wait().unwrap();
    println!("terminating");
    std::process::exit(code);
}

/// Echoes each connection back.
fn listen(port: u16) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    println!("listening");
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut buffer = [0; 1024];
        while let Ok(read) = stream.read(&mut buffer) {
            if read == 0 || stream.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
    }
}

fn eat(megabytes: usize) {
    let mut eaten = Vec::new();
    for _ in 0..megabytes {
        eaten.push(vec![1u8; 1 << 20]);
    }
    println!("ate {}", eaten.len());
}

/// Appends to a file until it cannot, and says how many MiB it took.
fn fill(path: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
    let block = vec![0; 1 << 20];
    let error = (0..200).map(|n| file.write_all(&block).map_err(|error| (n, error.kind()))).find_map(Result::err);
    println!("{error:?}");
}

/// Writes to both outputs for ever, as fast as it can.
fn flood() {
    let line = [b'y', b'\n'].repeat(32 << 10);
    std::thread::spawn({
        let line = line.clone();
        move || while std::io::stderr().write_all(&line).is_ok() {}
    });
    while std::io::stdout().write_all(&line).is_ok() {}
}

/// Every process starts more of itself, for ever.
fn breed() {
    println!("breeding");
    loop {
        let _ = std::process::Command::new("/helper").arg("breed").stdout(std::process::Stdio::null()).spawn();
    }
}

/// A runtime in a process of its own, so that a test can kill it.
fn serve(root: PathBuf) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let shim = (std::env::current_exe().unwrap(), vec!["shim".into()]);
        let config = runtime::Config {
            root: root.clone(),
            shim,
            network: Arc::new(runtime::NoNetwork),
            registry_ca: None,
            image_limits: Default::default(),
        };
        let opened = runtime::Runtime::open(config).await.unwrap();
        let socket = root.join("cri.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        println!("serving");
        cri::serve_unix(listener, opened, std::future::pending()).await.unwrap();
    });
}

//! Ferry: Kubernetes, whole, in one binary. This crate joins the components; everything they do is in theirs.

mod addons;
mod alone;
mod certs;
mod cli;
mod cluster;
mod control_plane;
mod etcd;
mod hello;
mod image;
mod join;
mod kubeconfig;
mod logging;
mod migrate;
mod node;
mod pki;
mod preflight;
mod progress;
mod reload;
mod remote;
mod renewal;
mod server;
mod shared_pki;
mod snapshot;
mod tool;
mod up;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command};

/// As fast as the C library's is slow: its arenas grow a page at a time, with a call to the kernel for each.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// After so many steps of tasks a worker looks whether anything has come from outside. Steps may be long: a client that asks for little
/// is not to wait for sixty of those who ask for much.
const POLLS_PER_LOOK: u32 = 16;

fn main() -> ExitCode {
    // A shim must be single-threaded from its first instruction, and a CNI call is answered before anything is set up.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == "shim") {
        runtime::shim_main(arguments);
    }
    if std::env::var_os("CNI_COMMAND").is_some() {
        return cni();
    }
    let cli = Cli::parse();
    allow_many_files();
    let mut workers = tokio::runtime::Builder::new_multi_thread();
    workers.enable_all().event_interval(POLLS_PER_LOOK).on_thread_start(threads::be_prompt);
    let outcome = workers.build().map_err(anyhow::Error::from);
    match outcome.and_then(|runtime| runtime.block_on(run(cli))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "\nferry: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A thousand open files, as shells allow, are a thousand connections: takes as many as it may have.
fn allow_many_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    // Where it is refused, what there is must do.
    let _ = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    logging::init(cli.verbosity, cli.vmodule.as_deref(), matches!(cli.command, Command::Up(_)));
    match cli.command {
        Command::Up(options) => up::run(options).await,
        Command::Server(options) => server::run(options).await,
        Command::Snapshot(options) => snapshot::run(options).await,
        Command::Migrate(options) => migrate::run(options).await,
        Command::Apiserver(options) => alone::apiserver(options).await,
        Command::ControllerManager(options) => alone::controller_manager(options).await,
        Command::Scheduler(options) => alone::scheduler(options).await,
        Command::Kubelet(options) => alone::kubelet(options).await,
        Command::Proxy(options) => alone::proxy(options).await,
        Command::Runtime(options) => alone::runtime(options).await,
        Command::Store(options) => etcd::run(options).await,
        Command::Dns(options) => alone::dns(options).await,
        Command::Certs(options) => certs::run(&options),
        Command::Image(options) => image::run(options).await,
        Command::Hello(options) => hello::run(options).await,
        Command::Tool(options) => tool::run(options).await,
    }
}

fn cni() -> ExitCode {
    let code = network::cni::main(|name| std::env::var(name).ok(), std::io::stdin(), std::io::stdout());
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

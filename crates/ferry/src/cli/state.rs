//! The flags of commands about the cluster's state: snapshots, moving between stores, how etcd is reached.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// How an etcd is reached, by the API server's flag names.
#[derive(Args, Clone)]
pub(crate) struct Etcd {
    /// An etcd cluster, or `ferry store`: `https://host:2379`, `unix:///path`; several with commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) etcd_servers: Vec<String>,
    /// Verifies the etcd servers' certificates
    #[arg(long)]
    pub(crate) etcd_cafile: Option<PathBuf>,
    #[arg(long)]
    pub(crate) etcd_certfile: Option<PathBuf>,
    #[arg(long)]
    pub(crate) etcd_keyfile: Option<PathBuf>,
}

#[derive(Args, Clone)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

#[derive(Subcommand, Clone)]
pub(crate) enum SnapshotCommand {
    /// Save the state of a cluster, running or not, to a file
    Save {
        file: PathBuf,
        /// The cluster whose state is saved
        #[arg(long, default_value = "/var/lib/ferry")]
        data_dir: PathBuf,
        /// A `ferry store` instead: `http://host:2379`, `unix:///path`; several with commas
        #[arg(long, value_delimiter = ',')]
        endpoints: Vec<String>,
        #[arg(long)]
        cacert: Option<PathBuf>,
        #[arg(long)]
        cert: Option<PathBuf>,
        #[arg(long)]
        key: Option<PathBuf>,
    },
    /// Verify a file and tell what it holds
    Status {
        file: PathBuf,
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Make the state of a new cluster from a file, saved by `ferry` or by `etcdctl`
    Restore {
        file: PathBuf,
        /// Where the cluster will live; it must have no state yet
        #[arg(long, default_value = "/var/lib/ferry")]
        data_dir: PathBuf,
        /// How far above the snapshot's revision the cluster goes on: more than was written after it was taken
        #[arg(long, default_value_t = store::snapshot::REVISION_BUMP, value_parser = clap::value_parser!(i64).range(1..))]
        bump_revision: i64,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}

#[derive(Args, Clone)]
pub(crate) struct Migrate {
    /// Where the state goes; it comes from the other one
    #[arg(long, value_enum)]
    pub(crate) to: Engine,
    /// The cluster with the embedded store; nothing may run on it
    #[arg(long, default_value = "/var/lib/ferry")]
    pub(crate) data_dir: PathBuf,
    #[command(flatten)]
    pub(crate) etcd: Etcd,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    Embedded,
    Etcd,
}

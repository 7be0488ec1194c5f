//! Generates etcd's messages and both ends of its services from `proto/`, without protoc.

use std::{env, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/rpc.proto", "proto/kv.proto"], ["proto"])?;
    // Keys and values are shared with the store, not copied. Passwords stay out of Debug.
    tonic_prost_build::configure()
        .bytes(".")
        .skip_debug([".etcdserverpb.AuthenticateRequest"])
        .compile_fds(descriptors)?;

    let served = PathBuf::from(env::var("OUT_DIR")?).join("served");
    fs::create_dir_all(&served)?;
    tonic_prost_build::configure()
        .bytes(".")
        .build_client(false)
        .out_dir(served)
        .extern_path(".etcdserverpb.WatchRequest", "crate::etcd::proto::etcdserverpb::WatchRequest")
        .extern_path(".etcdserverpb.ResponseHeader", "crate::etcd::proto::etcdserverpb::ResponseHeader")
        .compile_fds(protox::compile(["proto/served/watch.proto"], ["proto/served"])?)?;
    Ok(())
}

//! Generates etcd's messages and both ends of its services from `proto/`, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/rpc.proto", "proto/kv.proto"], ["proto"])?;
    // Keys and values are shared with the store, not copied. Passwords stay out of Debug.
    tonic_prost_build::configure()
        .bytes(".")
        .skip_debug([".etcdserverpb.AuthenticateRequest"])
        .compile_fds(descriptors)?;
    Ok(())
}

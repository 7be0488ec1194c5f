//! Generates the CRI messages and both service ends from `proto/runtime.proto`, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/runtime.proto");
    let descriptors = protox::compile(["proto/runtime.proto"], ["proto"])?;
    // Ordered maps, as in the Kubernetes types, so that labels compare and encode the same every time. Credentials stay out of Debug.
    tonic_prost_build::configure().btree_map(".").skip_debug([".runtime.v1.AuthConfig"]).compile_fds(descriptors)?;
    Ok(())
}

//! Tells the linker to make the binary small: equal functions once, relative relocations packed.

#[allow(clippy::print_stdout)]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is =
        |name: &str, wanted: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).is_ok_and(|value| value == wanted);
    // There Rust links with its own lld, which knows these.
    if is("ARCH", "x86_64") && is("OS", "linux") && is("ENV", "gnu") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        println!("cargo::rustc-link-arg-bins=-Wl,--pack-dyn-relocs=relr");
    }
}

//! The default system call filter, as classic BPF written by hand: what every CRI runtime calls `RuntimeDefault`.
//!
//! An allow list, so that calls a later kernel adds stay forbidden: they answer EPERM, and calls beyond the newest
//! we know ENOSYS, so that programs fall back. Some calls come with the capability that governs them.

use std::io;

use nix::libc::{self, c_long};
use oci_spec::runtime::{Capability, LinuxCapabilities};

use self::table::{ALLOWED, WITH_CAPABILITY};

mod table;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_ABOVE: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const JUMP_BITS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const DENY: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const UNKNOWN: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

#[cfg(target_arch = "x86_64")]
const OUR_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const OUR_ARCHITECTURE: u32 = 0xc000_00b7;

/// Every flag of `clone` that makes a namespace.
const NAMESPACE_FLAGS: u32 = 0x7e02_0000;
const AF_VSOCK: u32 = libc::AF_VSOCK as u32;
const AF_ALG: u32 = libc::AF_ALG as u32;
/// Execution domains that cannot widen what a program may do.
const PERSONALITIES: [u32; 5] = [0, 0x0008, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Installs the filter on this process, for good. Needs CAP_SYS_ADMIN or `no_new_privs`.
pub(super) fn apply(capabilities: &LinuxCapabilities) -> io::Result<()> {
    let held = |capability: Capability| capabilities.bounding().as_ref().is_some_and(|set| set.contains(&capability));
    let mut filter = program(&held);
    let length = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: the program and the instructions it points to live until the call returns.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The instructions. Jumps are relative and short, so each call is decided where it is compared.
fn program(held: &dyn Fn(Capability) -> bool) -> Vec<libc::sock_filter> {
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let answer = |k| step(RETURN, k, 0, 0);
    let mut out = vec![
        step(LOAD, ARCHITECTURE, 0, 0),
        step(JUMP_EQUAL, OUR_ARCHITECTURE, 1, 0),
        answer(DENY),
        step(LOAD, NUMBER, 0, 0),
    ];
    let administrator = held(Capability::SysAdmin);
    if !administrator {
        // clone: without namespaces. clone3 hides its flags from us; with ENOSYS libraries use clone.
        out.extend([
            step(JUMP_EQUAL, libc::SYS_clone as u32, 0, 4),
            step(LOAD, FIRST_ARGUMENT, 0, 0),
            step(JUMP_BITS, NAMESPACE_FLAGS, 0, 1),
            answer(DENY),
            answer(ALLOW),
            step(JUMP_EQUAL, libc::SYS_clone3 as u32, 0, 1),
            answer(UNKNOWN),
        ]);
    }
    out.extend([
        step(JUMP_EQUAL, libc::SYS_socket as u32, 0, 5),
        step(LOAD, FIRST_ARGUMENT, 0, 0),
        step(JUMP_EQUAL, AF_VSOCK, 2, 0),
        step(JUMP_EQUAL, AF_ALG, 1, 0),
        answer(ALLOW),
        answer(DENY),
    ]);
    out.push(step(JUMP_EQUAL, libc::SYS_personality as u32, 0, PERSONALITIES.len() as u8 + 3));
    out.push(step(LOAD, FIRST_ARGUMENT, 0, 0));
    let last = PERSONALITIES.len() as u8;
    out.extend(PERSONALITIES.iter().zip(0u8..).map(|(domain, at)| step(JUMP_EQUAL, *domain, last - at, 0)));
    out.extend([answer(DENY), answer(ALLOW)]);
    let extra = WITH_CAPABILITY.iter().filter(|(capability, _)| held(*capability)).flat_map(|(_, calls)| calls.iter());
    let mut calls: Vec<u32> = ALLOWED.iter().chain(extra).map(|call: &c_long| *call as u32).collect();
    if administrator {
        calls.extend([libc::SYS_clone as u32, libc::SYS_clone3 as u32]);
    }
    calls.sort_unstable();
    calls.dedup();
    for (from, to) in ranges(&calls) {
        // Below the range: no later one fits either, as they ascend. Inside: allowed.
        out.push(step(JUMP_ABOVE, to, 3, 0));
        out.push(step(JUMP_ABOVE, from.saturating_sub(1), 0, u8::from(from > 0)));
        out.push(answer(ALLOW));
        out.push(answer(DENY));
    }
    out.push(answer(UNKNOWN));
    out
}

/// Runs of consecutive numbers.
fn ranges(sorted: &[u32]) -> Vec<(u32, u32)> {
    let mut out: Vec<(u32, u32)> = Vec::new();
    for call in sorted {
        match out.last_mut() {
            Some((_, to)) if *to + 1 == *call => *to = *call,
            _ => out.push((*call, *call)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &dyn Fn(Capability) -> bool = &|_| false;
    const ALL: &dyn Fn(Capability) -> bool = &|_| true;

    #[test]
    fn the_default_filter_decides_as_documented() {
        check(NONE, libc::SYS_read, 0, ALLOW);
        check(NONE, libc::SYS_execve, 0, ALLOW);
        check(NONE, libc::SYS_mount, 0, DENY);
        check(NONE, libc::SYS_bpf, 0, DENY);
        check(NONE, libc::SYS_kexec_load, 0, DENY);
        check(NONE, libc::SYS_clone, 0x11, ALLOW);
        check(NONE, libc::SYS_clone, libc::CLONE_NEWUSER as u64, DENY);
        check(NONE, libc::SYS_clone3, 0, UNKNOWN);
        check(NONE, libc::SYS_socket, libc::AF_INET as u64, ALLOW);
        check(NONE, libc::SYS_socket, u64::from(AF_VSOCK), DENY);
        check(NONE, libc::SYS_socket, u64::from(AF_ALG), DENY);
        check(NONE, libc::SYS_personality, 0, ALLOW);
        check(NONE, libc::SYS_personality, 0xffff_ffff, ALLOW);
        check(NONE, libc::SYS_personality, 0x0040_0000, DENY);
        check(NONE, 5000, 0, UNKNOWN);
        check(ALL, libc::SYS_mount, 0, ALLOW);
        check(ALL, libc::SYS_clone3, 0, ALLOW);
        check(ALL, libc::SYS_clone, libc::CLONE_NEWUSER as u64, ALLOW);
    }

    /// Interprets the program as the kernel would.
    #[track_caller]
    fn check(held: &dyn Fn(Capability) -> bool, call: c_long, argument: u64, want: u32) {
        let program = program(held);
        let (mut at, mut accumulator) = (0usize, 0u32);
        loop {
            let step = program[at];
            at += 1;
            match step.code {
                LOAD => {
                    accumulator = match step.k {
                        NUMBER => call as u32,
                        ARCHITECTURE => OUR_ARCHITECTURE,
                        _ => argument as u32,
                    }
                }
                RETURN => return assert_eq!(step.k, want, "call {call} argument {argument:#x}"),
                code => {
                    let holds = match code {
                        JUMP_EQUAL => accumulator == step.k,
                        JUMP_ABOVE => accumulator > step.k,
                        _ => accumulator & step.k != 0,
                    };
                    at += usize::from(if holds { step.jt } else { step.jf });
                }
            }
        }
    }
}

//! How soon a thread gets its processor, and how soon it gives it back.
//!
//! The kernel lets a thread run until its slice is used up, or, if nothing happens before, until the next tick of its clock, which is longer
//! than most requests take. Who wakes up meanwhile gets the processor at once if its own slice is shorter.

#![allow(unsafe_code)]

use std::time::Duration;

use nix::libc;

/// As short and as long as the kernel lets them be. Kernels before 6.12 know of neither, and nothing is lost there.
const SHORT: Duration = Duration::from_micros(100);
const LONG: Duration = Duration::from_millis(100);
const NICEST: i32 = 19;

/// What a thread starts begins with the usual slice (`SCHED_FLAG_RESET_ON_FORK`).
const NOT_INHERITED: u64 = 1;

/// What `sched_setattr(2)` takes, in its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// This thread does a little at a time, and is to begin with it at once.
pub fn be_prompt() {
    set(0, SHORT);
}

/// This thread has much to do, and time for it: whoever else wants its processor gets it, whatever they are.
pub fn be_patient() {
    set(NICEST, LONG);
}

fn set(nice: i32, slice: Duration) {
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        flags: NOT_INHERITED,
        nice,
        runtime: u64::try_from(slice.as_nanos()).unwrap_or_default(),
        ..Attributes::default()
    };
    // SAFETY: the kernel reads as many bytes as `size` says, which is the size of this structure, and keeps none of them.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if done != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "a thread runs as it was started");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_told() {
        for (begin, nice, slice) in [(be_prompt as fn(), 0, SHORT), (be_patient, 19, LONG)] {
            let told = std::thread::spawn(move || {
                begin();
                let (mut now, size) = (Attributes::default(), size_of::<Attributes>());
                // SAFETY: the kernel writes at most as many bytes as it is told the structure has.
                let asked = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) };
                (asked, now.nice, now.runtime)
            });
            let (asked, is_nice, runtime) = told.join().unwrap();
            assert_eq!((asked, is_nice), (0, nice));
            // Older kernels tell nothing.
            assert!(runtime == 0 || u128::from(runtime) == slice.as_nanos(), "{runtime}");
        }
    }
}

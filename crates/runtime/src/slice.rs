//! How long a thread keeps its processor while others want it.

use std::time::Duration;

use nix::libc;

/// As short as the kernel lets it be. Whoever wakes up preempts a thread that has used up its slice, and otherwise waits for a tick of the
/// clock, which is longer than most requests take.
const SHORT: Duration = Duration::from_micros(100);

/// Containers and other threads begin with the usual slice (`SCHED_FLAG_RESET_ON_FORK`).
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

/// This thread takes its processor for a short time at once. Kernels before 6.12 do not know of it, and nothing is lost there.
pub fn short_slice() {
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        flags: NOT_INHERITED,
        runtime: u64::try_from(SHORT.as_nanos()).unwrap_or_default(),
        ..Attributes::default()
    };
    // SAFETY: the kernel reads as many bytes as `size` says, which is the size of this structure, and keeps none of them.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if done != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "a thread keeps the usual slice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_told() {
        let told = std::thread::spawn(|| {
            short_slice();
            let mut now = Attributes::default();
            // SAFETY: the kernel writes at most as many bytes as it is told the structure has.
            let asked = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size_of::<Attributes>(), 0) };
            (asked, now.runtime, now.nice)
        });
        let (asked, runtime, nice) = told.join().unwrap();
        assert_eq!((asked, nice), (0, 0));
        // Older kernels tell nothing.
        assert!(runtime == 0 || runtime == 100_000, "{runtime}");
    }
}

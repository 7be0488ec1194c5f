//! Memory that only the start of a process needs.

use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use rustix::mm::{Advice, madvise};

/// After so long everybody has found everybody else, and what follows a start is done.
const SETTLED: Duration = Duration::from_secs(5);

/// Lets go of the code of a start, and of what the start has set off when that is done.
pub async fn forget_start() {
    forget_code();
    tokio::time::sleep(SETTLED).await;
    forget_code();
}

/// Lets go of this program's code as far as it is in memory: what is run again is there again at a touch, and most of a start never is.
fn forget_code() {
    // Without /proc there is nothing to find, and nothing lost.
    let Ok(maps) = std::fs::File::open("/proc/self/maps") else { return };
    let Ok(program) = std::fs::read_link("/proc/self/exe") else { return };
    let Some(program) = program.to_str() else { return };
    for (start, length) in BufReader::new(maps).lines().map_while(Result::ok).filter_map(|line| code(&line, program)) {
        // SAFETY: the range is a private mapping of a file that nobody can write to: neither through the mapping, nor, while
        // it runs, on disk. What is dropped is read from the file again, the same.
        let forgotten = unsafe { madvise(start as *mut std::ffi::c_void, length, Advice::LinuxDontNeed) };
        if let Err(error) = forgotten {
            tracing::debug!(%error, "code of the start is kept");
        }
    }
}

/// The range of a line of /proc/self/maps, if it maps code of `program`.
fn code(line: &str, program: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_code = words.next()? == "r-xp" && line.ends_with(program);
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    is_code.then(|| Some((start, end.checked_sub(start)?)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_the_program_is_found() {
        let line = |perms: &str, path: &str| format!("7f0000001000-7f0000003000 {perms} 00a8d000 fe:00 1234    {path}");
        assert_eq!(code(&line("r-xp", "/bin/ferry"), "/bin/ferry"), Some((0x7f00_0000_1000, 0x2000)));
        for (perms, path) in
            [("r--p", "/bin/ferry"), ("rw-p", "/bin/ferry"), ("r-xp", "/lib/libc.so"), ("r-xp", "[vdso]")]
        {
            assert_eq!(code(&line(perms, path), "/bin/ferry"), None, "{perms} {path}");
        }
    }

    #[test]
    fn code_that_was_forgotten_still_runs() {
        forget_code();
        assert_eq!((1..=10_u64).product::<u64>(), 3_628_800);
    }
}

//! What `ferry up` shows while it starts: a line per component, with its time.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

pub(crate) struct Progress {
    started: Instant,
    color: bool,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), color: std::io::stderr().is_terminal() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// One component is up; `took` is its own time.
    pub(crate) fn done(&self, what: &str, took: Duration, note: &str) {
        let (green, dim, reset) = if self.color { ("\x1b[32m", "\x1b[2m", "\x1b[0m") } else { ("", "", "") };
        self.line(&format!("  {green}✔{reset} {what:<18} {:>7}  {dim}{note}{reset}", human(took)));
    }

    pub(crate) fn line(&self, text: &str) {
        // A closed terminal is no reason to stop a cluster.
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    pub(crate) fn bold(&self, text: &str) -> String {
        if self.color { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

pub(crate) fn human(time: Duration) -> String {
    match time.as_millis() {
        ms if ms < 1000 => format!("{ms} ms"),
        _ => format!("{:.2} s", time.as_secs_f64()),
    }
}

//! Takes over changed configurations of authentication and authorization while the server runs.
//!
//! A file that cannot be used leaves everything as it is. One that names an issuer who does not answer is tried again, as is
//! one that cannot be read; one that is wrong is not, until it changes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::settings::AuthError;
use crate::file_watch::FileWatch;
use crate::server::ApiServer;

/// After which a change that may yet be taken over is tried again.
const RETRY: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
enum What {
    Authentication,
    Authorization,
}

/// A file that is followed: what it said when it was last taken over, and what became of its changes.
#[derive(Default)]
pub(crate) struct Reloads {
    file: Option<Followed>,
    text: Mutex<Vec<u8>>,
    /// Taken over, and not.
    counts: [AtomicU64; 2],
    seconds: [AtomicI64; 2],
}

struct Followed {
    path: PathBuf,
    watch: FileWatch,
}

impl Reloads {
    /// Begins to watch, then reads, so that no change is missed.
    pub(super) fn of(path: &Path) -> Result<Self, AuthError> {
        let failed = |error| AuthError::Read(path.to_owned(), error);
        let watch = FileWatch::new(path).map_err(failed)?;
        let text = std::fs::read(path).map_err(failed)?;
        let file = Some(Followed { path: path.to_owned(), watch });
        Ok(Self { file, text: Mutex::new(text), ..Self::default() })
    }

    /// What was read last.
    pub(super) fn text(&self) -> Vec<u8> {
        self.text.lock().clone()
    }

    fn note(&self, taken: bool) {
        let ([good, bad], [good_at, bad_at]) = (&self.counts, &self.seconds);
        let (count, at) = if taken { (good, good_at) } else { (bad, bad_at) };
        count.fetch_add(1, Ordering::Relaxed);
        at.store(jiff::Timestamp::now().as_second(), Ordering::Relaxed);
    }
}

/// Follows both files for as long as the server is there.
pub(crate) fn start(server: &Arc<ApiServer>) {
    for what in [What::Authentication, What::Authorization] {
        if reloads(server, what).file.is_some() {
            tokio::spawn(server.drain.clone().run_until_cancelled_owned(follow(server.clone(), what)));
        }
    }
}

fn reloads(server: &ApiServer, what: What) -> &Reloads {
    match what {
        What::Authentication => &server.authenticator.reloads,
        What::Authorization => &server.authorizer.reloads,
    }
}

async fn follow(server: Arc<ApiServer>, what: What) {
    let own = reloads(&server, what);
    let Some(file) = &own.file else { return };
    let events = match file.watch.events() {
        Ok(events) => events,
        Err(error) => return tracing::error!(?what, %error, "a configuration cannot be followed"),
    };
    let mut refused = Vec::new();
    let mut again = false;
    loop {
        let retry = async {
            match again {
                true => tokio::time::sleep(RETRY).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            seen = events.changed() => if seen.is_err() { return },
            () = retry => (),
        }
        let text = std::fs::read(&file.path).map_err(|error| AuthError::Read(file.path.clone(), error));
        if text.as_ref().is_ok_and(|text| *text == *own.text.lock() || *text == refused) {
            again = false;
            continue;
        }
        let taken = match &text {
            Ok(text) => take_over(&server, what, text).await,
            Err(error) => Err(Refused { error: error.to_string(), again: true }),
        };
        own.note(taken.is_ok());
        match (taken, text) {
            (Ok(()), text) => {
                again = false;
                *own.text.lock() = text.unwrap_or_default();
                tracing::info!(?what, "a changed configuration is in use");
            }
            (Err(why), text) => {
                again = why.again;
                refused = text.ok().filter(|_| !again).unwrap_or_default();
                tracing::error!(?what, error = why.error, "a changed configuration cannot be used");
            }
        }
    }
}

struct Refused {
    error: String,
    /// It may be good yet.
    again: bool,
}

async fn take_over(server: &ApiServer, what: What, text: &[u8]) -> Result<(), Refused> {
    let settings = &server.config.auth;
    let wrong = |error: AuthError| Refused { error: error.to_string(), again: false };
    match what {
        What::Authorization => {
            let modes = settings.configured_modes(text).map_err(wrong)?;
            server.authorizer.modes.store(Arc::new(modes));
        }
        What::Authentication => {
            let (issuers, anonymous) = settings.configured_issuers(text).map_err(wrong)?;
            if anonymous != server.authenticator.anonymous.configured {
                let error = "anonymous: Forbidden: changed from initial configuration file".to_owned();
                return Err(Refused { error, again: false });
            }
            for issuer in &issuers {
                issuer.check().await.map_err(|error| Refused { error: error.to_string(), again: true })?;
            }
            server.authenticator.issuers.store(Arc::new(issuers));
        }
    }
    Ok(())
}

/// Under upstream's names.
pub(crate) fn metrics(server: &ApiServer, text: &mut String) {
    for (what, name) in [(What::Authentication, "authentication"), (What::Authorization, "authorization")] {
        let own = reloads(server, what);
        if own.file.is_none() {
            continue;
        }
        let name = format!("apiserver_{name}_config_controller");
        let _ = writeln!(
            text,
            "# HELP {name}_automatic_reloads_total Changes of the file, taken over or not.\n# TYPE {name}_automatic_reloads_total counter"
        );
        for (status, count) in ["success", "failure"].iter().zip(&own.counts) {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}_automatic_reloads_total{{status=\"{status}\"}} {count}");
        }
        let last = format!("{name}_automatic_reload_last_timestamp_seconds");
        let _ = writeln!(text, "# HELP {last} When the file last changed.\n# TYPE {last} gauge");
        for (status, seconds) in ["success", "failure"].iter().zip(&own.seconds) {
            let seconds = seconds.load(Ordering::Relaxed);
            if seconds != 0 {
                let _ = writeln!(text, "{last}{{status=\"{status}\"}} {seconds}");
            }
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, &own.text.lock());
        let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(
            text,
            "# HELP {name}_last_config_info The file in use, by its hash.\n# TYPE {name}_last_config_info gauge\n{name}_last_config_info{{hash=\"sha256:{hash}\"}} 1"
        );
    }
}

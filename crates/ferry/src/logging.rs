//! Log levels as Kubernetes' users know them: `--v` for all, `--vmodule` for single modules.

use std::sync::OnceLock;

use tracing_subscriber::{
    Layer as _, Registry,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    reload,
    util::SubscriberInitExt as _,
};

/// What is let through, to be changed while it runs.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Libraries are heard one level later than these.
const OURS: [&str; 13] = [
    "ferry",
    "apiserver",
    "client",
    "controllers",
    "cri",
    "dns",
    "kubelet",
    "network",
    "nft",
    "proxy",
    "runtime",
    "scheduler",
    "store",
];

/// `quiet` keeps the screen for the progress of `ferry up`; warnings still show.
pub(crate) fn init(verbosity: u8, vmodule: Option<&str>, quiet: bool) {
    let asked = std::env::var("FERRY_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = asked.unwrap_or_else(|| targets(verbosity, vmodule, quiet));
    let (filter, handle) = reload::Layer::new(filter);
    let _ = FILTER.set(handle);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
}

/// As if the process had been started with this `--v`, and no word about modules.
pub(crate) fn set_verbosity(verbosity: u8) {
    if let Some(filter) = FILTER.get()
        && let Err(error) = filter.reload(targets(verbosity, None, false))
    {
        tracing::error!(%error, "the levels of the log cannot be changed");
    }
}

fn targets(verbosity: u8, vmodule: Option<&str>, quiet: bool) -> Targets {
    let silent = quiet && verbosity == 0;
    let ours = if silent { LevelFilter::ERROR } else { level(verbosity) };
    let others = match verbosity {
        6.. => ours,
        _ if silent => LevelFilter::ERROR,
        _ => LevelFilter::WARN,
    };
    let modules = vmodule.into_iter().flat_map(|text| text.split(',')).filter_map(|pair| pair.split_once('='));
    let modules = modules.map(|(module, number)| (module, level(number.parse().unwrap_or(u8::MAX))));
    Targets::new().with_default(others).with_targets(OURS.map(|name| (name, ours))).with_targets(modules)
}

fn level(verbosity: u8) -> LevelFilter {
    match verbosity {
        0 | 1 => LevelFilter::WARN,
        2 => LevelFilter::INFO,
        3 | 4 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn verbosity_is_of_ours_first_and_of_a_module_if_asked() {
        check(targets(0, None, true), "store", Level::ERROR);
        check(targets(0, None, false), "store", Level::WARN);
        check(targets(4, None, false), "store", Level::DEBUG);
        check(targets(4, None, false), "h2", Level::WARN);
        check(targets(6, None, false), "h2", Level::TRACE);
        check(targets(0, Some("h2=2,proxy=4"), false), "proxy", Level::DEBUG);
        check(targets(0, Some("h2=2,proxy=4"), false), "h2", Level::INFO);
        check(targets(0, Some("nonsense"), false), "h2", Level::WARN);
    }

    #[track_caller]
    fn check(targets: Targets, target: &str, most: Level) {
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        let heard = levels.into_iter().rfind(|level| targets.would_enable(target, level));
        assert_eq!(heard, Some(most), "{target}");
    }
}

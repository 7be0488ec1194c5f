//! Log levels as Kubernetes' users know them: `--v` for all, `--vmodule` for single modules.

use tracing_subscriber::EnvFilter;

/// `quiet` keeps the screen for the progress of `ferry up`; warnings still show.
pub(crate) fn init(verbosity: u8, vmodule: Option<&str>, quiet: bool) {
    let level = match (verbosity, quiet) {
        (0, true) => "error",
        (0 | 1, _) => "warn",
        (2, _) => "info",
        (3 | 4, _) => "debug",
        _ => "trace",
    };
    // Libraries are heard one level later than we are.
    let others = if verbosity >= 6 { level } else { "warn" };
    let ours = [
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
    let mut directives: Vec<String> = ours.iter().map(|name| format!("{name}={level}")).collect();
    directives.insert(0, if quiet && verbosity == 0 { "error".into() } else { others.into() });
    for pair in vmodule.into_iter().flat_map(|text| text.split(',')) {
        if let Some((module, number)) = pair.split_once('=') {
            let level = match number.parse::<u8>() {
                Ok(0 | 1) => "warn",
                Ok(2) => "info",
                Ok(3 | 4) => "debug",
                _ => "trace",
            };
            directives.push(format!("{module}={level}"));
        }
    }
    let filter = EnvFilter::try_from_env("FERRY_LOG").unwrap_or_else(|_| EnvFilter::new(directives.join(",")));
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

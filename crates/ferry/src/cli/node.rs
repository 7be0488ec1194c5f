//! The kubelet's flags that bound what pods take of their node. `ferry up` and `ferry kubelet` both have them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use api::quantity::Quantity;
use clap::Args;
use kubelet::{LogLimits, SysctlAllowlist, Thresholds};

/// Resources that --system-reserved and --kube-reserved can name.
const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];

#[derive(Args, Clone)]
#[command(next_help_heading = "Node")]
pub(crate) struct NodeLimits {
    /// Sysctls beside the safe ones that pods may set: names, or patterns such as `net.core.*`. Only sysctls of a network or IPC
    /// namespace can be allowed
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) allowed_unsafe_sysctls: Vec<String>,
    /// Size at which a container's log is rotated
    #[arg(long, default_value = "10Mi", value_name = "QUANTITY")]
    pub(crate) container_log_max_size: String,
    /// Log files kept for a container, the current one included; at least 2
    #[arg(long, default_value_t = 5, value_name = "NUMBER")]
    pub(crate) container_log_max_files: usize,
    /// Thresholds at which pods are evicted, such as `memory.available<100Mi,nodefs.available<10%`; a signal that is not named evicts
    /// nobody. By default the kubelet's; `ferry up` shares its disk with its user and evicts at 5% instead of 10% and 15%
    #[arg(long, value_name = "THRESHOLDS")]
    pub(crate) eviction_hard: Option<String>,
    /// How long a node stays under pressure, as its conditions say, after the resource has recovered
    #[arg(long, value_parser = super::auth::duration, default_value = "5m0s", value_name = "DURATION")]
    pub(crate) eviction_pressure_transition_period: Duration,
    /// Processes and threads that one pod may have; -1 sets no limit for a single pod
    #[arg(long, default_value_t = -1, allow_negative_numbers = true, value_name = "NUMBER")]
    pub(crate) pod_max_pids: i64,
    /// Resources kept for the operating system: `cpu=500m,memory=1Gi,ephemeral-storage=1Gi,pid=1000`
    #[arg(long, value_delimiter = ',', value_name = "RESOURCES")]
    pub(crate) system_reserved: Vec<String>,
    /// Resources kept for Kubernetes itself, in addition to --system-reserved
    #[arg(long, value_delimiter = ',', value_name = "RESOURCES")]
    pub(crate) kube_reserved: Vec<String>,
}

impl NodeLimits {
    /// Sets these limits in a kubelet's configuration.
    ///
    /// # Errors
    /// A flag has a value that is refused, in upstream's words where upstream has it.
    pub(crate) fn apply(&self, config: kubelet::Config) -> Result<kubelet::Config> {
        let mut reserved = BTreeMap::new();
        for (flag, pairs) in [("--system-reserved", &self.system_reserved), ("--kube-reserved", &self.kube_reserved)] {
            add_reserved(&mut reserved, pairs).context(flag)?;
        }
        let given = self.eviction_hard.as_deref().map(str::parse::<Thresholds>).transpose();
        let eviction = given.context("--eviction-hard")?.unwrap_or(config.eviction);
        Ok(kubelet::Config {
            sysctls: SysctlAllowlist::with(&self.allowed_unsafe_sysctls)?,
            logs: self.logs()?,
            eviction,
            eviction_transition: self.eviction_pressure_transition_period,
            pod_max_pids: u64::try_from(self.pod_max_pids).ok().filter(|most| *most > 0),
            reserved,
            ..config
        })
    }

    fn logs(&self) -> Result<LogLimits> {
        let (size, max_files) = (&self.container_log_max_size, self.container_log_max_files);
        let quantity = Quantity::parse(size)
            .with_context(|| format!("--container-log-max-size: failed to parse container log max size {size:?}"))?;
        let max_bytes = u64::try_from(quantity.value()).ok().filter(|bytes| *bytes > 0);
        // Upstream turns rotation off for a negative size; a log without bounds would fill the node.
        let max_bytes =
            max_bytes.with_context(|| format!("--container-log-max-size: {size} is not a positive size"))?;
        ensure!(max_files > 1, "--container-log-max-files: invalid MaxFiles {max_files}, must be > 1");
        Ok(LogLimits { max_bytes, max_files })
    }
}

fn add_reserved(reserved: &mut BTreeMap<String, Quantity>, pairs: &[String]) -> Result<()> {
    for pair in pairs {
        let (name, amount) = pair.split_once('=').with_context(|| format!("{pair:?} is not NAME=QUANTITY"))?;
        if !RESERVABLE.contains(&name) {
            bail!("cannot reserve {name:?} resource");
        }
        let quantity =
            Quantity::parse(amount).with_context(|| format!("failed to parse quantity {amount:?} for {name:?}"))?;
        ensure!(!quantity.is_negative(), "resource quantity for {name:?} cannot be negative: {amount}");
        let sum = reserved.get(name).copied().unwrap_or(Quantity::from_whole(0)).plus(quantity);
        reserved.insert(name.to_owned(), sum);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        limits: NodeLimits,
    }

    fn limits(words: &str) -> NodeLimits {
        Flags::parse_from(["kubelet"].into_iter().chain(words.split_whitespace())).limits
    }

    #[test]
    fn the_defaults_are_those_of_the_kubelet() {
        let defaults = limits("");
        assert_eq!(defaults.logs().unwrap(), LogLimits::default());
        assert_eq!(defaults.eviction_hard, None);
        assert_eq!(u64::try_from(defaults.pod_max_pids).ok(), None);
    }

    #[test]
    fn log_limits_that_bound_nothing_are_refused() {
        let check =
            |words: &str, want: &str| assert_eq!(limits(words).logs().unwrap_err().to_string(), want, "{words}");
        check("--container-log-max-files=1", "--container-log-max-files: invalid MaxFiles 1, must be > 1");
        check("--container-log-max-size=-1", "--container-log-max-size: -1 is not a positive size");
        check("--container-log-max-size=0", "--container-log-max-size: 0 is not a positive size");
        check(
            "--container-log-max-size=ten",
            "--container-log-max-size: failed to parse container log max size \"ten\"",
        );
    }

    #[test]
    fn reservations_add_up() {
        let sum = |pairs: &[&str]| -> Result<BTreeMap<String, Quantity>> {
            let mut reserved = BTreeMap::new();
            let pairs: Vec<String> = pairs.iter().map(ToString::to_string).collect();
            add_reserved(&mut reserved, &pairs).map(|()| reserved)
        };
        let want = BTreeMap::from([("memory".to_owned(), Quantity::from_bytes(3 << 30))]);
        assert_eq!(sum(&["memory=1Gi", "memory=2Gi"]).unwrap(), want);
        for (pair, why) in [
            ("memory", "\"memory\" is not NAME=QUANTITY"),
            ("gpu=1", "cannot reserve \"gpu\" resource"),
            ("cpu=-1", "resource quantity for \"cpu\" cannot be negative: -1"),
            ("cpu=x", "failed to parse quantity \"x\" for \"cpu\""),
        ] {
            assert_eq!(sum(&[pair]).unwrap_err().to_string(), why, "{pair}");
        }
    }
}

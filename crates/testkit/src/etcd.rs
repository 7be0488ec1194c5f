//! What tests must know of etcd's releases.

use std::path::Path;
use std::process::Command;

/// Whether a member of this release keeps what it acknowledged when it is killed under load. 3.5.0 to 3.5.2 do not
/// (etcd-io/etcd#13766): a history with such a kill in it says nothing about us.
pub fn etcd_survives_kills(binary: &Path) -> bool {
    let told = Command::new(binary).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let told = String::from_utf8_lossy(&told);
    let version = told.lines().find_map(|line| line.strip_prefix("etcd Version: ")).unwrap_or_default();
    !is_forgetful(version)
}

fn is_forgetful(version: &str) -> bool {
    matches!(version.trim(), "3.5.0" | "3.5.1" | "3.5.2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_releases_are_known_to_forget() {
        for (version, forgetful) in
            [("3.4.23", false), ("3.5.1", true), ("3.5.2\n", true), ("3.5.21", false), ("", false)]
        {
            assert_eq!(is_forgetful(version), forgetful, "{version}");
        }
    }
}

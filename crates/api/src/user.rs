//! Who a request is made by, as authentication established it.

use std::collections::BTreeMap;

/// A user as authentication sees it; authorization, admission and audit decide on nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// A user known by name and groups alone; every authenticated user is also in `system:authenticated`.
    pub fn authenticated(name: impl Into<String>, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        groups.push("system:authenticated".into());
        Self { name: name.into(), groups, ..Self::default() }
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

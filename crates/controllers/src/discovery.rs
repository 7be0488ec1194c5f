//! Which resources the API server serves, for controllers that work on all of them.

use kube::core::ApiResource;
use kube::discovery::{ApiCapabilities, Discovery, Scope, verbs};

#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) resource: ApiResource,
    pub(crate) namespaced: bool,
    verbs: ApiCapabilities,
}

impl Served {
    pub(crate) fn supports(&self, all: &[&str]) -> bool {
        all.iter().all(|verb| self.verbs.supports_operation(verb))
    }
}

/// The preferred version of every resource that can be listed and deleted.
pub(crate) async fn deletable(client: &kube::Client) -> kube::Result<Vec<Served>> {
    let discovery = Discovery::new(client.clone()).run().await?;
    let all = discovery.groups().flat_map(|group| group.recommended_resources());
    let served = all.map(|(resource, verbs)| Served { resource, namespaced: verbs.scope == Scope::Namespaced, verbs });
    Ok(served.filter(|served| served.supports(&[verbs::LIST, verbs::DELETE])).collect())
}

//! What an expression may ask about permissions; who calls the language answers.

/// Decides what a user may do. Answers at once: who must ask another server does so before, or evaluates again after.
pub trait Authorizer {
    fn authorize(&self, check: &Check) -> Decision;
}

/// One question. Without a path it is about a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Check {
    /// Instead of the user of the request.
    pub service_account: Option<(String, String)>,
    pub path: Option<String>,
    pub verb: String,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: String,
    pub label_selector: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
    pub error: Option<String>,
}

//! Who may ask for certificates, approve them and sign them: upstream's three admission plugins for signing requests.

use api::{ApiError, Object, ObjectExt as _};

use crate::auth::{Access, decide};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::{ApiServer, store_error};
use crate::strategy;

/// The signer whose certificates the API server itself believes.
const API_CLIENTS: &str = "kubernetes.io/kube-apiserver-client";

pub(super) fn is_request(served: &Served) -> bool {
    served.info.group == "certificates.k8s.io" && served.info.plural == "certificatesigningrequests"
}

/// A new request is in the name of who sends it, and nobody is made an administrator that way.
pub(super) fn admit(served: &Served, context: &Context, request: &mut Object) -> Result<(), ApiError> {
    strategy::set_requester(request, &context.user);
    let signer = request.text(&["spec", "signerName"]);
    if signer == API_CLIENTS && strategy::asks_for_group(request, "system:masters") {
        let why = format!("use of {API_CLIENTS} signer with system:masters group is not allowed");
        return Err(ApiError::forbidden(served.group_resource(), request.name(), why));
    }
    Ok(())
}

/// Approving takes leave of the signer beside leave to write; so does writing a status, which is what signing is.
pub(super) async fn authorize(server: &ApiServer, served: &Served, context: &Context) -> Result<(), ApiError> {
    let info = &context.info;
    // A request that was made a moment ago must not pass for none.
    server.feed.current().await.map_err(store_error)?;
    let verb = if info.subresource == "approval" { "approve" } else { "sign" };
    let stored = served.cache.as_ref().and_then(|cache| cache.get(&info.name));
    let Some(signer) = stored.map(|stored| stored.decode().text(&["spec", "signerName"]).to_owned()) else {
        return Ok(());
    };
    let domain = signer.split('/').next().unwrap_or_default();
    for name in [&signer, &format!("{domain}/*")] {
        let asked = Access {
            is_resource: true,
            verb,
            group: "certificates.k8s.io",
            resource: "signers",
            name,
            ..Access::default()
        };
        if decide(server, &context.user, &asked).await.is_allowed() {
            return Ok(());
        }
    }
    let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
    Err(ApiError::forbidden(served.group_resource(), &info.name, why))
}

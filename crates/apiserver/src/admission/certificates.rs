//! CertificateApproval, CertificateSigning, CertificateSubjectRestriction: who may approve and sign requests, and that
//! nobody becomes an administrator by asking.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::auth::{Access, decide};
use crate::server::ApiServer;
use crate::strategy;

const GROUP: &str = "certificates.k8s.io";
/// The signer whose certificates the API server itself believes.
const API_CLIENTS: &str = "kubernetes.io/kube-apiserver-client";

fn is_part(attributes: &Attributes<'_>, subresource: &str) -> bool {
    attributes.is_of(GROUP, "certificatesigningrequests")
        && attributes.subresource == subresource
        && attributes.operation == Operation::Update
}

/// The signer must be one the user may do this for, by its name or by its domain.
async fn authorize(server: &Arc<ApiServer>, attributes: &Attributes<'_>, verb: &str) -> Result<(), ApiError> {
    let (Some(user), Some(old)) = (attributes.user(), attributes.old) else { return Ok(()) };
    let signer = old.text(&["spec", "signerName"]);
    let domain = format!("{}/*", signer.split('/').next().unwrap_or_default());
    for name in [signer, &domain] {
        let access = Access {
            is_resource: true,
            verb,
            group: GROUP,
            version: "*",
            resource: "signers",
            name,
            ..Access::default()
        };
        if decide(server, user, &access).await.is_allowed() {
            return Ok(());
        }
    }
    Err(attributes.forbidden(format!("user not permitted to {verb} requests with signerName {signer:?}")))
}

pub(super) struct Approval;

#[async_trait]
impl Plugin for Approval {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        is_part(attributes, "approval")
    }

    async fn validate(&self, server: &Arc<ApiServer>, attributes: &Attributes<'_>, _: &Object) -> Result<(), ApiError> {
        authorize(server, attributes, "approve").await
    }
}

pub(super) struct Signing;

#[async_trait]
impl Plugin for Signing {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        is_part(attributes, "status")
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        new: &Object,
    ) -> Result<(), ApiError> {
        let changed = |field: &str| new.at(&["status", field]) != attributes.old.and_then(|o| o.at(&["status", field]));
        match changed("certificate") || changed("conditions") {
            true => authorize(server, attributes, "sign").await,
            false => Ok(()),
        }
    }
}

pub(super) struct SubjectRestriction;

#[async_trait]
impl Plugin for SubjectRestriction {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.creates(GROUP, "certificatesigningrequests")
    }

    async fn validate(
        &self,
        _: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        request: &Object,
    ) -> Result<(), ApiError> {
        let signer = request.text(&["spec", "signerName"]);
        if signer == API_CLIENTS && strategy::asks_for_group(request, "system:masters") {
            let why = format!("use of {API_CLIENTS} signer with system:masters group is not allowed");
            return Err(attributes.forbidden(why));
        }
        Ok(())
    }
}

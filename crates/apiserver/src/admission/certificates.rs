//! CertificateApproval, CertificateSigning, CertificateSubjectRestriction, ClusterTrustBundleAttest: who may approve and sign
//! requests, who may vouch for a signer's roots, and that nobody becomes an administrator by asking.

use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _, UserInfo};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::auth::{Access, decide, escalation};
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
async fn is_authorized(server: &Arc<ApiServer>, user: &UserInfo, verb: &str, signer: &str) -> bool {
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
            return true;
        }
    }
    false
}

async fn authorize(server: &Arc<ApiServer>, attributes: &Attributes<'_>, verb: &str) -> Result<(), ApiError> {
    let (Some(user), Some(old)) = (attributes.user(), attributes.old) else { return Ok(()) };
    let signer = old.text(&["spec", "signerName"]);
    match is_authorized(server, user, verb, signer).await {
        true => Ok(()),
        false => Err(attributes.forbidden(format!("user not permitted to {verb} requests with signerName {signer:?}"))),
    }
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
        if signer != API_CLIENTS {
            return Ok(());
        }
        let subject = strategy::requested_subject(request);
        let subject = subject.ok_or_else(|| attributes.forbidden("failed to parse CSR".to_owned()))?;
        if subject.organizations.iter().any(|group| group == "system:masters") {
            let why = format!("use of {API_CLIENTS} signer with system:masters group is not allowed");
            return Err(attributes.forbidden(why));
        }
        Ok(())
    }
}

/// Active whatever upstream's feature gate would say, because the resource is served.
pub(super) struct ClusterTrustBundleAttest;

#[async_trait]
impl Plugin for ClusterTrustBundleAttest {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let written = matches!(attributes.operation, Operation::Create | Operation::Update);
        written && attributes.is_of(GROUP, "clustertrustbundles")
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        bundle: &Object,
    ) -> Result<(), ApiError> {
        let signer = bundle.text(&["spec", "signerName"]);
        let Some(user) = attributes.user().filter(|_| !signer.is_empty()) else { return Ok(()) };
        let moved_only = attributes.old.is_some_and(|old| escalation::is_for_gc(bundle, old));
        if moved_only || is_authorized(server, user, "attest", signer).await {
            return Ok(());
        }
        Err(attributes.forbidden(format!("user not permitted to attest for signerName {signer:?}")))
    }
}

//! The chain of authorizers, asked in order until one knows.

use api::UserInfo;
use arc_swap::ArcSwap;

use super::abac::Abac;
use super::reload::Reloads;
use super::webhook::AccessWebhook;
use super::{Access, Decision, Verdict};
use crate::server::ApiServer;

pub(crate) struct Authorizer {
    /// Replaced when the file that names them changes.
    pub(super) modes: ArcSwap<Vec<Mode>>,
    pub(super) reloads: Reloads,
}

pub(super) enum Mode {
    Node,
    Rbac,
    Abac(Abac),
    Webhook(AccessWebhook),
    AlwaysAllow,
    AlwaysDeny,
}

impl Authorizer {
    pub(super) async fn decide(&self, server: &ApiServer, user: &UserInfo, access: &Access<'_>) -> Decision {
        // Those no policy can lock out.
        if user.in_group("system:masters") {
            return Decision::allow("");
        }
        let mut reasons = Vec::new();
        for mode in self.modes.load_full().iter() {
            let decision = match mode {
                Mode::Node => server.node_authorizer.decide(user, access),
                Mode::Rbac => server.rbac.decide(user, access),
                Mode::Abac(abac) => abac.decide(user, access),
                Mode::Webhook(webhook) => webhook.decide(user, access).await,
                Mode::AlwaysAllow => Decision::allow(""),
                Mode::AlwaysDeny => Decision::no_opinion("Everything is forbidden."),
            };
            if decision.verdict != Verdict::NoOpinion {
                return decision;
            }
            reasons.extend(Some(decision.reason).filter(|reason| !reason.is_empty()));
        }
        Decision::no_opinion(reasons.join("\n"))
    }

    /// Why the rules of a user cannot all be told.
    pub(crate) fn untold(&self, user: &UserInfo) -> Option<&'static str> {
        self.modes.load().iter().find_map(|mode| match mode {
            Mode::Node if super::node::identity(user).is_some() => {
                Some("node authorizer does not support user rule resolution")
            }
            Mode::Webhook(_) => Some("webhook authorizer does not support user rule resolution"),
            _ => None,
        })
    }

    pub(crate) fn has_rbac(&self) -> bool {
        self.modes.load().iter().any(|mode| matches!(mode, Mode::Rbac))
    }
}

//! Admission webhooks: somebody else judges or changes what is written.
//!
//! [`Webhooks`] keeps them as they are configured, read once, and follows their changes; [`mutating`] and [`validating`]
//! put requests to them; [`review`] is what is said and heard. Nothing of this happens for what the server does on its own.

pub(super) mod mutating;
mod review;
pub(super) mod validating;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{ApiError, Object, ObjectExt as _};
use parking_lot::RwLock;
use serde_json::Value;

use self::review::Answer;
use super::match_conditions::MatchConditions;
use super::policy::GROUP;
use super::rules::{self, Criteria, Matched, strings};
use super::{Attributes, Operation};
use crate::convert;
use crate::outbound::{Logins, Outbound, OutboundError};
use crate::pipeline::Context;
use crate::registry::{Registry, Served};
use crate::server::ApiServer;
use crate::storage::{Follower, Step, Stored};

/// Where a configuration does not say how long to wait.
const DEFAULT_TIMEOUT: u64 = 10;

/// The webhooks of one kind, in the order of their configurations' names.
pub(crate) struct Webhooks(RwLock<State>);

struct State {
    /// As whom they are asked.
    logins: Arc<Logins>,
    follower: Option<Follower>,
    known: BTreeMap<String, Vec<Arc<Hook>>>,
    hooks: Arc<[Arc<Hook>]>,
}

impl Webhooks {
    pub(crate) fn new(registry: &Registry, plural: &str, logins: Arc<Logins>) -> Self {
        let cache = registry.stored(GROUP, plural).and_then(|served| served.cache.clone());
        let follower = cache.map(Follower::new);
        Self(RwLock::new(State { logins, follower, known: BTreeMap::new(), hooks: Arc::new([]) }))
    }

    /// What is configured now.
    fn hooks(&self) -> Arc<[Arc<Hook>]> {
        {
            let state = self.0.read();
            if state.follower.as_ref().is_none_or(Follower::is_current) {
                return state.hooks.clone();
            }
        }
        let mut state = self.0.write();
        let State { logins, follower, known, hooks } = &mut *state;
        let Some(follower) = follower else { return hooks.clone() };
        follower.catch_up(|step| {
            let entry = |stored: &Stored| (stored.key.to_string(), Hook::all(&stored.decode(), logins));
            match step {
                Step::Reset(snapshot) => *known = snapshot.objects.values().map(|stored| entry(stored)).collect(),
                Step::Changed(change) if change.deleted => drop(known.remove(&*change.object.key)),
                Step::Changed(change) => known.extend([entry(&change.object)]),
            }
        });
        *hooks = known.values().flatten().cloned().collect();
        hooks.clone()
    }
}

/// One webhook of a configuration, read once.
struct Hook {
    configuration: String,
    name: String,
    /// Its own among all.
    key: String,
    criteria: Result<Criteria, String>,
    conditions: MatchConditions,
    client: Result<Outbound, OutboundError>,
    /// Versions of the review that it understands, the best first.
    reviews: Vec<String>,
    timeout: Duration,
    has_side_effects: bool,
    /// Where it cannot be asked, the request goes on.
    ignores_failure: bool,
    reinvoked: bool,
}

/// Why a webhook did not let a request pass.
enum Failure {
    /// It could not be asked, or its answer is none.
    Calling(String),
    Refused(ApiError),
}

impl Hook {
    fn all(configuration: &Object, logins: &Logins) -> Vec<Arc<Self>> {
        let list = configuration.get("webhooks").and_then(Value::as_array).into_iter().flatten();
        let hooks = list.filter_map(Value::as_object).enumerate();
        // One without rules is about nothing.
        let hooks =
            hooks.filter(|(_, hook)| hook.get("rules").and_then(Value::as_array).is_some_and(|r| !r.is_empty()));
        hooks.map(|(index, hook)| Arc::new(Self::of(configuration.name(), index, hook, logins))).collect()
    }

    fn of(configuration: &str, index: usize, hook: &Object, logins: &Logins) -> Self {
        let name = hook.text(&["name"]).to_owned();
        let client = hook.get("clientConfig").and_then(Value::as_object).cloned().unwrap_or_default();
        let timeout = hook.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(DEFAULT_TIMEOUT);
        Self {
            configuration: configuration.to_owned(),
            key: format!("{configuration}/{name}/{index}"),
            name,
            criteria: Criteria::of(hook, "rules").map_err(|error| error.to_string()),
            conditions: MatchConditions::of(hook),
            client: Outbound::from_client_config(&client).map(|client| client.logged_in(logins)),
            reviews: strings(hook.get("admissionReviewVersions")),
            timeout: Duration::from_secs(timeout),
            has_side_effects: !matches!(hook.text(&["sideEffects"]), "None" | "NoneOnDryRun"),
            ignores_failure: hook.text(&["failurePolicy"]) == "Ignore",
            reinvoked: hook.text(&["reinvocationPolicy"]) == "IfNeeded",
        }
    }

    /// What of a request it is to see, if it is to be asked about it.
    async fn seen(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<Option<Seen>, ApiError> {
        let criteria = self.criteria.as_ref().map_err(ApiError::internal)?;
        let Some(matched) = criteria.matches(server, attributes, object)? else { return Ok(None) };
        let seen = Seen::new(server, attributes, matched, object).await?;
        let (object, old) = (seen.object.as_ref().or(object), seen.old.as_ref().or(attributes.old));
        let holds = self.conditions.hold(server, attributes, seen.served(attributes), object, old).await;
        Ok(holds.map_err(|why| attributes.forbidden(why))?.then_some(seen))
    }

    /// Asks, and takes note of what it wants to be known.
    async fn ask(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        context: &Context,
        (seen, object): (&Seen, Option<&Object>),
        is_mutating: bool,
    ) -> Result<Answer, Failure> {
        if attributes.dry_run && self.has_side_effects {
            let why = format!("admission webhook {:?} does not support dry run", self.name);
            return Err(Failure::Refused(ApiError::bad_request(why)));
        }
        let version = self.reviews.iter().find(|version| matches!(version.as_str(), "v1" | "v1beta1"));
        let Some(version) = version else {
            return Err(Failure::Calling(
                "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)".into(),
            ));
        };
        let client = self.client.as_ref();
        let client = client.map_err(|error| Failure::Calling(format!("could not get REST client: {error}")))?;
        let uid = uuid::Uuid::new_v4().to_string();
        let (object, old) = (seen.object.as_ref().or(object), seen.old.as_ref().or(attributes.old));
        let body = review::request(attributes, seen.served(attributes), (object, old), version, &uid);
        let query = format!("?timeout={}s", self.timeout.as_secs());
        let heard = client.call(server, body, self.timeout, &query).await;
        let heard = heard.map_err(|error| Failure::Calling(format!("failed to call webhook: {error}")))?;
        let answer = Answer::of(heard, &uid, version, is_mutating).map_err(Failure::Calling)?;
        for (key, value) in &answer.annotations {
            context.annotate(format!("{}/{key}", self.name), value.as_str());
        }
        answer.warnings.iter().for_each(|warning| context.warn(warning.clone()));
        match answer.allowed {
            true => Ok(answer),
            false => Err(Failure::Refused(review::refusal(&self.name, answer.status.as_ref()))),
        }
    }

    /// What a failure means for the request: its end, or nothing but a note under `key`.
    fn settle(&self, context: &Context, failure: Failure, key: &str) -> Result<(), ApiError> {
        match failure {
            Failure::Refused(error) => Err(error),
            Failure::Calling(why) if self.ignores_failure => {
                tracing::warn!(webhook = %self.name, %why, "a webhook cannot be asked; the request goes on");
                context.annotate(key.to_owned(), self.name.as_str());
                Ok(())
            }
            Failure::Calling(why) => Err(ApiError::internal(format!("failed calling webhook {:?}: {why}", self.name))),
        }
    }

    /// Counts a call, under upstream's names.
    fn count(&self, server: &ApiServer, operation: Operation, kind: &str, began: Instant, failure: Option<&Failure>) {
        let (rejected, code, error) = match failure {
            None => (false, 200, ""),
            Some(Failure::Refused(error)) => (true, error.code, "no_error"),
            Some(Failure::Calling(_)) => (!self.ignores_failure, 503, "calling_webhook_error"),
        };
        let (name, operation) = (&self.name, operation.as_str());
        let own = format!("name={name:?},operation={operation:?},rejected=\"{rejected}\",type={kind:?}");
        server.metrics.took("apiserver_admission_webhook_admission_duration_seconds", own.clone(), began.elapsed());
        server.metrics.count("apiserver_admission_webhook_request_total", format!("code=\"{code}\",{own}"));
        if rejected {
            let labels = format!(
                "error_type={error:?},name={name:?},operation={operation:?},rejection_code=\"{code}\",type={kind:?}"
            );
            server.metrics.count("apiserver_admission_webhook_rejection_count", labels);
        } else if failure.is_some() {
            let labels = format!("name={name:?},type={kind:?}");
            server.metrics.count("apiserver_admission_webhook_fail_open_count", labels);
        }
    }
}

/// A request as a webhook sees it: the objects where they are in another version than the request's.
struct Seen {
    matched: Matched,
    object: Option<Object>,
    old: Option<Object>,
}

impl Seen {
    async fn new(
        server: &ApiServer,
        attributes: &Attributes<'_>,
        matched: Matched,
        object: Option<&Object>,
    ) -> Result<Self, ApiError> {
        let mut seen = Self { matched, object: None, old: None };
        if let Matched::As(served) = &seen.matched
            && !attributes.is_of_another_kind()
        {
            for (from, to) in [(object, &mut seen.object), (attributes.old, &mut seen.old)] {
                let Some(from) = from else { continue };
                *to = Some(convert::to_version(server, attributes.served, served, from.clone()).await?);
            }
        }
        Ok(seen)
    }

    fn served<'b>(&'b self, attributes: &Attributes<'b>) -> &'b Served {
        match &self.matched {
            Matched::Itself => attributes.served,
            Matched::As(served) => served,
        }
    }
}

/// Who asks for what the webhooks are to be asked about; nobody for what configures them, and what the server does itself.
fn asked<'a>(attributes: &Attributes<'a>) -> Option<&'a Context> {
    attributes.context.filter(|_| !rules::is_exempt(attributes))
}

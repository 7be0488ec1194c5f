//! What a deletion is asked for: its body says it all, and only where there is none does the query.

use api::field::FieldError;
use api::{ApiError, Object, ObjectExt as _};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::{self, Body, Query};
use crate::pipeline::Context;

const SCHEMA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const SCHEME: &str = "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_period_seconds: Option<i64>,
    pub(crate) propagation_policy: Option<String>,
    pub(super) orphan_dependents: Option<bool>,
    pub(crate) preconditions: Option<Preconditions>,
    dry_run: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Preconditions {
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
}

impl DeleteOptions {
    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run.iter().any(|value| value == "All")
    }

    /// What of them was said, as it was.
    pub(crate) fn told(&self) -> Object {
        let conditions = self.preconditions.as_ref().map(|wanted| {
            let texts = [("uid", &wanted.uid), ("resourceVersion", &wanted.resource_version)];
            let said = texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text.clone()?.into())));
            Value::Object(said.collect())
        });
        let fields = [
            ("gracePeriodSeconds", self.grace_period_seconds.map(Value::from)),
            ("propagationPolicy", self.propagation_policy.clone().map(Value::from)),
            ("orphanDependents", self.orphan_dependents.map(Value::from)),
            ("preconditions", conditions),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    fn of_query(query: &Query) -> Result<Self, ApiError> {
        let first = |name| query.first(name).map(ToOwned::to_owned);
        let (uid, resource_version) = (first("uid"), first("resourceVersion"));
        let has_conditions = uid.is_some() || resource_version.is_some();
        Ok(Self {
            grace_period_seconds: query.first("gracePeriodSeconds").map(http::parse_int).transpose()?,
            propagation_policy: first("propagationPolicy"),
            orphan_dependents: query.first("orphanDependents").map(|_| query.flag("orphanDependents")),
            preconditions: has_conditions.then_some(Preconditions { uid, resource_version }),
            dry_run: query.all("dryRun").map(ToOwned::to_owned).collect(),
        })
    }

    pub(crate) fn validate(&self) -> Result<(), ApiError> {
        const POLICIES: [&str; 4] = ["Foreground", "Background", "Orphan", "nil"];
        let mut errors = Vec::new();
        if let Some(policy) = &self.propagation_policy {
            if self.orphan_dependents.is_some() {
                let detail = "orphanDependents and deletionPropagation cannot be both set";
                errors.push(FieldError::invalid("propagationPolicy", policy.as_str(), detail));
            } else if !POLICIES.contains(&policy.as_str()) {
                errors.push(FieldError::not_supported("propagationPolicy", policy.as_str(), &POLICIES));
            }
        }
        if self.dry_run.iter().any(|value| value != "All") {
            errors.push(FieldError::not_supported("dryRun", json!(self.dry_run), &["All"]));
        }
        if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &errors)) }
    }
}

pub(super) async fn read(context: &Context, body: Body) -> Result<DeleteOptions, ApiError> {
    let bytes = http::read(body).await?;
    let options = if bytes.is_empty() {
        DeleteOptions::of_query(&context.query)?
    } else {
        decode(http::decode_bare(&context.headers, &bytes, "DeleteOptions")?)?
    };
    options.validate()?;
    Ok(options)
}

/// Options are of any group and version: only another kind is refused.
fn decode(object: Object) -> Result<DeleteOptions, ApiError> {
    let (kind, version) = (object.text(&["kind"]), object.text(&["apiVersion"]));
    if !matches!(kind, "" | "DeleteOptions") {
        let version = if version.is_empty() { "meta.k8s.io/v1" } else { version };
        let why = format!("no kind {kind:?} is registered for version {version:?} in scheme {SCHEME:?}");
        return Err(ApiError::bad_request(why));
    }
    let mut value = Value::Object(object);
    if let Some(schema) = api::schema::named(SCHEMA) {
        api::decode::conform(&mut value, schema).map_err(|error| ApiError::bad_request(error.to_string()))?;
    }
    serde_json::from_value(value).map_err(|error| ApiError::bad_request(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_makes_no_sense_is_refused_in_upstreams_words() {
        check(json!({"kind": "DeleteOptions", "apiVersion": "apps/v1", "gracePeriodSeconds": 3}), "");
        check(
            json!({"kind": "Foo"}),
            "no kind \"Foo\" is registered for version \"meta.k8s.io/v1\" in scheme \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\"",
        );
        check(
            json!({"gracePeriodSeconds": "x"}),
            "json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64",
        );
    }

    #[track_caller]
    fn check(body: Value, want: &str) {
        let object = body.as_object().cloned().unwrap();
        assert_eq!(decode(object).err().map(|error| error.message).unwrap_or_default(), want, "{body}");
    }

    #[test]
    fn a_query_says_what_a_body_could() {
        let options = |query| DeleteOptions::of_query(&Query::parse(Some(query)));
        let read = options("gracePeriodSeconds=5&orphanDependents=false&uid=u&dryRun=All").unwrap();
        assert_eq!(
            (read.grace_period_seconds, read.orphan_dependents, read.is_dry_run()),
            (Some(5), Some(false), true)
        );
        assert_eq!(read.preconditions.and_then(|wanted| wanted.uid).as_deref(), Some("u"));
        for (query, want) in [
            ("gracePeriodSeconds=x", "strconv.ParseInt: parsing \"x\": invalid syntax"),
            ("gracePeriodSeconds=", "strconv.ParseInt: parsing \"\": invalid syntax"),
            (
                "gracePeriodSeconds=99999999999999999999",
                "strconv.ParseInt: parsing \"99999999999999999999\": value out of range",
            ),
        ] {
            assert_eq!(options(query).unwrap_err().message, want);
        }
    }
}

//! Looks through the expressions of validating admission policies for what cannot work on the resources they are for, and says
//! so in their status. Nothing else depends on it.

mod object_types;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use cel::Type;
use cel::policy::{Compiler, Returns};
use client::{Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use self::object_types::{ObjectTypes, Schemas};
use crate::controller::{Context, Controller};

/// More kinds than this are not looked at.
const MOST_KINDS: usize = 10;

pub(crate) struct PolicyStatus {
    client: kube::Client,
    policies: Informer<ValidatingAdmissionPolicy>,
}

/// A kind the policy is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupVersionKind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
}

impl GroupVersionKind {
    fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

impl Controller for PolicyStatus {
    const ACCOUNT: &'static str = "validatingadmissionpolicy-status-controller";
    const WORKERS: usize = 5;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let policies = context.informers.of::<ValidatingAdmissionPolicy>();
        policies.subscribe(move |change| queue.add(Key::of(&**change.object())));
        Self { client: context.client.clone(), policies }
    }
}

#[async_trait]
impl Reconciler for PolicyStatus {
    const NAME: &'static str = "validatingadmissionpolicy-status-controller";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(policy) = self.policies.get(key) else { return Ok(Next::OnChange) };
        let generation = policy.metadata.generation;
        if policy.status.as_ref().and_then(|status| status.observed_generation) == generation {
            return Ok(Next::OnChange);
        }
        let warnings = self.check(&policy).await;
        let found = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
        let status = json!({"observedGeneration": generation, "typeChecking": found});
        let patch =
            Patch::Merge(json!({"metadata": {"resourceVersion": policy.metadata.resource_version}, "status": status}));
        let policies = Api::<ValidatingAdmissionPolicy>::all(self.client.clone());
        policies.patch_status(&key.name, &PatchParams::default(), &patch).await?;
        Ok(Next::OnChange)
    }
}

impl PolicyStatus {
    /// The `expressionWarnings` of a policy.
    async fn check(&self, policy: &ValidatingAdmissionPolicy) -> Vec<Value> {
        let mut schemas = Schemas::new(self.client.clone());
        let kinds = kinds(policy, &mut schemas).await;
        let Some(spec) = &policy.spec else { return Vec::new() };
        let params = match &spec.param_kind {
            Some(param) => {
                let version = param.api_version.clone().unwrap_or_default();
                let (group, version) = version.split_once('/').unwrap_or(("", &version));
                let kind = param.kind.clone().unwrap_or_default();
                let kind = GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind };
                Some(schemas.of(&kind).await)
            }
            None => None,
        };
        let mut checked = Vec::new();
        for kind in kinds {
            if let Some((object, types)) = schemas.of(&kind).await {
                checked.push((kind, compiler(policy, object, types, params.clone())));
            }
        }
        let mut warnings = Vec::new();
        for (index, validation) in spec.validations.iter().flatten().enumerate() {
            let message = validation.message_expression.as_deref().filter(|text| !text.is_empty());
            let texts = [("expression", Some(validation.expression.as_str())), ("messageExpression", message)];
            for (field, text) in texts.into_iter().filter_map(|(field, text)| Some((field, text?))) {
                let found: Vec<String> =
                    checked.iter().filter_map(|(kind, compiler)| problem(kind, compiler, text)).collect();
                if !found.is_empty() {
                    let place = format!("spec.validations[{index}].{field}");
                    warnings.push(json!({"fieldRef": place, "warning": found.join("\n")}));
                }
            }
        }
        warnings
    }
}

type Typed = (Type, Arc<ObjectTypes>);

fn compiler(
    policy: &ValidatingAdmissionPolicy,
    object: Type,
    types: Arc<ObjectTypes>,
    params: Option<Option<Typed>>,
) -> Compiler {
    let mut all = (*types).clone();
    let params = params.map(|params| match params {
        Some((params, types)) => {
            all.merge(&types);
            params
        }
        None => Type::Dyn,
    });
    let mut compiler = Compiler::typed(object, params, Arc::new(all));
    for variable in policy.spec.iter().flat_map(|spec| spec.variables.iter().flatten()) {
        // What is wrong with a variable is told where it is used.
        drop(compiler.variable(&variable.name, &variable.expression));
    }
    compiler
}

fn problem(kind: &GroupVersionKind, compiler: &Compiler, text: &str) -> Option<String> {
    let failure = compiler.compile(text, Returns::Anything, true).err()?;
    let wrong = if failure.internal { "type checking error: " } else { "" };
    Some(format!("{}, Kind={}: {wrong}{failure}\n", kind.api_version(), kind.kind))
}

/// The kinds a policy is for, as far as its rules name them.
async fn kinds(policy: &ValidatingAdmissionPolicy, schemas: &mut Schemas) -> BTreeSet<GroupVersionKind> {
    let mut found = BTreeSet::new();
    let constraints = policy.spec.as_ref().and_then(|spec| spec.match_constraints.as_ref());
    for rule in constraints.into_iter().flat_map(|constraints| constraints.resource_rules.iter().flatten()) {
        let [groups, versions, resources] =
            [&rule.api_groups, &rule.api_versions, &rule.resources].map(|list| list.clone().unwrap_or_default());
        if [&groups, &versions, &resources].iter().any(|list| list.iter().any(|item| item.contains('*'))) {
            continue;
        }
        for group in &groups {
            for version in &versions {
                for resource in resources.iter().filter(|resource| !resource.contains('/')) {
                    if let Some(kind) = schemas.kind_of(group, version, resource).await {
                        let (group, version) = (group.clone(), version.clone());
                        found.insert(GroupVersionKind { group, version, kind });
                    }
                    if found.len() == MOST_KINDS {
                        return found;
                    }
                }
            }
        }
    }
    found
}

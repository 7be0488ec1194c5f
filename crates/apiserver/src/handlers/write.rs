//! How an object is created, changed and removed, for every resource and whoever asks.
//!
//! Defaults, admission, strategy, validation, compare-and-set: in upstream's order. A write that loses the race is
//! computed again on what won it.

use std::borrow::Cow;
use std::sync::Arc;

use api::decode::Empties;
use api::field::FieldError;
use api::{ApiError, Object, ObjectExt as _};
use rand::Rng as _;
use serde_json::Value;

use super::scale;
use super::update::OTHER_NAMESPACE;
use crate::admission::{self, Attributes, Operation};
use crate::auth::escalation;
use crate::convert;
use crate::field_manager::{self, FieldManager, Tracking, same_but_times};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::{ApiServer, ServerError, store_error};
use crate::storage::{Beside, Cache, Precondition, Stored};
use crate::strategy;
use api::validation::Again;

/// More lost races than this on one object mean that something is wrong.
pub(super) const MAX_RETRIES: usize = 100;
const AFTER_ADMISSION: &str = " after mutating admission happens";
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

pub(crate) struct Writer<'a> {
    pub(crate) server: &'a Arc<ApiServer>,
    pub(crate) served: &'a Served,
    /// Whose request this is; `None` for what the server does on its own.
    pub(crate) context: Option<&'a Context>,
    pub(crate) subresource: &'a str,
    pub(crate) dry_run: bool,
    pub(crate) tracking: Tracking<'a>,
}

impl Writer<'_> {
    pub(crate) fn cache(&self) -> Result<&Arc<Cache>, ApiError> {
        self.served.cache.as_ref().ok_or_else(ApiError::no_such_resource)
    }

    pub(super) fn not_found(&self, name: &str) -> ApiError {
        ApiError::not_found(self.served.group_resource(), name)
    }

    pub(super) fn invalid(&self, name: &str, errors: &[FieldError]) -> ApiError {
        // Both groups of events share one strategy, which speaks of the older one's kind.
        let group = if self.served.info.group == "events.k8s.io" { "" } else { &self.served.info.group };
        ApiError::invalid(group, &self.served.info.kind, name, errors)
    }

    /// Tells whoever asked what does not keep the write from being made.
    fn warn(&self, warnings: Vec<String>) {
        if let Some(context) = self.context {
            warnings.into_iter().for_each(|warning| context.warn(warning));
        }
    }

    fn field_manager(&self) -> FieldManager<'_> {
        let subresource = if self.tracking.is_scale() { "scale" } else { self.subresource };
        FieldManager { registry: &self.server.registry, served: self.served, subresource }
    }

    /// Leaves out owners that are named twice, and says so; `when` they were seen, where that is not at once.
    fn drop_duplicate_owners(&self, object: &mut Object, when: &str) {
        let owners = object.metadata().get_mut("ownerReferences").and_then(Value::as_array_mut);
        let Some(owners) = owners.filter(|owners| owners.len() > 1) else { return };
        let (mut known, mut twice): (Vec<Value>, Vec<String>) = (Vec::new(), Vec::new());
        for owner in owners.drain(..) {
            match known.contains(&owner) {
                true => twice.push(owner.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned()),
                false => known.push(owner),
            }
        }
        *owners = known;
        if !twice.is_empty() {
            let twice = twice.join(", ");
            self.warn(vec![format!(
                ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and \
                 may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {twice}"
            )]);
        }
    }

    /// Records who makes this write; before admission, whose changes are nobody's.
    fn track(&self, old: Option<&Object>, new: &mut Object) {
        if let Tracking::Update(name) | Tracking::Scale(name) = self.tracking {
            self.field_manager().update(old, new, name, &now());
        }
    }

    pub(super) fn attributes<'a>(
        &'a self,
        operation: Operation,
        namespace: &'a str,
        name: &'a str,
        old: Option<&'a Object>,
    ) -> Attributes<'a> {
        let Self { served, context, dry_run, .. } = *self;
        let subresource = if operation == Operation::Delete { "" } else { self.subresource };
        Attributes {
            operation,
            served,
            namespace,
            name,
            generate_name: "",
            subresource,
            context,
            dry_run,
            old,
            delete_options: None,
        }
    }

    /// The object now, in the served version.
    pub(super) async fn current(&self, namespace: &str, name: &str) -> Result<(Arc<Stored>, Object), ApiError> {
        self.server.feed.current().await.map_err(store_error)?;
        let stored = self.cache()?.read(&self.served.key(namespace, name))?.ok_or_else(|| self.not_found(name))?;
        let object = convert::from_storage(self.server, self.served, &stored).await?;
        Ok((stored, object))
    }

    pub(crate) async fn create(&self, namespace: &str, mut object: Object) -> Result<Object, ApiError> {
        self.place_new_object(namespace, &mut object)?;
        let shares_labels = self.served.strategy().shares_labels(&object);
        self.served.strategy().default(&mut object);
        let empties = api::decode::complete(&mut object, &self.served.schema);
        self.drop_duplicate_owners(&mut object, "");
        self.track(None, &mut object);
        let (asked, begins) = (object.name().to_owned(), object.text(&["metadata", "generateName"]).to_owned());
        let mut attributes = self.attributes(Operation::Create, namespace, &asked, None);
        attributes.generate_name = &begins;
        admission::mutate(self.server, &attributes, &mut object).await?;
        self.drop_duplicate_owners(&mut object, AFTER_ADMISSION);
        name_new_object(&mut object);
        let name = object.name().to_owned();
        attributes.name = &name;
        escalation::check(self.server, &attributes, &object).await?;
        if self.served.info.has_subresource("status") && !self.served.strategy().keeps_status_on_create() {
            object.remove("status");
            api::decode::settle_zeros(&mut object, &self.served.schema);
        }
        if self.served.strategy().counts_generation() {
            object.metadata().insert("generation".into(), 1.into());
        }
        empties.put_into(&mut object);
        self.served.strategy().prepare_for_create(&mut object);
        strategy::drop_disabled(self.served.strategy(), &mut object);
        if let (true, Some(labels)) = (shares_labels, object.at(&["spec", "template", "metadata", "labels"]).cloned()) {
            object.metadata().insert("labels".into(), labels);
        }
        let empties = api::decode::complete_for_storage(&mut object, &self.served.schema);
        let unchosen = attributes.is("", "services").then(|| object.clone());
        admission::choose(self.server, &attributes, &mut object).await?;
        let mut errors: Vec<FieldError> =
            admission::devices::admin_access(self.server, &attributes, &object).await?.into_iter().collect();
        let (namespaced, rule) = (self.served.info.namespaced, self.served.strategy().name_rule());
        let (_, is_core) = self.metadata_again();
        empties.put_into(&mut object);
        errors.extend(api::validation::object_meta(&object, namespaced, rule, is_core));
        errors.extend(self.served.strategy().judge_create(&object));
        if !errors.is_empty() {
            return Err(self.invalid(&name, &errors));
        }
        empties.take_from(&mut object);
        self.warn(self.served.strategy().warnings(&object));
        for _ in 0..MAX_RETRIES {
            admission::judge(self.server, &attributes, &object).await?;
            let charged = admission::quota::charge(self.server, &attributes, None, Some(&object)).await?;
            match self.insert(namespace, &name, &mut object, charged).await {
                Ok(()) => return Ok(object),
                Err(ServerError::Claimed(revision)) => {
                    // Another claimed what was chosen before it was written: the choice is made again.
                    self.server.feed.reached(revision).await;
                    object = unchosen.clone().unwrap_or(object);
                    admission::choose(self.server, &attributes, &mut object).await?;
                }
                Err(ServerError::Unmet(revision)) => return Err(self.taken(namespace, &object, revision).await),
                Err(ServerError::Api(error)) => return Err(error),
            }
        }
        Err(ApiError::conflict(self.served.group_resource(), &name, "what it claims is taken by others too often"))
    }

    /// Another has the name: one that is on its way out, or one that the name was made beside.
    async fn taken(&self, namespace: &str, object: &Object, revision: i64) -> ApiError {
        let name = object.name();
        let mut error = ApiError::already_exists(self.served.group_resource(), name);
        if !object.text(&["metadata", "generateName"]).is_empty() {
            error.message += ", the server was not able to generate a unique name for the object";
            if let Some(details) = &mut error.details {
                details.retry_after_seconds = 1;
            }
        }
        self.server.feed.reached(revision).await;
        let other = self.served.cache.as_ref().and_then(|cache| cache.get(&self.served.key(namespace, name)));
        if other.is_some_and(|other| other.decode().is_terminating()) {
            error.message = format!("object is being deleted: {}", error.message);
        }
        error
    }

    /// Writes an object that must not be there yet.
    async fn insert(
        &self,
        namespace: &str,
        name: &str,
        object: &mut Object,
        charged: Vec<Beside>,
    ) -> Result<(), ServerError> {
        let (cache, key) = (self.cache()?, self.served.key(namespace, name));
        // An object that cannot be read takes the name, too.
        if self.dry_run && cache.read(&key).map_or(true, |other| other.is_some()) {
            return Err(ServerError::Unmet(0));
        }
        let stored = convert::to_storage(self.server, self.served, object).await?;
        let revision = match self.dry_run {
            true => None,
            false => Some(cache.put(self.server.store(), &key, &stored, Precondition::Absent, charged).await?),
        };
        if let Some(read) = convert::read_back(self.server, self.served, &stored).await? {
            *object = read;
        }
        if let Some(revision) = revision {
            object.metadata().insert("resourceVersion".into(), revision.to_string().into());
        }
        Ok(())
    }

    fn place_new_object(&self, namespace: &str, object: &mut Object) -> Result<(), ApiError> {
        let own = object.namespace();
        if self.served.info.namespaced && !own.is_empty() && own != namespace {
            return Err(ApiError::bad_request(OTHER_NAMESPACE));
        }
        // What is only tried never reaches the store, which is who minds.
        if !object.resource_version().is_empty() && !self.dry_run {
            return Err(ApiError::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        let metadata = object.metadata();
        match self.served.info.namespaced {
            true => metadata.insert("namespace".into(), namespace.into()),
            false => metadata.remove("namespace"),
        };
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            metadata.remove(field);
        }
        Ok(())
    }

    /// Changes an object by `change`, which sees it as it is and may be called again.
    pub(crate) async fn update(
        &self,
        namespace: &str,
        name: &str,
        mut change: impl FnMut(&Object) -> Result<Object, ApiError>,
    ) -> Result<Object, ApiError> {
        for _ in 0..MAX_RETRIES {
            let (stored, old) = self.current(namespace, name).await?;
            let new = change(&old)?;
            match self.replace(namespace, name, &stored, &old, new).await {
                Ok(object) => return Ok(object),
                Err(ServerError::Unmet(revision) | ServerError::Claimed(revision)) => {
                    self.server.feed.reached(revision).await;
                }
                Err(ServerError::Api(error)) => return Err(error),
            }
        }
        Err(ApiError::conflict(self.served.group_resource(), name, "the object changes too often"))
    }

    async fn replace(
        &self,
        namespace: &str,
        name: &str,
        stored: &Stored,
        old: &Object,
        mut new: Object,
    ) -> Result<Object, ServerError> {
        let asked = match new.resource_version() {
            "0" => String::new(),
            asked => asked.to_owned(),
        };
        if !asked.is_empty() && asked.parse::<u64>().is_err() {
            let why = format!("strconv.ParseUint: parsing {asked:?}: invalid syntax");
            return Err(ApiError::new(500, "", why).into());
        }
        if !asked.is_empty() && asked != old.resource_version() {
            return Err(ApiError::modified(self.served.group_resource(), name).into());
        }
        let own_uid = new.uid();
        // A patch says what the object is to be, not which one is meant: there the identity is a field like others.
        let is_patch = self.context.is_some_and(|context| context.info.verb == "patch") && !self.tracking.is_scale();
        if !own_uid.is_empty() && own_uid != old.uid() && !is_patch {
            let root = if self.dry_run { "" } else { "/registry" };
            let key = format!("{root}/{}/{}", self.served.info.storage_prefix(), self.served.key(namespace, name));
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition \
                 failed: UID in precondition: {own_uid}, UID in object meta: {}",
                old.uid()
            );
            return Err(ApiError::conflict(self.served.group_resource(), name, why).into());
        }
        if !is_patch {
            self.drop_duplicate_owners(&mut new, "");
        }
        if asked.is_empty() && self.needs_version() && matches!(self.tracking, Tracking::Update(_)) {
            let (group, plural) = (&self.served.info.group, &self.served.info.plural);
            // Upstream names the resource here, not the kind, and shows the number as it is in memory.
            let mut error = FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
            error.value = "0".to_owned();
            return Err(ApiError::invalid(group, plural, name, &[error]).into());
        }
        keep_system_metadata(&mut new, old);
        // Defaults are for what was sent, of which a subresource writes only its part.
        self.served.strategy().default(&mut new);
        self.apply_scope(&mut new, old);
        let empties = api::decode::complete(&mut new, &self.served.schema);
        self.track(Some(old), &mut new);
        let attributes = self.attributes(Operation::Update, namespace, name, Some(old));
        // Admission sees what was written: where that is a Scale, not the workload.
        let scale = self.tracking.is_scale().then(|| scale::of(self.served, old)).transpose()?;
        let of_scale = Attributes { subresource: "scale", old: scale.as_ref(), ..attributes };
        match scale {
            None => {
                admission::mutate(self.server, &attributes, &mut new).await?;
                self.drop_duplicate_owners(&mut new, AFTER_ADMISSION);
            }
            Some(_) => {
                let mut wanted = scale::of(self.served, &new)?;
                admission::mutate(self.server, &of_scale, &mut wanted).await?;
                new = scale::scaled(self.served, &new, &wanted)?;
            }
        }
        escalation::check(self.server, &attributes, &new).await?;
        admission::choose(self.server, &attributes, &mut new).await?;
        empties.put_into(&mut new);
        strategy::drop_disabled(self.served.strategy(), &mut new);
        match self.subresource {
            "" => self.served.strategy().prepare_for_update(&mut new, &with_empties(old, &empties)),
            part => self.served.strategy().prepare_part(part, &mut new, &with_empties(old, &empties)),
        }
        let empties = api::decode::complete_for_storage(&mut new, &self.served.schema);
        self.count_generation(&mut new, old, &empties);
        let mut errors: Vec<FieldError> =
            admission::devices::admin_access(self.server, &attributes, &new).await?.into_iter().collect();
        empties.put_into(&mut new);
        errors.extend(self.judge_change(&new, &with_empties(old, &empties)));
        if !errors.is_empty() {
            return Err(self.invalid(name, &errors).into());
        }
        empties.take_from(&mut new);
        self.warn(self.served.strategy().warnings_on_update(self.subresource, &new, old));
        match scale {
            None => admission::judge(self.server, &attributes, &new).await?,
            Some(_) => admission::judge(self.server, &of_scale, &scale::of(self.served, &new)?).await?,
        }
        new.metadata().insert("resourceVersion".into(), old.resource_version().into());
        let remains = (!self.is_gone(&new)).then_some(&new);
        let charged = admission::quota::charge(self.server, &attributes, Some(old), remains).await?;
        let key = self.served.key(namespace, name);
        if !self.dry_run && same_but_times(&new, old) && !self.is_stale(&key).await {
            return Ok(old.clone());
        }
        self.commit(&key, stored, new, charged).await
    }

    /// All that is wrong with a change.
    fn judge_change(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let (namespaced, own) = (self.served.info.namespaced, self.served.strategy());
        let (again, is_core) = self.metadata_again();
        let mut errors = api::validation::object_meta_update(new, old, namespaced, own.name_rule(), is_core, again);
        match self.subresource {
            "" => errors.extend(own.judge_update(new, old)),
            "status" => errors.extend(own.validate_status(new, old)),
            _ => (),
        }
        errors.extend(own.validate_part(self.subresource, new, old));
        strategy::ratchet::left(errors, || own.judge_create(old))
    }

    /// How the metadata of a change is looked at again: objects of definitions and parts of objects only for what may not change.
    fn metadata_again(&self) -> (&'static [Again], bool) {
        let info = &self.served.info;
        match strategy::metadata_again(&info.group, &info.plural) {
            _ if self.served.custom().is_some() => (&[Again::Change], false),
            (_, is_core) if !self.subresource.is_empty() => (&[Again::Change], is_core),
            whole => whole,
        }
    }

    fn needs_version(&self) -> bool {
        let info = &self.served.info;
        self.served.strategy().needs_version() || strategy::needs_version(&info.group, &info.plural)
    }

    /// What is stored was encrypted with a key of the past, so that writing it again changes something.
    async fn is_stale(&self, key: &str) -> bool {
        match (&self.server.encryption, &self.served.cache) {
            (Some(encryption), Some(cache)) => encryption.is_stale(format!("{}{key}", cache.prefix)).await,
            _ => false,
        }
    }

    /// Writes the new state, unless it is only tried; an object whose deletion only waited for this is removed.
    async fn commit(
        &self,
        key: &str,
        stored: &Stored,
        mut new: Object,
        charged: Vec<Beside>,
    ) -> Result<Object, ServerError> {
        let (cache, store) = (self.cache()?, self.server.store());
        let (revision, read) = if self.is_gone(&new) {
            if self.dry_run {
                return Ok(new);
            }
            (cache.delete(store, key, stored.revision, charged).await?, None)
        } else {
            let object = convert::to_storage(self.server, self.served, &new).await?;
            let revision = match self.dry_run {
                true => stored.revision,
                false => cache.put(store, key, &object, Precondition::At(stored.revision), charged).await?,
            };
            (revision, convert::read_back(self.server, self.served, &object).await?)
        };
        new = read.unwrap_or(new);
        new.metadata().insert("resourceVersion".into(), revision.to_string().into());
        Ok(new)
    }

    /// Deletion was asked for, no finalizer holds it, and no grace is left.
    fn is_gone(&self, object: &Object) -> bool {
        let grace = object.at(&["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or(0);
        let namespace_finalizers = object.at(&["spec", "finalizers"]).and_then(Value::as_array);
        let held = self.served.info.kind == "Namespace" && namespace_finalizers.is_some_and(|list| !list.is_empty());
        object.is_terminating() && object.finalizers().is_empty() && grace == 0 && !held
    }

    /// Status is written through its subresource alone, and the subresource writes nothing else.
    fn apply_scope(&self, new: &mut Object, old: &Object) {
        let managed = new.at(&["metadata", "managedFields"]).filter(|_| matches!(self.tracking, Tracking::Applied));
        let managed = managed.cloned();
        self.take_part(new, old);
        if let Some(managed) = managed {
            new.metadata().insert("managedFields".into(), managed);
        }
    }

    fn take_part(&self, new: &mut Object, old: &Object) {
        let keep = |new: &mut Object, key: &str| match old.get(key) {
            Some(value) => new.insert(key.to_owned(), value.clone()),
            None => new.remove(key),
        };
        match self.subresource {
            "" if self.served.info.has_subresource("status") => {
                keep(new, "status");
            }
            "status" => {
                let keys: Vec<String> = new.keys().chain(old.keys()).cloned().collect();
                for key in keys.iter().filter(|key| !matches!(key.as_str(), "status" | "metadata")) {
                    keep(new, key);
                }
                let reset = field_manager::reset_fields(self.served, "status");
                for field in ["labels", "annotations", "ownerReferences", "finalizers"] {
                    if reset.iter().any(|path| matches!(*path, ["metadata"]) || *path == ["metadata", field]) {
                        match old.at(&["metadata", field]) {
                            Some(value) => new.metadata().insert(field.into(), value.clone()),
                            None => new.metadata().remove(field),
                        };
                    }
                }
            }
            "ephemeralcontainers" => *new = with_part(old, new, &["spec", "ephemeralContainers"]),
            // Who approves may label and annotate, too.
            "approval" => {
                let approved = with_part(old, new, &["status", "conditions"]);
                keep(new, "spec");
                new.extend(approved.into_iter().filter(|(key, _)| key == "status"));
            }
            "resize" => *new = resized(old, new),
            // Bindings and finalization compute the new object themselves.
            _ => (),
        }
    }

    fn count_generation(&self, new: &mut Object, old: &Object, empties: &Empties) {
        // A pod is bound by the scheduler, not changed by its user.
        if !self.served.strategy().counts_generation() || self.subresource == "binding" {
            return;
        }
        let before = old.at(&["metadata", "generation"]).and_then(Value::as_i64).unwrap_or(0);
        let with_status = self.served.strategy().counts_status();
        let is_content = |key: &str| key != "metadata" && (with_status || key != "status");
        let has_all_of = |left: &Object, right: &Object| {
            right.iter().filter(|(key, _)| is_content(key)).all(|(key, value)| left.get(key) == Some(value))
        };
        let map = |object: &Object, field| object.at(&["metadata", field]).and_then(Value::as_object).cloned();
        let differs = |field| map(new, field).unwrap_or_default() != map(old, field).unwrap_or_default();
        let strategy = self.served.strategy();
        let is_marked = self.subresource.is_empty()
            && ((strategy.counts_annotations() && differs("annotations"))
                || (strategy.counts_labels() && differs("labels"))
                || strategy.counts_empties().is_some_and(|field| empties.are_in(field)));
        let is_counted = new.at(&["metadata", "generation"]).and_then(Value::as_i64) > Some(before);
        let is_same = !is_counted && !is_marked && has_all_of(new, old) && has_all_of(old, new);
        let generation = if is_same { before } else { before + 1 };
        new.metadata().insert("generation".into(), generation.into());
    }
}

/// An object with the same empty lists and maps as what is to replace it, from which it does not differ by having none.
fn with_empties<'a>(old: &'a Object, empties: &Empties) -> Cow<'a, Object> {
    let mut old = Cow::Borrowed(old);
    if !empties.is_empty() {
        empties.put_into(old.to_mut());
    }
    old
}

/// What the system gives an object that is new.
fn name_new_object(object: &mut Object) {
    let generate = object.text(&["metadata", "generateName"]).to_owned();
    let metadata = object.metadata();
    if metadata.get("name").and_then(Value::as_str).unwrap_or_default().is_empty() && !generate.is_empty() {
        metadata.insert("name".into(), generated_name(&generate).into());
    }
    metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".into(), now().into());
}

/// `old` with one part of `new`, and its resource version.
fn with_part(old: &Object, new: &Object, path: &[&str]) -> Object {
    let mut result = old.clone();
    result.metadata().insert("resourceVersion".into(), new.resource_version().into());
    if let Some((last, parents)) = path.split_last() {
        match new.at(path) {
            Some(value) => result.at_mut(parents).insert((*last).to_owned(), value.clone()),
            None => result.at_mut(parents).remove(*last),
        };
    }
    result
}

/// `old` with the resources that `new` gives its containers. Containers of other names are left for validation to refuse.
fn resized(old: &Object, new: &Object) -> Object {
    let mut result = old.clone();
    result.metadata().insert("resourceVersion".into(), new.resource_version().into());
    match new.at(&["spec", "resources"]) {
        Some(resources) => result.at_mut(&["spec"]).insert("resources".into(), resources.clone()),
        None => result.at_mut(&["spec"]).remove("resources"),
    };
    for list in ["containers", "initContainers"] {
        let wanted = new.at(&["spec", list]).and_then(Value::as_array).cloned().unwrap_or_default();
        let own = old.at(&["spec", list]).and_then(Value::as_array).cloned().unwrap_or_default();
        let names = |containers: &[Value]| -> Vec<Option<Value>> {
            containers.iter().map(|container| container.get("name").cloned()).collect()
        };
        if names(&wanted) != names(&own) {
            result.at_mut(&["spec"]).insert(list.into(), wanted.into());
            continue;
        }
        let own = result.at_mut(&["spec"]).get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, wanted) in own.filter_map(Value::as_object_mut).zip(&wanted) {
            for field in ["resources", "resizePolicy"] {
                match wanted.get(field) {
                    Some(value) => container.insert(field.to_owned(), value.clone()),
                    None => container.remove(field),
                };
            }
        }
    }
    result
}

/// What the system set, clients neither change nor need to repeat.
fn keep_system_metadata(new: &mut Object, old: &Object) {
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "name",
        "namespace",
        "generation",
    ] {
        let missing = new.at(&["metadata", field]).is_none_or(Value::is_null);
        let is_kept = matches!(field, "creationTimestamp" | "deletionTimestamp" | "generation");
        if let (true, Some(value)) = (missing || is_kept, old.at(&["metadata", field])) {
            new.metadata().insert(field.into(), value.clone());
        }
    }
    for field in ["generation", "namespace"] {
        if old.at(&["metadata", field]).is_none() {
            new.metadata().remove(field);
        }
    }
}

/// `web-` becomes `web-x7k2p`; the base is cut so that the whole stays a valid label.
fn generated_name(base: &str) -> String {
    let mut rng = rand::rng();
    let base: String = base.chars().take(58).collect();
    let suffix = (0..5).filter_map(|_| NAME_ALPHABET.get(rng.random_range(0..NAME_ALPHABET.len())));
    base + &suffix.map(|b| char::from(*b)).collect::<String>()
}

/// Now, to the second, as metadata has it.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

//! The schema every generic algorithm works on: what fields a type has, and how each is merged, defaulted and encoded.
//!
//! The tables of the built-in types are generated; a custom resource's type is built from its definition at run time.

pub mod docs;
#[rustfmt::skip]
pub mod generated;

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use crate::structural::Structural;

/// A part of a schema: in the binary for built-in types, shared on the heap for custom ones.
#[derive(Clone, Debug)]
pub enum Ref<T: 'static> {
    Static(&'static T),
    Shared(Arc<T>),
}

impl<T> Deref for Ref<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Static(part) => part,
            Self::Shared(part) => part,
        }
    }
}

/// An object with named fields.
#[derive(Clone, Debug)]
pub struct Type {
    /// The OpenAPI definition's name, e.g. `io.k8s.api.core.v1.PodSpec`.
    pub name: Cow<'static, str>,
    /// Server-side apply owns the whole or nothing of it, unless a field says otherwise.
    pub atomic: bool,
    /// What a custom resource's definition says, beyond the fields that every object has.
    pub custom: Option<Ref<Structural>>,
    pub fields: Cow<'static, [Field]>,
}

impl Type {
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

#[derive(Clone, Debug)]
pub struct Field {
    pub name: Cow<'static, str>,
    /// The protobuf field number; 0 where the field has no protobuf form.
    pub tag: u32,
    /// The numbers of the messages this field is part of in protobuf, though not in JSON, outermost first, a byte each; 0
    /// where there is none.
    pub outer: u32,
    pub required: bool,
    pub zero: Zero,
    pub shape: Shape,
    pub topology: Topology,
    pub patch: Patch,
    /// A JSON literal.
    pub default: Option<Cow<'static, str>>,
}

/// What upstream writes where a field has its type's zero value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zero {
    /// Nothing: zero and absent are the same.
    Omitted,
    /// Zero where it was set: it differs from absent.
    Kept,
    /// Zero, always: an empty struct, a null time, an empty string.
    Written,
    /// Null, always: a list, map or pointer without which nothing works.
    Null,
}

/// What a value looks like on the wire.
#[derive(Clone, Debug)]
pub enum Shape {
    String,
    Bool,
    Int32,
    Int64,
    Double,
    Bytes,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// Any JSON: extensions, raw schemas, managed fields.
    Any,
    /// In a custom resource's schema: a schema, or something simpler.
    SchemaOr(SchemaOr),
    Object(Ref<Type>),
    List(Ref<Shape>),
    Map(Ref<Shape>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaOr {
    Bool,
    Array,
    Strings,
}

/// How server-side apply treats a list, map or struct: as one value, or element by element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Structs and maps are granular, lists atomic.
    Default,
    Atomic,
    /// Element by element though the type is atomic.
    Granular,
    Set,
    /// A list of objects identified by these keys.
    Map(Cow<'static, [&'static str]>),
}

/// How strategic merge patch treats a list or struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    pub merge: bool,
    pub retain_keys: bool,
    /// Empty for a list of primitives.
    pub merge_key: Cow<'static, str>,
}

impl Patch {
    pub const NONE: Self = Self { merge: false, retain_keys: false, merge_key: Cow::Borrowed("") };
}

/// A generated field, in one line of the table.
#[allow(clippy::too_many_arguments)]
const fn field(
    name: &'static str,
    (outer, tag): (u32, u32),
    required: bool,
    zero: Zero,
    shape: Shape,
    topology: Topology,
    patch: Patch,
    default: Option<&'static str>,
) -> Field {
    let default = match default {
        Some(text) => Some(Cow::Borrowed(text)),
        None => None,
    };
    Field { name: Cow::Borrowed(name), tag, outer, required, zero, shape, topology, patch, default }
}

/// The type of a built-in kind.
pub fn of_kind(group: &str, version: &str, kind: &str) -> Option<&'static Type> {
    let found = generated::KINDS.iter().find(|(g, v, k, _)| *g == group && *v == version && *k == kind);
    found.map(|(_, _, _, schema)| *schema)
}

/// The type with an OpenAPI definition name.
pub fn named(name: &str) -> Option<&'static Type> {
    let index = generated::TYPES.binary_search_by(|known| known.name.as_ref().cmp(name)).ok()?;
    generated::TYPES.get(index).copied()
}

//! The expressions of admission policies and match conditions: what they may name, what they must evaluate to, and the
//! errors their authors know.

mod types;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use self::types::VARIABLES;
use self::types::{JSON_PATCH, NAMESPACE, OBJECT, PolicyTypes, REQUEST};
use crate::{CompileError, Env, Program, Type, Types, opaque_type};

/// Where each variable is among the values an expression is evaluated with.
pub mod place {
    pub const OBJECT: usize = 0;
    pub const OLD_OBJECT: usize = 1;
    pub const NAMESPACE: usize = 2;
    pub const REQUEST: usize = 3;
    pub const VARIABLES: usize = 4;
    pub const PARAMS: usize = 5;
    pub const AUTHORIZER: usize = 6;
    pub const RESOURCE: usize = 7;
    pub const COUNT: usize = 8;
}

/// Why an expression cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Failure {
    pub detail: String,
    /// Not the text is wrong, but something it computes from constants.
    pub internal: bool,
}

pub type Compiled = Result<Program, Failure>;

/// What an expression must evaluate to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    Bool,
    String,
    StringOrNull,
    Anything,
    ApplyConfiguration,
    JsonPatch,
}

impl Returns {
    fn types(self) -> Vec<Type> {
        match self {
            Self::Bool => vec![Type::Bool],
            Self::String => vec![Type::String],
            Self::StringOrNull => vec![Type::String, Type::Null],
            Self::Anything => Vec::new(),
            Self::ApplyConfiguration => vec![Type::object(OBJECT)],
            Self::JsonPatch => vec![Type::list(Type::object(JSON_PATCH))],
        }
    }

    fn makes_patches(self) -> bool {
        matches!(self, Self::ApplyConfiguration | Self::JsonPatch)
    }
}

/// Compiles the expressions of one policy; its variables are declared one after the other.
pub struct Compiler {
    params: Option<Type>,
    object: Type,
    composed: bool,
    variables: BTreeMap<String, Type>,
    more: Option<Arc<dyn Types>>,
}

impl Compiler {
    /// `params`: whether there are any. `composed`: whether expressions may name variables.
    pub fn new(params: bool, composed: bool) -> Self {
        let params = params.then_some(Type::Dyn);
        Self { params, object: Type::Dyn, composed, variables: BTreeMap::new(), more: None }
    }

    /// With the types of the objects, to find what cannot work for them.
    pub fn typed(object: Type, params: Option<Type>, more: Arc<dyn Types>) -> Self {
        Self { params, object, composed: true, variables: BTreeMap::new(), more: Some(more) }
    }

    /// Declares a variable once its expression is compiled; one that fails is of any type.
    pub fn variable(&mut self, name: &str, text: &str) -> Compiled {
        let compiled = self.compile(text, Returns::Anything, true);
        let t = compiled.as_ref().map_or(Type::Dyn, |program| program.output().clone());
        self.variables.insert(name.to_owned(), t);
        compiled
    }

    pub fn compile(&self, text: &str, returns: Returns, authorizer: bool) -> Compiled {
        // What is not declared still has its place, under a name that cannot be written.
        let named = |declared: bool, name: &'static str| if declared { name } else { "@" };
        let asked = |name: &str| opaque_type(name).unwrap_or(Type::Dyn);
        let types = PolicyTypes {
            variables: self.variables.clone(),
            patches: returns.makes_patches(),
            more: self.more.clone(),
        };
        let mut env = Env::default()
            .types(Arc::new(types))
            .variable("object", self.object.clone())
            .variable("oldObject", self.object.clone())
            .variable("namespaceObject", Type::object(NAMESPACE))
            .variable("request", Type::object(REQUEST))
            .variable(named(self.composed, "variables"), Type::object(VARIABLES))
            .variable(named(self.params.is_some(), "params"), self.params.clone().unwrap_or(Type::Dyn))
            .variable(named(authorizer, "authorizer"), asked("kubernetes.authorization.Authorizer"))
            .variable(named(authorizer, "authorizer.requestResource"), asked("kubernetes.authorization.ResourceCheck"));
        if returns.makes_patches() {
            env = env.json_patch();
        }
        let program = env.compile(text).map_err(|error| match error {
            CompileError::Check(_) => Failure { detail: format!("compilation failed: {error}"), internal: false },
            CompileError::Program(_) => {
                Failure { detail: format!("program instantiation failed: {error}"), internal: true }
            }
        })?;
        let wanted = returns.types();
        if wanted.is_empty() || wanted.contains(program.output()) {
            return Ok(program);
        }
        let given = shown(program.output());
        let names: Vec<String> = wanted.iter().map(shown).collect();
        let detail = match names.as_slice() {
            [one] => format!("must evaluate to {one} but got {given}"),
            many => format!("must evaluate to one of [{}] but got {given}", many.join(" ")),
        };
        Err(Failure { detail, internal: false })
    }
}

/// A type as such a message names it.
fn shown(t: &Type) -> String {
    match t {
        Type::Null => "null_type".to_owned(),
        Type::Timestamp => "google.protobuf.Timestamp".to_owned(),
        Type::Duration => "google.protobuf.Duration".to_owned(),
        Type::List(element) => format!("list({})", shown(element)),
        Type::Map(kv) => format!("map({}, {})", shown(&kv.0), shown(&kv.1)),
        Type::Optional(inner) => format!("optional_type({})", shown(inner)),
        other => other.to_string(),
    }
}

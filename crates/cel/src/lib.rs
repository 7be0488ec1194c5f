//! The Common Expression Language as Kubernetes v1.36 speaks it.
//!
//! An [`Env`] declares variables; it compiles a text into a [`Program`] (parse, check types, fold constants), which is
//! evaluated any number of times over borrowed JSON. Everything is bounded: the size and depth of a text, the cost of an
//! evaluation, counted in upstream's units.

mod ast;
pub mod authorizer;
mod checker;
mod cost;
mod error;
pub mod escaping;
mod estimate;
mod eval;
mod functions;
mod library;
mod macros;
mod opaque;
mod parser;
mod plan;
pub mod policy;
pub mod schema;
mod source;
mod time;
mod token;
mod types;
mod unescape;
mod validate;
mod value;

use std::sync::Arc;

pub use error::EvalError;
pub use estimate::{Estimate, NoSizes, Sizes};
pub use eval::Evaluated;
pub use library::opaque_type;
pub use opaque::{Asker, Opaque};
pub use source::CompileError;
pub use time::Time;
pub use types::{NoTypes, Param, Type, Types};
pub use value::{Fields, List, Map, Str, Value};

/// What one expression may cost when it is evaluated.
pub const PER_CALL_LIMIT: u64 = 1_000_000;

/// What an expression may name.
#[derive(Clone)]
pub struct Env {
    variables: Vec<(Arc<str>, Type)>,
    types: Arc<dyn Types>,
    json_patch: bool,
    binds: bool,
}

impl Default for Env {
    fn default() -> Self {
        Self { variables: Vec::new(), types: Arc::new(NoTypes), json_patch: false, binds: false }
    }
}

impl Env {
    /// Declares a variable. The order is the one in which values are given to [`Program::eval`].
    #[must_use]
    pub fn variable(mut self, name: &str, t: Type) -> Self {
        self.variables.push((name.into(), t));
        self
    }

    /// Who knows the object types.
    #[must_use]
    pub fn types(mut self, types: Arc<dyn Types>) -> Self {
        self.types = types;
        self
    }

    /// Declares the function with which keys are put into the paths of JSON patches.
    #[must_use]
    pub fn json_patch(mut self) -> Self {
        self.json_patch = true;
        self
    }

    /// Lets `cel.bind(name, value, body)` give a value a name.
    #[must_use]
    pub fn bindings(mut self) -> Self {
        self.binds = true;
        self
    }

    fn function(&self, name: &str) -> Option<&'static library::Function> {
        library::function(name).filter(|function| self.json_patch || function.name != library::JSON_PATCH_ONLY)
    }

    /// The program a text means. It may be evaluated from many threads at once.
    pub fn compile(&self, source: &str) -> Result<Program, CompileError> {
        let (expr, ids) = parser::parse(source, self.binds).map_err(|issues| source::report(source, issues))?;
        let checked = checker::check(self, &expr, ids).map_err(|issues| source::report(source, issues))?;
        let issues = validate::validate(&expr, &checked);
        if !issues.is_empty() {
            return Err(source::report(source, issues));
        }
        plan::plan(&expr, &checked).map_err(|error| CompileError::Program(error.to_string()))
    }

    /// What a text can cost to evaluate, where variables can be as large as `sizes` says.
    pub fn estimate(&self, source: &str, sizes: &dyn Sizes) -> Result<Estimate, CompileError> {
        let (expr, ids) = parser::parse(source, self.binds).map_err(|issues| source::report(source, issues))?;
        let checked = checker::check(self, &expr, ids).map_err(|issues| source::report(source, issues))?;
        Ok(estimate::estimate(&expr, &checked, sizes))
    }
}

/// A compiled expression.
pub struct Program {
    root: plan::Node,
    /// How many local variables its folds need.
    slots: usize,
    /// Which variables of the environment it reads.
    reads: Vec<usize>,
    output: Type,
}

impl Program {
    /// The type of what it evaluates to.
    pub fn output(&self) -> &Type {
        &self.output
    }

    /// Whether it reads the variable that was declared at this place.
    pub fn reads(&self, variable: usize) -> bool {
        self.reads.contains(&variable)
    }

    /// Its value where the variables have these values, in the order they were declared.
    pub fn eval<'a>(&'a self, variables: &[Option<Value<'a>>], limit: u64) -> Evaluated<'a> {
        eval::eval(&self.root, self.slots, variables, limit)
    }
}

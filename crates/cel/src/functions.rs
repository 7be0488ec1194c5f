//! What the functions of the language do, a file per library.

pub(crate) mod arithmetic;
pub(crate) mod authz;
pub(crate) mod convert;
pub(crate) mod format;
pub(crate) mod lists;
pub(crate) mod named;
pub(crate) mod net;
pub(crate) mod optional;
pub(crate) mod quantity;
pub(crate) mod semver;
pub(crate) mod strings;
pub(crate) mod time;
pub(crate) mod url;

use crate::error::{EvalError, no_such_overload};
use crate::library::Args;

/// Whom the arguments do not fit, in the words upstream has for this function.
pub(crate) fn unfit(args: &Args<'_, '_>) -> EvalError {
    const PLAIN: [&str; 8] = ["startsWith", "endsWith", "contains", "matches", "find", "findAll", "@in", "!_"];
    let operator = args.function.starts_with('_') || args.function == "-_" || args.function == "size";
    if PLAIN.contains(&args.function) || (operator && arithmetic::has_operator(args)) {
        return no_such_overload();
    }
    if operator {
        return EvalError::new(format!("no such overload: {}", args.function));
    }
    let types: Vec<&str> = args.values.iter().map(|value| value.type_name()).collect();
    EvalError::new(format!("no such overload: {}({})", args.function, types.join(", ")))
}

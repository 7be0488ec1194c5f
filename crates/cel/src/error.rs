//! Why an evaluation failed.

/// The failure of an evaluation. `&&` and `||` may absorb it, unless it is about the budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    #[error("{0}")]
    Failed(Box<str>),
    /// The expression cost more than it may.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimit,
}

impl EvalError {
    pub fn new(message: impl Into<String>) -> Self {
        Self::Failed(message.into().into_boxed_str())
    }

    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::CostLimit)
    }
}

pub(crate) fn no_such_overload() -> EvalError {
    EvalError::new("no such overload")
}

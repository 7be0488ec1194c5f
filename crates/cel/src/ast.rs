//! What an expression is after parsing: macros are already expanded into folds.

use std::sync::Arc;

/// Names the node in the tables of the checker.
pub(crate) type Id = u32;

#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) id: Id,
    /// The code point of the token this node is shown at.
    pub(crate) at: u32,
    /// The longest way down from here: what bounds every recursion over the tree.
    pub(crate) depth: u16,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Literal(Literal),
    Ident(Arc<str>),
    /// `test` is what `has()` makes of a selection.
    Select {
        operand: Box<Expr>,
        field: Arc<str>,
        test: bool,
    },
    Call {
        function: Arc<str>,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    List(Vec<Element>),
    Map(Vec<Entry>),
    Struct {
        name: Arc<str>,
        fields: Vec<Field>,
    },
    Fold(Box<Fold>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
}

#[derive(Clone, Debug)]
pub(crate) struct Element {
    pub(crate) optional: bool,
    pub(crate) value: Expr,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) optional: bool,
    pub(crate) key: Expr,
    pub(crate) value: Expr,
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) at: u32,
    pub(crate) optional: bool,
    pub(crate) name: Arc<str>,
    pub(crate) value: Expr,
}

/// A comprehension: `accu` starts at `init` and becomes `step` for each element while `condition` holds; then `result`.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    pub(crate) range: Expr,
    pub(crate) var: Arc<str>,
    pub(crate) var2: Option<Arc<str>>,
    pub(crate) accu: Arc<str>,
    pub(crate) init: Expr,
    pub(crate) condition: Expr,
    pub(crate) step: Expr,
    pub(crate) result: Expr,
}

impl Fold {
    /// No loop at all: how a value is bound to a name.
    pub(crate) fn is_bind(&self) -> bool {
        matches!(&self.range.kind, Kind::List(elements) if elements.is_empty())
            && matches!(self.condition.kind, Kind::Literal(Literal::Bool(false)))
            && &*self.accu != "__result__"
    }
}

impl Kind {
    pub(crate) fn depth(&self) -> u16 {
        let below = |exprs: &mut dyn Iterator<Item = &Expr>| exprs.map(|e| e.depth).max().unwrap_or_default();
        let below = match self {
            Self::Literal(_) | Self::Ident(_) => 0,
            Self::Select { operand, .. } => operand.depth,
            Self::Call { target, args, .. } => below(&mut args.iter().chain(target.as_deref())),
            Self::List(elements) => below(&mut elements.iter().map(|e| &e.value)),
            Self::Map(entries) => below(&mut entries.iter().flat_map(|e| [&e.key, &e.value])),
            Self::Struct { fields, .. } => below(&mut fields.iter().map(|f| &f.value)),
            Self::Fold(f) => below(&mut [&f.range, &f.init, &f.condition, &f.step, &f.result].into_iter()),
        };
        below.saturating_add(1)
    }
}

impl Expr {
    /// `a.b.c` as one name, if it is nothing but names.
    pub(crate) fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.to_string()),
            Kind::Select { operand, field, test: false } => Some(format!("{}.{field}", operand.qualified_name()?)),
            _ => None,
        }
    }

    /// Every direct part of this node, in the order of the text.
    pub(crate) fn children(&self) -> Vec<&Expr> {
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) => Vec::new(),
            Kind::Select { operand, .. } => vec![operand],
            Kind::Call { target, args, .. } => target.as_deref().into_iter().chain(args).collect(),
            Kind::List(elements) => elements.iter().map(|e| &e.value).collect(),
            Kind::Map(entries) => entries.iter().flat_map(|e| [&e.key, &e.value]).collect(),
            Kind::Struct { fields, .. } => fields.iter().map(|f| &f.value).collect(),
            Kind::Fold(f) => vec![&f.range, &f.init, &f.condition, &f.step, &f.result],
        }
    }
}

//! Types of expressions, and when one may stand where another is wanted.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A type as the checker sees it. Values carry their own, coarser type at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// Anything; checked when it is used.
    Dyn,
    /// What has no type because it is wrong; told once and then left alone.
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    /// The type of a type.
    Type(Option<Arc<Type>>),
    List(Arc<Type>),
    Map(Arc<(Type, Type)>),
    Optional(Arc<Type>),
    /// A type of a library, without fields: `net.IP`, `kubernetes.Quantity`.
    Opaque(&'static str),
    /// A type with fields that the provider of types knows.
    Object(Arc<str>),
    /// A type that is to be found: a letter in a declaration, a number in an expression.
    Param(Param),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Param {
    Declared(char),
    Free(u32),
}

/// Knows the fields of object types.
pub trait Types: Send + Sync {
    /// Whether there is a type of this name.
    fn has(&self, name: &str) -> bool;
    fn field(&self, name: &str, field: &str) -> Option<Type>;
}

/// No object types at all.
pub struct NoTypes;

impl Types for NoTypes {
    fn has(&self, _: &str) -> bool {
        false
    }

    fn field(&self, _: &str, _: &str) -> Option<Type> {
        None
    }
}

impl Type {
    pub fn list(element: Self) -> Self {
        Self::List(Arc::new(element))
    }

    pub fn map(key: Self, value: Self) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    pub fn optional(value: Self) -> Self {
        Self::Optional(Arc::new(value))
    }

    pub fn object(name: &str) -> Self {
        Self::Object(name.into())
    }

    fn params(&self) -> Vec<&Self> {
        match self {
            Self::List(t) | Self::Optional(t) | Self::Type(Some(t)) => vec![t],
            Self::Map(t) => vec![&t.0, &t.1],
            _ => Vec::new(),
        }
    }

    fn nullable(&self) -> bool {
        matches!(
            self,
            Self::Null | Self::Optional(_) | Self::Opaque(_) | Self::Object(_) | Self::Duration | Self::Timestamp
        )
    }

    /// The same but for the names of parameters.
    pub(crate) fn is_equivalent(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Param(_), Self::Param(_)) => true,
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => a.is_equivalent(b),
            (Self::Map(a), Self::Map(b)) => a.0.is_equivalent(&b.0) && a.1.is_equivalent(&b.1),
            _ => self == other,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dyn => "dyn",
            Self::Error => "!error!",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::Type(None) => "type",
            Self::Type(Some(t)) => return write!(f, "type({t})"),
            Self::List(t) => return write!(f, "list({t})"),
            Self::Map(t) => return write!(f, "map({}, {})", t.0, t.1),
            Self::Optional(t) => return write!(f, "optional_type({t})"),
            Self::Opaque(name) => name,
            Self::Object(name) => name,
            Self::Param(Param::Declared(letter)) => return write!(f, "{letter}"),
            Self::Param(Param::Free(number)) => return write!(f, "_var{number}"),
        })
    }
}

/// What is known so far about the types that are to be found.
#[derive(Default)]
pub(crate) struct Mapping {
    known: HashMap<Param, Type>,
    /// What was known before each change, so that a failed attempt can be taken back.
    trail: Vec<(Param, Option<Type>)>,
    free: u32,
}

impl Mapping {
    pub(crate) fn fresh(&mut self) -> Type {
        self.free += 1;
        Type::Param(Param::Free(self.free - 1))
    }

    /// Whether `from` may stand where `to` is wanted; what that teaches is kept only if so.
    pub(crate) fn assign(&mut self, to: &Type, from: &Type) -> bool {
        let fits = self.fits(to, from);
        self.settle(fits)
    }

    pub(crate) fn assign_all(&mut self, args: &[Type], params: &[Type]) -> bool {
        let fit = args.len() == params.len() && args.iter().zip(params).all(|(arg, param)| self.fits(arg, param));
        self.settle(fit)
    }

    fn settle(&mut self, keep: bool) -> bool {
        for (param, before) in self.trail.drain(..).rev() {
            if keep {
                continue;
            }
            match before {
                Some(known) => self.known.insert(param, known),
                None => self.known.remove(&param),
            };
        }
        keep
    }

    fn learn(&mut self, param: Param, known: Type) {
        let before = self.known.insert(param, known);
        self.trail.push((param, before));
    }

    fn fits(&mut self, a: &Type, b: &Type) -> bool {
        if let Type::Param(param) = b {
            let (valid, known) = self.substitutes(a, *param);
            if valid || known {
                return valid;
            }
        }
        if let Type::Param(param) = a {
            return self.substitutes(b, *param).0;
        }
        match (a, b) {
            (Type::Dyn | Type::Error, _) | (_, Type::Dyn | Type::Error) => true,
            (Type::Null, other) | (other, Type::Null) => other.nullable(),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => self.fits(a, b),
            (Type::Map(a), Type::Map(b)) => self.fits(&a.0, &b.0) && self.fits(&a.1, &b.1),
            _ => a == b,
        }
    }

    /// Whether the type can be what the parameter stands for, and whether that was known before.
    fn substitutes(&mut self, candidate: &Type, param: Param) -> (bool, bool) {
        if *candidate == Type::Param(param) {
            return (true, true);
        }
        if let Some(known) = self.known.get(&param).cloned() {
            if *candidate == known {
                return (true, true);
            }
            if !self.fits(candidate, &known) {
                return (false, true);
            }
            let general = most_general(candidate, &known);
            if !self.refers(&general, param) {
                self.learn(param, general);
            }
            return (true, true);
        }
        let fits = !self.refers(candidate, param);
        if fits {
            self.learn(param, candidate.clone());
        }
        (fits, false)
    }

    fn refers(&self, within: &Type, param: Param) -> bool {
        match within {
            Type::Param(p) if *p == param => true,
            Type::Param(p) => self.known.get(p).is_some_and(|known| self.refers(known, param)),
            other => other.params().into_iter().any(|part| self.refers(part, param)),
        }
    }

    /// The type with what is known put in. `to_dyn`: what was never found out is anything.
    pub(crate) fn substitute(&self, t: &Type, to_dyn: bool) -> Type {
        match t {
            Type::Param(p) => match self.known.get(p) {
                Some(known) => self.substitute(known, to_dyn),
                None if to_dyn => Type::Dyn,
                None => t.clone(),
            },
            Type::List(e) => Type::list(self.substitute(e, to_dyn)),
            Type::Optional(e) => Type::optional(self.substitute(e, to_dyn)),
            Type::Map(kv) => Type::map(self.substitute(&kv.0, to_dyn), self.substitute(&kv.1, to_dyn)),
            Type::Type(Some(e)) => Type::Type(Some(Arc::new(self.substitute(e, to_dyn)))),
            _ => t.clone(),
        }
    }
}

pub(crate) fn most_general(a: &Type, b: &Type) -> Type {
    if less_specific(a, b) { a.clone() } else { b.clone() }
}

fn less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Param(_), _) => true,
        (_, Type::Dyn | Type::Param(_)) => false,
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => less_specific(a, b),
        (Type::Map(a), Type::Map(b)) => less_specific(&a.0, &b.0) && less_specific(&a.1, &b.1),
        (Type::Type(_), Type::Type(_)) => true,
        _ => a == b,
    }
}

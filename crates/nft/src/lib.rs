//! nftables over netlink: the objects and expressions Ferry's pod network and service proxy are made of.
//!
//! A [`Batch`] is one transaction: the kernel takes all of it or none. [`Socket::apply`] names the object the kernel refused.
//! Registers keep nothing from one rule to the next, so every rule loads what it reads.

mod batch;
mod conntrack;
mod expr;
mod netlink;
mod object;
mod prefix;
mod socket;
mod wire;

pub use batch::Batch;
pub use conntrack::{Conntrack, ConntrackError, Flow};
pub use expr::{CmpOp, Expr, Reg, ct_state, exact, local_destination, masked, not_masked};
pub use object::{Chain, Element, Hook, HookKind, Kind, Set, Verdict};
pub use prefix::{Ipv4Prefix, PrefixError};
pub use socket::{ApplyError, Refusal, Socket};

//! Chains, sets, maps and their elements.

use crate::wire::Writer;

/// Where a base chain is called from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    Filter,
    Nat,
}

/// A base chain when it has a hook, otherwise the target of a jump or goto. Base chains accept what no rule decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    pub name: String,
    pub hook: Option<(HookKind, Hook, i32)>,
}

impl Chain {
    pub fn base(name: &str, kind: HookKind, hook: Hook, priority: i32) -> Self {
        Self { name: name.to_owned(), hook: Some((kind, hook, priority)) }
    }

    pub fn regular(name: impl Into<String>) -> Self {
        Self { name: name.into(), hook: None }
    }
}

/// A component of a key or a value; in registers and elements each takes a multiple of four bytes.
/// The numbers are the ones the `nft` tool knows, so that its listing shows addresses and ports as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ipv4Addr = 7,
    InetProto = 12,
    InetService = 13,
    /// Any 32-bit number.
    Mark = 19,
}

impl Kind {
    /// The bytes that carry the value, before padding.
    fn length(self) -> u32 {
        match self {
            Self::Ipv4Addr | Self::Mark => 4,
            Self::InetProto => 1,
            Self::InetService => 2,
        }
    }
}

/// What a map leads to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Leads {
    Nowhere,
    To(Vec<Kind>),
    ToVerdict,
}

/// A set, a map to values, or a map to verdicts.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    pub name: String,
    pub(crate) key: Vec<Kind>,
    pub(crate) leads: Leads,
    pub(crate) intervals: bool,
    pub(crate) dynamic_size: Option<u32>,
}

impl Set {
    pub fn new(name: &str, key: &[Kind]) -> Self {
        Self { name: name.to_owned(), key: key.to_vec(), leads: Leads::Nowhere, intervals: false, dynamic_size: None }
    }

    pub fn to(mut self, value: &[Kind]) -> Self {
        self.leads = Leads::To(value.to_vec());
        self
    }

    pub fn to_verdict(mut self) -> Self {
        self.leads = Leads::ToVerdict;
        self
    }

    /// Elements are ranges in each component.
    pub fn intervals(mut self) -> Self {
        self.intervals = true;
        self
    }

    /// Rules add elements, which time out; at most `size` of them.
    pub fn dynamic(mut self, size: u32) -> Self {
        self.dynamic_size = Some(size);
        self
    }

    pub(crate) fn write(&self, writer: &mut Writer, table: &str, id: u32) {
        const INTERVAL: u32 = 0x4;
        const MAP: u32 = 0x8;
        const TIMEOUT: u32 = 0x10;
        const EVAL: u32 = 0x20;
        const CONCAT: u32 = 0x80;
        let mut flags = 0;
        if self.leads != Leads::Nowhere {
            flags |= MAP;
        }
        if self.intervals {
            flags |= INTERVAL;
        }
        if self.key.len() > 1 {
            flags |= CONCAT;
        }
        if self.dynamic_size.is_some() {
            flags |= TIMEOUT | EVAL;
        }
        writer.string(1, table);
        writer.string(2, &self.name);
        writer.u32(3, flags);
        writer.u32(4, type_of(&self.key));
        writer.u32(5, length_of(&self.key));
        match &self.leads {
            Leads::Nowhere => (),
            Leads::To(value) => {
                writer.u32(6, type_of(value));
                writer.u32(7, length_of(value));
            }
            Leads::ToVerdict => {
                writer.u32(6, 0xffff_ff00);
                // struct nft_verdict: a code and a pointer.
                writer.u32(7, 16);
            }
        }
        writer.u32(10, id);
        if self.dynamic_size.is_some() || self.key.len() > 1 {
            writer.nested(9, |writer| {
                if let Some(size) = self.dynamic_size {
                    writer.u32(1, size);
                }
                if self.key.len() > 1 {
                    writer.nested(2, |writer| {
                        for kind in &self.key {
                            writer.nested(1, |writer| writer.u32(1, kind.length()));
                        }
                    });
                }
            });
        }
    }
}

fn length_of(kinds: &[Kind]) -> u32 {
    4 * kinds.len() as u32
}

/// nft's numbering of concatenations: six bits per component.
fn type_of(kinds: &[Kind]) -> u32 {
    kinds.iter().fold(0, |number, kind| number << 6 | *kind as u32)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

impl Verdict {
    pub(crate) fn write(&self, writer: &mut Writer) {
        let (code, chain): (i32, _) = match self {
            Self::Drop => (0, None),
            Self::Accept => (1, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Goto(chain) => (-4, Some(chain)),
            Self::Return => (-5, None),
        };
        writer.nested(2, |writer| {
            writer.attr(1, &code.to_be_bytes());
            if let Some(chain) = chain {
                writer.string(2, chain);
            }
        });
    }
}

/// A member of a set or map, its components padded to four bytes each.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Element {
    pub key: Vec<u8>,
    /// The last key of the range, in sets of intervals.
    pub key_end: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub verdict: Option<Verdict>,
}

impl Element {
    pub fn new(key: Vec<u8>) -> Self {
        Self { key, key_end: None, value: None, verdict: None }
    }

    pub fn value(mut self, value: Vec<u8>) -> Self {
        self.value = Some(value);
        self
    }

    pub fn verdict(mut self, verdict: Verdict) -> Self {
        self.verdict = Some(verdict);
        self
    }

    pub fn until(mut self, key_end: Vec<u8>) -> Self {
        self.key_end = Some(key_end);
        self
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.nested(1, |writer| {
            writer.nested(1, |writer| writer.attr(1, &self.key));
            if let Some(end) = &self.key_end {
                writer.nested(10, |writer| writer.attr(1, end));
            }
            if let Some(value) = &self.value {
                writer.nested(2, |writer| writer.attr(1, value));
            }
            if let Some(verdict) = &self.verdict {
                writer.nested(2, |writer| verdict.write(writer));
            }
        });
    }
}

//! One transaction: objects to create and delete, in order.

use crate::expr::Expr;
use crate::object::{Chain, Element, HookKind, Set};
use crate::wire::Writer;

pub(crate) const SUBSYSTEM: u16 = 10;
pub(crate) const IPV4: u8 = 2;

const NEW_TABLE: u16 = 0;
const DEL_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const NEW_SET: u16 = 9;
const NEW_ELEMENTS: u16 = 12;
const DEL_ELEMENTS: u16 = 14;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

/// An attribute's length has sixteen bits; elements are spread over as many messages as they need.
const MAX_ELEMENTS_BYTES: usize = 60_000;

/// Changes to one table of the `ip` family, applied by [`crate::Socket::apply`] as a whole.
pub struct Batch {
    table: String,
    writer: Writer,
    /// What each message is about; the sequence number of message `n` is `n + 1`, the begin being 0.
    labels: Vec<String>,
}

impl Batch {
    pub fn new(table: &str) -> Self {
        let mut writer = Writer::default();
        writer.message(BATCH_BEGIN, REQUEST, 0, 0, SUBSYSTEM, |_| ());
        Self { table: table.to_owned(), writer, labels: Vec::new() }
    }

    /// Whether applying it would change nothing.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.writer.bytes.len()
    }

    /// Creates the table; nothing happens if it is there.
    pub fn add_table(&mut self) {
        let table = self.table.clone();
        self.push(NEW_TABLE, CREATE, format!("table {table}"), |writer| writer.string(1, &table));
    }

    /// Deletes the table with all it holds; it must be there.
    pub fn delete_table(&mut self) {
        let table = self.table.clone();
        self.push(DEL_TABLE, 0, format!("table {table}"), |writer| writer.string(1, &table));
    }

    pub fn add_chain(&mut self, chain: &Chain) {
        let table = self.table.clone();
        self.push(NEW_CHAIN, CREATE, format!("chain {}", chain.name), |writer| {
            writer.string(1, &table);
            writer.string(3, &chain.name);
            if let Some((kind, hook, priority)) = chain.hook {
                writer.nested(4, |writer| {
                    writer.u32(1, hook as u32);
                    writer.attr(2, &priority.to_be_bytes());
                });
                writer.string(7, if kind == HookKind::Nat { "nat" } else { "filter" });
            }
        });
    }

    /// Appends a rule to a chain.
    pub fn add_rule(&mut self, chain: &str, rule: &[Expr]) {
        let table = self.table.clone();
        self.push(NEW_RULE, CREATE | APPEND, format!("rule of chain {chain}"), |writer| {
            writer.string(1, &table);
            writer.string(2, chain);
            writer.nested(4, |writer| rule.iter().for_each(|expr| expr.write(writer)));
        });
    }

    pub fn add_set(&mut self, set: &Set) {
        let (table, id) = (self.table.clone(), self.labels.len() as u32);
        self.push(NEW_SET, CREATE, format!("set {}", set.name), |writer| set.write(writer, &table, id));
    }

    pub fn add_elements<'a>(&mut self, set: &str, elements: impl IntoIterator<Item = &'a Element>) {
        self.elements(NEW_ELEMENTS, CREATE, set, elements);
    }

    pub fn delete_elements<'a>(&mut self, set: &str, elements: impl IntoIterator<Item = &'a Element>) {
        self.elements(DEL_ELEMENTS, 0, set, elements);
    }

    fn elements<'a>(&mut self, kind: u16, flags: u16, set: &str, elements: impl IntoIterator<Item = &'a Element>) {
        let table = self.table.clone();
        let mut elements = elements.into_iter().peekable();
        while elements.peek().is_some() {
            self.push(kind, flags, format!("elements of set {set}"), |writer| {
                writer.string(1, &table);
                writer.string(2, set);
                writer.nested(3, |writer| {
                    let start = writer.bytes.len();
                    while writer.bytes.len() - start < MAX_ELEMENTS_BYTES {
                        let Some(element) = elements.next() else { break };
                        element.write(writer);
                    }
                });
            });
        }
    }

    fn push(&mut self, kind: u16, flags: u16, label: String, fill: impl FnOnce(&mut Writer)) {
        self.labels.push(label);
        let seq = self.labels.len() as u32;
        self.writer.message(SUBSYSTEM << 8 | kind, REQUEST | ACK | flags, seq, IPV4, 0, fill);
    }

    pub(crate) fn into_parts(mut self) -> (Vec<u8>, Vec<String>) {
        let seq = self.labels.len() as u32 + 1;
        self.writer.message(BATCH_END, REQUEST, seq, 0, SUBSYSTEM, |_| ());
        (self.writer.bytes, self.labels)
    }
}

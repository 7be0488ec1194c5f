//! Tells the kernel what changed.

use std::collections::HashSet;

use nft::{ApplyError, Batch, Conntrack, ConntrackError, Element, Socket};

use crate::plan::Node;
use crate::ruleset::{self, TABLE};
use crate::slot::{Pick, Slot, Value};
use crate::stale;
use crate::table::{Table, Transaction};

#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("cannot program services")]
    Kernel(#[from] ApplyError),
    #[error("cannot follow tracked flows")]
    Conntrack(#[from] ConntrackError),
    #[error("the proxy's worker panicked")]
    Panicked(#[source] tokio::task::JoinError),
}

/// Sockets to the kernel, in the network namespace of the thread that opened them, and which chains it has.
pub struct Applier {
    socket: Socket,
    conntrack: Conntrack,
    node: Node,
    picks: HashSet<Pick>,
    /// Whether the kernel's table is what our transactions made it.
    in_step: bool,
}

impl Applier {
    pub fn open(node: Node) -> Result<Self, ProxyError> {
        let (socket, conntrack) = (Socket::open()?, Conntrack::open()?);
        Ok(Self { socket, conntrack, node, picks: HashSet::new(), in_step: false })
    }

    /// Brings the kernel to `table`: by its changes, or as a whole at first and whenever the kernel refuses them, which means
    /// that someone else has changed it.
    pub fn sync(&mut self, table: &mut Table) -> Result<(), ProxyError> {
        let mut changes = if self.in_step { table.take_changes() } else { table.take_all() };
        if !self.in_step || !self.try_change(&changes) {
            if self.in_step {
                changes = table.take_all();
            }
            self.in_step = false;
            self.replace(&changes)?;
            self.in_step = true;
        }
        if let Err(error) = stale::forget(&mut self.conntrack, table, &changes.udp_services()) {
            tracing::warn!(%error, "flows to endpoints that are gone may go on until their clients pause");
        }
        Ok(())
    }

    fn try_change(&mut self, changes: &Transaction) -> bool {
        let outcome = self.change(changes);
        if let Err(error) = &outcome {
            tracing::warn!(%error, "service table differs from the kernel's, writing it anew");
        }
        outcome.is_ok()
    }

    fn change(&mut self, transaction: &Transaction) -> Result<(), ApplyError> {
        let mut batch = Batch::new(TABLE);
        let picks = self.missing_picks(&transaction.add);
        picks.iter().for_each(|pick| ruleset::write_pick(&mut batch, pick, &self.node));
        elements(&transaction.remove, |set, elements| batch.delete_elements(set, elements));
        elements(&transaction.add, |set, elements| batch.add_elements(set, elements));
        self.socket.apply(batch)?;
        self.picks.extend(picks);
        Ok(())
    }

    fn replace(&mut self, transaction: &Transaction) -> Result<(), ApplyError> {
        self.picks.clear();
        let picks = self.missing_picks(&transaction.add);
        let mut batch = Batch::new(TABLE);
        // The first makes sure that there is one to delete.
        batch.add_table();
        batch.delete_table();
        batch.add_table();
        ruleset::write(&mut batch, &self.node);
        picks.iter().for_each(|pick| ruleset::write_pick(&mut batch, pick, &self.node));
        elements(&transaction.add, |set, elements| batch.add_elements(set, elements));
        self.socket.apply(batch)?;
        self.picks.extend(picks);
        Ok(())
    }

    fn missing_picks(&self, add: &[(Slot, Value)]) -> Vec<Pick> {
        let wanted: HashSet<_> = add.iter().filter_map(|(slot, value)| Pick::of(slot, value)).collect();
        let mut missing: Vec<_> = wanted.difference(&self.picks).copied().collect();
        missing.sort_unstable();
        missing
    }
}

/// Slots sort by set, so each set is written once.
fn elements(slots: &[(Slot, Value)], mut write: impl FnMut(&str, &[Element])) {
    for run in slots.chunk_by(|(a, _), (b, _)| a.set() == b.set()) {
        let elements: Vec<_> = run.iter().map(|(slot, value)| slot.element(value)).collect();
        if let Some((slot, _)) = run.first() {
            write(slot.set(), &elements);
        }
    }
}

/// Removes everything the proxy has put into the kernel.
pub fn cleanup() -> Result<(), ProxyError> {
    let mut batch = Batch::new(TABLE);
    batch.add_table();
    batch.delete_table();
    Ok(Socket::open()?.apply(batch)?)
}

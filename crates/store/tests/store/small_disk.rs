//! A file system of 64 MB that is filled, freed, and whose store is killed, again and again.
//!
//! The child of [`crash`](crate::crash) writes with 32 writers and the options of a cluster, so its own log and history are part of
//! what fills the disk; a file beside the store takes the rest. Needs root: it mounts.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use store::*;
use testkit::{Random, SmallDisk, long};

use crate::crash::{Kind, Known, Said};

const BYTES: u64 = 64 << 20;

fn small_disk(dir: &tempfile::TempDir) -> SmallDisk {
    SmallDisk::new(dir.path(), BYTES, None).unwrap()
}

fn store_on(disk: &SmallDisk) -> PathBuf {
    disk.path().join("store")
}

/// One life of the child, which begins on a full disk or not: the disk is filled, freed in most rounds, and the child is killed.
struct Round {
    fill_after: u64,
    is_freed: bool,
    kill_after: u64,
}

impl Round {
    fn random(random: &mut Random) -> Round {
        Round { fill_after: 1 + random.below(4000), is_freed: random.below(4) > 0, kill_after: 1 + random.below(2000) }
    }

    /// Returns how long the first write took after space was freed.
    fn run(&self, disk: &SmallDisk, known: &mut Known) -> Option<Duration> {
        let (mut acks, mut refusals, mut resumed) = (0, 0, None);
        let mut freed: Option<Instant> = None;
        known.run(&store_on(disk), Kind::Crowded, |said| {
            match said {
                Said::Acked => acks += 1,
                Said::Full => refusals += 1,
            }
            // The store makes room for itself by giving up history, so it may take several times.
            if said == Said::Acked
                && freed.is_none()
                && acks >= self.fill_after
                && (acks - self.fill_after).is_multiple_of(500)
            {
                disk.fill().unwrap();
            }
            // What was acknowledged before may still be on its way here: all writers were refused several times.
            if refusals == 200 && freed.is_none() && self.is_freed {
                disk.free();
                (freed, acks) = (Some(Instant::now()), 0);
            }
            if said == Said::Acked && acks == 1 {
                resumed = freed.map(|at| at.elapsed());
            }
            match self.is_freed {
                true => freed.is_some() && acks == self.kill_after,
                false => refusals == 200,
            }
        });
        resumed
    }
}

#[test]
fn a_full_disk_loses_no_acknowledged_write_and_ends_when_space_is_freed() {
    let rounds = if long() { 200 } else { 8 };
    let mut random = Random::from_environment();
    eprintln!("FERRY_SEED={} {rounds} rounds", random.seed());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let disk = small_disk(&dir);
    let mut known = Known::new(Kind::Crowded);
    let (mut slowest, mut freed) = (Duration::ZERO, 0);
    for _ in 0..rounds {
        if let Some(resumed) = Round::random(&mut random).run(&disk, &mut known) {
            assert!(resumed < Duration::from_secs(5), "writes went on {resumed:?} after space was freed");
            (slowest, freed) = (slowest.max(resumed), freed + 1);
        }
        // Opened as the child left it, full or not.
        let store = Embedded::open(&store_on(&disk), Kind::Crowded.options()).unwrap();
        runtime.block_on(known.check(&store));
        drop(store);
        if random.below(2) == 0 {
            disk.free();
        }
    }
    eprintln!("{} changes, {freed} times freed, writes went on after {slowest:?} at most", known.revision() - 1);
    assert!(freed > 0, "space was to be freed");
}

#[test]
fn a_small_disk_gives_up_history_before_it_refuses_writes() {
    let dir = tempfile::tempdir().unwrap();
    let disk = small_disk(&dir);
    let mut known = Known::new(Kind::Crowded);
    let (mut acks, mut refusals) = (0, 0);
    known.run(&store_on(&disk), Kind::Crowded, |said| {
        match said {
            Said::Acked => acks += 1,
            Said::Full => refusals += 1,
        }
        // More than the disk, most of it history.
        acks == 60_000
    });
    assert_eq!(refusals, 0);
}

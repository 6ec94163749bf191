//! A whole cluster in one thread, driven by one seed: the very replicas that the services run (`highwater-replica`, on the
//! disk that crashes), the rules of elections, a store, a network, programs and their faults.
//!
//! What must hold: a run is a function of its seed, so a failure is replayed by it; every rule of [`crate::invariants`] holds
//! after every step; and once faults stop, the cluster heals within a bounded number of rounds, with equal logs. Every
//! fault is one that design.md allows for. Deliberately absent: sockets, tasks, clocks (the network simulation and the
//! tests on real processes have them).
//!
//! | file | plays |
//! |---|---|
//! | `scenario` | what the seed chooses: size, durability, which faults and how often |
//! | `cluster` | the whole, and one step of it |
//! | `node` | a disk with its two programs |
//! | `store` | the coordination store: late, lost and repeated answers, outages |
//! | `network` | messages, in any order, any number of times |
//! | `leading`, `following` | what leader-svc and follower-agent do around a replica |
//! | `producers`, `consumers` | who writes and reads |
//! | `standing`, `hand_over` | who takes a leadership and who gives it up; moving replicas |
//! | `relay` | runs in which a leadership is handed on again and again |
//! | `faults` | what goes wrong |
//! | `presence` | deaths, failures and pauses that leaders hear of |
//! | `unclean` | elections that give records up |
//! | `rot` | bad batches that readers meet |
//! | `repair` | damage that is read from the leader again |
//! | `heal` | the end: nothing goes wrong any more |
//! | `observe`, `shadow` | what the invariants look at |

#![allow(
    clippy::indexing_slicing,
    reason = "indexes of nodes and partitions are made by the simulation itself"
)]

mod campaign;
mod cluster;
mod consumers;
mod faults;
mod following;
mod hand_over;
mod heal;
mod history;
mod leading;
mod network;
mod node;
mod node_table;
mod observe;
mod presence;
mod producers;
mod relay;
mod repair;
mod rot;
mod scenario;
mod shadow;
mod standing;
mod store;
mod trace;
mod unclean;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use campaign::{Outcome, Planted, campaign, replay};
pub use history::{Batch, History, Sequence};
pub use observe::{PartitionView, ReplicaView, Role, Said};

use cluster::Cluster;
use scenario::Scenario;
use trace::Trace;

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Steps before the end of all faults.
    pub steps: u64,
    /// Batches below a leader's high watermark.
    pub committed: u64,
    /// Batches acknowledged to a producer.
    pub acknowledged: u64,
    /// Batches read by consumers.
    pub read: u64,
    /// Leaderships begun.
    pub leaderships: u64,
    /// Leaderships begun by an unclean election.
    pub unclean: u64,
    /// Damaged ranges that were repaired.
    pub repairs: u64,
    /// What went wrong on purpose, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Every step in words; empty unless asked for.
    pub trace: String,
}

impl Report {
    /// Adds another run's numbers.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.committed += other.committed;
        self.acknowledged += other.acknowledged;
        self.read += other.read;
        self.leaderships += other.leaderships;
        self.unclean += other.unclean;
        self.repairs += other.repairs;
        for (kind, count) in &other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
    }
}

/// A rule that did not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The run.
    pub seed: u64,
    /// After how many steps.
    pub step: u64,
    /// Which rule, and where.
    pub what: String,
    /// Every step in words; empty unless asked for.
    pub trace: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {} step {}: {}\nreplay it: cargo run -p system-tests --bin fuzz -- --seed {}",
            self.seed, self.step, self.what, self.seed
        )
    }
}

/// Runs the simulation of `seed` to its end. With `traced` every step is told in words.
///
/// # Errors
/// The first rule that did not hold, an assertion of the code under test included.
pub fn run(seed: u64, traced: bool) -> Result<Report, Failure> {
    let mut cluster = Cluster::new(Scenario::of(seed), Trace::new(traced));
    let outcome = catch_unwind(AssertUnwindSafe(|| cluster.run()));
    let trace = cluster.trace.take();
    let what = match outcome {
        Ok(Ok(())) => return Ok(Report { trace, ..cluster.report() }),
        Ok(Err(what)) => what,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            format!("panicked: {}", text.unwrap_or("(no text)"))
        }
    };
    Err(Failure { seed, step: cluster.step, what, trace })
}

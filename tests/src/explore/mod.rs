//! Every state that the real core can reach within small bounds: the transitions of `highwater-protocol` and the rules of
//! `highwater-coordination`, over a log in memory.
//!
//! Breadth first, so the first state that breaks a rule of [`crate::invariants`] is reached by a shortest trace, which is told in
//! words. What must hold: within its bounds nothing is left out at random, a run is the same each time, and a planted fault
//! that the bounds can reach is found, which is the proof that the search looks.
//!
//! | file | holds |
//! |---|---|
//! | `bounds` | how much may happen: records, leaderships, crashes, power losses, lost outcomes, late messages |
//! | `log_twin` | the log of a node, with what a crash and a power loss leave of it |
//! | `state` | three nodes, the record, what is under way, and what is left of the bounds |
//! | `action` | what may happen next |
//! | `step` | an action, done |
//! | `leading`, `following`, `electing`, `failing` | its parts, as the services do them around the core |
//! | `key` | which states are the same; nodes have no names there |
//! | `view` | what the invariants look at |
//! | `search` | the search, on every core of the machine |
//!
//! Done at once, because nothing that comes between can see the difference: a compare-and-swap by which a node begins to lead
//! (unless its outcome is lost), a fetch's way to the leader (unless it is sent to arrive late), the closing of a log. Waits
//! of a follower are over by its next action. A leader's clock moves only by `Lapse`, through all of
//! `replica.lag.time.max.ms`. Not here: segments, indexes and damage (the log crate and the simulation), retention, producer
//! state, parked fetches (who reads later for one that arrived reads the same as one that arrives later), liveness.

#![allow(clippy::indexing_slicing, reason = "indexes of nodes and lists are made by the search itself")]

mod action;
mod bounds;
mod electing;
mod failing;
mod following;
mod key;
mod leading;
mod log_twin;
mod search;
mod state;
mod step;
mod view;

pub use bounds::Bounds;
pub use search::{Found, Outcome, explore};

/// How many nodes there are.
const NODES: usize = 3;

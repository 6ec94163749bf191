//! What must hold of a partition after every step of a simulation: one rule per file, each with its source. A rule looks at
//! replicas from outside, beside a history that the code under test has no part in ([`crate::core_sim::History`]).
//!
//! | rule | source |
//! |---|---|
//! | `leader_in_isr` | Kafka's TLA+ specification, LeaderInIsr |
//! | `weak_isr` | the same, WeakIsr |
//! | `strong_isr` | the same, StrongIsr |
//! | `valid_high_watermark` | the same, AsyncIsr's ValidHighWatermark |
//! | `committed_below_high_watermark` | ARCHITECTURE, "Below the high watermark all in-sync logs agree" |
//! | `acknowledged_is_there` | design.md 6, its title |
//! | `seen_is_there` | issue 5, "no consumer saw a record that later vanished" |
//! | `each_sequence_once` | design.md 6.10 |
//! | `joining_holds_back` | S57, design.md 6.8 |
//! | `grace_at_leader_start` | S53 |
//! | `lock_first` | design.md 6.6 |
//! | `moves_keep_copies` | KIP-455, design.md 6.12 |
//! | `bounds` | ARCHITECTURE, log start ≤ HW ≤ log end |
//! | `high_watermark_is_monotone` | S59, design.md 6.8 |
//! | `min_isr_freezes` | S58, design.md 6.8 |
//! | `one_batch_per_offset_and_epoch` | KIP-101, log matching |
//! | `epochs_rise` | S45, ARCHITECTURE |
//! | `epochs_never_fall` | design.md 6.5 |
//! | `cut_above_high_watermark` | S43, design.md 6.5 |
//! | `incarnations_are_unique` | design.md 6.3 |
//! | `healthy_is_not_retired` | the same |
//! | `loss_reports` | design.md 6.13 |
//!
//! One leader per epoch (design.md 6.2) is noted where leaders are looked at: it is about leaderships, which outlive steps.

use crate::core_sim::{Batch, PartitionView, ReplicaView};

mod acknowledged_is_there;
mod bounds;
mod committed_below_high_watermark;
mod cut_above_high_watermark;
mod each_sequence_once;
mod epochs_never_fall;
mod epochs_rise;
mod grace_at_leader_start;
mod healthy_is_not_retired;
mod high_watermark_is_monotone;
mod incarnations_are_unique;
mod joining_holds_back;
mod leader_in_isr;
mod lock_first;
mod loss_reports;
mod min_isr_freezes;
mod moves_keep_copies;
mod one_batch_per_offset_and_epoch;
mod seen_is_there;
mod strong_isr;
mod valid_high_watermark;
mod weak_isr;

/// A rule: what is broken, in words.
type Rule = fn(&PartitionView<'_>) -> Result<(), String>;

/// Every rule by its name; cheap ones first.
const RULES: &[(&str, Rule)] = &[
    ("LeaderInIsr", leader_in_isr::check),
    ("a move keeps its copies", moves_keep_copies::check),
    ("the lock comes first", lock_first::check),
    ("bounds", bounds::check),
    ("the high watermark is monotone", high_watermark_is_monotone::check),
    ("min.insync.replicas freezes the high watermark", min_isr_freezes::check),
    ("grace at the start of a leadership", grace_at_leader_start::check),
    ("who is about to join is waited for", joining_holds_back::check),
    ("epochs never fall", epochs_never_fall::check),
    ("epochs rise", epochs_rise::check),
    ("incarnations are unique", incarnations_are_unique::check),
    ("a healthy incarnation is not retired", healthy_is_not_retired::check),
    ("no cut below the high watermark", cut_above_high_watermark::check),
    ("losses are reported", loss_reports::check),
    ("ValidHighWatermark", valid_high_watermark::check),
    ("StrongIsr", strong_isr::check),
    ("WeakIsr", weak_isr::check),
    ("only what is committed is below a high watermark", committed_below_high_watermark::check),
    ("what is acknowledged is there", acknowledged_is_there::check),
    ("what was seen is there", seen_is_there::check),
    ("one batch per offset and epoch", one_batch_per_offset_and_epoch::check),
    ("each sequence once, in order", each_sequence_once::check),
];

/// Checks every rule on a partition in which something changed.
///
/// # Errors
/// The first broken rule, by name, and what broke it.
pub fn check(view: &PartitionView<'_>) -> Result<(), String> {
    if !view.changed {
        return Ok(());
    }
    RULES.iter().try_for_each(|(name, rule)| rule(view).map_err(|what| format!("{name}: {what}")))
}

/// The first batch of `due` that the replica does not hold. Both are in the order of offsets. What straddles the replica's
/// log start is not due.
fn missing<'a>(due: impl Iterator<Item = &'a Batch>, replica: &ReplicaView<'_>) -> Option<&'a Batch> {
    let mut held = replica.batches.iter().peekable();
    due.filter(|batch| batch.base >= replica.now.log_start).find(|batch| {
        while held.next_if(|other| other.base < batch.base).is_some() {}
        held.peek() != Some(batch)
    })
}

//! Where a follower cuts its log when the leader says that it differs (S38, KIP-101, KIP-279).
//!
//! What holds: the cut is never above the own log end; after it the leader is asked again, because one round is not enough;
//! an undefined answer never comes here, so it never cuts (design.md 6.5). Whether a cut may go below the high watermark is
//! decided by the partition, which knows it.

use highwater_types::{LeaderEpochCache, Offset, OffsetAndEpoch};

/// The end to cut to, for the leader's answer `at`: the end, in the leader's log, of the largest epoch that it has and that
/// is not above the one asked for.
///
/// Where the own log knows that epoch, both ends of it bound the cut. Where it does not, everything above its own largest
/// smaller epoch goes, and the next fetch asks about that one.
#[must_use]
pub fn cut_point(at: OffsetAndEpoch, epochs: &LeaderEpochCache, log_end: Offset) -> Offset {
    let own = epochs.end_offset_for(at.epoch, log_end);
    let cut = match own {
        Some(own) if own.epoch == at.epoch => own.offset.min(at.offset),
        Some(own) => own.offset,
        None => at.offset,
    };
    debug_assert!(
        own.is_none_or(|own| own.epoch <= at.epoch),
        "the largest own epoch that is not above the answer's"
    );
    cut.min(log_end)
}

#[cfg(test)]
#[path = "truncation_test.rs"]
mod tests;

//! How fast replicas that are added catch up, for people who wait for them.
//!
//! What holds: the pace is that of the last [`LOOKS_MAX`] looks, so a throttle's bursts do not show; a replica that began anew
//! has none. Deliberately absent: every decision; nothing depends on it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use highwater_types::{MonotonicTime, NodeId, Offset};
use highwater_wire::reassign::AddedReplica;
use parking_lot::Mutex;

use super::handle::LedPartition;

/// How often it is looked at.
pub(crate) const PACE_INTERVAL: Duration = Duration::from_secs(1);

/// How many looks make a pace.
const LOOKS_MAX: usize = 10;

/// Over less time a pace would say nothing.
const SHORTEST: Duration = Duration::from_millis(500);

/// How far a replica was.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: MonotonicTime,
    acknowledged: Offset,
    bytes_left: u64,
}

/// The last looks at a replica, the oldest first.
#[derive(Debug, Default)]
struct Pace(VecDeque<Look>);

impl Pace {
    fn note(&mut self, look: Look) {
        if self.0.back().is_some_and(|last| last.acknowledged > look.acknowledged) {
            self.0.clear();
        }
        if self.0.len() == LOOKS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(look);
    }

    /// The look that `now` is compared with, and how long ago it was.
    fn since(&self, now: &Look) -> Option<(&Look, Duration)> {
        let oldest = self.0.front().filter(|oldest| oldest.acknowledged <= now.acknowledged)?;
        let span = now.at.since(oldest.at);
        (span >= SHORTEST).then_some((oldest, span))
    }

    /// When a replica will lack nothing, if what it lacks goes on to shrink as it did.
    fn left(&self, now: &Look) -> Option<Duration> {
        if now.bytes_left == 0 {
            return Some(Duration::ZERO);
        }
        let (oldest, span) = self.since(now)?;
        let shrunk = oldest.bytes_left.checked_sub(now.bytes_left).filter(|shrunk| *shrunk > 0)?;
        let millis = u128::from(now.bytes_left) * span.as_millis() / u128::from(shrunk);
        Some(Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
    }
}

/// The paces of a partition's added replicas.
#[derive(Debug, Default)]
pub(super) struct Paces(Mutex<BTreeMap<NodeId, Pace>>);

impl LedPartition {
    /// Looks at the replicas that are added, if any are.
    pub(crate) fn note_paces(&self) {
        let (record, mut paces) = (self.record(), self.paces.0.lock());
        paces.retain(|node, _| record.adding.contains(node));
        if record.adding.is_empty() {
            return;
        }
        let at = self.now();
        for (row, bytes_left) in self.replica.describe(at) {
            let known = row.acknowledged.zip(bytes_left).filter(|_| record.adding.contains(&row.node));
            if let Some((acknowledged, bytes_left)) = known {
                paces.entry(row.node).or_default().note(Look { at, acknowledged, bytes_left });
            }
        }
    }

    /// Adds how far and how fast these replicas are.
    pub(crate) fn add_progress(&self, added: &mut [AddedReplica]) {
        let at = self.now();
        let (rows, size) = (self.replica.describe(at), self.replica.log().positions().size);
        let paces = self.paces.0.lock();
        for added in added {
            let Some((row, bytes_left)) = rows.iter().find(|(row, _)| row.node == added.node) else {
                continue;
            };
            added.lag_records = row.lag_records;
            let Some((acknowledged, bytes_left)) = row.acknowledged.zip(*bytes_left) else { continue };
            added.bytes_left = Some(bytes_left);
            added.bytes_held = Some(size.saturating_sub(bytes_left));
            let (now, pace) = (Look { at, acknowledged, bytes_left }, paces.get(&added.node));
            added.left = pace.and_then(|pace| pace.left(&now));
            added.bytes_per_second = pace.and_then(|pace| pace.since(&now)).map(|(oldest, span)| {
                let bytes = self.replica.bytes_between(oldest.acknowledged, acknowledged);
                u64::try_from(u128::from(bytes) * 1_000 / span.as_millis().max(1)).unwrap_or(u64::MAX)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(seconds: u64, acknowledged: i64, bytes_left: u64) -> Look {
        Look {
            at: MonotonicTime::from_nanos(seconds * 1_000_000_000),
            acknowledged: Offset::new(acknowledged).unwrap(),
            bytes_left,
        }
    }

    fn pace(looks: &[Look]) -> Pace {
        let mut pace = Pace::default();
        looks.iter().for_each(|look| pace.note(*look));
        pace
    }

    #[test]
    fn what_is_left_takes_as_long_as_the_same_took_lately() {
        let pace = pace(&[look(0, 0, 1_000), look(1, 10, 900), look(2, 20, 800)]);
        assert_eq!(pace.left(&look(2, 20, 800)), Some(Duration::from_secs(8)));
        assert_eq!(pace.left(&look(2, 100, 0)), Some(Duration::ZERO));
    }

    #[test]
    fn while_nothing_shrinks_no_end_is_known() {
        let pace = pace(&[look(0, 0, 1_000), look(1, 10, 1_100)]);
        assert_eq!(pace.left(&look(2, 20, 1_200)), None);
        assert!(pace.since(&look(2, 20, 1_200)).is_some(), "its pace is known all the same");
        assert_eq!(Pace::default().left(&look(2, 20, 1_200)), None);
    }

    #[test]
    fn only_the_last_looks_count() {
        let slow: Vec<_> = (0..20).map(|at| look(at, 0, 1_000)).collect();
        let fast: Vec<_> = (0..10).map(|at| look(20 + at, 10, 1_000 - 100 * at)).collect();
        let pace = pace(&[slow, fast].concat());
        assert_eq!(pace.left(&look(29, 10, 100)), Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_replica_that_began_anew_has_no_pace() {
        let pace = pace(&[look(0, 500, 1_000), look(1, 0, 2_000)]);
        assert_eq!(pace.0.len(), 1);
        assert!(pace.since(&look(1, 0, 2_000)).is_none(), "over no time at all");
        assert!(pace.since(&look(9, 0, 2_000)).is_some());
    }
}

//! Bad batches that readers meet while a program runs (design.md 2): a follower puts them on record under a new incarnation, and
//! repairs them; a leader hands over first, as soon as somebody can lead, and its node's agent does the same; one that is alone
//! in sync puts them on record under its own. The record that rots is chosen by `faults`.

use highwater_log::{OffsetRange, ReadError};
use highwater_types::Offset;

use super::cluster::Cluster;
use super::node::Leads;

/// The segment in which a read met a bad batch.
pub(super) fn rotten_segment(error: &ReadError) -> Option<Offset> {
    if let ReadError::Corrupt { segment, .. } = error { Some(*segment) } else { None }
}

impl Leads {
    /// A read of this leader's log failed.
    pub(super) fn read_failed(&mut self, error: &ReadError) {
        self.rot = rotten_segment(error).or(self.rot);
        self.damaged |= matches!(error, ReadError::Corrupt { .. } | ReadError::Damaged { .. });
    }
}

impl Cluster {
    /// A read of a follower's log failed.
    pub(super) fn follower_read_failed(&mut self, node: usize, partition: usize, error: &ReadError) {
        if let Some(segment) = rotten_segment(error) {
            self.note_rot(node, partition, segment);
        }
    }

    /// What the agent does about a segment in which a bad batch was met.
    pub(super) fn note_rot(&mut self, node: usize, partition: usize, segment: Offset) {
        let now = self.now();
        let Some(followed) = &self.nodes[node].followed[partition] else { return };
        let step = followed.replica.on_rot_met(segment, now);
        let (at, damage) = (self.step, followed.replica.log().damage());
        self.trace.note(|| format!("{at} p{partition} n{node} notes rot in {segment}: {damage:?}"));
        self.count_fault("rot met by a reader of a follower");
        self.absorb(node, partition, step);
    }

    /// A leader that nobody can take over from: if it is alone, what it lost is lost.
    pub(super) fn note_rot_alone(&mut self, node: usize, partition: usize) {
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        let Some(segment) = leads.rot.take() else { return };
        if !matches!(leads.replica.note_rot_alone(segment), Ok(true)) {
            return;
        }
        let lost: Vec<_> = leads.replica.log().damage().iter().map(|damage| damage.range).collect();
        self.histories[partition].lost.extend(lost);
        self.count_fault("rot of a leader alone");
    }

    /// What a follower repaired rots no more.
    pub(super) fn has_repaired(&mut self, node: usize, partition: usize, range: OffsetRange) {
        self.rotten[partition].take_if(|(rots, batch)| *rots == node && range.contains(batch.base));
    }
}

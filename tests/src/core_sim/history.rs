//! What the outside world knows of a partition: what was ever committed, acknowledged and seen. The code under test has no
//! part in it.

use std::collections::BTreeMap;

use highwater_log::OffsetRange;
use highwater_records::BatchView;
use highwater_types::{Incarnation, LeaderEpoch, NodeId, Offset};

/// A batch, by what tells it from every other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its first offset.
    pub base: Offset,
    /// The offset after its last one.
    pub next: Offset,
    /// The leadership that wrote it.
    pub epoch: Option<LeaderEpoch>,
    /// Its checksum; every batch of a run has other records.
    pub crc: u32,
    /// Its place among its producer's; `None` = of no idempotent producer.
    pub sequence: Option<Sequence>,
}

/// The sequence numbers of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The producer's id.
    pub producer: i64,
    /// That of its first record.
    pub first: i32,
    /// That of its last one.
    pub last: i32,
}

impl Batch {
    /// A batch, by its header.
    pub(super) fn of(view: &BatchView<'_>) -> Self {
        let header = view.header();
        let (producer, first, last) = (header.producer_id(), header.base_sequence(), header.last_sequence());
        Self {
            base: header.base_offset(),
            next: header.next_offset(),
            epoch: header.leader_epoch(),
            crc: header.crc(),
            sequence: (producer >= 0).then_some(Sequence { producer, first, last }),
        }
    }
}

/// What is known of a partition.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Every batch that was ever below a leader's high watermark.
    pub committed: BTreeMap<Offset, Batch>,
    /// The highest high watermark of a leader.
    pub committed_end: Offset,
    /// Every batch that was acknowledged to its producer, with the offset that it was told.
    pub acknowledged: BTreeMap<Offset, Batch>,
    /// Every batch that a consumer saw.
    pub seen: BTreeMap<Offset, Batch>,
    /// Who leads an epoch: the node, and which of its leaderships.
    pub leaderships: BTreeMap<LeaderEpoch, (usize, u64)>,
    /// The highest epoch in which an incarnation of a node was seen to work, and by which opening of its log.
    pub worked: BTreeMap<(NodeId, Incarnation), (LeaderEpoch, u64)>,
    /// Ranges that a sole member of the in-sync set has recorded as lost, after its disk failed (design.md 6.3).
    pub lost: Vec<OffsetRange>,
}

impl History {
    /// Whether the batch may be missing: it is on record as lost.
    #[must_use]
    pub fn is_lost(&self, batch: &Batch) -> bool {
        self.lost.iter().any(|range| range.start < batch.next && batch.base < range.end)
    }

    /// Every committed batch from `from` on that must be there.
    pub fn due(&self, from: Offset) -> impl DoubleEndedIterator<Item = &Batch> {
        self.committed.range(from..).map(|(_, batch)| batch).filter(|batch| !self.is_lost(batch))
    }
}

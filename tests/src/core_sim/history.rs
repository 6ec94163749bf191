//! What the outside world knows of a partition: what was ever committed, acknowledged and seen. The code under test has no
//! part in it.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Every batch that was ever below a leader's high watermark, and that no unclean election has given up.
    pub committed: BTreeMap<Offset, Batch>,
    /// Where they end.
    pub committed_end: Offset,
    /// The highest high watermark of a leader.
    pub highest_end: Offset,
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
    /// Epochs that began by an unclean election, as the record named them.
    pub elections: BTreeSet<LeaderEpoch>,
    /// The newest of them of which it is known what it gave up: from the moment on that somebody led by it.
    pub decided: Option<LeaderEpoch>,
    /// What that leader held then.
    survived: BTreeMap<Offset, Batch>,
    /// Batches that were committed, and that an unclean election has given up.
    given_up: BTreeSet<(Offset, Option<LeaderEpoch>, u32)>,
}

impl History {
    /// Whether the batch may be missing: it is on record as lost, or an unclean election has given it up.
    #[must_use]
    pub fn is_lost(&self, batch: &Batch) -> bool {
        self.is_given_up(batch)
            || self.lost.iter().any(|range| range.start < batch.next && batch.base < range.end)
    }

    /// Whether the batch was committed, and an unclean election has given it up.
    #[must_use]
    pub fn is_given_up(&self, batch: &Batch) -> bool {
        self.given_up.contains(&key(batch))
    }

    /// How many committed batches unclean elections have given up.
    pub(super) fn given_up(&self) -> usize {
        self.given_up.len()
    }

    /// Whether the batch was ever committed.
    #[must_use]
    pub fn was_committed(&self, batch: &Batch) -> bool {
        self.committed.get(&batch.base) == Some(batch) || self.is_given_up(batch)
    }

    /// Every committed batch from `from` on that must be there.
    pub fn due(&self, from: Offset) -> impl DoubleEndedIterator<Item = &Batch> {
        self.committed.range(from..).map(|(_, batch)| batch).filter(|batch| !self.is_lost(batch))
    }

    /// A leader of this epoch has committed `batches`, the log up to its high watermark. What a leader commits whom an unclean
    /// election has passed over is given up, unless the elected one held it too.
    pub(super) fn commit(&mut self, epoch: LeaderEpoch, batches: &[Batch], high_watermark: Offset) {
        self.highest_end = self.highest_end.max(high_watermark);
        if self.decided.is_some_and(|decided| epoch < decided) {
            return self.commit_passed_over(batches, high_watermark);
        }
        if high_watermark <= self.committed_end {
            return;
        }
        let from = batches.partition_point(|batch| batch.base < self.committed_end);
        let new = batches.iter().skip(from).filter(|batch| batch.next <= high_watermark);
        for batch in new {
            self.given_up.remove(&key(batch));
            self.committed.insert(batch.base, *batch);
        }
        self.committed_end = high_watermark;
    }

    fn commit_passed_over(&mut self, batches: &[Batch], high_watermark: Offset) {
        for batch in batches.iter().filter(|batch| batch.next <= high_watermark) {
            if self.survived.get(&batch.base) == Some(batch) {
                self.given_up.remove(&key(batch));
                self.committed.insert(batch.base, *batch);
                self.committed_end = self.committed_end.max(batch.next);
            } else if !self.was_committed(batch) {
                self.given_up.insert(key(batch));
            }
        }
    }

    /// Somebody leads by an unclean election, or in a later epoch without anybody having led by it: of what was committed, what
    /// its log lacks is given up, and what it knows to be committed is so again.
    pub(super) fn decide(
        &mut self,
        election: LeaderEpoch,
        log: &[Batch],
        log_start: Offset,
        high_watermark: Offset,
    ) {
        self.decided = Some(election);
        self.survived = log.iter().map(|batch| (batch.base, *batch)).collect();
        let survives =
            |batch: &Batch| batch.base < log_start || self.survived.get(&batch.base) == Some(batch);
        for told in [&mut self.committed, &mut self.acknowledged, &mut self.seen] {
            let gone: Vec<_> = told.values().filter(|batch| !survives(batch)).map(key).collect();
            self.given_up.extend(gone);
            told.retain(|_, batch| survives(batch));
        }
        let known = log.iter().filter(|batch| batch.next <= high_watermark);
        for batch in known {
            self.given_up.remove(&key(batch));
            self.committed.insert(batch.base, *batch);
        }
        let end = self.committed.values().next_back().map(|batch| batch.next);
        self.committed_end = end.unwrap_or_default().max(high_watermark);
        self.highest_end = self.highest_end.max(self.committed_end);
    }

    /// A producer is told that its batch is in the log.
    pub(super) fn acknowledge(&mut self, mut batch: Batch) {
        // A leader whose log begins behind it by now knows its epoch no more.
        if batch.epoch.is_none()
            && let Some(known) = self.committed.get(&batch.base).filter(|known| known.crc == batch.crc)
        {
            batch = *known;
        }
        if !self.is_given_up(&batch) {
            self.acknowledged.insert(batch.base, batch);
        }
    }
}

const fn key(batch: &Batch) -> (Offset, Option<LeaderEpoch>, u32) {
    (batch.base, batch.epoch, batch.crc)
}

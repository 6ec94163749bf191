//! Records that take the place of damage (design.md 2): read from the leader, and taken only when they lie exactly where the
//! damage is and carry the epochs that the own log knows there. A record of an epoch at an offset is the same in every log, so
//! this holds above the leader's high watermark as well: what turns out not to be committed is cut from here as from any
//! follower.

use bytes::{Bytes, BytesMut};
use highwater_log::{AppendError, LogError, OffsetRange};
use highwater_records::batches;
use highwater_types::{LeaderEpochCache, Offset};

/// The largest range that is repaired, in bytes: it is held in memory before it is written.
const RANGE_MAX_BYTES: usize = 1 << 30;

/// Why damage was not repaired.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// What the leader has cannot stand in the place of the damage: [`super::FollowerReplica::cut_to_damage`] helps.
    #[error("the leader's records do not fit: {0}")]
    Unfit(String),
    /// The leader's answer is of no use now.
    #[error("{0}")]
    Answer(String),
    /// The records do not fit, or could not be written.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// What goes with them could not be read or removed.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// The records of a damaged range, as far as they have come; for [`super::FollowerReplica::repair`] when they are whole.
#[derive(Clone, Debug)]
pub struct Refill {
    range: OffsetRange,
    next: Offset,
    bytes: BytesMut,
}

impl Refill {
    /// Nothing of it has come yet.
    #[must_use]
    pub fn new(range: OffsetRange) -> Self {
        Self { range, next: range.start, bytes: BytesMut::new() }
    }

    /// The damage.
    #[must_use]
    pub const fn range(&self) -> OffsetRange {
        self.range
    }

    /// From where to read on; `None` = it is whole.
    #[must_use]
    pub fn wanted(&self) -> Option<Offset> {
        (self.next < self.range.end).then_some(self.next)
    }

    /// The records so far.
    #[must_use]
    pub fn into_records(self) -> Bytes {
        self.bytes.freeze()
    }

    /// Takes what belongs into the range of what the leader has from [`Self::wanted`] on. `epochs` is what the own log knows.
    ///
    /// # Errors
    /// [`RepairError::Unfit`], or [`RepairError::Answer`] when the leader has nothing there or the epochs differ.
    pub fn take(&mut self, records: &Bytes, epochs: &LeaderEpochCache) -> Result<(), RepairError> {
        let before = self.next;
        for batch in batches(records) {
            let batch = batch.map_err(|error| RepairError::Answer(error.to_string()))?;
            if self.next >= self.range.end {
                break;
            }
            let base = batch.base_offset();
            // First: where the logs have parted, the follower's next fetch says so, and what it cuts goes on record.
            if batch.leader_epoch() != epochs.epoch_at(base.max(self.range.start)) {
                return Err(RepairError::Answer(format!("the leader's batch at {base} has another epoch")));
            }
            if base < self.next || batch.next_offset() > self.range.end {
                return Err(RepairError::Unfit(format!("the batch at {base} reaches out of the damage")));
            }
            self.next = batch.next_offset();
            self.bytes.extend_from_slice(batch.bytes());
        }
        if self.next == before {
            return Err(RepairError::Answer("the leader has nothing there".to_owned()));
        }
        if self.bytes.len() > RANGE_MAX_BYTES {
            return Err(RepairError::Unfit(format!("they are more than {RANGE_MAX_BYTES} bytes")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use highwater_records::{BatchBuilder, Compression};
    use highwater_types::{EpochEntry, LeaderEpoch, WallTime};

    use super::*;

    fn offset(raw: i64) -> Offset {
        Offset::new(raw).unwrap()
    }

    fn epoch(raw: i32) -> LeaderEpoch {
        LeaderEpoch::new(raw).unwrap()
    }

    /// A batch of two records.
    fn two(base: i64, leader_epoch: i32) -> Bytes {
        let mut builder =
            BatchBuilder::new(Compression::None).base_offset(offset(base)).leader_epoch(epoch(leader_epoch));
        for _ in 0..2 {
            builder.append(WallTime::from_millis(1), None, Some(b"v"), &[]).unwrap();
        }
        builder.build().unwrap().freeze()
    }

    fn lost(start: i64, end: i64) -> Refill {
        Refill::new(OffsetRange::new(offset(start), offset(end)))
    }

    fn epochs() -> LeaderEpochCache {
        [EpochEntry { epoch: epoch(1), start: offset(0) }, EpochEntry { epoch: epoch(3), start: offset(4) }]
            .into_iter()
            .collect()
    }

    #[test]
    fn what_lies_exactly_in_the_damage_is_taken_and_the_rest_is_left() {
        let mut lost = lost(2, 6);
        lost.take(&two(2, 1), &epochs()).unwrap();
        assert_eq!(lost.wanted(), Some(offset(4)));
        lost.take(&[two(4, 3), two(6, 3)].concat().into(), &epochs()).unwrap();
        assert_eq!(lost.wanted(), None);
        assert_eq!(lost.into_records(), [two(2, 1), two(4, 3)].concat());
    }

    #[test]
    fn a_batch_that_reaches_out_of_the_damage_or_has_another_epoch_is_refused() {
        let taken = |mut lost: Refill, records: Bytes| lost.take(&records, &epochs()).unwrap_err();
        assert!(matches!(taken(lost(3, 6), two(2, 1)), RepairError::Unfit(_)));
        assert!(matches!(taken(lost(2, 3), two(2, 1)), RepairError::Unfit(_)));
        let another = [(lost(4, 6), two(4, 1)), (lost(3, 6), two(2, 2)), (lost(2, 3), two(2, 2))];
        for (lost, records) in another {
            let refused = taken(lost, records);
            assert!(matches!(&refused, RepairError::Answer(why) if why.contains("epoch")), "{refused}");
        }
        assert!(
            matches!(taken(lost(4, 6), Bytes::new()), RepairError::Answer(why) if why.contains("nothing"))
        );
    }
}

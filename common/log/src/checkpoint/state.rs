//! What a checkpoint slot holds, and its bytes.
//!
//! A slot is 4096 bytes, all numbers big-endian: magic (8 bytes), version (u16), length of the fields (u16), sequence
//! (u64), the fields, CRC32C (u32) over everything before it, zeros. Within a version fields are only added at the end:
//! an older program reads those it knows and ignores the rest; a version it does not know it does not touch.

use std::fmt;

use highwater_types::{Incarnation, LeaderEpoch, Offset, PartitionEpoch, TopicId, UncleanLoss};
use uuid::Uuid;

use crate::{HighWatermark, OffsetRange};

/// The length of a slot in bytes: one page, so that a slot never shares a page with the other one.
pub(super) const SLOT_BYTES: usize = 4096;

/// How many lost ranges a checkpoint holds. More are joined, which counts what lies between as lost too.
pub const LOST_RANGES_MAX: usize = 64;

const MAGIC: [u8; 8] = *b"HWCHKPT\n";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 20;
const CRC_BYTES: usize = 4;
/// The fields without lost ranges.
const FIXED_FIELD_BYTES: usize = 16 + 8 + 8 + 8 + 4 + 8 + 4 + 8 + 1 + 16 + 2 + 8 + (4 + 8 + 8 + 8);
const LOST_RANGE_BYTES: usize = 16;

const _: () = assert!(
    HEADER_BYTES + FIXED_FIELD_BYTES + LOST_RANGES_MAX * LOST_RANGE_BYTES + CRC_BYTES <= SLOT_BYTES,
    "a full checkpoint fits a slot"
);

const FLAG_CLEAN: u8 = 1;
const FLAG_PARTITION_EPOCH: u8 = 2;
const FLAG_KEPT_ON_DAMAGE: u8 = 4;
const FLAG_FLUSH_FAILED: u8 = 8;

/// What is known of a partition's replica on this disk (design.md 2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointState {
    /// The topic that the directory belongs to.
    pub topic_id: TopicId,
    /// The replica's incarnation (design.md 6.3).
    pub incarnation: Incarnation,
    /// Everything below is flushed and was checked.
    pub recovery_point: Offset,
    /// The high watermark, with the leader epoch under which it was learnt (design.md 6.5).
    pub high_watermark: HighWatermark,
    /// The first offset that is kept.
    pub log_start: Offset,
    /// The highest leader epoch that this replica has worked under; `None` before the first (design.md 6.5).
    pub highest_leader_epoch: Option<LeaderEpoch>,
    /// The highest partition epoch that this replica has worked under; `None` before the first.
    pub highest_partition_epoch: Option<PartitionEpoch>,
    /// Whether the log was flushed and closed; nothing was appended since.
    pub clean: bool,
    /// The boot of the host under which the log was last opened for writing.
    pub boot_id: Option<Uuid>,
    /// Acknowledged records that are lost or damaged here; in order, not touching, at most [`LOST_RANGES_MAX`].
    pub lost_ranges: Vec<OffsetRange>,
    /// Whether the incarnation was kept on new damage, and no leadership has begun since: that this replica alone is the
    /// in-sync set was said by a record that may be an old one (design.md 6.3).
    pub kept_on_damage: bool,
    /// Whether a flush failed since the log was opened: pages may be gone from the midst of what was not flushed, although the
    /// host runs on.
    pub flush_failed: bool,
    /// Under `page-cache`, where the log ended when its last flush began: as long as the host runs, the log reaches at least
    /// to here, unless that flush failed and the process died before it could write that down (design.md 6.3).
    pub flush_target: Offset,
    /// What this replica lost by the newest unclean election that took something from it (design.md 6.13).
    pub unclean_loss: Option<UncleanLoss>,
}

impl CheckpointState {
    /// The state of a replica that holds nothing yet.
    #[must_use]
    pub const fn new(topic_id: TopicId, incarnation: Incarnation) -> Self {
        Self {
            topic_id,
            incarnation,
            recovery_point: Offset::ZERO,
            high_watermark: HighWatermark { offset: Offset::ZERO, epoch: None },
            log_start: Offset::ZERO,
            highest_leader_epoch: None,
            highest_partition_epoch: None,
            clean: false,
            boot_id: None,
            lost_ranges: Vec::new(),
            kept_on_damage: false,
            flush_failed: false,
            flush_target: Offset::ZERO,
            unclean_loss: None,
        }
    }

    /// Notes that `range` is lost. Touching ranges become one; above [`LOST_RANGES_MAX`] the two nearest do, because a
    /// record counted as lost by mistake is asked for again, while a lost one that was forgotten is served as if it were
    /// there.
    pub fn add_lost_range(&mut self, range: OffsetRange) {
        if range.is_empty() {
            return;
        }
        self.lost_ranges.push(range);
        self.lost_ranges.sort_unstable_by_key(|r| (r.start, r.end));
        self.lost_ranges.dedup_by(|next, before| {
            let touches = next.start <= before.end;
            if touches {
                before.end = before.end.max(next.end);
            }
            touches
        });
        while self.lost_ranges.len() > LOST_RANGES_MAX {
            self.join_nearest_lost_ranges();
        }
        debug_assert!(self.lost_ranges_are_in_order(), "lost ranges are in order and do not touch");
        debug_assert!(self.lost_ranges.iter().any(|r| r.contains(range.start)), "the range is noted");
    }

    fn join_nearest_lost_ranges(&mut self) {
        let gaps = self.lost_ranges.array_windows().map(|[before, next]| next.start.since(before.end));
        let Some((first, _)) = gaps.enumerate().min_by_key(|(_, gap)| *gap) else { return };
        let joined = self.lost_ranges.remove(first + 1);
        if let Some(range) = self.lost_ranges.get_mut(first) {
            range.end = joined.end;
        }
    }

    fn lost_ranges_are_in_order(&self) -> bool {
        self.lost_ranges.iter().all(|r| !r.is_empty())
            && self.lost_ranges.array_windows().all(|[before, next]| before.end < next.start)
    }

    /// The bytes of a slot.
    pub(super) fn encode(&self, sequence: u64) -> Vec<u8> {
        assert!(self.lost_ranges.len() <= LOST_RANGES_MAX, "lost ranges are added with add_lost_range");
        assert!(sequence > 0, "sequences begin at 1");
        let mut fields = Vec::with_capacity(FIXED_FIELD_BYTES + self.lost_ranges.len() * LOST_RANGE_BYTES);
        let epoch = |epoch: Option<LeaderEpoch>| epoch.map_or(-1, LeaderEpoch::get).to_be_bytes();
        let mut flags = if self.clean { FLAG_CLEAN } else { 0 };
        flags |= self.highest_partition_epoch.map_or(0, |_| FLAG_PARTITION_EPOCH);
        flags |= if self.kept_on_damage { FLAG_KEPT_ON_DAMAGE } else { 0 };
        flags |= if self.flush_failed { FLAG_FLUSH_FAILED } else { 0 };
        fields.extend(self.topic_id.uuid().as_bytes());
        fields.extend(self.incarnation.get().to_be_bytes());
        fields.extend(self.recovery_point.get().to_be_bytes());
        fields.extend(self.high_watermark.offset.get().to_be_bytes());
        fields.extend(epoch(self.high_watermark.epoch));
        fields.extend(self.log_start.get().to_be_bytes());
        fields.extend(epoch(self.highest_leader_epoch));
        fields.extend(self.highest_partition_epoch.map_or(0, PartitionEpoch::get).to_be_bytes());
        fields.push(flags);
        fields.extend(self.boot_id.unwrap_or_default().as_bytes());
        fields.extend(u16::try_from(self.lost_ranges.len()).unwrap_or_default().to_be_bytes());
        for range in &self.lost_ranges {
            fields.extend(range.start.get().to_be_bytes());
            fields.extend(range.end.get().to_be_bytes());
        }
        fields.extend(self.flush_target.get().to_be_bytes());
        fields.extend(epoch(self.unclean_loss.map(|loss| loss.election)));
        for offset in
            self.unclean_loss.map_or([Offset::ZERO; 3], |loss| [loss.from, loss.committed, loss.end])
        {
            fields.extend(offset.get().to_be_bytes());
        }
        encode_slot(sequence, &fields)
    }
}

/// Wraps fields, which fit, into a slot.
pub(super) fn encode_slot(sequence: u64, fields: &[u8]) -> Vec<u8> {
    let mut slot = Vec::with_capacity(SLOT_BYTES);
    slot.extend(MAGIC);
    slot.extend(VERSION.to_be_bytes());
    slot.extend(u16::try_from(fields.len()).unwrap_or(u16::MAX).to_be_bytes());
    slot.extend(sequence.to_be_bytes());
    slot.extend(fields);
    slot.extend(crc32c::crc32c(&slot).to_be_bytes());
    assert!(slot.len() <= SLOT_BYTES, "a full checkpoint fits a slot");
    slot.resize(SLOT_BYTES, 0);
    slot
}

/// Why a slot holds no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadSlot {
    /// Never written.
    Empty,
    /// Torn or damaged.
    Damaged(&'static str),
    /// Of another program's version.
    Version(u16),
}

impl fmt::Display for BadSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("empty"),
            Self::Damaged(what) => f.write_str(what),
            Self::Version(version) => {
                write!(f, "version {version} of a newer program, this one reads {VERSION}")
            }
        }
    }
}

/// Reads a slot: the state and its sequence.
pub(super) fn decode(slot: &[u8]) -> Result<(u64, CheckpointState), BadSlot> {
    if slot.iter().all(|b| *b == 0) {
        return Err(BadSlot::Empty);
    }
    let short = BadSlot::Damaged("cut short");
    let mut reader = Reader(slot);
    if reader.take() != Some(MAGIC) {
        return Err(BadSlot::Damaged("wrong magic"));
    }
    let version = reader.take().map(u16::from_be_bytes).ok_or(short)?;
    let length = usize::from(reader.take().map(u16::from_be_bytes).ok_or(short)?);
    let sequence = reader.take().map(u64::from_be_bytes).ok_or(short)?;
    let (covered, rest) = slot.split_at_checked(HEADER_BYTES + length).ok_or(short)?;
    let stored = rest.first_chunk().copied().map(u32::from_be_bytes).ok_or(short)?;
    if crc32c::crc32c(covered) != stored {
        return Err(BadSlot::Damaged("wrong checksum"));
    }
    if version != VERSION {
        return Err(BadSlot::Version(version));
    }
    let fields = Reader(covered.get(HEADER_BYTES..).ok_or(short)?);
    let state =
        decode_fields(fields).filter(|_| sequence > 0).ok_or(BadSlot::Damaged("impossible values"))?;
    Ok((sequence, state))
}

fn decode_fields(mut fields: Reader<'_>) -> Option<CheckpointState> {
    let topic_id = TopicId::new(Uuid::from_bytes(fields.take()?))?;
    let incarnation = Incarnation::new(u64::from_be_bytes(fields.take()?))?;
    let recovery_point = fields.offset()?;
    let high_watermark = HighWatermark { offset: fields.offset()?, epoch: fields.epoch()? };
    let log_start = fields.offset()?;
    let highest_leader_epoch = fields.epoch()?;
    let partition_epoch = PartitionEpoch::new(u64::from_be_bytes(fields.take()?));
    let [flags] = fields.take()?;
    let boot_id = Uuid::from_bytes(fields.take()?);
    let count = usize::from(u16::from_be_bytes(fields.take()?));
    if count > LOST_RANGES_MAX {
        return None;
    }
    let range = |_| Some(OffsetRange::new(fields.offset()?, fields.offset()?));
    let lost_ranges = (0..count).map(range).collect::<Option<Vec<_>>>()?;
    // Added later than the others.
    let flush_target = if fields.0.is_empty() { recovery_point } else { fields.offset()? };
    let unclean_loss = if fields.0.is_empty() { None } else { fields.unclean_loss()? };
    let state = CheckpointState {
        topic_id,
        incarnation,
        recovery_point,
        high_watermark,
        log_start,
        highest_leader_epoch,
        highest_partition_epoch: (flags & FLAG_PARTITION_EPOCH != 0).then_some(partition_epoch),
        clean: flags & FLAG_CLEAN != 0,
        boot_id: (!boot_id.is_nil()).then_some(boot_id),
        lost_ranges,
        kept_on_damage: flags & FLAG_KEPT_ON_DAMAGE != 0,
        flush_failed: flags & FLAG_FLUSH_FAILED != 0,
        flush_target,
        unclean_loss,
    };
    state.lost_ranges_are_in_order().then_some(state)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn offset(&mut self) -> Option<Offset> {
        Offset::new(i64::from_be_bytes(self.take()?))
    }

    /// As [`Self::epoch`], of its election.
    fn unclean_loss(&mut self) -> Option<Option<UncleanLoss>> {
        let election = self.epoch()?;
        let (from, committed, end) = (self.offset()?, self.offset()?, self.offset()?);
        Some(election.map(|election| UncleanLoss { election, from, committed, end }))
    }

    /// -1 stands for none; the outer `None` means that the bytes end or are no epoch.
    fn epoch(&mut self) -> Option<Option<LeaderEpoch>> {
        match i32::from_be_bytes(self.take()?) {
            -1 => Some(None),
            raw => LeaderEpoch::new(raw).map(Some),
        }
    }
}

#[cfg(test)]
#[path = "state_test.rs"]
pub(super) mod tests;

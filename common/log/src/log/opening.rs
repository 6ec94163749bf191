//! A directory on the way to an open log: what of the checkpoint is believed, what the segments hold, and what follows for
//! high watermark, damage, and incarnation (design.md 2 and 6.3).

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{Durability, LeaderEpochCache, Offset};

use super::recover::{Ground, Scan};
use super::{OnDamage, OpenOptions};
use crate::checkpoint::{CheckpointFile, CheckpointState, LoadedCheckpoint, write_leader_epochs};
use crate::epoch_runs;
use crate::names::log_file;
use crate::partition_files::{PartitionFiles, SegmentFiles};
use crate::segment::{LookupError, Segment, remove_segment_files};
use crate::segments::{DamagedBytes, SegmentRef, View};
use crate::{
    Access, Damage, HighWatermark, Missing, OffsetRange, OpenError, OpenReport, Renewal, Repair, Storage,
    StorageFile as _, StorageResult, Vouched,
};

/// A directory on the way to a log.
pub(super) struct Opening<'a, S: Storage> {
    storage: &'a S,
    pub(super) dir: Arc<Path>,
    options: &'a OpenOptions,
    repairs: Vec<Repair>,
    foreign: Vec<String>,
    /// What the checkpoint says, after what must be believed less was lowered.
    pub(super) state: CheckpointState,
    /// The checkpoint as it is on the disk; `None` without a valid slot.
    pub(super) stored: Option<CheckpointState>,
    renewal: Option<Renewal>,
}

impl<'a, S: Storage> Opening<'a, S> {
    pub(super) fn new(
        storage: &'a S,
        dir: Arc<Path>,
        options: &'a OpenOptions,
        existed: bool,
        loaded: LoadedCheckpoint,
    ) -> Self {
        let mut repairs = Vec::new();
        if let LoadedCheckpoint::Unusable(reason) = &loaded {
            repairs.push(Repair::CheckpointUnusable { reason: reason.clone() });
        }
        let stored = loaded.into_state();
        let renewal = match &stored {
            None if existed => Some(Renewal::NoCheckpoint),
            None => Some(Renewal::NoDirectory),
            Some(_) => None,
        };
        let fresh = || CheckpointState::new(options.topic_id, options.new_incarnation);
        let state = stored.clone().unwrap_or_else(fresh);
        let mut opening =
            Self { storage, dir, options, repairs, foreign: Vec::new(), state, stored, renewal };
        opening.distrust_page_cache();
        opening
    }

    /// Another boot without a clean mark: what was not flushed may be gone, or come back cut (design.md 2 and 6.3).
    fn distrust_page_cache(&mut self) {
        if self.stored.is_none() || self.state.clean || self.is_same_boot() {
            return;
        }
        if !is_planted(PlantedFault::HighWatermarkBelievedAfterReboot) {
            self.lower_high_watermark(self.state.recovery_point, "another boot, not stopped cleanly");
        }
        self.state.flush_target = self.state.flush_target.min(self.state.recovery_point);
        if self.options.config.durability == Durability::PageCache {
            self.renew(Renewal::PageCacheLost);
        }
    }

    /// Whether the log was last written under this boot.
    fn is_same_boot(&self) -> bool {
        self.stored.is_some() && self.state.boot_id == Some(self.options.boot_id)
    }

    /// As [`Ground::untorn_from`]. What a flush that has no end on file took may have lost pages.
    fn untorn_from(&self) -> Option<Offset> {
        (self.is_same_boot() && !self.state.flush_failed)
            .then_some(self.state.flush_target)
            .map(|target| if target > self.state.recovery_point { target } else { Offset::ZERO })
    }

    fn lower_high_watermark(&mut self, to: Offset, reason: &'static str) {
        let from = self.state.high_watermark.offset;
        if to < from {
            self.state.high_watermark.offset = to;
            self.repairs.push(Repair::HighWatermarkLowered { from, to, reason });
        }
        debug_assert!(self.state.high_watermark.offset <= to || from < to, "lowered");
    }

    fn renew(&mut self, reason: Renewal) {
        let keeps = match reason {
            Renewal::PageCacheLost => is_planted(PlantedFault::RebootKeepsIncarnation),
            Renewal::Damage => is_planted(PlantedFault::DamageKeepsIncarnation),
            Renewal::NoDirectory | Renewal::NoCheckpoint => false,
        };
        if keeps {
            return;
        }
        self.state.incarnation = self.options.new_incarnation;
        self.state.kept_on_damage = false;
        self.renewal.get_or_insert(reason);
    }

    /// Reads the directory into a view. Everything in it is flushed on return.
    pub(super) fn recover(&mut self, file: &mut CheckpointFile<S>) -> Result<View<S>, OpenError> {
        let files = PartitionFiles::read(self.storage, &self.dir)?;
        self.distrust_cached_pages(&files.segments)?;
        self.foreign = files.strangers();
        self.remove_orphans(&files)?;
        let mut found = files.segments;
        if self.stored.is_none() {
            self.state.log_start = found.first().map_or(Offset::ZERO, |first| first.base);
        }
        self.remove_below_log_start(&mut found)?;
        let vouched = Vouched::by(&self.state);
        let lost_head = self.check_head(&mut found, vouched)?;
        let lost = self.state.lost_ranges.clone();
        let dir = Arc::clone(&self.dir);
        let ground = |clean| Ground {
            storage: self.storage,
            dir: &dir,
            index_interval: self.options.config.index_interval_bytes,
            clean,
            recovery_point: self.state.recovery_point,
            untorn_from: self.untorn_from(),
            highest_epoch: self.state.highest_leader_epoch,
            vouched,
            lost: &lost,
            now: self.options.now,
        };
        let mut scan = Scan::run(ground(self.state.clean), &found)?;
        let mut repairs = std::mem::take(&mut scan.repairs);
        let is_known = |d: &DamagedBytes| {
            lost.iter().any(|l| l.start <= d.damage.range.start && d.damage.range.end <= l.end)
        };
        if self.state.clean && (scan.end > self.state.recovery_point || !scan.damage.iter().all(is_known)) {
            // Somebody wrote to it after the clean mark, or damaged it: the mark is worth nothing.
            found = PartitionFiles::read(self.storage, &self.dir)?.segments;
            scan = Scan::run(ground(false), &found)?;
            repairs.append(&mut scan.repairs);
            scan.changed = true;
        }
        self.note_flush(scan.end, file)?;
        if let Err(error) = scan.flush() {
            self.note_failed_flush(file);
            return Err(error.into());
        }
        self.state.clean &= !scan.changed;
        self.repairs.append(&mut repairs);
        let view = self.assemble(scan, lost_head)?;
        view.check();
        Ok(view)
    }

    /// A flush may have begun that nothing says the end of: it may have failed, and then the kernel keeps pages for good that
    /// never reached the disk, and drops them when it likes. What it holds for clean is read from the disk. Under `page-cache`
    /// the flush was noted; under `fsync` none is, because what is not known to be flushed counts for nothing, so that may be so
    /// whenever the log was not closed in order: else this opening would flush nothing, and call it flushed.
    fn distrust_cached_pages(&self, segments: &[SegmentFiles]) -> StorageResult<()> {
        let may_have_failed = match self.options.config.durability {
            Durability::Fsync => !self.state.clean,
            Durability::PageCache => self.state.flush_target > self.state.recovery_point,
        };
        if !may_have_failed {
            return Ok(());
        }
        let ends = segments.iter().skip(1).map(|next| Some(next.base)).chain([None]);
        for (segment, end) in segments.iter().zip(ends) {
            if end.is_none_or(|end| end > self.state.recovery_point) {
                let path = log_file(&self.dir, segment.base);
                self.storage.open(&path, Access::ReadOnly)?.drop_clean_cache()?;
            }
        }
        Ok(())
    }

    /// As the flush of an open log: should this one fail, the next opening must not believe what is left (design.md 6.3).
    fn note_flush(&mut self, end: Offset, file: &mut CheckpointFile<S>) -> StorageResult<()> {
        let is_due = !self.state.clean && self.options.config.durability == Durability::PageCache;
        let Some(stored) = self.stored.as_mut().filter(|stored| is_due && stored.flush_target < end) else {
            return Ok(());
        };
        stored.flush_target = end;
        file.write_lazy(stored)
    }

    fn note_failed_flush(&mut self, file: &mut CheckpointFile<S>) {
        let Some(stored) = &mut self.stored else { return };
        stored.flush_failed = true;
        if let Err(error) = file.write_lazy(stored) {
            tracing::warn!(directory = %self.dir.display(), %error, "could not write down that a flush failed");
        }
    }

    fn remove_orphans(&mut self, files: &PartitionFiles) -> StorageResult<()> {
        for file in &files.orphans {
            self.storage.remove_file(&self.dir.join(file))?;
            self.repairs.push(Repair::OrphanIndexRemoved { file: file.clone() });
        }
        Ok(())
    }

    /// Segments whose removal had not become durable: the log start had, before they were removed.
    fn remove_below_log_start(&mut self, found: &mut Vec<SegmentFiles>) -> StorageResult<()> {
        let below = Vouched::by(&self.state).below_log_start(found.iter().map(|segment| segment.base));
        for removed in found.drain(..below) {
            remove_segment_files(self.storage, &self.dir, removed.base)?;
            self.repairs.push(Repair::SegmentBelowLogStartRemoved { segment: removed.base });
        }
        Ok(())
    }

    /// What is missing between the log start and the first segment is lost. Nothing that was acknowledged follows it: then the
    /// first segment never reached the disk, or a restart of the log was interrupted, and what is left of the log goes.
    fn check_head(
        &mut self,
        found: &mut Vec<SegmentFiles>,
        vouched: Vouched,
    ) -> StorageResult<Option<OffsetRange>> {
        match found.first().map_or(Missing::Nothing, |first| vouched.before_first(first.base)) {
            Missing::Nothing => return Ok(None),
            Missing::Lost(range) => return Ok(Some(range)),
            Missing::Unacknowledged => {}
        }
        for removed in found.drain(..).rev() {
            remove_segment_files(self.storage, &self.dir, removed.base)?;
            self.repairs.push(Repair::TailCut {
                end: self.state.log_start,
                segment: removed.base,
                position: 0,
                bytes: removed.len,
                reason: "nothing holds the offsets before it".to_owned(),
            });
        }
        self.storage.sync_dir(&self.dir)?;
        Ok(None)
    }

    /// The view of what was found, with an active segment, positions, damage and epochs.
    fn assemble(
        &mut self,
        mut scan: Scan<'_, S>,
        lost_head: Option<OffsetRange>,
    ) -> Result<View<S>, OpenError> {
        let log_start = self.state.log_start;
        let mut segments = std::mem::take(&mut scan.segments);
        if segments.is_empty() || scan.end < log_start {
            // Nothing at or above the log start is left.
            for removed in segments.drain(..).rev() {
                removed.segment.remove_files()?;
                let reason = format!("all of it is below the log start {log_start}");
                let segment = removed.base();
                self.repairs.push(Repair::TailCut {
                    end: log_start,
                    segment,
                    position: 0,
                    bytes: removed.len,
                    reason,
                });
            }
            remove_segment_files(self.storage, &self.dir, log_start)?;
            let segment = Arc::new(Segment::create(self.storage, &self.dir, log_start)?);
            segment.set_last_written(self.options.now);
            self.storage.sync_dir(&self.dir)?;
            segments.push(SegmentRef { segment, len: 0 });
            (scan.end, scan.changed) = (log_start, true);
            scan.runs.clear();
        }
        let damage = self.damage(&scan, &segments, lost_head)?;
        let epochs = self.epochs(&scan, &segments, log_start)?;
        let mut segments = VecDeque::from(segments);
        let Some(active) = segments.pop_back() else {
            return Err(OpenError::Refused("a log has at least one segment".to_owned()));
        };
        let closed = Vec::from(segments);
        Ok(View {
            closed_bytes: closed.iter().map(|s| s.len).sum(),
            closed: Arc::new(closed),
            active,
            log_start,
            log_end: scan.end,
            flushed: scan.end,
            generation: 0,
            epochs: Arc::new(epochs),
            damage: Arc::new(damage),
        })
    }

    /// What is damaged now: what the scan met, what was known and is still not there, and a lost tail.
    fn damage(
        &mut self,
        scan: &Scan<'_, S>,
        segments: &[SegmentRef<S>],
        lost_head: Option<OffsetRange>,
    ) -> StorageResult<Vec<DamagedBytes>> {
        let gone = |range, at_end, reason: &str| DamagedBytes {
            damage: Damage { range, at_end, reason: reason.to_owned() },
            bytes: None,
        };
        // Of segments that are gone nothing is missed below the log start; bad bytes stay, because readers step over them.
        let is_missed = |met: &DamagedBytes| {
            if met.bytes.is_some() { Some(met.clone()) } else { met.above(self.state.log_start) }
        };
        let mut damage: Vec<_> = scan.damage.iter().filter_map(is_missed).collect();
        // The head first: more than what was known of it may be gone by now.
        for range in lost_head.into_iter().chain(self.state.lost_ranges.clone()) {
            let is_met =
                damage.iter().any(|d| d.damage.range.start < range.end && range.start < d.damage.range.end);
            if !is_met && range.start >= self.state.log_start && !is_there(segments, range.start)? {
                damage.push(gone(range, range.start >= scan.end, "the bytes are gone"));
            }
        }
        if let Some(tail) = scan.vouched().after_last(scan.end) {
            let tail = still_unknown(tail, &damage);
            damage.extend(tail.map(|tail| gone(tail, true, "the log ends before what was acknowledged")));
        }
        if scan.end < self.state.flush_target {
            self.lost_in_flush(scan.end, &mut damage);
        }
        damage.sort_by_key(|d| d.damage.range.start);
        let known = &self.state.lost_ranges;
        let is_known =
            |range: OffsetRange| known.iter().any(|k| k.start <= range.start && range.end <= k.end);
        // Or it was kept at an opening before, by a replica that was not alone any more.
        self.state.kept_on_damage |= damage.iter().any(|d| !is_known(d.damage.range));
        if self.state.kept_on_damage && self.options.on_damage == OnDamage::RenewIncarnation {
            self.renew(Renewal::Damage);
        }
        self.state.lost_ranges.clear();
        for damaged in &damage {
            self.state.add_lost_range(damaged.damage.range);
        }
        Ok(damage)
    }

    /// A flush failed, and took records that may have been acknowledged. The log ends before them: others have them, and this
    /// replica gets them as a new one would, or else they are on record as lost.
    fn lost_in_flush(&mut self, end: Offset, damage: &mut Vec<DamagedBytes>) {
        match self.options.on_damage {
            OnDamage::RenewIncarnation => self.renew(Renewal::PageCacheLost),
            OnDamage::KeepIncarnation => {
                let range = still_unknown(OffsetRange::new(end, self.state.flush_target), damage);
                damage.extend(range.map(|range| DamagedBytes {
                    damage: Damage { range, at_end: true, reason: "a flush of it failed".to_owned() },
                    bytes: None,
                }));
            }
        }
    }

    fn epochs(
        &mut self,
        scan: &Scan<'_, S>,
        segments: &[SegmentRef<S>],
        log_start: Offset,
    ) -> StorageResult<LeaderEpochCache> {
        let recovered =
            epoch_runs::recover(self.storage, &self.dir, segments, &scan.runs, scan.end, log_start)?;
        self.repairs.extend(recovered.repair);
        self.state.highest_leader_epoch = self.state.highest_leader_epoch.max(recovered.highest);
        if recovered.changed {
            write_leader_epochs(self.storage, &self.dir, &recovered.epochs)?;
        }
        Ok(recovered.epochs)
    }

    /// The checkpoint that holds from now on.
    pub(super) fn settle(&mut self, view: &View<S>) {
        let had_records = view.log_end > view.log_start;
        if had_records && self.renewal == Some(Renewal::NoCheckpoint) && !self.has_said_why() {
            let reason = "there is none, or nothing was written to it".to_owned();
            self.repairs.push(Repair::CheckpointUnusable { reason });
        }
        if self.stored.is_none() {
            self.state.high_watermark = HighWatermark { offset: view.log_start, epoch: None };
        }
        self.lower_high_watermark(view.log_end, "the log ends before it");
        self.state.high_watermark.offset = self.state.high_watermark.offset.max(view.log_start);
        self.state.recovery_point = view.log_end;
        self.state.flush_target = view.log_end;
        self.state.flush_failed = false;
        if !self.state.clean {
            self.state.boot_id = Some(self.options.boot_id);
        }
        assert!(view.log_start <= self.state.high_watermark.offset, "log start ≤ high watermark");
        assert!(self.state.high_watermark.offset <= view.log_end, "high watermark ≤ log end");
    }

    fn has_said_why(&self) -> bool {
        self.repairs.iter().any(|repair| matches!(repair, Repair::CheckpointUnusable { .. }))
    }

    pub(super) fn report(&mut self, view: &View<S>) -> OpenReport {
        OpenReport {
            positions: view.positions(),
            high_watermark: self.state.high_watermark,
            incarnation: self.state.incarnation,
            renewal: self.renewal,
            highest_leader_epoch: self.state.highest_leader_epoch,
            highest_partition_epoch: self.state.highest_partition_epoch,
            clean: self.state.clean,
            repairs: std::mem::take(&mut self.repairs),
            damage: view.damage.iter().map(|d| d.damage.clone()).collect(),
            foreign: std::mem::take(&mut self.foreign),
        }
    }
}

/// What of a lost tail is not among `damage`: less than all of it where more was lost before, and filled again in part.
fn still_unknown(tail: OffsetRange, damage: &[DamagedBytes]) -> Option<OffsetRange> {
    let ranges = || damage.iter().map(|d| d.damage.range);
    if ranges().any(|known| known.start <= tail.start && tail.end <= known.end) {
        return None;
    }
    let behind = ranges().map(|known| known.start).filter(|start| *start > tail.start).min();
    Some(OffsetRange::new(tail.start, behind.map_or(tail.end, |start| start.min(tail.end))))
}

/// Whether a batch holds `offset`.
fn is_there<S: Storage>(segments: &[SegmentRef<S>], offset: Offset) -> StorageResult<bool> {
    let Some(entry) = segments.iter().rev().find(|s| s.base() <= offset) else { return Ok(false) };
    match entry.segment.locate(entry.len, offset, &[]) {
        Ok(found) => Ok(found.is_some_and(|found| found.batch.header.base_offset() <= offset)),
        Err(LookupError::Storage(error)) => Err(error),
        Err(LookupError::Bad(_)) => Ok(false),
    }
}

//! Removing the beginning of a log: by a raised log start, and by age and size.
//!
//! What must hold: only closed segments go, oldest first; the log start is durable before a file is removed, so that one that
//! comes back is known to be below it. Readers in flight keep what they hold.

use std::sync::Arc;

use highwater_types::{Offset, WallTime};

use super::Log;
use crate::segment::LookupError;
use crate::segments::{SegmentRef, View};
use crate::{LogError, LogPositions, Retained, Storage, StorageResult, Unusable};

impl<S: Storage> Log<S> {
    /// Raises the log start (it never falls here) and removes the segments that lie below it as a whole.
    ///
    /// # Errors
    /// [`LogError::Refused`] beyond the log end; else what the disk says.
    pub fn raise_log_start(&self, to: Offset) -> Result<LogPositions, LogError> {
        if to <= self.log_start() {
            return Ok(self.positions());
        }
        let _writer = self.writer.lock();
        self.usable()?;
        let view = self.view.load_full();
        if to > view.log_end {
            return Err(LogError::Refused(format!("log start {to} is beyond the log end {}", view.log_end)));
        }
        let keep_from = view.closed.len() - view.segments_from(to).count().saturating_sub(1);
        let after = self.remove_below(&view, to, keep_from)?;
        assert!(after.log_start >= to, "the log start is raised");
        let is_lost = after.damage.iter().any(|d| d.damage.range.start == after.log_start);
        assert!(
            after.first().base() <= after.log_start || after.closed.is_empty() || is_lost,
            "the log start is in the log, or in what it lost of its beginning"
        );
        Ok(after.positions())
    }

    /// Removes the oldest closed segments below `high_watermark`: those whose newest record is older than `retention.ms`, and
    /// as many as `retention.bytes` can spare. Only leaders call it (design.md 2). A record dated in the future is as old as
    /// it could be: it holds nothing back longer than its segment has been closed.
    ///
    /// # Errors
    /// What the disk says.
    pub fn apply_retention(&self, high_watermark: Offset, now: WallTime) -> Result<Retained, LogError> {
        let nothing = Retained { removed: 0, bytes: 0, positions: self.positions() };
        let config = self.config.load_full();
        if (config.retention_ms.is_none() && config.retention_bytes.is_none())
            || self.view.load().closed.is_empty()
        {
            return Ok(nothing);
        }
        let _writer = self.writer.lock();
        self.usable()?;
        let view = self.view.load_full();
        let mut size = view.positions().size;
        let mut removed = 0;
        let mut log_start = view.log_start;
        for entry in view.closed.iter() {
            let Some(next) = view.next_base(entry.base()).filter(|next| *next <= high_watermark) else {
                break;
            };
            let is_spare =
                config.retention_bytes.is_some_and(|limit| size.saturating_sub(entry.len) >= limit);
            if !is_spare && !self.is_expired(&view, entry, config.retention_ms, now)? {
                break;
            }
            size -= entry.len;
            removed += 1;
            log_start = log_start.max(next);
        }
        if removed == 0 {
            return Ok(nothing);
        }
        let after = self.remove_below(&view, log_start, removed)?;
        let bytes = view.positions().size - after.positions().size;
        assert!(after.log_start <= high_watermark, "nothing at or above the high watermark is removed");
        assert_eq!(after.closed.len(), view.closed.len() - removed, "the oldest segments are removed");
        tracing::info!(partition = %self.partition, segments = removed, bytes, %log_start, "retention removed segments");
        Ok(Retained { removed, bytes, positions: after.positions() })
    }

    fn is_expired(
        &self,
        view: &View<S>,
        entry: &SegmentRef<S>,
        retention_ms: Option<u64>,
        now: WallTime,
    ) -> Result<bool, LogError> {
        let Some(limit) = retention_ms else { return Ok(false) };
        let holes = view.holes(entry.base());
        let newest = match entry.segment.max_timestamp(entry.len, &holes) {
            Ok(newest) => newest,
            Err(LookupError::Storage(error)) => return Err(error.into()),
            Err(LookupError::Bad(_)) => return Ok(false),
        };
        let written = entry.segment.last_written();
        // Without a timestamp, or with one from the future, what counts is when the segment was written here.
        let newest = if newest < 0 { written.as_millis() } else { newest.min(written.as_millis()) };
        Ok(u64::try_from(now.as_millis().saturating_sub(newest)).is_ok_and(|age| age > limit))
    }

    /// Raises the log start and removes the first `count` segments. The caller holds the writer.
    fn remove_below(
        &self,
        view: &View<S>,
        log_start: Offset,
        count: usize,
    ) -> Result<Arc<View<S>>, LogError> {
        assert!(count <= view.closed.len(), "the active segment stays");
        // Before anything else: the epoch cache forgets what began below, and may be written any time.
        self.store_log_start(log_start)?;
        let mut epochs = view.epochs.as_ref().clone();
        epochs.truncate_from_start(log_start);
        let after = self.publish(|view| {
            let damage = view.damage.iter().filter_map(|d| d.above(log_start)).collect();
            let shorter = view.with_segments(view.segments().skip(count).cloned().collect());
            View { log_start, epochs: Arc::new(epochs), damage: Arc::new(damage), ..shorter }
        });
        if count > 0 {
            self.remove_files(view, count).inspect_err(|error| self.fail(Unusable::ChangeFailed, error))?;
            self.store_epochs(&after.epochs)?;
        }
        debug_assert_eq!(after.log_start, log_start, "the log start is published");
        Ok(after)
    }

    fn remove_files(&self, view: &View<S>, count: usize) -> StorageResult<()> {
        let last = view.closed.get(count.saturating_sub(1)).map_or(Offset::ZERO, SegmentRef::base);
        self.forget_unflushed(|base| base <= last);
        for removed in view.closed.iter().take(count) {
            removed.segment.remove_files()?;
        }
        self.storage.sync_dir(&self.dir)
    }
}

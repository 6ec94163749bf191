//! Flushing: what was appended before the call becomes durable; appends and reads go on meanwhile.
//!
//! What must hold:
//! - Whoever writes notes the segment *after* the write and *before* publishing it. So a flush, which looks at the view first
//!   and takes the notes then, flushes every byte of the view; and what it takes was written before it flushes.
//! - A flush that a truncation overtook acknowledges nothing: it publishes only into the generation that it began in.
//! - A failed flush is final (design.md 2): the kernel may have dropped what it could not write and call the next flush a
//!   success. So the log fails, and whoever holds the replica cuts what was not flushed: nothing that may be gone is ever
//!   believed again. Apart from the flush, because first it has to be durable what that loses (design.md 6.3): a process
//!   that dies in between must not leave a replica that lacks acknowledged records and may be elected.

use std::sync::Arc;

use highwater_types::Offset;
use highwater_types::planted::{PlantedFault, is_planted};

use super::Log;
use crate::segment::Segment;
use crate::segments::View;
use crate::{LogError, LogPositions, Storage, StorageError, StorageFile, StorageResult, Unusable};

/// What has to be flushed. Taken as a whole by a flush.
#[derive(Debug)]
pub(super) struct Unflushed<S: Storage> {
    /// Segments with unflushed records, oldest first.
    segments: Vec<Arc<Segment<S>>>,
    /// Closed segments whose index files are unflushed.
    closed: Vec<Arc<Segment<S>>>,
    /// Whether names in the directory are unflushed.
    directory: bool,
}

impl<S: Storage> Unflushed<S> {
    pub(super) const fn nothing() -> Self {
        Self { segments: Vec::new(), closed: Vec::new(), directory: false }
    }

    fn is_nothing(&self) -> bool {
        self.segments.is_empty() && self.closed.is_empty() && !self.directory
    }

    fn sync(&self, log: &Log<S>) -> StorageResult<()> {
        for segment in &self.segments {
            segment.file().sync_data()?;
        }
        for segment in &self.closed {
            segment.sync_indexes()?;
        }
        let is_due = self.directory && !is_planted(PlantedFault::DirectoryNotSynced);
        if is_due { log.storage.sync_dir(&log.dir) } else { Ok(()) }
    }
}

impl<S: Storage> Log<S> {
    /// Flushes what was appended before the call. `flushed` of the answer is what is flushed now; after a truncation meanwhile
    /// that is less than this call flushed, and `generation` tells.
    ///
    /// # Errors
    /// What the disk says. Then the log takes no more changes: write down what is lost, and call [`Self::cut_unflushed`].
    pub fn flush(&self) -> Result<LogPositions, LogError> {
        let _flushing = self.flushing.lock();
        self.usable()?;
        Ok(self.sync_all_unflushed()?.positions())
    }

    /// The same for the writer, in the middle of an append.
    pub(super) fn sync_unflushed(&self) -> StorageResult<()> {
        let _flushing = self.flushing.lock();
        self.sync_all_unflushed().map(drop)
    }

    /// The caller holds `flushing`.
    fn sync_all_unflushed(&self) -> StorageResult<Arc<View<S>>> {
        // The view first: whatever it holds was noted as unflushed before it was published, or was flushed already.
        let before = self.view.load_full();
        let unflushed = std::mem::replace(&mut *self.unflushed.lock(), Unflushed::nothing());
        if unflushed.is_nothing() && before.flushed == before.log_end {
            return Ok(before);
        }
        let mut synced = self.note_flush(&before).and_then(|()| unflushed.sync(self));
        if synced.is_err() && is_planted(PlantedFault::FailedFlushRetried) {
            synced = unflushed.sync(self);
        }
        synced.inspect_err(|error| self.flush_failed(error))?;
        let after = self.publish_flushed(&before);
        debug_assert!(
            after.generation != before.generation || after.flushed >= before.log_end,
            "what was appended before is flushed"
        );
        Ok(after)
    }

    fn flush_failed(&self, error: &StorageError) {
        self.fail(Unusable::FlushFailed, error);
        if let Err(error) = self.note_failed_flush() {
            // Opening it takes for damage what is gone from between the others, which costs this replica its incarnation.
            tracing::warn!(partition = %self.partition, %error, "could not write down that a flush failed");
        }
    }

    /// What `before` held is flushed; unless a truncation came between, everything up to its log end.
    pub(super) fn publish_flushed(&self, before: &View<S>) -> Arc<View<S>> {
        self.publish(|view| {
            let overtaken = view.generation != before.generation;
            let flushed = if overtaken { view.flushed } else { view.flushed.max(before.log_end) };
            View { flushed, ..view.clone() }
        })
    }

    /// A segment was written, and is about to be published.
    pub(super) fn note_written(&self, segment: &Arc<Segment<S>>) {
        let mut unflushed = self.unflushed.lock();
        if !unflushed.segments.iter().any(|s| Arc::ptr_eq(s, segment)) {
            unflushed.segments.push(Arc::clone(segment));
        }
        debug_assert!(!unflushed.is_nothing(), "the next flush flushes the segment");
    }

    /// A segment was created, and perhaps another one closed.
    pub(super) fn note_created(&self, closed: Option<&Arc<Segment<S>>>) {
        let mut unflushed = self.unflushed.lock();
        unflushed.directory = true;
        unflushed.closed.extend(closed.cloned());
        debug_assert!(!unflushed.is_nothing(), "the next flush flushes the directory");
    }

    /// Segments were removed: their files need no flush any more.
    pub(super) fn forget_unflushed(&self, is_removed: impl Fn(Offset) -> bool) {
        let mut unflushed = self.unflushed.lock();
        unflushed.segments.retain(|s| !is_removed(s.base()));
        unflushed.closed.retain(|s| !is_removed(s.base()));
    }

    /// After a failed flush: cuts what was not flushed, as far as the disk lets us. Changes nothing where no flush failed.
    pub fn cut_unflushed(&self) {
        let _writer = self.writer.lock();
        if !matches!(self.usable(), Err(Unusable::FlushFailed(_))) {
            return;
        }
        let view = self.view.load_full();
        if view.flushed >= view.log_end {
            return;
        }
        match self.cut_point(&view, view.flushed).map(|point| self.cut(&view, &point)) {
            Ok(Ok(after)) => {
                debug_assert!(after.log_end <= view.flushed, "nothing unflushed is left");
                if let Err(error) = self.forget_flush(after.log_end) {
                    // Opening it counts as lost once more what was cut.
                    tracing::warn!(partition = %self.partition, %error, "could not write down where the log ends");
                }
                tracing::error!(partition = %self.partition, from = %view.log_end, to = %after.log_end, "cut what could not be flushed");
            }
            Ok(Err(error)) => {
                tracing::error!(partition = %self.partition, %error, "could not cut what could not be flushed")
            }
            Err(error) => {
                tracing::error!(partition = %self.partition, %error, "could not cut what could not be flushed")
            }
        }
    }
}

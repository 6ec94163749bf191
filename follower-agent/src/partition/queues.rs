//! The disk work of one partition, in order, and its flushes beside it.
//!
//! What must hold: work runs one after the other on the blocking pool; under `fsync` each batch of work is followed by a
//! request to flush, and a flush that starts later than an append covers it, so one flush serves many (group commit)
//! while the next append runs; the loop is told after each. Both queues are bounded: appends by the loop, which pauses the
//! partition before there is no room, everything else by being queued once at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use highwater_log::OffsetRange;
use highwater_node::{Flush, PushError, SerialQueue};
use highwater_protocol::follower::PartitionFetchState;
use highwater_replica::FollowerWork;
use highwater_types::{MonotonicTime, Offset};

use super::{FollowedPartition, PartitionContext, QUEUED_ANSWERS_MAX};

/// Work that runs without a break, at most.
const BATCH_MAX: usize = 16;

/// Room for what is not an append, and for the answers that were under way when the partition paused.
const SPARE: usize = 64;

/// Something to do in order.
#[derive(Debug)]
pub(super) enum Work {
    /// What the core asks for; for an append with the room that it takes up.
    OnLog(FollowerWork, Option<Queued>),
    /// A record names a new leadership: [`FollowedPartition::adopt_leadership`].
    AdoptLeadership,
    /// A person resumed it.
    Resume,
    /// A reader met damage in the segment of this base.
    CheckSegment(Offset),
    /// What this range lost cannot be repaired in its place.
    CutToDamage(OffsetRange),
}

/// The room that an answer takes up until it is appended, or dropped.
#[derive(Debug)]
pub(super) struct Queued {
    context: Arc<PartitionContext>,
    answers: Arc<AtomicUsize>,
    bytes: u64,
}

impl Queued {
    pub(super) fn new(partition: &FollowedPartition, bytes: usize) -> Self {
        let (context, answers) = (Arc::clone(&partition.context), Arc::clone(&partition.queued_answers));
        let bytes = bytes as u64;
        answers.fetch_add(1, Ordering::AcqRel);
        context.queued_bytes.fetch_add(bytes, Ordering::AcqRel);
        Self { context, answers, bytes }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.answers.fetch_sub(1, Ordering::AcqRel);
        self.context.queued_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The queue of work on the log.
#[derive(Debug)]
pub(super) struct WorkQueue(SerialQueue<Work>);

impl WorkQueue {
    pub(super) fn new(name: &str, partition: Weak<FollowedPartition>) -> Self {
        let capacity = QUEUED_ANSWERS_MAX + SPARE;
        Self(SerialQueue::new(format!("work {name}"), capacity, BATCH_MAX, move |work| {
            if let Some(partition) = partition.upgrade() {
                partition.run_work(work);
            }
        }))
    }

    pub(super) fn push(&self, work: Work) {
        match self.0.try_push(work) {
            Ok(()) => {}
            Err(PushError::Full(_)) => {
                debug_assert!(false, "the partition pauses before the queue is full");
                tracing::error!(
                    queue = self.0.name(),
                    "the queue of a partition's work is full; some is left undone"
                );
            }
            // Being closed, or a job panicked: nothing of this partition is acknowledged any more.
            Err(PushError::Closed(_)) => {}
        }
    }

    /// Lets what was accepted run, and accepts nothing more.
    pub(super) async fn close(&self) {
        self.0.close().await;
    }

    /// Whether work panicked; the queue is closed then.
    pub(super) fn has_panicked(&self) -> bool {
        self.0.has_panicked()
    }
}

impl FollowedPartition {
    /// Whether disk work panicked: then this hosting of the partition is over, and the log has to be opened anew.
    pub(crate) fn has_panicked(&self) -> bool {
        self.work.has_panicked() || self.flushes.has_panicked()
    }

    pub(super) fn has_failed(&self) -> bool {
        let state = self.replica.state(self.context.clocks.monotonic.now());
        matches!(state, PartitionFetchState::Failed { .. })
    }

    /// *Blocks.*
    fn run_work(&self, batch: Vec<Work>) {
        for work in batch {
            match work {
                Work::OnLog(work, queued) => {
                    let now = self.context.now();
                    let step = self.replica.execute(&work, now);
                    drop(queued);
                    self.absorb(step);
                    self.work_done(&work, now.monotonic);
                }
                Work::Resume => self.resume(),
                Work::CheckSegment(base) => self.absorb(self.replica.on_rot_met(base, self.context.now())),
                Work::CutToDamage(range) => {
                    self.absorb(self.replica.cut_to_damage(range, self.context.now()));
                }
                Work::AdoptLeadership => {}
            }
            self.adopt_leadership();
        }
        self.flush_if_needed();
        self.tell_loop();
    }

    /// Tells of work on the log that began at `began`.
    fn work_done(&self, work: &FollowerWork, began: MonotonicTime) {
        if let (FollowerWork::Append(_), Some(meters)) = (work, self.context.telemetry.meters()) {
            meters.append.record(self.context.clocks.monotonic.now().since(began).as_secs_f64(), &[]);
        }
        self.settle_lags();
    }

    /// Takes over what the newest record says, if that is news. When the disk does not let it, it is tried again after the
    /// next work, which is the log's recovery. *Blocks.*
    fn adopt_leadership(&self) {
        let Some(record) = self.leadership.lock().take() else { return };
        let (Some(leader), Some(epoch)) = (record.leader, record.leader_epoch) else { return };
        self.replica.on_unclean_election(record.highest_unclean_epoch());
        let (was_news, step) =
            self.replica.on_leader(leader, epoch, record.partition_epoch, self.context.now());
        if was_news {
            tracing::info!(partition = %self.name(), %leader, %epoch, "follows a new leadership");
            // Whoever waits on the old leadership learns of the new one.
            self.context.purgatory.wake(self.replica.id());
        } else if self.replica.inspect(|core| core.leader_epoch()) < epoch {
            self.leadership.lock().get_or_insert(record);
        }
        self.absorb(step);
    }

    fn flush_if_needed(&self) {
        if self.is_fsync() && !self.has_failed() && self.replica.needs_flush() {
            self.flushes.request();
        }
    }
}

impl Flush for FollowedPartition {
    fn run_flush(&self) {
        let began = self.context.clocks.monotonic.now();
        let step = self.replica.flush(began);
        self.absorb(step);
        if let Some(meters) = self.context.telemetry.meters() {
            meters.flush.record(self.context.clocks.monotonic.now().since(began).as_secs_f64(), &[]);
        }
        self.settle_lags();
        // What was appended meanwhile, or a truncation that overtook the flush.
        self.flush_if_needed();
        self.tell_loop();
    }
}

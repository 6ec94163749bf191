//! Appends of one partition, in order, and its flushes.
//!
//! What must hold: appends run one after the other on the blocking pool; what gathered while one ran becomes one write;
//! under `fsync` each is followed by a request to flush, and a flush that starts later than an append covers it, so that
//! one flush serves many (group commit) while the next append runs. Both queues are bounded.

use std::sync::Weak;

use bytes::Bytes;
use highwater_log::OffsetRange;
pub(super) use highwater_node::FlushQueue;
use highwater_node::{Flush, PushError, SerialQueue};
use highwater_types::{Offset, ReplicationError, TraceContext};
use tokio::sync::oneshot;

use super::handle::LedPartition;
use crate::produce::CheckedBatches;

/// Appends that become one write, at most.
const MERGED_APPENDS_MAX: usize = 128;

/// What to append.
#[derive(Debug)]
pub(super) struct Append {
    pub(super) batches: CheckedBatches,
    /// Refused while the in-sync set is too small (S61).
    pub(super) needs_min_isr: bool,
    /// The trace that it belongs to.
    pub(super) trace: Option<TraceContext>,
    pub(super) reply: oneshot::Sender<Result<Appended, ReplicationError>>,
}

/// Where it went.
#[derive(Clone, Copy, Debug)]
pub(super) struct Appended {
    pub(super) range: OffsetRange,
    pub(super) log_start: Offset,
}

/// The queue of appends.
#[derive(Debug)]
pub(super) struct AppendQueue(SerialQueue<Append>);

impl AppendQueue {
    pub(super) fn new(name: &str, capacity: usize, partition: Weak<LedPartition>) -> Self {
        Self(SerialQueue::new(format!("append {name}"), capacity, MERGED_APPENDS_MAX, move |appends| {
            // Gone: the replies are dropped, which tells those who wait.
            if let Some(partition) = partition.upgrade() {
                partition.run_appends(appends);
            }
        }))
    }

    /// Waits for room.
    pub(super) async fn push(&self, append: Append) -> Result<(), PushError<Append>> {
        self.0.push(append).await
    }

    pub(super) fn has_panicked(&self) -> bool {
        self.0.has_panicked()
    }

    /// Lets what was accepted run, and accepts nothing more.
    pub(super) async fn close(&self) {
        self.0.close().await;
    }
}

impl LedPartition {
    /// One write for all of `appends`. *Blocks.*
    fn run_appends(&self, appends: Vec<Append>) {
        let mut accepted = Vec::with_capacity(appends.len());
        let followed = self.check_followed();
        for append in appends {
            match followed.clone().and_then(|()| self.admit(&append)) {
                Ok(()) => accepted.push(append),
                Err(refusal) => answer(append.reply, Err(refusal)),
            }
        }
        if accepted.is_empty() {
            return;
        }
        let inputs: Vec<Bytes> = accepted.iter().map(|append| append.batches.bytes.clone()).collect();
        let traces: Vec<Option<TraceContext>> = accepted.iter().map(|append| append.trace).collect();
        let now = self.context.now();
        match self.replica.produce(&inputs, &traces, now.wall, now.monotonic) {
            Ok(placed) => {
                if let Some(meters) = self.telemetry().meters() {
                    meters.append.record(self.now().since(now.monotonic).as_secs_f64(), &[]);
                }
                debug_assert_eq!(placed.len(), accepted.len(), "an outcome per input");
                let log_start = self.replica.log().log_start();
                for (append, placed) in accepted.into_iter().zip(placed) {
                    // A duplicate waits for what its original's answer would (design.md 6.10).
                    answer(append.reply, placed.map(|placed| Appended { range: placed.range, log_start }));
                }
                if self.is_fsync() {
                    self.flush_queue.request();
                    if self.flush_queue.has_panicked() {
                        self.on_panic();
                    }
                }
                self.context.purgatory.wake(self.replica.id());
                self.execute_effects();
            }
            Err(error) => {
                let why = ReplicationError::new(error.code(), error.to_string());
                for append in accepted {
                    answer(append.reply, Err(why.clone()));
                }
                self.on_disk_error("append", &error);
            }
        }
    }

    /// Whether it may be appended now: not before, because the partition may have changed while it waited.
    fn admit(&self, append: &Append) -> Result<(), ReplicationError> {
        if self.replica.is_over() {
            return Err(self.leadership_over());
        }
        if append.needs_min_isr { self.replica.check_min_isr() } else { Ok(()) }
    }

    /// Whether nobody else can lead by now: without a session that is known only while the in-sync set follows (design.md 6.7).
    fn check_followed(&self) -> Result<(), ReplicationError> {
        let (membership, now) = (&self.context.membership, self.now());
        if membership.holds_its_session(now) {
            return Ok(());
        }
        self.replica.check_followed(now, membership.session_timeout())
    }
}

impl Flush for LedPartition {
    fn run_flush(&self) {
        let began = self.now();
        match self.replica.flush(began) {
            Ok(flushed) => {
                if let Some(meters) = self.telemetry().meters() {
                    meters.flush.record(self.now().since(began).as_secs_f64(), &[]);
                }
                self.flushes.reach(flushed);
                self.execute_effects();
            }
            Err(error) => self.on_disk_error("flush", &error),
        }
    }
}

/// Nobody may wait for the answer: the client went away, or asked for none.
fn answer(
    reply: oneshot::Sender<Result<Appended, ReplicationError>>,
    outcome: Result<Appended, ReplicationError>,
) {
    let _nobody = reply.send(outcome);
}

//! Produce at one partition: from checked batches to the acknowledgement that was asked for.
//!
//! What must hold: `acks=all` is refused before the append when the in-sync set is too small, and told apart afterwards,
//! because the records are then in the log (S61); `acks=1` under `fsync` waits for the leader's own flush, because only
//! flushed offsets are acknowledged (design.md 2); every wait ends at the request's time, with "timed out", which leaves
//! the outcome open. Whoever waits registers first and looks at the value again.

use highwater_protocol::leader::CommitStatus;
use highwater_types::{ErrorCode, Offset, ReplicationError, TraceContext};
use highwater_wire::produce::{Acks, Produced};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::append_queue::{Append, Appended};
use super::handle::LedPartition;
use crate::produce::CheckedBatches;

impl LedPartition {
    /// Appends, and waits for what `acks` asks for, until `until` at most; `call` is the span of the call, where it is traced.
    ///
    /// # Errors
    /// The partition's error. After [`ErrorCode::RequestTimedOut`] and [`ErrorCode::NotEnoughReplicasAfterAppend`] the
    /// records may be in the log.
    pub(crate) async fn produce(
        &self,
        batches: CheckedBatches,
        acks: Acks,
        until: Instant,
        call: Option<TraceContext>,
    ) -> Result<Produced, ReplicationError> {
        if acks == Acks::All {
            // Looked at again when it is its turn; here it spares the queue.
            self.replica.check_min_isr()?;
        }
        let (reply, appended) = oneshot::channel();
        let trace = self.begin_append(call);
        let append = Append {
            batches,
            needs_min_isr: acks == Acks::All,
            trace: trace.map(|trace| trace.append),
            reply,
        };
        timeout_at(until, self.appends.push(append))
            .await
            .map_err(|_| timed_out("to be appended; nothing was"))?
            .map_err(|_| self.queue_closed())?;
        if acks == Acks::None {
            return Ok(Produced::default());
        }
        let appended: Appended = timeout_at(until, appended)
            .await
            .map_err(|_| timed_out("for the append"))?
            .map_err(|_| self.queue_closed())??;
        let end = appended.range.end;
        if let Some(trace) = &trace {
            self.record_append(trace, appended.range.start, end);
        }
        match acks {
            Acks::All => {
                let began = self.now();
                self.committed(end, until).await?;
                if let Some(trace) = &trace {
                    self.record_commit(trace, began, end);
                }
            }
            Acks::Leader if self.is_fsync() => self.flushed(end, until).await?,
            Acks::Leader | Acks::None => {}
        }
        Ok(Produced {
            base_offset: Some(appended.range.start),
            last_offset: end.prev(),
            leader_epoch: Some(self.replica.epoch()),
            log_start: Some(appended.log_start),
        })
    }

    /// The queue is closed, or was dropped with the append in it.
    fn queue_closed(&self) -> ReplicationError {
        if self.appends.has_panicked() {
            self.on_panic();
        }
        ReplicationError::new(ErrorCode::NotLeaderOrFollower, "this node stops leading the partition")
    }

    async fn committed(&self, end: Offset, until: Instant) -> Result<(), ReplicationError> {
        let waiter = self.commits.register(end);
        match self.replica.commit_status(end) {
            CommitStatus::Committed => Ok(()),
            CommitStatus::LeadershipLost => Err(self.leadership_over()),
            CommitStatus::NotEnoughReplicas => Err(not_enough_after_append()),
            CommitStatus::Pending => {
                timeout_at(until, waiter).await.map_err(|_| timed_out("for the in-sync replicas"))?
            }
        }
    }

    async fn flushed(&self, end: Offset, until: Instant) -> Result<(), ReplicationError> {
        let waiter = self.flushes.register(end);
        if self.replica.log().flushed() >= end {
            return Ok(());
        }
        if self.replica.is_over() {
            return Err(self.leadership_over());
        }
        timeout_at(until, waiter).await.map_err(|_| timed_out("for the flush"))?
    }

    /// The in-sync set changed: below the minimum nothing that is pending will be acknowledged (S61).
    pub(super) fn give_up_commits_below_min_isr(&self) {
        if self.replica.check_min_isr().is_err() {
            self.commits.give_up(&not_enough_after_append());
        }
    }
}

fn timed_out(waited: &str) -> ReplicationError {
    ReplicationError::new(ErrorCode::RequestTimedOut, format!("waited too long {waited}"))
}

fn not_enough_after_append() -> ReplicationError {
    ReplicationError::new(
        ErrorCode::NotEnoughReplicasAfterAppend,
        "the in-sync set shrank below min.insync.replicas after the append; the records are in the log",
    )
}

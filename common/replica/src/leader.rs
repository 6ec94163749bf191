//! A replica that leads: appends, flushes, serves reads, and lets the core decide what is committed.
//!
//! What must hold: an append is reported to the core after it is in the log, a flush after it is on the disk, so the high
//! watermark never covers what could be gone (S60, design.md 6.8). The log is looked at while the core is locked, so that no
//! high watermark is seen beside an older log end (S22). After a failed disk the leadership ends (design.md 2).

use std::sync::Arc;

use bytes::Bytes;
use highwater_log::{
    AppendError, HighWatermark, LeaderAppend, Log, LogConfig, LogError, LogRead, OffsetRange, ReadError,
    ReadLimits, Retained, Storage, TimestampHit,
};
use highwater_protocol::delayed_fetch::{FetchCompletion, Probe, ProbeFacts};
use highwater_protocol::fetch::{
    FetchPartition, Position, ReadPlan, Requester, check_epoch, check_position, epoch_end_offset,
};
use highwater_protocol::leader::{
    Answered, CommitStatus, FollowerRow, IsrOutcome, LeaderConfig, LeaderEffect, LeaderPartition, LeaderStart,
};
use highwater_types::{
    ErrorCode, Incarnation, IsrMember, LeaderEpoch, MonotonicTime, NodeId, Offset, OffsetAndEpoch,
    PartitionRecord, ReplicationError, TopicIdPartition, TraceContext, WallTime,
};
use parking_lot::Mutex;

use crate::append_history::AppendHistory;
use crate::{OpenReplica, ReplicaError, ReplicaFacts, ReplicaPlace, certain_end, log_facts};

/// How to lead.
#[derive(Clone, Debug)]
pub struct Leading {
    /// The core's settings.
    pub config: LeaderConfig,
    /// This node.
    pub node: NodeId,
    /// The record by which it leads, as it was written by compare-and-swap.
    pub record: PartitionRecord,
}

/// A replica that leads.
#[derive(Debug)]
pub struct LeaderReplica<S: Storage> {
    place: ReplicaPlace<S>,
    node: NodeId,
    epoch: LeaderEpoch,
    epoch_start: Offset,
    /// The incarnation that is in the in-sync set.
    stood_with: Incarnation,
    log: Arc<Log<S>>,
    /// Held while an append is written and reported, so that reports come in order.
    appending: Mutex<()>,
    core: Mutex<LeaderPartition>,
    history: Mutex<AppendHistory>,
}

impl<S: Storage> OpenReplica<S> {
    /// Takes up the leadership that the record names. The epochs are noted in the checkpoint and the epoch begins in the log,
    /// both durably, before anything is served under it (S36, S45, design.md 6.5). A lost tail is passed over, so that its
    /// offsets are not given to other records (design.md 2). *Blocks.* On an error the replica is closed and its lock freed.
    ///
    /// # Errors
    /// [`ReplicaError::Refused`] when the record does not make this replica the leader or the directory has seen a higher
    /// epoch; else what the disk says.
    pub fn lead(self, leading: Leading, now: MonotonicTime) -> Result<LeaderReplica<S>, ReplicaError> {
        let log = Arc::clone(&self.log);
        let lead = self.try_lead(leading, now);
        if lead.is_err() {
            drop(log.abandon());
        }
        lead
    }

    fn try_lead(self, leading: Leading, now: MonotonicTime) -> Result<LeaderReplica<S>, ReplicaError> {
        let Leading { config, node, record } = leading;
        let refused = |why: &str| ReplicationError::new(ErrorCode::FencedLeaderEpoch, why);
        let epoch = record.leader_epoch.ok_or_else(|| refused("the record has no leader epoch"))?;
        if self.log.highest_epochs().0.is_some_and(|seen| seen > epoch) {
            return Err(refused("the directory has seen a higher leader epoch").into());
        }
        if !record.is_electable(node, self.incarnation()) {
            return Err(refused("this incarnation is not in the in-sync set").into());
        }
        self.log.note_epochs(Some(epoch), record.partition_epoch)?;
        self.log.pass_over_lost_tail()?;
        let epoch_start = self.log.assign_epoch(epoch)?;
        let positions = self.log.positions();
        assert_eq!(epoch_start, positions.log_end, "the epoch is new, and nobody has appended in it");
        let start = LeaderStart {
            node,
            record,
            log_start: positions.log_start,
            log_end: positions.log_end,
            flushed_end: positions.flushed,
            high_watermark: self.found_high_watermark().offset,
        };
        let core = LeaderPartition::new(config, start, now)?;
        Ok(LeaderReplica {
            place: self.place,
            node,
            epoch,
            epoch_start,
            stood_with: self.log.incarnation(),
            log: self.log,
            appending: Mutex::new(()),
            core: Mutex::new(core),
            history: Mutex::new(AppendHistory::default()),
        })
    }
}

impl<S: Storage> LeaderReplica<S> {
    // === getters ===

    /// The partition.
    pub const fn id(&self) -> TopicIdPartition {
        self.place.id()
    }

    /// The leading node.
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// This leadership's epoch.
    pub const fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    /// Where the epoch begins in the log.
    pub const fn epoch_start(&self) -> Offset {
        self.epoch_start
    }

    /// This replica's incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.log.incarnation()
    }

    /// The log, for reads that no method here covers (damage, size, configuration).
    pub const fn log(&self) -> &Arc<Log<S>> {
        &self.log
    }

    /// What it says about itself now.
    pub fn facts(&self) -> ReplicaFacts {
        let core = self.core.lock();
        let snapshot = self.log.snapshot();
        ReplicaFacts {
            leader_epoch: self.epoch,
            is_leader: !core.is_over(),
            high_watermark: core.high_watermark(),
            positions: snapshot.positions,
            epochs: snapshot.epochs,
        }
    }

    /// The high watermark (exclusive).
    pub fn high_watermark(&self) -> Offset {
        self.core.lock().high_watermark()
    }

    /// The log end (exclusive).
    pub fn log_end(&self) -> Offset {
        self.log.log_end()
    }

    /// The committed in-sync set.
    pub fn isr(&self) -> Vec<IsrMember> {
        self.core.lock().isr().to_vec()
    }

    /// Whether the leadership ended.
    pub fn is_over(&self) -> bool {
        self.core.lock().is_over()
    }

    /// Whether the in-sync set is large enough for `acks=all` (S61).
    ///
    /// # Errors
    /// `NotEnoughReplicas` with both numbers.
    pub fn check_min_isr(&self) -> Result<(), ReplicationError> {
        self.core.lock().check_min_isr()
    }

    /// Where an `acks=all` append that ends at `end` stands.
    pub fn commit_status(&self, end: Offset) -> CommitStatus {
        self.core.lock().commit_status(end)
    }

    /// A row per follower, with its lag in bytes where that is known: an estimate by the log's index.
    pub fn describe(&self, now: MonotonicTime) -> Vec<(FollowerRow, Option<u64>)> {
        let rows = self.core.lock().describe(now);
        let end = self.log.log_end();
        let with_bytes = rows.into_iter().map(|row| {
            let bytes = row.acknowledged.map(|from| self.bytes_between(from, end));
            (row, bytes)
        });
        with_bytes.collect()
    }

    /// A follower's fetch was answered: for the description only.
    pub fn on_follower_answered(&self, follower: NodeId, answered: Answered, now: MonotonicTime) {
        self.core.lock().on_follower_answered(follower, answered, now);
    }

    /// When [`Self::on_tick`] has something to do next, if anything.
    pub fn next_deadline(&self) -> Option<MonotonicTime> {
        self.core.lock().next_deadline()
    }

    // === writing ===

    /// Appends validated batches, all inputs in one write, with offsets and epoch given here. *Blocks.*
    ///
    /// # Errors
    /// As [`Log::append_as_leader`]. An error of the disk ends the leadership (design.md 2).
    pub fn append(
        &self,
        inputs: &[Bytes],
        wall: WallTime,
        now: MonotonicTime,
    ) -> Result<LeaderAppend, AppendError> {
        self.append_traced(inputs, &[], wall, now)
    }

    /// The same; `traces` are the traces that the inputs belong to, one per input or none at all. *Blocks.*
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn append_traced(
        &self,
        inputs: &[Bytes],
        traces: &[Option<TraceContext>],
        wall: WallTime,
        now: MonotonicTime,
    ) -> Result<LeaderAppend, AppendError> {
        debug_assert!(traces.is_empty() || traces.len() == inputs.len(), "a trace, or none, per input");
        let _appending = self.appending.lock();
        // A leadership that ends while this appends leaves records that the next leader cuts.
        let appended = self.log.append_as_leader(inputs, self.epoch, wall).inspect_err(|error| {
            if matches!(error, AppendError::Storage(_) | AppendError::Unusable(_)) {
                self.on_log_failed();
            }
        })?;
        {
            let mut history = self.history.lock();
            for (range, input) in appended.inputs.iter().zip(inputs) {
                history.note(*range, input.len() as u64, now);
            }
            for (range, trace) in appended.inputs.iter().zip(traces) {
                if let Some(trace) = trace {
                    history.note_trace(range.start, *trace);
                }
            }
        }
        self.core.lock().on_append(appended.next, now);
        Ok(appended)
    }

    /// Flushes what was appended before the call; appends go on meanwhile. Answers the flushed end. *Blocks.*
    ///
    /// # Errors
    /// What the disk says. A failed flush is final: the leadership ends (design.md 2).
    pub fn flush(&self, now: MonotonicTime) -> Result<Offset, LogError> {
        let positions = self.log.flush().inspect_err(|_| self.on_log_failed())?;
        let mut core = self.core.lock();
        // The append may not have been reported yet by the thread that made it.
        core.on_append(positions.flushed, now);
        core.on_flushed(positions.flushed, now);
        Ok(positions.flushed)
    }

    /// Removes old segments below the high watermark (design.md 2). *Blocks.*
    ///
    /// # Errors
    /// What the disk says; the leadership ends when the log takes no more changes.
    pub fn apply_retention(&self, now: WallTime) -> Result<Retained, LogError> {
        let high_watermark = self.high_watermark();
        let retained =
            self.log.apply_retention(high_watermark, now).inspect_err(|_| self.resign_if_unusable())?;
        self.core.lock().on_log_start(retained.positions.log_start);
        Ok(retained)
    }

    /// Writes high watermark, log start and recovery point, unsynced. Once a second while they move. *Blocks.*
    ///
    /// # Errors
    /// What the disk says; the log goes on.
    pub fn write_checkpoint(&self) -> Result<bool, LogError> {
        let partition_epoch = self.core.lock().partition_epoch();
        self.log.note_epochs(None, partition_epoch)?;
        // The generation first: after a truncation in between nothing is written.
        let generation = self.log.positions().generation;
        self.log.write_checkpoint_lazy(self.checkpointed(), generation)
    }

    /// Ends the leadership, flushes, marks the log clean, and frees the lock. Reads under way get errors from now on: wait for
    /// them first (design.md 6.6). *Blocks.*
    ///
    /// # Errors
    /// What the disk says; the lock is freed all the same, without the mark.
    pub fn close(&self) -> Result<(), LogError> {
        self.resign();
        // Apart from closing, so that what a failing flush loses is settled while the lock is held.
        if self.log.flush().is_err() {
            self.settle_loss()?;
        }
        self.log.close_clean(self.checkpointed())
    }

    /// Ends the leadership and gives the log up as it is: after a failed disk. The lock is freed. *Blocks.*
    ///
    /// # Errors
    /// What is lost could not be written down: the lock is held on, because nobody may open the log as if it had everything.
    pub fn abandon(&self) -> Result<(), LogError> {
        self.resign();
        self.settle_loss()?;
        drop(self.log.abandon());
        Ok(())
    }

    /// Ends the leadership; the log stays open for reads that are under way.
    pub fn resign(&self) {
        self.core.lock().resign();
    }

    // === fetches ===

    /// A fetch arrived: checks it and counts what a follower acknowledges (S25).
    ///
    /// # Errors
    /// What the checks found (S18–S24).
    pub fn on_fetch(
        &self,
        requester: Requester,
        request: &FetchPartition,
        now: MonotonicTime,
    ) -> Result<ReadPlan, ReplicationError> {
        let mut core = self.core.lock();
        let snapshot = self.log.snapshot();
        let facts = log_facts(&snapshot.positions, &snapshot.epochs);
        match requester {
            Requester::Follower(node) => core.on_follower_fetch(node, request, &facts, now),
            Requester::Consumer => core.plan_consumer_read(request, &facts),
        }
    }

    /// The same checks for a fetch that was parked; counts nothing (S25).
    ///
    /// # Errors
    /// What the checks found.
    pub fn plan(&self, requester: Requester, request: &FetchPartition) -> Result<ReadPlan, ReplicationError> {
        let core = self.core.lock();
        let snapshot = self.log.snapshot();
        let facts = log_facts(&snapshot.positions, &snapshot.epochs);
        match requester {
            Requester::Follower(node) => core.plan_follower_read(node, request, &facts),
            Requester::Consumer => core.plan_consumer_read(request, &facts),
        }
    }

    /// What a parked fetch needs to know of the partition now.
    pub fn probe(&self, requester: Requester, request: &FetchPartition) -> Probe {
        let (snapshot, is_over, high_watermark, propagated) = {
            let core = self.core.lock();
            (self.log.snapshot(), core.is_over(), core.high_watermark(), core.propagated_high_watermark())
        };
        if is_over {
            return Probe::Unreadable(FetchCompletion::LeadershipLost);
        }
        let log_end = snapshot.positions.log_end;
        let upper = match requester {
            Requester::Follower(_) => log_end,
            Requester::Consumer => high_watermark.min(log_end),
        };
        let facts = log_facts(&snapshot.positions, &snapshot.epochs);
        let position = check_position(request.fetch_offset, request.last_fetched_epoch, &facts);
        Probe::Readable(ProbeFacts {
            leader_epoch: self.epoch,
            upper,
            log_end,
            active_segment: snapshot.active_segment,
            available_bytes: self.bytes_between(request.fetch_offset, upper),
            propagated_high_watermark: propagated,
            diverging: position != Position::Agrees,
        })
    }

    /// When the record at `offset` was appended here; `None` when that is not remembered.
    pub fn appended_at(&self, offset: Offset) -> Option<MonotonicTime> {
        self.history.lock().appended_at(offset)
    }

    /// The traces of recent appends that begin from `from` on and before `to`.
    pub fn traces(&self, from: Offset, to: Offset) -> Vec<(Offset, TraceContext)> {
        self.history.lock().traces(from, to)
    }

    /// Reads whole batches. *Blocks.*
    ///
    /// # Errors
    /// As [`Log::read`].
    pub fn read(&self, from: Offset, limits: ReadLimits) -> Result<LogRead, ReadError> {
        self.log.read(from, limits)
    }

    /// The first record below `upper` at or after `timestamp`. *Blocks.*
    ///
    /// # Errors
    /// As [`Log::offset_for_timestamp`].
    pub fn offset_for_timestamp(
        &self,
        timestamp: WallTime,
        upper: Offset,
    ) -> Result<Option<TimestampHit>, ReadError> {
        self.log.offset_for_timestamp(timestamp, upper)
    }

    /// Where `asked` ends in this log (OffsetsForLeaderEpoch, S37); `None` = undefined.
    ///
    /// # Errors
    /// As [`check_epoch`] for the epoch that the requester believes in; `NotLeaderOrFollower` after the end.
    pub fn epoch_end_offset(
        &self,
        current: Option<LeaderEpoch>,
        asked: Option<LeaderEpoch>,
    ) -> Result<Option<OffsetAndEpoch>, ReplicationError> {
        check_epoch(current, self.epoch)?;
        if self.is_over() {
            return Err(ReplicationError::new(
                ErrorCode::NotLeaderOrFollower,
                "this node leads the partition no more",
            ));
        }
        let snapshot = self.log.snapshot();
        Ok(epoch_end_offset(asked, &log_facts(&snapshot.positions, &snapshot.epochs)))
    }

    // === coordination, time ===

    /// A record was seen, or written by this leader.
    pub fn on_record(&self, record: &PartitionRecord, now: MonotonicTime) {
        self.core.lock().on_record(record, now);
    }

    /// The store answered a proposal; report the record that was written by [`Self::on_record`] as well.
    pub fn on_isr_outcome(&self, outcome: &IsrOutcome, now: MonotonicTime) {
        self.core.lock().on_isr_outcome(outcome, now);
    }

    /// The topic's properties changed.
    pub fn on_config(&self, config: LeaderConfig, log: LogConfig, now: MonotonicTime) {
        self.log.set_config(log);
        self.core.lock().on_config(config, now);
    }

    /// Time passed.
    pub fn on_tick(&self, now: MonotonicTime) {
        self.core.lock().on_tick(now);
    }

    /// What the caller owes after any of the above; empty when there is nothing.
    pub fn drain_effects(&self) -> Vec<LeaderEffect> {
        let mut core = self.core.lock();
        std::iter::from_fn(|| core.poll_effect()).collect()
    }

    fn checkpointed(&self) -> HighWatermark {
        HighWatermark { offset: self.high_watermark(), epoch: Some(self.epoch) }
    }

    fn bytes_between(&self, from: Offset, to: Offset) -> u64 {
        if from >= to {
            return 0;
        }
        let exact = self.history.lock().bytes_between(from, to);
        // The log's estimate can be 0 for a few records: there is at least a byte.
        exact.unwrap_or_else(|| self.log.bytes_between(from, to).max(1))
    }

    fn resign_if_unusable(&self) {
        if self.log.usable().is_err() {
            self.on_log_failed();
        }
    }

    /// The leadership is over. What cannot be written down now is tried again by [`Self::abandon`].
    fn on_log_failed(&self) {
        self.resign();
        if let Err(error) = self.settle_loss() {
            tracing::error!(partition = %self.log.partition(), %error, "could not write down that acknowledged records are lost; trying on");
        }
    }

    /// Whether committed records may be gone with what could not be flushed (design.md 6.3): then this replica's vote goes, or,
    /// when nobody else has them, they are recorded as lost. Call it after the end of the leadership: nothing is committed
    /// any more.
    fn settle_loss(&self) -> Result<(), LogError> {
        let (committed, is_alone) = {
            let core = self.core.lock();
            debug_assert!(core.is_over(), "nothing more is committed");
            (core.high_watermark(), core.is_alone_in_sync())
        };
        let end = certain_end(&self.log);
        if end >= committed || self.log.incarnation() != self.stood_with {
            return Ok(());
        }
        if is_alone {
            self.log.note_lost(OffsetRange::new(end, committed))
        } else {
            self.log.renew_incarnation((self.place.fresh_incarnation)())
        }
    }
}

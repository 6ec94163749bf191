//! A replica that follows: asks, applies answers to its log, acknowledges.
//!
//! What must hold: one change of the log at a time, in the order in which it was decided (`applying`); before each the
//! generation is compared, so what was overtaken is skipped. An append is reported after it is in the log, a flush after it
//! is on the disk; only then is it acknowledged. What the log says is read while the core is locked, so a flush that ends
//! beside it is not lost.

use std::sync::Arc;

use highwater_log::{
    CutOrder, Damage, HighWatermark, LockGuard, Log, LogConfig, LogError, LogRead, OffsetRange, ReadError,
    ReadLimits, Storage, TimestampHit,
};
use highwater_protocol::Randomness;
use highwater_protocol::delayed_fetch::{FetchCompletion, Probe, ProbeFacts};
use highwater_protocol::fetch::{
    FetchPartition, Fetched, LostRange, Position, ReadPlan, Requester, check_leadership, check_position,
    plan_read,
};
use highwater_protocol::follower::{
    FetchAsk, FetchIntent, FetchPosition, FollowerConfig, FollowerPartition, FollowerStart, LeaderOffsets,
    LogState, PartitionFetchState,
};
use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{
    ErrorCode, Incarnation, LeaderEpoch, MonotonicTime, NodeId, Offset, PartitionEpoch, ReplicationError,
    TopicIdPartition, WallTime,
};
use parking_lot::{Mutex, RwLock};

use crate::open::damage;
use crate::producers::Producers;
use crate::spans::answer_facts;
use crate::{OpenReplica, ReplicaError, ReplicaFacts, ReplicaPlace, log_facts};

mod apply;
mod refill;
mod rot;
mod step;

pub use refill::{Refill, RepairError};
pub use step::{AppendWork, AskOffsets, FollowerStep, FollowerWork, LossReport};

/// Whom to follow.
#[derive(Clone, Debug)]
pub struct Following {
    /// The core's settings.
    pub config: FollowerConfig,
    /// Who leads.
    pub leader: NodeId,
    /// In which epoch.
    pub leader_epoch: LeaderEpoch,
    /// The version of the record that says so.
    pub partition_epoch: PartitionEpoch,
    /// Seed of the jitter.
    pub seed: u64,
}

/// The core beside its randomness.
#[derive(Debug)]
struct Core {
    partition: FollowerPartition,
    randomness: Randomness,
    /// The version of the record that named the leader.
    partition_epoch: PartitionEpoch,
}

/// A replica that follows.
#[derive(Debug)]
pub struct FollowerReplica<S: Storage> {
    place: ReplicaPlace<S>,
    /// Held while the log is changed.
    applying: Mutex<()>,
    /// Taken for itself, or while `applying` is held.
    producers: Mutex<Producers>,
    /// Replaced when a failed log is opened again.
    log: RwLock<Arc<Log<S>>>,
    /// The partition's lock, as long as a failed log is closed and could not be opened again.
    spare_lock: Mutex<Option<Arc<LockGuard>>>,
    core: Mutex<Core>,
}

impl<S: Storage> OpenReplica<S> {
    /// Begins to follow, at the own log end (S3). The epochs are noted in the checkpoint first, durably (design.md 6.5).
    /// *Blocks.* On an error the replica is closed and its lock freed.
    ///
    /// # Errors
    /// [`ReplicaError::Refused`] when the directory has seen a higher epoch; else what the disk says.
    pub fn follow(self, following: Following) -> Result<FollowerReplica<S>, ReplicaError> {
        let log = Arc::clone(&self.log);
        let follow = self.try_follow(following);
        if follow.is_err() {
            drop(log.abandon());
        }
        follow
    }

    fn try_follow(self, following: Following) -> Result<FollowerReplica<S>, ReplicaError> {
        let Following { config, leader, leader_epoch, partition_epoch, seed } = following;
        if is_planted(PlantedFault::TruncateToHighWatermarkAtStart) {
            let high_watermark = self.found_high_watermark().offset;
            self.log.truncate_to(high_watermark, high_watermark, CutOrder::Leader)?;
        }
        let start = FollowerStart {
            leader,
            leader_epoch,
            highest_epoch: self.log.highest_epochs().0,
            incarnation: self.incarnation(),
            log: log_state(&self.log),
            high_watermark: self.found_high_watermark().offset,
            high_watermark_epoch: self.found_high_watermark().epoch,
            damage: damage(&self.log),
        };
        let partition = FollowerPartition::new(config, start)?;
        let producers = Producers::load(&self.log)?;
        self.log.note_epochs(Some(leader_epoch), partition_epoch)?;
        let randomness = Randomness::new(seed);
        Ok(FollowerReplica {
            place: self.place,
            applying: Mutex::new(()),
            producers: Mutex::new(producers),
            log: RwLock::new(self.log),
            spare_lock: Mutex::new(None),
            core: Mutex::new(Core { partition, randomness, partition_epoch }),
        })
    }
}

impl<S: Storage> FollowerReplica<S> {
    // === getters ===

    /// The partition.
    pub const fn id(&self) -> TopicIdPartition {
        self.place.id()
    }

    /// The log, for reads that no method here covers (size, configuration). Another one after a recovery.
    pub fn log(&self) -> Arc<Log<S>> {
        Arc::clone(&self.log.read())
    }

    /// What it says about itself now.
    pub fn facts(&self) -> ReplicaFacts {
        let core = self.core.lock();
        let mut snapshot = self.log.read().snapshot();
        let log_start = snapshot.positions.log_start.max(core.partition.readable_from());
        snapshot.positions.log_start = log_start.min(snapshot.positions.log_end);
        ReplicaFacts {
            leader_epoch: core.partition.leader_epoch(),
            is_leader: false,
            // Read after a cut that the core has not been told of, the log end is the lower one.
            high_watermark: core.partition.high_watermark().min(snapshot.positions.log_end),
            positions: snapshot.positions,
            epochs: snapshot.epochs,
        }
    }

    /// Runs `look` on the core: for what DescribeFetchers shows (leader, lag, state, queue).
    pub fn inspect<T>(&self, look: impl FnOnce(&FollowerPartition) -> T) -> T {
        look(&self.core.lock().partition)
    }

    /// The state for people.
    pub fn state(&self, now: MonotonicTime) -> PartitionFetchState {
        self.core.lock().partition.state(now)
    }

    /// This replica's incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.core.lock().partition.incarnation()
    }

    /// Whether something is in the log that is not flushed. Ask after every work: under `fsync` it is not acknowledged until
    /// it is flushed.
    pub fn needs_flush(&self) -> bool {
        self.core.lock().partition.needs_flush()
    }

    /// Whether something is held that no request has acknowledged yet: worth a request of its own while another is parked.
    pub fn owes_acknowledgement(&self) -> bool {
        self.core.lock().partition.owes_acknowledgement()
    }

    /// When [`Self::on_tick`] or a new request has something to do next, if it is waiting for a time.
    pub fn next_deadline(&self) -> Option<MonotonicTime> {
        self.core.lock().partition.next_deadline()
    }

    /// What is damaged on this replica's disk.
    pub fn damage(&self) -> Vec<Damage> {
        self.log.read().damage()
    }

    /// What of it may be had from the leader.
    pub fn repairable(&self) -> Vec<OffsetRange> {
        let ranges = self.core.lock().partition.repairable();
        ranges.into_iter().map(|range| OffsetRange::new(range.start, range.end)).collect()
    }

    // === fetching ===

    /// What to ask for at `now`.
    pub fn intent(&self, now: MonotonicTime) -> FetchIntent {
        self.core.lock().partition.intent(now)
    }

    /// The request goes out: call it before it is sent, so that nothing acknowledged is forgotten (design.md 6.3).
    pub fn on_sent(&self, ask: &FetchAsk) {
        self.core.lock().partition.on_sent(ask);
    }

    /// A partition's answer to what was asked from `sent`; `lost` is what the leader has lost, as it says beside it.
    pub fn on_answer(
        &self,
        sent: &FetchPosition,
        answer: Result<&Fetched, &ReplicationError>,
        lost: &[LostRange],
        now: MonotonicTime,
    ) -> FollowerStep {
        let facts = answer_facts(answer);
        let mut core = self.core.lock();
        let Core { partition, randomness, .. } = &mut *core;
        partition.on_leader_lost(sent, lost);
        let action = partition.on_answer(sent, &facts, now, randomness);
        FollowerStep::of(action, partition, answer.ok())
    }

    /// The leader's range, or why it could not be had: the answer to [`FollowerStep::ask_offsets`].
    pub fn on_leader_offsets(
        &self,
        asked: AskOffsets,
        offsets: Result<LeaderOffsets, ErrorCode>,
        now: MonotonicTime,
    ) -> FollowerStep {
        let mut core = self.core.lock();
        let Core { partition, randomness, .. } = &mut *core;
        let action = partition.on_leader_offsets(asked.generation, offsets, now, randomness);
        FollowerStep::of(action, partition, None)
    }

    /// The newest unclean election that the partition's record tells of. Report it with every record, before
    /// [`Self::on_leader`], and when it begins to follow (design.md 6.5, 6.13).
    pub fn on_unclean_election(&self, epoch: Option<LeaderEpoch>) {
        self.core.lock().partition.on_unclean_election(epoch);
    }

    /// Time passed.
    pub fn on_tick(&self, now: MonotonicTime) -> FollowerStep {
        let mut core = self.core.lock();
        core.partition.on_tick(now);
        FollowerStep::drained(&mut core.partition)
    }

    // === serving consumers (KIP-392) ===

    /// What a consumer's fetch reads here; a follower is told that this is not the leader.
    ///
    /// # Errors
    /// What the checks found (S18–S23).
    pub fn plan(&self, requester: Requester, request: &FetchPartition) -> Result<ReadPlan, ReplicationError> {
        let facts = self.facts();
        check_leadership(requester, request, &facts.as_partition())?;
        plan_read(requester, request, &facts.as_partition())
    }

    /// What a parked consumer fetch needs to know of the partition now.
    pub fn probe(&self, requester: Requester, request: &FetchPartition) -> Probe {
        if requester != Requester::Consumer {
            return Probe::Unreadable(FetchCompletion::LeadershipLost);
        }
        let (facts, log) = (self.facts(), self.log());
        let snapshot = log.snapshot();
        let position = check_position(
            request.fetch_offset,
            request.last_fetched_epoch,
            &log_facts(&facts.positions, &facts.epochs),
        );
        let upper = facts.high_watermark;
        let readable = request.fetch_offset < upper;
        Probe::Readable(ProbeFacts {
            leader_epoch: facts.leader_epoch,
            upper,
            log_end: facts.positions.log_end,
            active_segment: snapshot.active_segment,
            // The log's estimate can be 0 for a few records: there is at least a byte.
            available_bytes: if readable { log.bytes_between(request.fetch_offset, upper).max(1) } else { 0 },
            propagated_high_watermark: upper,
            diverging: position != Position::Agrees,
        })
    }

    /// Reads whole batches. *Blocks.*
    ///
    /// # Errors
    /// As [`Log::read`].
    pub fn read(&self, from: Offset, limits: ReadLimits) -> Result<LogRead, ReadError> {
        self.log().read(from, limits)
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
        self.log().offset_for_timestamp(timestamp, upper)
    }

    // === the disk ===

    /// Flushes what was appended before the call; appends go on meanwhile. *Blocks.* Call it until [`Self::needs_flush`] says
    /// no: a flush that a truncation overtook acknowledges nothing.
    pub fn flush(&self, now: MonotonicTime) -> FollowerStep {
        let (version, log) = {
            let core = self.core.lock();
            (core.partition.log_version(), self.log())
        };
        let flushed = log.flush();
        let mut core = self.core.lock();
        let Core { partition, randomness, .. } = &mut *core;
        match flushed {
            Ok(positions) => partition.on_flushed(version, positions.flushed),
            // Another one has taken this log's place.
            Err(_) if partition.log_version() != version => {}
            Err(error) => {
                partition.on_storage_failed(error.to_string(), now, randomness);
                let step = FollowerStep::drained(partition);
                drop(core);
                self.give_up_unflushed_or_warn(&log);
                return step;
            }
        }
        FollowerStep::drained(partition)
    }

    /// Writes high watermark, log start and recovery point, unsynced. Once a second while they move. *Blocks.*
    ///
    /// # Errors
    /// What the disk says; the log goes on.
    pub fn write_checkpoint(&self) -> Result<bool, LogError> {
        let log = self.log();
        self.snapshot_producers(&log)?;
        // The generation first: after a truncation in between nothing is written.
        let generation = log.positions().generation;
        log.write_checkpoint_lazy(self.checkpointed(), generation)
    }

    /// The topic's properties changed.
    pub fn on_config(&self, config: LogConfig) {
        self.log.read().set_config(config);
    }

    /// Finishes what is being applied, flushes, marks the log clean, and frees the lock. *Blocks.* Nothing is applied any
    /// more afterwards.
    ///
    /// # Errors
    /// What the disk says; the lock is freed all the same, without the mark.
    pub fn close(&self) -> Result<(), LogError> {
        let _applying = self.applying.lock();
        drop(self.spare_lock.lock().take());
        let log = self.log();
        // Apart from closing, so that what a failing flush loses is settled while the lock is held.
        if log.flush().is_err() {
            self.give_up_unflushed_or_warn(&log);
        }
        // Only spares the next opening to read the log.
        if let Err(error) = self.producers.lock().maybe_snapshot(&log, true) {
            tracing::warn!(partition = %log.partition(), %error, "could not keep a snapshot of producers");
        }
        log.close_clean(self.checkpointed())
    }

    /// Keeps a snapshot of producers when it is worth it; not beside a change of the log.
    fn snapshot_producers(&self, log: &Log<S>) -> Result<(), LogError> {
        let Some(_applying) = self.applying.try_lock() else { return Ok(()) };
        self.producers.lock().maybe_snapshot(log, false)
    }

    fn checkpointed(&self) -> HighWatermark {
        let core = self.core.lock();
        HighWatermark {
            offset: core.partition.high_watermark(),
            epoch: core.partition.high_watermark_epoch(),
        }
    }
}

fn log_state<S: Storage>(log: &Log<S>) -> LogState {
    let snapshot = log.snapshot();
    LogState {
        log_start: snapshot.positions.log_start,
        log_end: snapshot.positions.log_end,
        flushed_end: snapshot.positions.flushed,
        last_epoch: snapshot.epochs.latest().map(|entry| entry.epoch),
    }
}

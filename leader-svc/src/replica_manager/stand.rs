//! Taking a leadership: the lock first, then the log, then the compare-and-swap (design.md 6.2, 6.6, 6.9).
//!
//! What must hold: the incarnation and the log end with which this node stands cannot change until the outcome is known,
//! because the lock and the open log are kept until then; a write of unknown outcome is made again, against the same
//! version, until a newer record is seen (design.md 6.4); who loses gives the log back. A recorded leader that cannot lead
//! says so in the record, because the others wait for it as long as it lives (design.md 2); so does a member of the in-sync
//! set whose incarnation is another one now, because an unclean election waits for who may lead without a loss (6.13).

use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::{
    Candidate, CasOutcome, CoordinationError, Ineligible, UncleanOrder, next_leadership, withdrawal,
};
use highwater_log::{LockGuard, OnDamage, OsStorage};
use highwater_protocol::leader::LeaderConfig;
use highwater_replica::{Leading, OpenReplica};
use highwater_serving::handover::{Asked, Borrowed, ask_for};
use highwater_serving::volume::on_disk;
use highwater_types::{
    ErrorCode, PartitionRecord, ReplicationError, TopicIdPartition, TopicPartition, TopicRecord,
};
use tokio::time::{Instant, timeout_at};

use super::Shared;
use super::resign::{RESIGNING_MAX, resign};
use crate::partition::LedPartition;

/// How long the node's other program may hold the log before this one does not stand (design.md 6.6).
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// Pauses between two writes of the same proposal while its outcome is unknown.
const CAS_RETRY_MIN: Duration = Duration::from_millis(50);
const CAS_RETRY_MAX: Duration = Duration::from_secs(2);

/// How long a change of the in-sync set of unknown outcome waits for its next try.
const ISR_RETRY: Duration = Duration::from_secs(1);

/// What became of an attempt.
#[derive(Debug)]
pub(super) enum Stood {
    /// This node leads.
    Leads(Arc<LedPartition>),
    /// Another record stands, or the topic is gone, or the program stops: nothing to do until a newer record is seen.
    Lost,
    /// This node was elected by this record, and its disk kept it from leading: the leader epoch is used up.
    Elected(Arc<PartitionRecord>, ReplicationError),
    /// Not now; the reason is what requests get until the next attempt.
    Failed(ReplicationError),
    /// Not with this record and this log.
    Ineligible(ReplicationError),
    /// As that, and it has just been said in a newer record.
    Withdrew(ReplicationError),
}

/// Takes the leadership of a partition, as far as the rules allow; or gives it up, where the record gives it to this node and
/// the rules or its disk do not.
pub(super) async fn stand(
    shared: Arc<Shared>,
    topic: Arc<TopicRecord>,
    record: Arc<PartitionRecord>,
    order: UncleanOrder,
) -> Stood {
    let stood = try_to_lead(&shared, Arc::clone(&topic), &record, order).await;
    let (known, why) = match &stood {
        Stood::Leads(_) | Stood::Lost | Stood::Withdrew(_) => return stood,
        Stood::Elected(won, why) => (won, why),
        Stood::Failed(why) | Stood::Ineligible(why) => (&record, why),
    };
    let successor = shared.successor(known);
    // What may pass is not given up without somebody who takes it.
    let may_pass = !matches!(stood, Stood::Ineligible(_));
    let others = known.isr.iter().any(|member| member.node != shared.node);
    if known.leader != Some(shared.node) || !others || (may_pass && successor.is_none()) {
        return stood;
    }
    let until = Instant::now() + RESIGNING_MAX;
    let resigned = resign(&*shared.context.coordination, known, shared.node, successor, until).await;
    if resigned {
        let partition = format!("{}-{}", topic.name, record.partition);
        tracing::warn!(partition, reason = %why, "gave the leadership up instead of taking it");
    }
    // Given up or not: the disk is as it was.
    if matches!(stood, Stood::Elected(..)) {
        return stood;
    }
    if resigned { Stood::Lost } else { Stood::Failed(why.clone()) }
}

async fn try_to_lead(
    shared: &Arc<Shared>,
    topic: Arc<TopicRecord>,
    record: &PartitionRecord,
    order: UncleanOrder,
) -> Stood {
    // The semaphores are never closed; without a permit more would be opened, or borrowed, at once.
    let _turn = if is_followed_here(shared, record) { shared.borrowing.acquire().await.ok() } else { None };
    let until = Instant::now() + LOCK_PATIENCE;
    // The loan lasts until the outcome is known: the agent would only find the log locked.
    let _loan = match borrow(shared, record, until).await {
        Ok(loan) => loan,
        Err(stood) => return stood,
    };
    let opened = {
        let _turn = shared.opening.acquire().await.ok();
        open(shared, &topic, record, until).await
    };
    let replica = match opened {
        Ok(replica) => replica,
        Err(why) => return Stood::Failed(why),
    };
    let candidate = Candidate {
        node: shared.node,
        incarnation: replica.incarnation(),
        highest_epoch: replica.report().highest_leader_epoch,
        log_end: replica.log_end(),
    };
    let proposal = match next_leadership(record, &candidate, order) {
        Ok(proposal) => proposal,
        Err(why) => {
            give_back(replica).await;
            let said = format!("node {} cannot lead: {why}{}", shared.node, advice(&why));
            let said = ReplicationError::new(ErrorCode::LeaderNotAvailable, said);
            return match withdrawal(record, &candidate, shared.successor(record)) {
                Some(withdrawn) => withdraw(shared, &topic, record, withdrawn, said).await,
                None => Stood::Ineligible(said),
            };
        }
    };
    match write(shared, replica.partition(), proposal, record).await {
        Some(won) => lead(shared, topic, won, replica).await,
        None => {
            give_back(replica).await;
            Stood::Lost
        }
    }
}

/// Says in the record that the in-sync set names another incarnation of this node than it holds, which is `why` it cannot lead.
async fn withdraw(
    shared: &Shared,
    topic: &TopicRecord,
    record: &PartitionRecord,
    withdrawn: PartitionRecord,
    why: ReplicationError,
) -> Stood {
    match shared.context.coordination.swap_partition(withdrawn, record.partition_epoch).await {
        Ok(CasOutcome::Committed(_)) => {
            let partition = format!("{}-{}", topic.name, record.partition);
            tracing::warn!(partition, topic_id = %topic.id, reason = %why, "withdrew from the in-sync set's elections");
            Stood::Withdrew(why)
        }
        Ok(CasOutcome::Conflict(_)) | Err(CoordinationError::NotFound(_)) => Stood::Lost,
        // If it was made all the same, that is seen.
        Err(error) => {
            let why = format!("{why}; it could not say so in the record: {error}");
            Stood::Failed(ReplicationError::new(ErrorCode::CoordinationUnavailable, why))
        }
    }
}

/// What a person can do about it.
const fn advice(why: &Ineligible) -> &'static str {
    match why {
        Ineligible::NotElectable { .. } => {
            "; it may lack acknowledged records. Start the nodes of the in-sync set on their own disks. If those are lost for \
             good, `highwater lag` shows whose log ends last, and `highwater elect --unclean` lets one lead: what it lacks is lost"
        }
        Ineligible::NotTheImporter { .. } => "; start that node",
        Ineligible::ImportIncomplete { .. } => "; delete the topic and adopt its directory again",
        Ineligible::NotAReplica
        | Ineligible::NotNew { .. }
        | Ineligible::NotTheRecordedLeader { .. }
        | Ineligible::LeadsAlready
        | Ineligible::NotInSync { .. }
        | Ineligible::UncleanForbidden
        | Ineligible::NothingToLose
        | Ineligible::ElectableAnyway
        | Ineligible::EpochsUsedUp => "",
    }
}

/// Whether the node's agent may have the log: it follows another node's leadership.
fn is_followed_here(shared: &Shared, record: &PartitionRecord) -> bool {
    !record.is_new() && record.leader != Some(shared.node)
}

/// Has the node's agent let go of the log, where it may have it.
async fn borrow(
    shared: &Shared,
    record: &PartitionRecord,
    until: Instant,
) -> Result<Option<Borrowed>, Stood> {
    if !is_followed_here(shared, record) {
        return Ok(None);
    }
    let asked =
        timeout_at(until, ask_for(&shared.volume.data_dir, record.id(), record.partition_epoch)).await;
    match asked {
        Ok(Ok(Asked::Lent(loan))) => Ok(Some(loan)),
        Ok(Ok(Asked::NoAgent)) => Ok(None),
        Ok(Ok(Asked::Overtaken)) => Err(Stood::Lost),
        Ok(Err(error)) => Err(not_let_go(format!("ask the node's follower-agent for the log: {error}"))),
        Err(_) => Err(not_let_go("the node's follower-agent does not let the log go".to_owned())),
    }
}

fn not_let_go(why: String) -> Stood {
    Stood::Failed(ReplicationError::new(ErrorCode::ReplicaNotAvailable, why))
}

async fn open(
    shared: &Arc<Shared>,
    topic: &TopicRecord,
    record: &PartitionRecord,
    until: Instant,
) -> Result<OpenReplica<OsStorage>, ReplicationError> {
    let failed = |error: &dyn std::error::Error| {
        ReplicationError::new(ErrorCode::StorageError, format!("open the log: {error}"))
    };
    let lock = lock(shared, record.id(), until).await.map_err(|error| failed(&error))?.ok_or_else(|| {
        ReplicationError::new(ErrorCode::ReplicaNotAvailable, "the node's other program holds the log")
    })?;
    let place = shared.volume.place(topic, record.partition);
    // Nobody else has what a sole member lost: it stays electable and records the loss (design.md 6.3).
    let alone = matches!(&record.isr[..], [only] if only.node == shared.node);
    let on_damage = if alone { OnDamage::KeepIncarnation } else { OnDamage::RenewIncarnation };
    let wall = shared.context.clocks.wall_now();
    on_disk(move || place.open(lock, on_damage, wall)).await.map_err(|error| failed(&error))
}

async fn lock(
    shared: &Arc<Shared>,
    id: TopicIdPartition,
    until: Instant,
) -> Result<Option<LockGuard>, highwater_log::StorageError> {
    loop {
        let locks = shared.volume.locks.clone();
        if let Some(lock) = on_disk(move || locks.try_lock(id)).await? {
            return Ok(Some(lock));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        tokio::time::sleep(LOCK_RETRY).await;
    }
}

/// Writes the proposal; the record by which this node leads, or `None` when it does not.
async fn write(
    shared: &Arc<Shared>,
    partition: &TopicPartition,
    proposal: PartitionRecord,
    before: &PartitionRecord,
) -> Option<PartitionRecord> {
    let is_ours = |found: &PartitionRecord| {
        found.leader == proposal.leader
            && found.leader_epoch == proposal.leader_epoch
            && proposal.isr_member(shared.node) == found.isr_member(shared.node)
    };
    let mut pause = CAS_RETRY_MIN;
    loop {
        let coordination = &shared.context.coordination;
        match coordination.swap_partition(proposal.clone(), before.partition_epoch).await {
            Ok(CasOutcome::Committed(record)) => return Some(record),
            // It may be an earlier try of this very write.
            Ok(CasOutcome::Conflict(found)) => return is_ours(&found).then_some(found),
            Err(CoordinationError::NotFound(_)) => return None,
            Err(error) if error.is_retryable() => {
                tracing::warn!(%partition, topic_id = %proposal.topic_id, %error, "taking a leadership: the outcome is unknown, trying on");
            }
            Err(error) => {
                tracing::error!(%partition, topic_id = %proposal.topic_id, %error, "the store refuses a leadership");
                return None;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shared.stop.cancelled() => return None,
        }
        pause = (pause * 2).min(CAS_RETRY_MAX);
        let seen = coordination.view().borrow().partition(before.id()).cloned();
        if let Some(newer) = seen.filter(|seen| seen.partition_epoch > before.partition_epoch) {
            return is_ours(&newer).then(|| PartitionRecord::clone(&newer));
        }
    }
}

async fn lead(
    shared: &Arc<Shared>,
    topic: Arc<TopicRecord>,
    record: PartitionRecord,
    replica: OpenReplica<OsStorage>,
) -> Stood {
    let config = LeaderConfig {
        durability: topic.properties.durability,
        min_insync_replicas: topic.properties.min_insync_replicas,
        replica_lag_time_max: shared.replica_lag_time_max,
        high_watermark_propagation: shared.hw_propagation,
        isr_retry: ISR_RETRY,
    };
    warn_of_losses(&replica);
    warn_of_unclean(&record, replica.partition());
    let leading = Leading { config, node: shared.node, record: record.clone() };
    let now = shared.context.clocks.monotonic.now();
    match on_disk(move || replica.lead(leading, now)).await {
        Ok(replica) => {
            let context = Arc::clone(&shared.context);
            Stood::Leads(LedPartition::new(topic, record, replica, context))
        }
        Err(error) => {
            let why = format!("begin the leadership: {error}");
            Stood::Elected(Arc::new(record), ReplicationError::new(ErrorCode::StorageError, why))
        }
    }
}

fn warn_of_losses(replica: &OpenReplica<OsStorage>) {
    let lost: Vec<_> = replica.report().damage.iter().map(|damage| damage.range.to_string()).collect();
    if !lost.is_empty() {
        tracing::warn!(
            partition = %replica.partition(),
            offsets = lost.join(", "),
            "leads without these records, which no replica in sync has: reads of them answer DATA_LOSS, all others are served"
        );
    }
}

/// The loss report of a leadership that begins uncleanly. What is lost is known exactly once those are back who held it.
fn warn_of_unclean(record: &PartitionRecord, partition: &TopicPartition) {
    let Some(unclean) = record.unclean.as_ref().filter(|unclean| Some(unclean.epoch) == record.leader_epoch)
    else {
        return;
    };
    let passed_over: Vec<_> = unclean.passed_over.iter().map(|member| member.node.to_string()).collect();
    tracing::warn!(
        %partition,
        epoch = unclean.epoch.get(),
        from = unclean.log_end.get(),
        passed_over = passed_over.join(", "),
        "leads by an unclean election: what those who were passed over held from this offset on is lost"
    );
}

async fn give_back(replica: OpenReplica<OsStorage>) {
    let partition = replica.partition().clone();
    if let Err(error) = on_disk(move || replica.close()).await {
        tracing::warn!(%partition, %error, "could not close the log cleanly");
    }
}

#[cfg(test)]
#[path = "stand_test.rs"]
mod tests;

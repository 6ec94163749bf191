//! What the invariants look at: each running replica with its whole log, by batches, and the record as it stands.
//!
//! What was read of a log is kept in a [`Shadow`](super::shadow::Shadow), beside what the replica said of itself after the step
//! before.

use std::sync::Arc;
use std::time::Duration;

use highwater_log::storage::sim::SimStorage;
use highwater_log::{OffsetRange, Renewal};
use highwater_protocol::follower::PartitionFetchState;
use highwater_replica::OpenReplica;
use highwater_types::{
    Durability, Incarnation, IsrMember, LeaderEpoch, LeaderEpochCache, MonotonicTime, NodeId, Offset,
    PartitionRecord, UncleanLoss,
};

use super::cluster::Cluster;
use super::history::{Batch, History};
use super::node::{Leads, Led, node_id};

/// What a replica does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads, or believes so.
    Leader {
        /// The in-sync set that it knows.
        isr: Vec<IsrMember>,
        /// Where its epoch begins.
        epoch_start: Offset,
        /// The leadership is over; only its log is open still.
        over: bool,
        /// It began less than `replica.lag.time.max.ms` ago.
        young: bool,
        /// Incarnations that it has told to renew: of these nodes nothing is known.
        retired: Vec<(NodeId, Incarnation)>,
        /// Followers of which it heard that they are dead, have failed or were paused.
        absent: Vec<NodeId>,
        /// Where its high watermark rose: what caught-up replicas outside the set had acknowledged then.
        joining: Vec<Offset>,
    },
    /// It follows.
    Follower,
}

/// What a replica says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Which opening of the log this is, in the whole run.
    pub serial: u64,
    /// What it does.
    pub role: Role,
    /// In which epoch.
    pub epoch: LeaderEpoch,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The first offset that it keeps.
    pub log_start: Offset,
    /// Its high watermark.
    pub high_watermark: Offset,
    /// Its log end.
    pub log_end: Offset,
    /// How far its log is flushed.
    pub flushed: Offset,
    /// Whether its log has failed: what could not be flushed is cut, and comes back by replication. Nothing is done in its
    /// epoch before that.
    pub failed: bool,
    /// How often its log was cut.
    pub generation: u64,
    /// Where what it knows to be damaged begins.
    pub damaged_from: Option<Offset>,
    /// What it says that an unclean election took from it.
    pub loss: Option<UncleanLoss>,
}

/// A running replica.
#[derive(Debug)]
pub struct ReplicaView<'a> {
    /// The node.
    pub node: NodeId,
    /// What it says now.
    pub now: Said,
    /// What it said after the step before; `None` when it was not open then.
    pub before: Option<&'a Said>,
    /// Its log.
    pub batches: &'a [Batch],
    /// Its epoch cache.
    pub epochs: Arc<LeaderEpochCache>,
    /// Ranges that it knows to be damaged.
    pub damage: Vec<OffsetRange>,
    /// Batches that a cut took from it in this step.
    pub removed: &'a [Batch],
}

/// A partition, after a step.
#[derive(Debug)]
pub struct PartitionView<'a> {
    /// The record as it stands in the store.
    pub record: &'a PartitionRecord,
    /// The version before it.
    pub record_before: Option<&'a PartitionRecord>,
    /// How records are acknowledged.
    pub durability: Durability,
    /// `min.insync.replicas`, capped by the number of replicas.
    pub min_isr: usize,
    /// Whether retention removes nothing.
    pub keeps_all: bool,
    /// Whether an unclean election is on record of which nobody has led yet: until then it is open what it gives up.
    pub undecided: bool,
    /// What the outside knows.
    pub history: &'a History,
    /// Every running replica.
    pub replicas: Vec<ReplicaView<'a>>,
    /// Nodes that stand for election without holding the log.
    pub unlocked: Vec<NodeId>,
    /// Whether one thing happened since the look before, and not many.
    pub one_step: bool,
    /// Whether anything is not as it was after the step before.
    pub changed: bool,
}

impl PartitionView<'_> {
    /// Running replicas that the record names as electable members of the in-sync set.
    pub fn electable(&self) -> impl Iterator<Item = &ReplicaView<'_>> {
        self.replicas.iter().filter(|r| self.record.is_electable(r.node, r.now.incarnation))
    }
}

impl Cluster {
    /// What a partition looks like now.
    pub(super) fn observe(&mut self, partition: usize) -> Result<PartitionView<'_>, String> {
        for node in 0..self.nodes.len() {
            self.look_at(node, partition)?;
        }
        self.note_commits(partition)?;
        let plan = &self.scenario.partitions[partition];
        let version = self.store.newest(partition);
        let mut changed = self.nodes[0].shadows[partition].version != version;
        let mut replicas = Vec::with_capacity(self.nodes.len());
        for (index, node) in self.nodes.iter().enumerate() {
            let shadow = &node.shadows[partition];
            changed |= shadow.said != shadow.saying;
            let (Some(now), Some(log)) = (&shadow.saying, &shadow.log) else { continue };
            replicas.push(ReplicaView {
                node: node_id(index),
                now: now.clone(),
                before: shadow.said.as_ref().filter(|said| said.serial == now.serial),
                batches: &shadow.batches,
                epochs: log.epochs(),
                damage: log.damage().into_iter().map(|damage| damage.range).collect(),
                removed: &shadow.removed,
            });
        }
        Ok(PartitionView {
            record: self.store.current(partition),
            record_before: version
                .checked_sub(1)
                .and_then(|before| self.store.records[partition].get(before)),
            durability: plan.durability,
            min_isr: self.store.current(partition).effective_min_isr(plan.min_isr),
            keeps_all: !plan.retention,
            undecided: self.histories[partition].elections.last().copied()
                > self.histories[partition].decided,
            history: &self.histories[partition],
            replicas,
            unlocked: (0..self.nodes.len())
                .filter(|node| self.stands_unlocked(*node, partition))
                .map(node_id)
                .collect(),
            one_step: !self.healing,
            changed,
        })
    }

    fn stands_unlocked(&self, node: usize, partition: usize) -> bool {
        matches!(&self.nodes[node].led[partition], Led::Stands(standing) if standing.open.is_none())
    }

    pub(super) fn look_at(&mut self, index: usize, partition: usize) -> Result<(), String> {
        let now = self.now().monotonic;
        let lag_max = self.leader_config(partition).replica_lag_time_max;
        let rotten = self.rotten[partition].filter(|(node, _)| *node == index).map(|(_, batch)| batch);
        let node = &mut self.nodes[index];
        let mut failed = false;
        let mut log_start = Offset::ZERO;
        let (log, serial, role, epoch, incarnation, high_watermark) =
            if let Led::Leads(leads) = &node.led[partition] {
                let replica = &leads.replica;
                let role = role_of(leads, node.shadows[partition].said.as_ref(), now, lag_max);
                let log = Arc::clone(replica.log());
                (log, leads.serial, role, replica.epoch(), replica.incarnation(), replica.high_watermark())
            } else if let Some(followed) = &node.followed[partition] {
                let replica = &followed.replica;
                let epoch = replica.inspect(|core| core.leader_epoch());
                failed = matches!(replica.state(now), PartitionFetchState::Failed { .. });
                let facts = replica.facts();
                log_start = facts.positions.log_start;
                let high_watermark = facts.high_watermark;
                // The one on the disk: it is renewed there before the core hears of it.
                let incarnation = replica.log().incarnation();
                (replica.log(), followed.serial, Role::Follower, epoch, incarnation, high_watermark)
            } else {
                node.shadows[partition].saying = None;
                return Ok(());
            };
        node.incarnations[partition] = Some(incarnation);
        let shadow = &mut node.shadows[partition];
        // What is on record as damaged is not held any more.
        let is_noted = |batch: &Batch| log.damage().iter().any(|damage| damage.range.contains(batch.base));
        let rotten = rotten.filter(|batch| !is_noted(batch));
        shadow.refresh(&log, rotten).map_err(|error| format!("node {index}: {error}"))?;
        let positions = log.positions();
        if let Role::Leader { isr, over: true, .. } = &role
            && node.flush_failed
            && log.usable().is_err()
            && isr.len() == 1
            && positions.log_end < high_watermark
        {
            // Nobody else has it (design.md 6.3).
            let range = OffsetRange::new(positions.log_end, high_watermark);
            self.histories[partition].lost.push(range);
        }
        shadow.saying = Some(Said {
            serial,
            role,
            epoch,
            incarnation,
            log_start: log_start.max(positions.log_start),
            high_watermark,
            log_end: positions.log_end,
            flushed: positions.flushed,
            failed: failed || log.usable().is_err(),
            generation: positions.generation,
            damaged_from: log.damage().iter().map(|damage| damage.range.start).min(),
            loss: log.unclean_loss(),
        });
        Ok(())
    }

    /// A leader says that it has committed more.
    pub(super) fn note_committed(&mut self, node: usize, partition: usize) {
        let noted = self.look_at(node, partition).and_then(|()| self.note_commits(partition));
        if let Err(broken) = noted {
            self.broken.get_or_insert(broken);
        }
    }

    /// What leaders commit is committed from now on, whatever becomes of them; and nobody leads an epoch that is another's.
    fn note_commits(&mut self, partition: usize) -> Result<(), String> {
        let history = &mut self.histories[partition];
        for (index, node) in self.nodes.iter().enumerate() {
            let Led::Leads(leads) = &node.led[partition] else { continue };
            let shadow = &node.shadows[partition];
            let Some(said) = &shadow.saying else { continue };
            let mine = (index, leads.serial);
            let first = *history.leaderships.entry(said.epoch).or_insert(mine);
            if first != mine {
                return Err(format!(
                    "one leader per epoch: epoch {} was led by node {} (#{}) and is led by node {index} (#{})",
                    said.epoch, first.0, first.1, leads.serial
                ));
            }
            history.commit(said.epoch, &shadow.batches, said.high_watermark);
        }
        Ok(())
    }

    /// What was looked at is what the next step is compared with.
    pub(super) fn note_observed(&mut self) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            for (partition, shadow) in node.shadows.iter_mut().enumerate() {
                if let Some(said) = &shadow.saying
                    && shadow.said != shadow.saying
                    && !said.failed
                {
                    let worked = &mut self.histories[partition].worked;
                    let highest =
                        worked.entry((node_id(index), said.incarnation)).or_insert((said.epoch, said.serial));
                    *highest = (said.epoch, said.serial).max(*highest);
                }
                shadow.said = shadow.saying.take();
                shadow.removed.clear();
                shadow.version = self.store.newest(partition);
                if shadow.said.is_none() {
                    shadow.log = None;
                }
            }
        }
    }

    /// What opening a log must find: what this replica acknowledged and, if it is electable, all that is committed.
    ///
    /// # Errors
    /// What is missing.
    pub(super) fn check_opened(
        &mut self,
        index: usize,
        partition: usize,
        open: &OpenReplica<SimStorage>,
    ) -> Result<(), String> {
        let is_durable = self.scenario.partitions[partition].durability == Durability::Fsync;
        let node = &mut self.nodes[index];
        let before = node.incarnations[partition].replace(open.incarnation());
        if let Some(before) = before.filter(|before| *before != open.incarnation())
            && is_durable
            && !node.flush_failed
            && !node.identity_torn
            // A vote that was kept on damage goes later, once its replica sees that it is not alone.
            && !(node.segment_lost && open.report().renewal == Some(Renewal::Damage))
            && self.rotten[partition].is_none_or(|(rots, _)| rots != index)
        {
            return Err(format!(
                "partition {partition}: node {index} was {before} and is {}: under fsync no crash costs a vote (design.md 6.3)",
                open.incarnation()
            ));
        }
        let found = open.report().damage.iter().filter(|damage| damage.at_end).map(|damage| damage.range.end);
        let end = found.max().unwrap_or_default().max(open.log_end());
        if let Some((incarnation, acknowledged)) = node.acknowledged[partition]
            && incarnation == open.incarnation()
            && end < acknowledged
        {
            return Err(format!(
                "partition {partition}: node {index} acknowledged {acknowledged} and finds its log ended at {end}"
            ));
        }
        Ok(())
    }

    /// A sole member that begins to lead has on record what it lost (design.md 6.3): a failed flush or a lost segment may have cost
    /// that, whoever was in sync beside it when the segment went may have left since; or it was elected uncleanly, and had lost it
    /// before.
    pub(super) fn note_lost(&mut self, index: usize, partition: usize, open: &OpenReplica<SimStorage>) {
        let record = self.store.current(partition);
        let alone = matches!(&record.isr[..], [only] if only.node == node_id(index));
        let node = &self.nodes[index];
        if alone && (node.flush_failed || node.segment_lost || record.unclean.is_some()) {
            let lost = open.report().damage.iter().map(|damage| damage.range);
            self.histories[partition].lost.extend(lost);
        }
    }
}

/// What a leader says of itself.
fn role_of(leads: &Leads, before: Option<&Said>, now: MonotonicTime, lag_max: Duration) -> Role {
    let replica = &leads.replica;
    let isr = replica.isr();
    let rose = before.is_some_and(|said| said.high_watermark < replica.high_watermark());
    let rows = if rose { replica.describe(now) } else { Vec::new() };
    let outside = rows.iter().map(|(row, _)| row).filter(|row| isr.iter().all(|m| m.node != row.node));
    // Who is known to be absent is not about to join, nor who came back and has not caught up since.
    let outside = outside.filter(|row| !leads.absent.contains(&row.node));
    let caught_up = outside.filter(|row| row.lag_time.is_some_and(|lag| lag <= lag_max));
    Role::Leader {
        joining: caught_up.filter_map(|row| row.acknowledged).collect(),
        retired: leads.retired.iter().copied().collect(),
        absent: leads.absent.iter().copied().collect(),
        isr,
        epoch_start: replica.epoch_start(),
        over: replica.is_over(),
        young: now.since(MonotonicTime::from_millis(leads.since)) <= lag_max,
    }
}

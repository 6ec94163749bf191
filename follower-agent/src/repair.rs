//! Repair of damage (design.md 2): ranges of acknowledged records that this disk lost are read from the leader again.
//!
//! What must hold: it acknowledges nothing by what it reads. Which batches are taken says `highwater_replica::Refill`, and the
//! log checks them once more before they are written. Until then the replica acknowledges nothing from the damage on, which is
//! the core's rule. It reads up to the leader's log end, as followers do: a leader that stands alone below
//! `min.insync.replicas` has a high watermark that moves only once this replica joins, and it joins only once it is whole. A lost tail is no matter of repair:
//! replication fills it. What the leader has lost as well is left to the next leader. Where the leader's
//! records do not fit in the place of the damage, the log is cut there, and replication brings the rest again. Damage is rare, so one range after the
//! other is repaired, and what does not succeed is tried again in the next pass.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use highwater_log::OffsetRange;
use highwater_node::every;
use highwater_protocol::fetch::{FetchPartition, FetchRequest, NO_SESSION, TopicRef};
use highwater_replica::{Refill, RepairError};
use highwater_serving::volume::on_disk;
use highwater_serving::{HostedReplica as _, PartitionHost as _, Registry};
use highwater_types::{ClusterId, LeaderEpoch, NodeId, Offset, Program, TopicIdPartition};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::leader_endpoint::{Connector, FetchFailure, LeaderEndPoint};
use crate::partition::FollowedPartition;

/// The pause between two passes.
const INTERVAL: Duration = Duration::from_secs(5);

/// What repair needs.
#[derive(Debug)]
pub(crate) struct Repair<C> {
    pub(crate) node: NodeId,
    pub(crate) cluster: ClusterId,
    pub(crate) registry: Arc<Registry<FollowedPartition>>,
    pub(crate) connector: C,
    /// `replica.fetch.max.bytes`.
    pub(crate) fetch_max_bytes: u32,
    /// `replica.fetch.batch.max.bytes`.
    pub(crate) batch_max_bytes: u32,
}

impl<C: Connector> Repair<C> {
    /// Looks for damage until told to stop.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let told = Mutex::new(BTreeMap::new());
        // A pass that is under way at the stop is given up.
        let pass = || async { stop.run_until_cancelled(self.pass(&told)).await.unwrap_or_default() };
        every(INTERVAL, &stop, pass).await;
    }

    /// Repairs what is damaged. `told` is why what could not be was not, as it was last logged.
    async fn pass(&self, told: &Mutex<BTreeMap<(TopicIdPartition, Offset), String>>) {
        for partition in self.registry.online() {
            let log_end = partition.replica().log().log_end();
            let damage = partition.replica().repairable();
            for range in damage.into_iter().filter(|range| range.end <= log_end) {
                let key = (partition.id(), range.start);
                match self.repair(&partition, range).await {
                    Ok(()) => {
                        told.lock().remove(&key);
                        tracing::info!(partition = %partition.name(), %range, "repaired from the leader");
                    }
                    Err(RepairError::Unfit(why)) => {
                        told.lock().remove(&key);
                        tracing::warn!(partition = %partition.name(), %range, why, "cannot be repaired in its place");
                        partition.cut_to_damage(range);
                    }
                    Err(other) => {
                        let why = other.to_string();
                        if told.lock().insert(key, why.clone()).as_ref() != Some(&why) {
                            tracing::warn!(partition = %partition.name(), %range, why, "not repaired; trying on");
                        }
                    }
                }
            }
        }
    }

    async fn repair(
        &self,
        partition: &Arc<FollowedPartition>,
        range: OffsetRange,
    ) -> Result<(), RepairError> {
        let answer = |why: String| RepairError::Answer(why);
        let id = partition.id();
        let view = self.registry.view();
        let leader =
            view.partition(id).and_then(|record| record.leader).filter(|leader| *leader != self.node);
        let endpoint = leader.and_then(|leader| view.node(leader)?.endpoint(Program::LeaderSvc));
        let leader = self.connector.connect(endpoint.ok_or_else(|| answer("no leader is known".to_owned()))?);
        let facts = partition.facts().map_err(|error| answer(error.to_string()))?;
        let mut refill = Refill::new(range);
        while let Some(wanted) = refill.wanted() {
            let records = self.read(&*leader, id, facts.leader_epoch, wanted).await.map_err(answer)?;
            refill.take(&records, &facts.epochs)?;
        }
        let (partition, records) = (Arc::clone(partition), refill.into_records());
        on_disk(move || partition.replica().repair(range, &records)).await
    }

    /// The leader's batches from an offset on.
    async fn read(
        &self,
        leader: &C::Leader,
        id: TopicIdPartition,
        epoch: LeaderEpoch,
        from: Offset,
    ) -> Result<Bytes, String> {
        let partition = FetchPartition {
            current_leader_epoch: Some(epoch),
            ..FetchPartition::reading(TopicRef::Id(id.topic_id), id.partition, from, self.fetch_max_bytes)
        };
        let request = FetchRequest {
            cluster: Some(self.cluster.clone()),
            // Not as a replica: what is read here acknowledges nothing.
            replica: None,
            repair: true,
            session_id: 0,
            session_epoch: NO_SESSION,
            max_wait: Duration::ZERO,
            min_bytes: 1,
            max_bytes: self.fetch_max_bytes,
            partitions: vec![partition],
            forgotten: Vec::new(),
        };
        let answer =
            leader.fetch(request, self.batch_max_bytes, None).await.map_err(|failure| match failure {
                FetchFailure::TooLarge(why) => why,
                FetchFailure::Call(failure) => failure.to_string(),
            })?;
        let result = answer.partitions.into_iter().next().ok_or("the answer is empty")?;
        Ok(result.outcome.map_err(|error| error.to_string())?.records)
    }
}

//! Repair of damage (design.md 2): ranges of acknowledged records that this disk lost are read from the leader again.
//!
//! What must hold: it reads as a consumer does, so below the leader's high watermark, and acknowledges nothing by it;
//! batches are taken only when they lie exactly where the damage is and carry the epochs that the own log knows there.
//! The log checks them once more before they are written. Until then the replica acknowledges nothing from the damage on,
//! which is the core's rule. A lost tail is no matter of repair: replication fills it. What the leader has lost as well is
//! left to the next leader. Damage is rare, so one range after
//! the other is repaired, and what does not succeed is tried again in the next pass.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use highwater_log::OffsetRange;
use highwater_node::every;
use highwater_protocol::fetch::{FetchPartition, FetchRequest, TopicRef};
use highwater_records::batches;
use highwater_serving::volume::on_disk;
use highwater_serving::{HostedReplica as _, PartitionHost as _, Registry};
use highwater_types::{ClusterId, LeaderEpoch, LeaderEpochCache, NodeId, Offset, Program, TopicIdPartition};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::leader_endpoint::{Connector, FetchFailure, LeaderEndPoint};
use crate::partition::FollowedPartition;

/// The pause between two passes.
const INTERVAL: Duration = Duration::from_secs(5);

/// The largest range that is repaired, in bytes: it is held in memory before it is written.
const RANGE_MAX_BYTES: usize = 1 << 30;

/// The session epoch that asks for no session (S74).
const NO_SESSION: i32 = -1;

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
                    Err(why) => {
                        if told.lock().insert(key, why.clone()).as_ref() != Some(&why) {
                            tracing::warn!(partition = %partition.name(), %range, why, "not repaired; trying on");
                        }
                    }
                }
            }
        }
    }

    async fn repair(&self, partition: &Arc<FollowedPartition>, range: OffsetRange) -> Result<(), String> {
        let id = partition.id();
        let view = self.registry.view();
        let leader =
            view.partition(id).and_then(|record| record.leader).filter(|leader| *leader != self.node);
        let endpoint = leader.and_then(|leader| view.node(leader)?.endpoint(Program::LeaderSvc));
        let leader = self.connector.connect(endpoint.ok_or("no leader is known")?);
        let facts = partition.facts().map_err(|error| error.to_string())?;
        let mut lost = Lost { next: range.start, end: range.end, bytes: BytesMut::new() };
        while lost.next < lost.end {
            let records = self.read(&*leader, id, facts.leader_epoch, lost.next).await?;
            lost.take(&records, &facts.epochs)?;
        }
        let (partition, records) = (Arc::clone(partition), lost.bytes.freeze());
        on_disk(move || partition.replica().repair(range, &records)).await.map_err(|error| error.to_string())
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
            topic: TopicRef::Id(id.topic_id),
            partition: id.partition,
            incarnation: None,
            current_leader_epoch: Some(epoch),
            fetch_offset: from,
            acknowledged_offset: None,
            last_fetched_epoch: None,
            log_start: None,
            high_watermark: None,
            max_bytes: self.fetch_max_bytes,
            paused: false,
            throttled: false,
            suspended: false,
            order: None,
        };
        let request = FetchRequest {
            cluster: Some(self.cluster.clone()),
            // Not as a replica: what is read here acknowledges nothing.
            replica: None,
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

/// A range on its way back.
struct Lost {
    next: Offset,
    end: Offset,
    bytes: BytesMut,
}

impl Lost {
    /// Takes what belongs into the range.
    fn take(&mut self, records: &Bytes, epochs: &LeaderEpochCache) -> Result<(), String> {
        let before = self.next;
        for batch in batches(records) {
            let batch = batch.map_err(|error| error.to_string())?;
            if self.next >= self.end {
                break;
            }
            if batch.base_offset() < self.next || batch.next_offset() > self.end {
                return Err(format!("the leader's batch at {} does not fit the damage", batch.base_offset()));
            }
            if batch.leader_epoch() != epochs.epoch_at(batch.base_offset()) {
                return Err(format!("the leader's batch at {} has another epoch", batch.base_offset()));
            }
            self.next = batch.next_offset();
            self.bytes.extend_from_slice(batch.bytes());
        }
        if self.next == before {
            return Err("the leader has nothing there".to_owned());
        }
        if self.bytes.len() > RANGE_MAX_BYTES {
            return Err(format!("the damage is larger than {RANGE_MAX_BYTES} bytes"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use highwater_records::{BatchBuilder, Compression};
    use highwater_types::{EpochEntry, WallTime};

    use super::*;

    fn offset(raw: i64) -> Offset {
        Offset::new(raw).unwrap()
    }

    fn epoch(raw: i32) -> LeaderEpoch {
        LeaderEpoch::new(raw).unwrap()
    }

    /// A batch of two records.
    fn two(base: i64, leader_epoch: i32) -> Bytes {
        let mut builder =
            BatchBuilder::new(Compression::None).base_offset(offset(base)).leader_epoch(epoch(leader_epoch));
        for _ in 0..2 {
            builder.append(WallTime::from_millis(1), None, Some(b"v"), &[]).unwrap();
        }
        builder.build().unwrap().freeze()
    }

    fn lost(start: i64, end: i64) -> Lost {
        Lost { next: offset(start), end: offset(end), bytes: BytesMut::new() }
    }

    fn epochs() -> LeaderEpochCache {
        [EpochEntry { epoch: epoch(1), start: offset(0) }, EpochEntry { epoch: epoch(3), start: offset(4) }]
            .into_iter()
            .collect()
    }

    #[test]
    fn what_lies_exactly_in_the_damage_is_taken_and_the_rest_is_left() {
        let mut lost = lost(2, 6);
        lost.take(&[two(2, 1), two(4, 3), two(6, 3)].concat().into(), &epochs()).unwrap();
        assert_eq!((lost.next, lost.bytes.freeze()), (offset(6), [two(2, 1), two(4, 3)].concat().into()));
    }

    #[test]
    fn a_batch_that_reaches_out_of_the_damage_or_has_another_epoch_is_refused() {
        assert!(lost(3, 6).take(&two(2, 1), &epochs()).unwrap_err().contains("fit"));
        assert!(lost(2, 3).take(&two(2, 1), &epochs()).unwrap_err().contains("fit"));
        assert!(lost(4, 6).take(&two(4, 1), &epochs()).unwrap_err().contains("epoch"));
        assert!(lost(4, 6).take(&Bytes::new(), &epochs()).unwrap_err().contains("nothing"));
    }
}

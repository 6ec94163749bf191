//! Repair of damage, as follower-agent does it: lost ranges are read from the leader, up to its log end, and put back when they
//! are whole (design.md 2).

use bytes::Bytes;
use highwater_log::ReadLimits;
use highwater_protocol::fetch::{FetchPartition, Requester, TopicRef};
use highwater_replica::{Refill, RepairError};
use highwater_types::{LeaderEpoch, Offset};

use super::cluster::Cluster;
use super::network::{Body, Message};
use super::node::{index_of, partition_id};

/// Bytes of an answer, at most; a batch is larger than some of it.
const MAX_BYTES: u32 = 300;

/// A fetch of somebody who is no replica.
pub(super) fn consumer_fetch(partition: usize, from: Offset, epoch: Option<LeaderEpoch>) -> FetchPartition {
    let id = partition_id(partition);
    FetchPartition {
        current_leader_epoch: epoch,
        ..FetchPartition::reading(TopicRef::Id(id.topic_id), id.partition, from, MAX_BYTES)
    }
}

pub(super) fn consumer_limits(upper: Offset) -> ReadLimits {
    ReadLimits { max_bytes: 300, min_one_batch: true, upper, checked: true }
}

impl Cluster {
    /// Asks for what is lacking of a damaged range. A lost tail is no matter of repair: replication fills it.
    pub(super) fn repair(&mut self, node: usize, partition: usize) {
        let Some(followed) = &mut self.nodes[node].followed[partition] else { return };
        let log_end = followed.replica.log().log_end();
        let repairable = followed.replica.repairable();
        let mut damaged = repairable.iter().copied().filter(|range| range.end <= log_end);
        let Some(first) = damaged.clone().next() else { return };
        let goes_on = followed.refill.take().filter(|refill| damaged.any(|range| range == refill.range()));
        let refill = followed.refill.insert(goes_on.unwrap_or_else(|| Refill::new(first)));
        let Some(from) = refill.wanted() else { return };
        let (serial, leader, epoch) = (
            followed.serial,
            followed.replica.inspect(|core| core.leader()),
            followed.replica.facts().leader_epoch,
        );
        let body = Body::AskRecords { from, epoch };
        self.send(Message { partition, from: node, to: index_of(leader), serial, body });
    }

    /// The leader reads for it.
    pub(super) fn serve_records(
        &mut self,
        node: usize,
        partition: usize,
        asked: (usize, u64),
        from: Offset,
        epoch: LeaderEpoch,
    ) {
        let now = self.now().monotonic;
        if !self.nodes[node].leader_svc.is_up() {
            return;
        }
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        let request = consumer_fetch(partition, from, Some(epoch));
        let Ok(plan) = leads.replica.on_fetch(Requester::Repair, &request, now) else { return };
        match leads.replica.read(plan.from, consumer_limits(plan.upper)) {
            Ok(read) => {
                let body = Body::Records { from, records: read.records };
                self.send(Message { partition, from: node, to: asked.0, serial: asked.1, body });
            }
            Err(error) => leads.read_failed(&error),
        }
    }

    /// Records of a damaged range arrive.
    pub(super) fn take_records(
        &mut self,
        node: usize,
        partition: usize,
        serial: u64,
        from: Offset,
        records: &Bytes,
    ) {
        let now = self.now();
        let Some(followed) = self.asked_by(node, partition, serial) else { return };
        let Some(mut refill) = followed.refill.take_if(|refill| refill.wanted() == Some(from)) else {
            return;
        };
        let range = refill.range();
        let repaired = match refill.take(records, &followed.replica.facts().epochs) {
            Ok(()) if refill.wanted().is_some() => {
                followed.refill = Some(refill);
                return;
            }
            Ok(()) => followed.replica.repair(range, &refill.into_records()),
            Err(error) => Err(error),
        };
        let cut = matches!(repaired, Err(RepairError::Unfit(_)))
            .then(|| followed.replica.cut_to_damage(range, now));
        let step = self.step;
        self.trace.note(|| format!("{step} p{partition} n{node} repairs {range}: {repaired:?}"));
        self.repairs += u64::from(repaired.is_ok());
        if repaired.is_ok() {
            self.has_repaired(node, partition, range);
        }
        if let Some(cut) = cut {
            self.absorb(node, partition, cut);
        }
    }
}

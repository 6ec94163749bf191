//! ReassignReplicas and CancelReassignment: the record that begins or ends a move; the leader does the rest
//! (`replica_manager::moves`). Any leader-svc writes it, because it is a compare-and-swap like any other.
//!
//! What must hold: replicas are nodes that can catch up and of whom one can lead; a replica in sync is not taken away, and so
//! deleted, where none of those that stay in sync is up; asking for what is recorded already changes nothing, so that a call
//! may be repeated.

use highwater_coordination::reassign::{ReassignmentRefused, begin, cancel};
use highwater_coordination::{CasOutcome, ClusterView, ProgramState};
use highwater_proto::v1;
use highwater_serving::registry::{Hosting, resolve_partition, resolve_topic};
use highwater_types::{ErrorCode, NodeId, PartitionRecord, Program, ReplicationError};
use highwater_wire::reassign::{AddedReplica, Assignment, PartitionRef, encode_reassigned};

use super::{ClusterApi, check_registered, retried};

/// How often it is proposed: changes of the in-sync set may come first.
const ATTEMPTS: u32 = 16;

impl ClusterApi {
    /// Begins to move partitions, each for itself.
    pub(super) async fn reassign(
        &self,
        asked: Vec<Assignment>,
    ) -> Result<Vec<v1::ReassignedPartition>, ReplicationError> {
        let view = self.newest_view().await?;
        let mut answers = Vec::with_capacity(asked.len());
        for Assignment { partition, replicas } in asked {
            let propose = |record: &PartitionRecord| {
                check_replicas(&view, record, &replicas)?;
                let is_recorded = record.is_being_moved() && record.target_replicas() == replicas;
                match begin(record, &replicas) {
                    Ok(proposal) => Ok((!is_recorded).then_some(proposal)),
                    Err(ReassignmentRefused::Unchanged) => Ok(None),
                    Err(why) => Err(refused(&why)),
                }
            };
            answers.push(self.change(&view, &partition, propose).await);
        }
        Ok(answers)
    }

    /// Goes back to the replicas of before, each partition for itself.
    pub(super) async fn cancel(
        &self,
        asked: Vec<PartitionRef>,
    ) -> Result<Vec<v1::ReassignedPartition>, ReplicationError> {
        let view = self.newest_view().await?;
        let mut answers = Vec::with_capacity(asked.len());
        for partition in asked {
            let propose = |record: &PartitionRecord| cancel(record).map(Some).map_err(|why| refused(&why));
            answers.push(self.change(&view, &partition, propose).await);
        }
        Ok(answers)
    }

    /// How far the added replicas of a partition are, if this node leads it.
    pub(super) fn add_progress(&self, record: &PartitionRecord, added: &mut [AddedReplica]) {
        if let Some(Hosting::Online(partition)) = self.host.get(record.id()) {
            partition.add_progress(added);
        }
    }

    async fn change(
        &self,
        view: &ClusterView,
        asked: &PartitionRef,
        propose: impl Fn(&PartitionRecord) -> Result<Option<PartitionRecord>, ReplicationError> + Send,
    ) -> v1::ReassignedPartition {
        let changed = self.swap(view, asked, propose).await;
        encode_reassigned(asked, &changed)
    }

    /// The record that was written; the one that is there, where `propose` wants no other.
    async fn swap(
        &self,
        view: &ClusterView,
        asked: &PartitionRef,
        propose: impl Fn(&PartitionRecord) -> Result<Option<PartitionRecord>, ReplicationError> + Send,
    ) -> Result<PartitionRecord, ReplicationError> {
        let topic = resolve_topic(view, &asked.topic)?;
        let mut known = PartitionRecord::clone(resolve_partition(view, topic, asked.partition)?);
        for _ in 0..ATTEMPTS {
            let Some(proposal) = propose(&known)? else { return Ok(known) };
            let alive = |node, program| self.membership.state(node, program) == ProgramState::Alive;
            check_who_stays(&known, &proposal, |node| {
                alive(node, Program::LeaderSvc) || alive(node, Program::FollowerAgent)
            })?;
            let write = || self.coordination.swap_partition(proposal.clone(), known.partition_epoch);
            match retried(write).await? {
                CasOutcome::Committed(written) => {
                    tracing::info!(
                        topic = %topic.name,
                        partition = %asked.partition,
                        replicas = ?written.replicas,
                        adding = ?written.adding,
                        removing = ?written.removing,
                        "recorded other replicas"
                    );
                    return Ok(written);
                }
                // An attempt of unknown outcome was made after all.
                CasOutcome::Conflict(newer) if has_replicas_of(&newer, &proposal) => return Ok(newer),
                CasOutcome::Conflict(newer) => known = newer,
            }
        }
        Err(ReplicationError::new(
            ErrorCode::CoordinationUnavailable,
            format!("the record of {}-{} changes all the time; try again", topic.name, asked.partition),
        ))
    }
}

fn has_replicas_of(record: &PartitionRecord, proposal: &PartitionRecord) -> bool {
    let all =
        |record: &PartitionRecord| (record.replicas.clone(), record.adding.clone(), record.removing.clone());
    all(record) == all(proposal)
}

/// Whether these nodes can hold the partition.
fn check_replicas(
    view: &ClusterView,
    record: &PartitionRecord,
    replicas: &[NodeId],
) -> Result<(), ReplicationError> {
    check_registered(view, replicas)?;
    let has = |node: NodeId, program| view.node(node).is_some_and(|found| found.endpoint(program).is_some());
    let is_new = |node: &&NodeId| !record.has_replica(**node);
    let mut added = replicas.iter().filter(is_new);
    if let Some(alone) = added.find(|node| !has(**node, Program::FollowerAgent)) {
        return Err(invalid(format!("node {alone} has no follower-agent: its replica could not catch up")));
    }
    if !replicas.is_empty() && !replicas.iter().any(|node| has(*node, Program::LeaderSvc)) {
        return Err(invalid("none of the replicas' nodes has a leader-svc: nobody could lead".to_owned()));
    }
    Ok(())
}

/// Whether somebody in sync who is up stays, where somebody in sync goes: what goes is deleted.
fn check_who_stays(
    known: &PartitionRecord,
    proposal: &PartitionRecord,
    is_up: impl Fn(NodeId) -> bool,
) -> Result<(), ReplicationError> {
    if proposal.isr.len() == known.isr.len() || proposal.isr.iter().any(|member| is_up(member.node)) {
        return Ok(());
    }
    let staying: Vec<_> = proposal.isr.iter().map(|member| member.node.to_string()).collect();
    Err(invalid(format!(
        "of the replicas in sync only those on nodes {} would stay, and none of these is up: the records within reach would \
         be deleted. Start one of them, or name a replica that is up among those that stay",
        staying.join(", ")
    )))
}

fn refused(why: &ReassignmentRefused) -> ReplicationError {
    invalid(why.to_string())
}

fn invalid(why: String) -> ReplicationError {
    ReplicationError::new(ErrorCode::InvalidRequest, why)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use highwater_coordination::{ViewChanges, ViewPublisher};
    use highwater_serving::volume::fresh_incarnation;
    use highwater_types::{IsrMember, NodeRecord, PartitionIndex, TopicId, TopicIdPartition};

    use super::*;

    fn node(id: i32) -> NodeId {
        NodeId::new(id).unwrap()
    }

    /// Nodes 1 and 2 have both programs, 3 only an agent, 4 only a leader-svc.
    fn refusal(of: &[i32], wanted: &[i32]) -> Option<String> {
        let address = || Some("localhost:1".parse().unwrap());
        let nodes = (1..=4).map(|id| NodeRecord {
            leader_svc: (id != 3).then(address).flatten(),
            follower_agent: (id != 4).then(address).flatten(),
            ..NodeRecord::new(node(id))
        });
        let views = ViewPublisher::default();
        views.merge(ViewChanges { nodes: nodes.collect(), ..ViewChanges::default() });
        let id = TopicIdPartition::new(TopicId::random(), PartitionIndex::new(0).unwrap());
        let ids = |raw: &[i32]| raw.iter().copied().map(node).collect::<Vec<_>>();
        let record = PartitionRecord::new(id, ids(of));
        check_replicas(&views.current(), &record, &ids(wanted)).err().map(|error| error.message)
    }

    #[test]
    fn replicas_are_registered_nodes_that_can_catch_up_and_of_whom_one_can_lead() {
        assert_eq!(refusal(&[1], &[2, 3]), None);
        let unknown = refusal(&[1], &[1, 9]).unwrap();
        assert!(unknown.contains("node 9 is not registered") && unknown.contains("1, 2, 3, 4"), "{unknown}");
        assert!(refusal(&[1], &[1, 4]).unwrap().contains("node 4 has no follower-agent"));
        assert_eq!(refusal(&[4], &[4]), None, "it is a replica already");
        assert!(refusal(&[1], &[3]).unwrap().contains("nobody could lead"));
    }

    #[test]
    fn a_replica_in_sync_goes_only_where_another_one_in_sync_stays_that_is_up() {
        let id = TopicIdPartition::new(TopicId::random(), PartitionIndex::new(0).unwrap());
        let in_sync = |ids: &[i32]| {
            let isr = ids.iter().map(|id| IsrMember { node: node(*id), incarnation: fresh_incarnation() });
            PartitionRecord { isr: isr.collect(), ..PartitionRecord::new(id, [1, 2].map(node).to_vec()) }
        };
        let check = |known: &[i32], kept: &[i32], up: &[i32]| {
            check_who_stays(&in_sync(known), &in_sync(kept), |node| up.contains(&node.get()))
        };
        assert!(check(&[1, 2], &[1], &[2]).unwrap_err().message.contains("on nodes 1 would stay"));
        assert_eq!(check(&[1, 2], &[1], &[1]), Ok(()));
        assert_eq!(check(&[1, 2, 3], &[1, 2], &[2, 3]), Ok(()));
        assert_eq!(check(&[1], &[1], &[]), Ok(()), "nobody in sync goes");
    }

    #[test]
    fn every_refusal_is_told_in_words() {
        let all = [
            ReassignmentRefused::BadReplicas,
            ReassignmentRefused::NoneUnderWay,
            ReassignmentRefused::LeaderWouldLeave { leader: node(3) },
            ReassignmentRefused::NobodyInSync,
        ];
        let told: BTreeSet<_> = all.iter().map(|why| refused(why).message).collect();
        assert_eq!(told.len(), all.len(), "{told:?}");
    }
}

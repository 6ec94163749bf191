//! What holds for every partition and topic record, checked before a record is written: the last defence of the store
//! against a caller's fault. Pure.

use highwater_types::{NodeId, PartitionIndex, PartitionRecord, TopicRecord};

/// Checks that `new` may follow `current`, whoever proposes it:
///
/// - same partition and adopted history; replicas are distinct and at least one;
/// - the in-sync set names each node once, only replicas, and never becomes empty again (design.md 6.9);
/// - a leader is in the in-sync set (LeaderInIsr), and every leadership is a new, higher leader epoch (design.md 6.2);
/// - the leader epoch never falls.
///
/// # Errors
/// The broken rule, as text that names the partition.
pub fn check_change(current: &PartitionRecord, new: &PartitionRecord) -> Result<(), String> {
    let broken = |rule: &str| Err(format!("partition {}: {rule}", current.id()));
    if new.id() != current.id() {
        return broken("the new record is another partition's");
    }
    if new.adopted != current.adopted {
        return broken("the adopted history is fixed");
    }
    if let Err(rule) = check_members(new) {
        return broken(rule);
    }
    if new.leader_epoch < current.leader_epoch {
        return broken("the leader epoch would fall");
    }
    if new.leader.is_some() && new.leader != current.leader && new.leader_epoch <= current.leader_epoch {
        return broken("a new leader needs a new leader epoch");
    }
    Ok(())
}

/// Checks what `topic` and its partition records must be at creation.
///
/// # Errors
/// The broken rule, as text that names the topic.
pub fn check_creation(topic: &TopicRecord, partitions: &[PartitionRecord]) -> Result<(), String> {
    let broken = |rule: &str| Err(format!("topic {} ({}): {rule}", topic.name, topic.id));
    if topic.deleted {
        return broken("a topic is not created as a tombstone");
    }
    if partitions.is_empty() || usize::try_from(topic.partitions) != Ok(partitions.len()) {
        return broken("it needs one record per partition, and at least one");
    }
    for (number, record) in (0_i32..).zip(partitions) {
        if record.topic_id != topic.id || PartitionIndex::new(number) != Some(record.partition) {
            return broken("its partition records must be numbered from 0");
        }
        if !record.is_new() || record.leader.is_some() || !record.isr.is_empty() {
            return broken("a new partition has no leader and no in-sync set");
        }
        if let Err(rule) = check_members(record) {
            return broken(rule);
        }
        if record.adopted.is_some_and(|history| !record.has_replica(history.importer)) {
            return broken("the importer of an adopted directory must be a replica");
        }
    }
    Ok(())
}

fn check_members(record: &PartitionRecord) -> Result<(), &'static str> {
    if record.replicas.is_empty() || !distinct(record.replicas.iter().copied()) {
        return Err("replicas must be distinct and at least one");
    }
    if !distinct(record.isr.iter().map(|m| m.node)) {
        return Err("the in-sync set names a node twice");
    }
    if record.isr.iter().any(|m| !record.has_replica(m.node)) {
        return Err("the in-sync set names a node that is not a replica");
    }
    if record.leader_epoch.is_some() == record.isr.is_empty() {
        return Err("the in-sync set is empty exactly until the first leadership");
    }
    if record.leader.is_some_and(|leader| record.isr_member(leader).is_none()) {
        return Err("the leader is not in the in-sync set");
    }
    Ok(())
}

fn distinct(nodes: impl Iterator<Item = NodeId>) -> bool {
    let mut all: Vec<NodeId> = nodes.collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    all.len() == count
}

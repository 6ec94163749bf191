//! What holds for every partition and topic record, checked before a record is written: the last defence of the store
//! against a caller's fault. Pure.

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{NodeId, PartitionIndex, PartitionRecord, TopicRecord};

/// Checks that `new` may follow `current`, whoever proposes it:
///
/// - same partition and adopted history; replicas are distinct and at least one;
/// - the in-sync set names each node once, only replicas, and never becomes empty again (design.md 6.9);
/// - a leader is in the in-sync set (LeaderInIsr), and every leadership is a new, higher leader epoch (design.md 6.2);
/// - the leader epoch never falls;
/// - a new leadership's in-sync set is part of the one before, incarnations and all: only an unclean election breaks that,
///   and is noted in the same record, for good (design.md 6.3, 6.6, 6.13);
/// - a member of the in-sync set that withdrew stays so until the next leadership (design.md 6.3);
/// - added and removed replicas are replicas, and none is both; who resigned is named only while nobody leads.
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
    check_withdrawn(current, new).and_then(|()| check_unclean(current, new)).or_else(broken)
}

/// Whether who says that it cannot lead by the in-sync set is one of it, and is not forgotten while that set stands.
fn check_withdrawn(current: &PartitionRecord, new: &PartitionRecord) -> Result<(), &'static str> {
    if new.leader_epoch > current.leader_epoch {
        return if new.withdrawn.is_empty() {
            Ok(())
        } else {
            Err("nobody has withdrawn from a new leadership")
        };
    }
    if current.withdrawn.iter().any(|member| !new.withdrawn.contains(member)) {
        return Err("who has withdrawn stays so until the next leadership");
    }
    if new.withdrawn.iter().any(|member| !current.withdrawn.contains(member) && !current.isr.contains(member))
    {
        return Err("only a member of the in-sync set withdraws");
    }
    Ok(())
}

/// Whether what may have been acknowledged stays with the in-sync set, or its loss is on record.
fn check_unclean(current: &PartitionRecord, new: &PartitionRecord) -> Result<(), &'static str> {
    let is_noted = new.unclean != current.unclean;
    if is_noted && (new.unclean.is_none() || new.highest_unclean_epoch() <= current.highest_unclean_epoch()) {
        return Err("the note of an unclean election stays until a later one");
    }
    let begins = new.leader_epoch > current.leader_epoch;
    if is_noted && (!begins || new.highest_unclean_epoch() != new.leader_epoch) {
        return Err("an unclean election is noted with the leadership that begins by it");
    }
    let is_part = new.isr.iter().all(|member| current.isr.contains(member));
    let is_free = is_noted || current.is_new() || any_replica_stands();
    if begins && !is_part && !is_free {
        return Err("a new leadership takes nobody into the in-sync set");
    }
    Ok(())
}

/// Whether a test has broken the rules of who may stand.
fn any_replica_stands() -> bool {
    is_planted(PlantedFault::ElectFromOutsideIsr) || is_planted(PlantedFault::ElectAnyIncarnation)
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
    if [&record.adding, &record.removing]
        .iter()
        .any(|nodes| !distinct(nodes.iter().copied()) || nodes.iter().any(|node| !record.has_replica(*node)))
    {
        return Err("added and removed replicas must be distinct and replicas");
    }
    if record.adding.iter().any(|node| record.removing.contains(node)) {
        return Err("a replica is added and removed at once");
    }
    if record.leader.is_some() && record.resigned.is_some() {
        return Err("a leader is named beside who resigned");
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

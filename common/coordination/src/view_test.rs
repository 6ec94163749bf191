//! The view under records that arrive late, twice, or in an odd order.

use highwater_types::{PartitionEpoch, TopicProperties};

use super::*;

fn topic(name: &str) -> TopicRecord {
    TopicRecord {
        id: TopicId::random(),
        name: name.parse().unwrap(),
        partitions: 1,
        properties: TopicProperties::default(),
        deleted: false,
    }
}

fn partition(topic: &TopicRecord, version: u64) -> PartitionRecord {
    let id = TopicIdPartition::new(topic.id, FIRST_PARTITION);
    let mut record = PartitionRecord::new(id, vec![NodeId::new(1).unwrap()]);
    record.partition_epoch = PartitionEpoch::new(version);
    record
}

fn topics(topics: Vec<TopicRecord>) -> ViewChanges {
    ViewChanges { topics, ..ViewChanges::default() }
}

fn partitions(partitions: Vec<PartitionRecord>) -> ViewChanges {
    ViewChanges { partitions, ..ViewChanges::default() }
}

#[test]
fn an_older_record_never_replaces_a_newer_one() {
    let publisher = ViewPublisher::default();
    let orders = topic("orders");
    publisher.merge(topics(vec![orders.clone()]));
    assert!(publisher.merge(partitions(vec![partition(&orders, 5)])));
    let before = publisher.current();
    assert!(!publisher.merge(partitions(vec![partition(&orders, 4), partition(&orders, 5)])));
    assert!(Arc::ptr_eq(&before, &publisher.current()), "nothing was published");
    assert!(publisher.merge(partitions(vec![partition(&orders, 6)])));
    assert_eq!(publisher.current().version(), before.version() + 1);
}

#[test]
fn a_partition_is_shown_once_its_topic_is() {
    let publisher = ViewPublisher::default();
    let orders = topic("orders");
    let record = partition(&orders, 0);
    publisher.merge(partitions(vec![record.clone()]));
    assert_eq!(publisher.current().partition(record.id()), None);
    assert_eq!(publisher.current().partitions().count(), 0);
    publisher.merge(topics(vec![orders]));
    assert_eq!(publisher.current().partition(record.id()).map(|r| r.id()), Some(record.id()));
    assert_eq!(publisher.current().partitions().count(), 1);
}

#[test]
fn a_tombstone_is_final_and_takes_the_partitions_along() {
    let publisher = ViewPublisher::default();
    let orders = topic("orders");
    let tombstone = TopicRecord { deleted: true, ..orders.clone() };
    publisher.merge(ViewChanges {
        topics: vec![orders.clone()],
        partitions: vec![partition(&orders, 0)],
        ..ViewChanges::default()
    });
    assert!(publisher.merge(topics(vec![tombstone])));
    assert!(!publisher.merge(topics(vec![orders.clone()])), "a late copy of the live record");
    assert!(!publisher.merge(partitions(vec![partition(&orders, 9)])), "a late partition");
    let view = publisher.current();
    assert_eq!(view.topic(orders.id).map(|t| t.deleted), Some(true));
    assert_eq!(view.topic_named(&orders.name), None);
}

#[test]
fn a_name_belongs_to_the_new_topic_in_whatever_order_the_records_come() {
    let old = topic("orders");
    let tombstone = TopicRecord { deleted: true, ..old.clone() };
    let new = topic("orders");
    for order in [[&old, &tombstone, &new], [&old, &new, &tombstone], [&new, &old, &tombstone]] {
        let publisher = ViewPublisher::default();
        for record in order {
            publisher.merge(topics(vec![record.clone()]));
        }
        let view = publisher.current();
        assert_eq!(view.topic_named(&new.name).map(|t| t.id), Some(new.id));
        assert_eq!(view.live_topics().count(), 1);
    }
}

#[test]
fn the_stores_own_version_is_shown_where_it_has_one() {
    let publisher = ViewPublisher::default();
    publisher.merge(ViewChanges { version: 41, ..topics(vec![topic("a")]) });
    assert_eq!(publisher.current().version(), 41);
    publisher.merge(ViewChanges { version: 41, ..topics(vec![topic("b")]) });
    assert_eq!(publisher.current().version(), 42, "a change is never shown under an old version");
}

#[test]
fn unchanged_records_are_shared_between_views() {
    let publisher = ViewPublisher::default();
    let (a, b) = (topic("a"), topic("b"));
    publisher.merge(topics(vec![a.clone(), b.clone()]));
    publisher.merge(partitions(vec![partition(&a, 0), partition(&b, 0)]));
    let before = publisher.current();
    publisher.merge(partitions(vec![partition(&a, 1)]));
    let after = publisher.current();
    let shared = |t: &TopicRecord| {
        let id = partition(t, 0).id();
        before.partition(id).zip(after.partition(id)).is_some_and(|(x, y)| Arc::ptr_eq(x, y))
    };
    assert!(shared(&b) && !shared(&a));
}

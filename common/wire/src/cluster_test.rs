//! The records of the coordination store survive the wire.

use highwater_types::{Incarnation, LeaderEpoch, Offset, PartitionIndex};
use prost::Message as _;

use super::*;

fn n(id: i32) -> NodeId {
    NodeId::new(id).unwrap()
}

fn topic() -> TopicRecord {
    let mut properties = TopicProperties::default();
    properties.set("durability", "page-cache").unwrap();
    properties.set("retention.ms", "-1").unwrap();
    TopicRecord {
        id: TopicId::random(),
        name: "orders".parse().unwrap(),
        partitions: 2,
        properties,
        deleted: false,
    }
}

fn partitions(topic: &TopicRecord) -> Vec<PartitionRecord> {
    let led = PartitionRecord {
        topic_id: topic.id,
        partition: PartitionIndex::new(0).unwrap(),
        replicas: vec![n(0), n(1)],
        isr: vec![IsrMember { node: n(0), incarnation: Incarnation::new(u64::MAX).unwrap() }],
        leader: Some(n(0)),
        leader_epoch: Some(LeaderEpoch::FIRST),
        partition_epoch: PartitionEpoch::new(3),
        adopted: Some(AdoptedHistory { importer: n(0), highest_epoch: None, log_end: Offset::ZERO }),
        adding: vec![n(1)],
        removing: vec![n(0)],
        resigned: Some(Resignation { node: n(1), successor: Some(n(0)) }),
        withdrawn: vec![IsrMember { node: n(0), incarnation: Incarnation::new(u64::MAX).unwrap() }],
        unclean: Some(UncleanElection {
            epoch: LeaderEpoch::FIRST,
            log_end: Offset::ZERO,
            passed_over: vec![IsrMember { node: n(1), incarnation: Incarnation::new(7).unwrap() }],
        }),
    };
    let new = PartitionRecord {
        partition: PartitionIndex::new(1).unwrap(),
        isr: Vec::new(),
        leader: None,
        leader_epoch: None,
        partition_epoch: PartitionEpoch::FIRST,
        adopted: None,
        adding: Vec::new(),
        removing: Vec::new(),
        resigned: None,
        withdrawn: Vec::new(),
        unclean: None,
        ..led.clone()
    };
    vec![led, new]
}

#[test]
fn a_topic_and_its_partitions_survive_the_wire() {
    let (topic, endpoint) = (topic(), "n0:9400".parse::<Endpoint>().unwrap());
    let records = partitions(&topic);
    let message = encode_topic(&topic, &records, |node| (node == n(0)).then(|| endpoint.clone()));
    let message = v1::Topic::decode(message.encode_to_vec().as_slice()).unwrap();
    let described = decode_topic(&message).unwrap();
    assert_eq!(described.record, topic);
    let back: Vec<_> = described.partitions.iter().map(|p| p.record.clone()).collect();
    assert_eq!(back, records);
    let endpoints: Vec<_> = described.partitions.iter().map(|p| p.leader_endpoint.clone()).collect();
    assert_eq!(endpoints, [Some(endpoint), None]);
}

#[test]
fn nodes_and_signs_of_life_survive_the_wire() {
    let full = NodeRecord {
        leader_svc: Some("n0:9400".parse().unwrap()),
        follower_agent: Some("[::1]:9401".parse().unwrap()),
        disk_current: Incarnation::new(1),
        disk_next: Incarnation::new(2),
        throttles: NodeThrottles {
            leader: Some(Throttle {
                id: u64::MAX,
                rate: "8MB/s".parse().unwrap(),
                replicas: "a,b:1".parse().unwrap(),
                ttl_ms: Some(60_000),
            }),
            follower: None,
        },
        version: 9,
        ..NodeRecord::new(n(0))
    };
    for record in [full, NodeRecord::new(n(7))] {
        assert_eq!(decode_node(&encode_node(&record)), Ok(record));
    }
    for program in [Program::LeaderSvc, Program::FollowerAgent] {
        let record = LivenessRecord { node: n(0), program, counter: 0 };
        assert_eq!(decode_liveness(&encode_liveness(&record)), Ok(record));
    }
}

#[test]
fn a_cluster_survives_the_wire_and_a_wrong_record_is_named() {
    let topic = topic();
    let id = ClusterId::random();
    let mut message = cluster_head(Some(&id), 0, n(0), Program::LeaderSvc);
    assert!(decode_cluster(&message).unwrap().unchanged);
    message.unchanged = false;
    message.nodes.push(encode_node(&NodeRecord::new(n(1))));
    message.topics.push(encode_topic(&topic, &partitions(&topic), |_| None));
    let cluster = decode_cluster(&message).unwrap();
    assert_eq!((cluster.cluster_id, cluster.version), (Some(id), 0));
    assert_eq!(cluster.topics[0].record, topic);
    message.topics[0].partitions[1].partition_epoch = None;
    let error = decode_cluster(&message).unwrap_err();
    assert_eq!(error.path(), "topics[0].partitions[1].partition_epoch");
}

#[test]
fn a_property_of_the_future_is_not_ignored() {
    let topic = topic();
    let mut message = encode_topic(&topic, [], |_| None);
    message.properties.insert("encryption".into(), "on".into());
    assert!(decode_topic(&message).unwrap_err().problem().contains("encryption"));
}

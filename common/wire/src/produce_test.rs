//! Produce on the wire.

use highwater_types::ErrorCode;

use super::*;

fn partition(records: ProduceRecords) -> ProducePartition {
    ProducePartition {
        topic: TopicRef::Name("orders".parse().unwrap()),
        partition: PartitionIndex::new(0).unwrap(),
        current_leader_epoch: None,
        records,
    }
}

fn request(acks: Acks, partitions: Vec<ProducePartition>) -> ProduceRequest {
    ProduceRequest { cluster: None, acks, timeout: Duration::from_secs(1), partitions }
}

fn batch() -> ProducePartition {
    partition(ProduceRecords::Batches(Bytes::from_static(b"batch")))
}

#[test]
fn both_forms_of_records_survive_the_wire() {
    let plain = PlainRecord {
        key: Some(Bytes::new()),
        value: None,
        headers: vec![("h".into(), None), ("h".into(), Some(Bytes::new()))],
        timestamp: Some(WallTime::from_millis(0)),
    };
    for records in [ProduceRecords::Plain(vec![plain, PlainRecord::default()]), batch().records] {
        for acks in [Acks::None, Acks::Leader, Acks::All] {
            let asked = request(acks, vec![partition(records.clone())]);
            assert_eq!(decode_request(encode_request(asked.clone())), Ok(asked));
        }
    }
}

#[test]
fn a_plain_record_by_hand_needs_only_a_text() {
    let record =
        v1::PlainRecord { value: Some(Value::ValueText("hello".into())), ..v1::PlainRecord::default() };
    let message = v1::ProduceRequest {
        partitions: vec![v1::ProducePartition {
            topic: "orders".into(),
            partition: Some(0),
            plain_records: vec![record],
            ..v1::ProducePartition::default()
        }],
        ..v1::ProduceRequest::default()
    };
    let request = decode_request(message).unwrap();
    assert_eq!((request.acks, request.timeout), (Acks::All, DEFAULT_TIMEOUT));
    let expected = PlainRecord { value: Some(Bytes::from_static(b"hello")), ..PlainRecord::default() };
    assert_eq!(request.partitions[0].records, ProduceRecords::Plain(vec![expected]));
}

#[test]
fn a_request_that_cannot_be_answered_is_refused() {
    let refused = |message| decode_request(message).unwrap_err().path().to_owned();
    let good = encode_request(request(Acks::All, vec![batch()]));
    assert_eq!(refused(v1::ProduceRequest::default()), "partitions");
    let mut twice = good.clone();
    twice.partitions.push(good.partitions[0].clone());
    assert_eq!(refused(twice), "partitions[1].partition");
    let mut empty = good.clone();
    empty.partitions[0].records.clear();
    assert_eq!(refused(empty), "partitions[0].records");
    let mut both = good.clone();
    both.partitions[0].plain_records.push(v1::PlainRecord::default());
    assert_eq!(refused(both), "partitions[0].records");
    let mut acks = good;
    acks.acks = 17;
    assert_eq!(refused(acks), "acks");
}

#[test]
fn results_survive_the_wire() {
    let produced = Produced {
        base_offset: Some(Offset::ZERO),
        last_offset: Some(Offset::ZERO),
        leader_epoch: Some(LeaderEpoch::FIRST),
        log_start: Some(Offset::ZERO),
    };
    let error = ReplicationError::new(ErrorCode::NotEnoughReplicas, "1 of 2 in sync");
    let results: Vec<_> = [Ok(produced), Ok(Produced::default()), Err(error)]
        .into_iter()
        .map(|outcome| ProduceResult { topic: batch().topic, partition: batch().partition, outcome })
        .collect();
    let throttle = Some((Duration::from_millis(7), ThrottleReason::ClientQuota));
    let message = encode_response(results.clone(), throttle);
    assert_eq!(decode_response(message), Ok((results, Duration::from_millis(7))));
}

//! Fetch on the wire: golden bytes, round trips, defaults, and every refusal.

use bytes::Bytes;
use highwater_types::{ErrorCode, Incarnation, LeaderEpoch, NodeId, Program, ReplicationError, TopicId};
use prost::Message as _;

use super::*;

fn by_hand() -> v1::FetchRequest {
    let partition = v1::FetchPartition {
        topic: "orders".into(),
        partition: Some(0),
        fetch_offset: Some(0),
        ..v1::FetchPartition::default()
    };
    v1::FetchRequest { partitions: vec![partition], ..v1::FetchRequest::default() }
}

fn with(change: impl FnOnce(&mut v1::FetchPartition)) -> v1::FetchRequest {
    let mut message = by_hand();
    change(&mut message.partitions[0]);
    message
}

fn refused(message: v1::FetchRequest) -> String {
    decode_request(&Caller::default(), message).unwrap_err().path().to_owned()
}

fn o(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

fn e(raw: i32) -> LeaderEpoch {
    LeaderEpoch::new(raw).unwrap()
}

fn full_request() -> FetchRequest {
    let topic = TopicRef::Both {
        name: "orders".parse().unwrap(),
        id: "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c".parse().unwrap(),
    };
    FetchRequest {
        cluster: Some("AAAAAAAAAAAAAAAAAAAAAA".parse().unwrap()),
        replica: NodeId::new(2),
        repair: false,
        session_id: 0,
        session_epoch: -1,
        max_wait: Duration::from_millis(500),
        min_bytes: 1,
        max_bytes: 0,
        partitions: vec![FetchPartition {
            topic: topic.clone(),
            partition: PartitionIndex::new(0).unwrap(),
            incarnation: Incarnation::new(0xfeed),
            current_leader_epoch: Some(e(0)),
            fetch_offset: o(10),
            acknowledged_offset: Some(o(0)),
            last_fetched_epoch: Some(e(0)),
            log_start: Some(o(0)),
            high_watermark: Some(o(0)),
            max_bytes: 0,
            paused: true,
            throttled: true,
            suspended: true,
            failed: true,
            order: Some(RequestOrder { start: 3, number: 0 }),
        }],
        forgotten: vec![(topic, PartitionIndex::new(1).unwrap())],
    }
}

#[test]
fn topic_partition_and_offset_are_enough_and_the_rest_has_defaults() {
    let request = decode_request(&Caller::default(), by_hand()).unwrap();
    assert_eq!(request.max_wait, DEFAULT_MAX_WAIT);
    assert_eq!((request.min_bytes, request.max_bytes), (1, 1 << 20));
    assert_eq!((request.session_id, request.session_epoch, request.replica), (0, -1, None));
    let partition = &request.partitions[0];
    assert_eq!(partition.max_bytes, 1 << 20);
    assert_eq!(partition.acknowledged(), o(0));
    assert_eq!(partition.current_leader_epoch, None);
}

#[test]
fn a_present_limit_of_zero_stays_zero() {
    let mut message = by_hand();
    message.max_bytes = Some(0);
    message.max_wait_ms = Some(0);
    let request = decode_request(&Caller::default(), message).unwrap();
    assert_eq!((request.max_bytes, request.max_wait), (0, Duration::ZERO));
    assert_eq!(request.partitions[0].max_bytes, 0, "a partition's cap defaults to the request's");
}

#[test]
fn a_full_request_survives_the_wire() {
    let caller = Caller::node(Program::FollowerAgent, NodeId::new(2).unwrap());
    let bytes = encode_request(full_request()).encode_to_vec();
    let message = v1::FetchRequest::decode(bytes.as_slice()).unwrap();
    assert_eq!(decode_request(&caller, message), Ok(full_request()));
}

/// Written down once: a change of these bytes breaks peers of the last version.
#[test]
fn the_bytes_of_a_request_are_the_agreed_ones() {
    let message = with(|p| {
        p.topic_id = "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c".into();
        p.incarnation = Some("000000000000feed".into());
        p.current_leader_epoch = Some(0);
        p.acknowledged_offset = Some(0);
    });
    let expected = [
        &[0x4a, 72][..],
        &[0x0a, 0x06],
        b"orders",
        &[0x12, 0x24],
        b"b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c",
        &[0x18, 0x00],
        &[0x22, 0x10],
        b"000000000000feed",
        &[0x28, 0x00, 0x30, 0x00, 0x58, 0x00],
    ]
    .concat();
    assert_eq!(message.encode_to_vec(), expected, "zero offsets and epochs are present");
}

#[test]
fn what_is_missing_or_negative_is_named() {
    assert_eq!(refused(v1::FetchRequest::default()), "partitions");
    assert_eq!(refused(with(|p| p.topic.clear())), "partitions[0].topic");
    assert_eq!(refused(with(|p| p.topic = "..".into())), "partitions[0].topic");
    assert_eq!(refused(with(|p| p.topic_id = "7".into())), "partitions[0].topic_id");
    assert_eq!(refused(with(|p| p.partition = None)), "partitions[0].partition");
    assert_eq!(refused(with(|p| p.partition = Some(-1))), "partitions[0].partition");
    assert_eq!(refused(with(|p| p.fetch_offset = None)), "partitions[0].fetch_offset");
    assert_eq!(refused(with(|p| p.fetch_offset = Some(-1))), "partitions[0].fetch_offset");
    assert_eq!(refused(with(|p| p.last_fetched_epoch = Some(-1))), "partitions[0].last_fetched_epoch");
    assert_eq!(refused(with(|p| p.incarnation = Some("0".into()))), "partitions[0].incarnation");
    assert_eq!(refused(with(|p| p.acknowledged_offset = Some(1))), "partitions[0].acknowledged_offset");
}

#[test]
fn a_place_among_requests_needs_both_of_its_numbers() {
    let caller = Caller::default();
    let placed =
        |start, number| v1::FetchRequest { request_start: start, request_number: number, ..by_hand() };
    let order = |message| decode_request(&caller, message).unwrap().partitions[0].order;
    assert_eq!(order(placed(None, None)), None);
    assert_eq!(order(placed(Some(0), Some(0))), Some(RequestOrder { start: 0, number: 0 }));
    assert_eq!(refused(placed(Some(1), None)), "request_number");
    assert_eq!(refused(placed(None, Some(1))), "request_start");
}

#[test]
fn more_partitions_than_allowed_are_refused() {
    let mut message = by_hand();
    message.partitions = vec![message.partitions[0].clone(); MAX_PARTITIONS + 1];
    assert_eq!(refused(message), "partitions");
}

#[test]
fn a_follower_names_its_incarnation_and_the_leader_epoch() {
    let mut message = with(|p| p.current_leader_epoch = Some(0));
    message.replica_id = Some(2);
    assert_eq!(refused(message.clone()), "partitions[0].incarnation");
    message.partitions[0].incarnation = Some("feed".into());
    assert!(decode_request(&Caller::default(), message.clone()).is_ok());
    message.partitions[0].current_leader_epoch = None;
    assert_eq!(refused(message), "partitions[0].current_leader_epoch");
}

#[test]
fn a_replica_id_that_is_not_the_callers_is_refused() {
    let caller = Caller::node(Program::FollowerAgent, NodeId::new(3).unwrap());
    let error = decode_request(&caller, encode_request(full_request())).unwrap_err();
    assert_eq!(error.path(), "replica_id");
}

#[test]
fn read_committed_is_not_offered_and_unknown_levels_are_wrong() {
    let mut message = by_hand();
    message.isolation_level = v1::IsolationLevel::ReadCommitted.into();
    assert!(decode_request(&Caller::default(), message.clone()).unwrap_err().is_unsupported());
    message.isolation_level = 77;
    assert!(!decode_request(&Caller::default(), message).unwrap_err().is_unsupported());
}

#[test]
fn an_incremental_request_of_a_session_may_name_no_partition() {
    let message =
        v1::FetchRequest { session_id: Some(5), session_epoch: Some(1), ..v1::FetchRequest::default() };
    let request = decode_request(&Caller::default(), message).unwrap();
    assert_eq!((request.session_id, request.session_epoch), (5, 1));
}

#[test]
fn an_answer_survives_the_wire_and_its_records_are_not_copied() {
    let snapshot = Snapshot { high_watermark: o(0), log_start: o(0), log_end: o(9) };
    let records = Bytes::from_static(b"whole batches");
    let result = |outcome| PartitionResult {
        topic: Some("orders".parse().unwrap()),
        topic_id: Some(TopicId::random()),
        partition: PartitionIndex::new(0).unwrap(),
        outcome,
        lost: vec![
            LostRange { start: o(0), end: o(3), epochs: Vec::new() },
            LostRange { start: o(3), end: o(9), epochs: vec![EpochEntry { epoch: e(1), start: o(4) }] },
        ],
    };
    let fetched = Fetched {
        records: records.clone(),
        appended: Some(MonotonicTime::from_nanos(7)),
        traces: vec![(o(3), TraceContext::new(1, 2, true).unwrap())],
        ..Fetched::empty(snapshot)
    };
    let response = FetchResponse {
        session_id: 0,
        received: MonotonicTime::from_nanos(0),
        answered: MonotonicTime::from_nanos(5),
        throttle: Duration::from_millis(0),
        throttle_reason: None,
        partitions: vec![
            result(Ok(fetched)),
            result(Ok(Fetched::diverging(snapshot, OffsetAndEpoch { offset: o(0), epoch: e(0) }))),
            result(Err(ReplicationError::new(ErrorCode::OffsetOutOfRange, "offset 9"))),
        ],
    };
    let message = encode_response(response.clone());
    assert_eq!(message.partitions[0].records.as_ptr(), records.as_ptr());
    let encoded = Bytes::from(message.encode_to_vec());
    let again = decode_response(v1::FetchResponse::decode(encoded.clone()).unwrap()).unwrap();
    assert_eq!(again, response);
    let decoded = again.partitions[0].outcome.as_ref().unwrap().records.as_ptr();
    assert!(encoded.as_ptr_range().contains(&decoded), "decoded records are a slice of the message");
}

#[test]
fn a_malformed_trace_of_a_record_is_left_out_and_the_records_stay() {
    let snapshot = Snapshot { high_watermark: o(0), log_start: o(0), log_end: o(9) };
    let good = TraceContext::new(1, 2, true).unwrap();
    let fetched = Fetched { traces: vec![(o(3), good), (o(4), good)], ..Fetched::empty(snapshot) };
    let result = PartitionResult {
        topic: Some("orders".parse().unwrap()),
        topic_id: None,
        partition: PartitionIndex::new(0).unwrap(),
        outcome: Ok(fetched),
        lost: Vec::new(),
    };
    let mut message = encode_result(result);
    message.traces[0].traceparent = "00-1-2-01".to_owned();
    let again = decode_result(message).unwrap().outcome.unwrap();
    assert_eq!(again.traces, [(o(4), good)]);
}

#[test]
fn an_answer_without_its_bounds_is_refused() {
    let part = v1::FetchPartitionResult { partition: Some(0), high_watermark: Some(0), ..Default::default() };
    let message = v1::FetchResponse {
        received_ns: Some(0),
        answered_ns: Some(0),
        partitions: vec![part],
        ..v1::FetchResponse::default()
    };
    assert_eq!(decode_response(message).unwrap_err().path(), "partitions[0].log_start_offset");
}

#[test]
fn lost_ranges_are_in_order_and_hold_something() {
    let range =
        |start, end| v1::LostRange { start_offset: Some(start), end_offset: Some(end), epochs: Vec::new() };
    assert_eq!(decode_lost(vec![range(1, 3), range(3, 4)]).unwrap().len(), 2);
    for bad in [vec![range(3, 3)], vec![range(3, 1)], vec![range(1, 4), range(3, 5)], vec![range(-1, 4)]] {
        assert!(decode_lost(bad.clone()).is_err(), "{bad:?}");
    }
}

#[test]
fn of_many_leaderships_that_began_in_a_lost_range_the_newest_are_told() {
    let began = |raw: i32| EpochEntry { epoch: e(raw), start: o(raw.into()) };
    let lost = encode_lost(LostRange { start: o(0), end: o(99), epochs: (0..9).map(began).collect() });
    let told: Vec<_> = lost.epochs.iter().filter_map(|entry| entry.leader_epoch).collect();
    assert_eq!(told, [5, 6, 7, 8]);
}

#[test]
fn a_wait_is_rounded_up() {
    assert_eq!(millis(Duration::from_micros(1)), 1);
    assert_eq!(millis(Duration::from_millis(500)), 500);
    assert_eq!(millis(Duration::MAX), u32::MAX);
}

/// Written down once, as the bytes of a request.
#[test]
fn the_bytes_of_an_answer_are_the_agreed_ones() {
    let snapshot = Snapshot { high_watermark: o(0), log_start: o(0), log_end: o(2) };
    let fetched = Fetched {
        records: Bytes::from_static(b"RECORDS"),
        appended: Some(MonotonicTime::from_nanos(1)),
        ..Fetched::empty(snapshot)
    };
    let result = PartitionResult {
        topic: Some("t".parse().unwrap()),
        topic_id: None,
        partition: PartitionIndex::new(0).unwrap(),
        outcome: Ok(fetched),
        lost: Vec::new(),
    };
    let response = FetchResponse {
        session_id: 0,
        received: MonotonicTime::from_nanos(0),
        answered: MonotonicTime::from_nanos(1),
        throttle: Duration::ZERO,
        throttle_reason: None,
        partitions: vec![result],
    };
    let partition =
        [&[0x0a, 1][..], b"t", &[0x18, 0, 0x28, 0, 0x30, 0, 0x38, 2, 0x48, 1, 0x5a, 7], b"RECORDS"].concat();
    let length = u8::try_from(partition.len()).unwrap();
    let expected = [&[0x08, 0, 0x12, length][..], &partition, &[0x18, 0, 0x20, 1, 0x28, 0]].concat();
    assert_eq!(encode_response(response).encode_to_vec(), expected);
}

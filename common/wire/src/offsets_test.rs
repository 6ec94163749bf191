//! Offset and epoch queries on the wire.

use highwater_types::ErrorCode;

use super::*;

fn asked<Q>(query: Q) -> OffsetsRequest<Q> {
    let partition = PartitionQuery {
        topic: TopicRef::Name("orders".parse().unwrap()),
        partition: PartitionIndex::new(0).unwrap(),
        current_leader_epoch: LeaderEpoch::new(0),
        query,
    };
    OffsetsRequest { replica: NodeId::new(1), partitions: vec![partition] }
}

fn answer<A>(outcome: Result<A, ReplicationError>) -> PartitionAnswer<A> {
    let topic = TopicRef::Name("orders".parse().unwrap());
    PartitionAnswer { topic, partition: PartitionIndex::new(0).unwrap(), outcome }
}

#[test]
fn offset_queries_and_answers_survive_the_wire() {
    for query in
        [OffsetQuery::Earliest, OffsetQuery::Latest, OffsetQuery::AtOrAfter(WallTime::from_millis(-1))]
    {
        let message = encode_list_request(asked(query));
        assert_eq!(decode_list_request(&Caller::default(), message), Ok(asked(query)));
    }
    let found = FoundOffset {
        offset: Offset::new(0),
        timestamp: Some(WallTime::from_millis(0)),
        leader_epoch: LeaderEpoch::new(0),
    };
    let error = ReplicationError::new(ErrorCode::FencedLeaderEpoch, "over");
    for outcome in [Ok(found), Ok(FoundOffset::default()), Err(error)] {
        let message = encode_list_response(vec![answer(outcome.clone())]);
        assert_eq!(decode_list_response(message), Ok(vec![answer(outcome)]));
    }
}

#[test]
fn epoch_queries_and_answers_survive_the_wire() {
    for query in [None, LeaderEpoch::new(0), LeaderEpoch::new(7)] {
        let message = encode_epoch_request(asked(query));
        assert_eq!(decode_epoch_request(&Caller::default(), message), Ok(asked(query)));
    }
    let end = OffsetAndEpoch { offset: Offset::ZERO, epoch: LeaderEpoch::FIRST };
    let error = ReplicationError::new(ErrorCode::UnknownLeaderEpoch, "later");
    for outcome in [Ok(Some(end)), Ok(None), Err(error)] {
        let message = encode_epoch_response(vec![answer(outcome.clone())]);
        assert_eq!(decode_epoch_response(message), Ok(vec![answer(outcome)]));
    }
}

#[test]
fn half_an_epoch_answer_is_refused() {
    let mut message = encode_epoch_response(vec![answer(Ok(None))]);
    message.partitions[0].end_offset = Some(4);
    assert_eq!(decode_epoch_response(message.clone()).unwrap_err().path(), "partitions[0].leader_epoch");
    message.partitions[0].end_offset = None;
    message.partitions[0].leader_epoch = Some(4);
    assert_eq!(decode_epoch_response(message).unwrap_err().path(), "partitions[0].end_offset");
}

#[test]
fn a_query_for_a_place_and_a_time_is_refused() {
    let mut message = encode_list_request(asked(OffsetQuery::Latest));
    message.partitions[0].timestamp_ms = Some(0);
    let error = decode_list_request(&Caller::default(), message.clone()).unwrap_err();
    assert_eq!(error.path(), "partitions[0].timestamp_ms");
    message.partitions[0].timestamp_ms = None;
    message.partitions[0].position = 0;
    assert!(decode_list_request(&Caller::default(), message.clone()).is_err());
    message.partitions.clear();
    assert_eq!(decode_list_request(&Caller::default(), message).unwrap_err().path(), "partitions");
}

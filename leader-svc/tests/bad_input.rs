//! What people and broken programs send: each gets an answer with a code, and the program serves on.

mod support;

use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_types::ErrorCode;
use highwater_wire::failure::classify;
use support::{batch, code, fetch_request, produce_request, start, unhex};
use tonic::Code;

const FX2: &str = "000000000000222100000031000000000235fe512800000000000affffffffffffffff00000000000003e8ffffffffffffffffffffffffffff00000000";
const FX6: &str = "0000000000000000000000410000000002ae55096000000000000100000000000003e800000000000003e8ffffffffffffffffffffffffffff000000020e000000010261000e00000201026300";

#[tokio::test]
async fn a_bad_fetch_is_answered_with_a_code() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let topic = node.topic("t", &[]).await;
    let status = async |change: fn(&mut v1::FetchRequest)| {
        let mut request = fetch_request("t", 0);
        request.max_wait_ms = Some(0);
        change(&mut request);
        node.log.clone().fetch(request).await.map(|_| ()).unwrap_err()
    };
    assert_eq!(status(|r| r.partitions.clear()).await.code(), Code::InvalidArgument, "zero partitions");
    assert_eq!(status(|r| r.partitions[0].fetch_offset = Some(-1)).await.code(), Code::InvalidArgument);
    assert_eq!(status(|r| r.partitions[0].partition = Some(-1)).await.code(), Code::InvalidArgument);
    assert_eq!(status(|r| r.partitions[0].topic = "../etc".into()).await.code(), Code::InvalidArgument);
    assert_eq!(status(|r| r.partitions[0].topic = String::new()).await.code(), Code::InvalidArgument);
    assert_eq!(status(|r| r.isolation_level = 2).await.code(), Code::Unimplemented);
    assert_eq!(status(|r| r.cluster_id = Some("another".into())).await.code(), Code::FailedPrecondition);
    assert_eq!(status(|r| r.session_epoch = Some(3)).await.code(), Code::InvalidArgument);
    for length in [17_000, 100_000] {
        let began = Instant::now();
        let mut request = fetch_request("t", 0);
        request.partitions[0].topic = "x".repeat(length);
        let status = node.log.clone().fetch(request).await.map(|_| ()).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "grpc-rust#1834");
        assert!(status.message().len() <= 4096 && began.elapsed() < Duration::from_secs(1));
    }
    let partition = async |change: &dyn Fn(&mut v1::FetchPartition)| {
        let mut request = fetch_request("t", 0);
        request.max_wait_ms = Some(0);
        change(&mut request.partitions[0]);
        code(&node.fetch(request).await.partitions[0].error)
    };
    use v1::ErrorCode as E;
    assert_eq!(partition(&|p| p.fetch_offset = Some(99)).await, Some(E::OffsetOutOfRange));
    assert_eq!(partition(&|p| p.topic = "nowhere".into()).await, Some(E::UnknownTopicOrPartition));
    assert_eq!(partition(&|p| p.partition = Some(9)).await, Some(E::UnknownTopicOrPartition));
    let other = "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c";
    assert_eq!(partition(&|p| p.topic_id = other.into()).await, Some(E::InconsistentTopicId));
    let by_id = |id: &str| {
        let id = id.to_owned();
        move |p: &mut v1::FetchPartition| {
            p.topic = String::new();
            p.topic_id.clone_from(&id);
        }
    };
    assert_eq!(partition(&by_id(other)).await, Some(E::UnknownTopicId));
    assert_eq!(partition(&by_id(&topic.topic_id)).await, None, "by id alone");
    node.stop().await;
}

#[tokio::test]
async fn a_bad_produce_appends_nothing_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[("max.message.bytes", "1000")]).await;
    use v1::ErrorCode as E;
    let refused = async |records: Vec<u8>| code(&node.produce("t", v1::Acks::All, records).await.error);
    assert_eq!(refused(unhex(FX2)).await, Some(E::InvalidRecord), "empty batch");
    assert_eq!(refused(unhex(FX6)).await, Some(E::CorruptMessage), "wrong CRC");
    assert!(refused(vec![0; 200]).await.is_some(), "no batch at all");
    for magic in [0, 1] {
        let mut bytes = batch(1, 10);
        bytes[16] = magic;
        assert_eq!(refused(bytes).await, Some(E::Unsupported), "magic {magic}");
    }
    assert_eq!(refused(batch(1, 2000)).await, Some(E::MessageTooLarge));
    let mut twice = produce_request("t", v1::Acks::All, batch(1, 10));
    twice.partitions.push(twice.partitions[0].clone());
    let status = node.log.clone().produce(twice).await.map(|_| ()).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let mut fenced = produce_request("t", v1::Acks::All, batch(1, 10));
    fenced.partitions[0].current_leader_epoch = Some(9);
    let answer = node.log.clone().produce(fenced).await.unwrap().into_inner();
    assert_eq!(code(&answer.partitions[0].error), Some(E::UnknownLeaderEpoch));
    assert_eq!(node.fetch_one("t", 0).await.high_watermark, Some(0), "nothing was appended");
    assert_eq!(node.append("t", batch(1, 10)).await, 0);
    node.stop().await;
}

#[tokio::test]
async fn a_request_above_the_limit_is_refused_and_the_channel_works_on() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[]).await;
    let huge = produce_request("t", v1::Acks::All, vec![0; 200_000_000]);
    let status = node.log.clone().produce(huge).await.map(|_| ()).unwrap_err();
    assert_eq!(classify(&status).code, Some(ErrorCode::MessageTooLarge), "{status:?}");
    assert_eq!(node.append("t", batch(1, 10)).await, 0);
    node.stop().await;
}

//! cases.md E, tonic's 4 MiB default: the limit is on the message, what was agreed is on the records.

use bytes::Bytes;
use highwater_proto::v1;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_wire::limits;
use tonic::{Code, Request};

use crate::fake::FakeNode;
use crate::transport::{TransportOptions, connect_lazy};

/// An answer of many partitions whose records are exactly `max_bytes`.
fn answer(max_bytes: u32, partitions: u32) -> v1::FetchResponse {
    let part = |index: u32| {
        let rest = if index == 0 { max_bytes % partitions } else { 0 };
        v1::FetchPartitionResult {
            topic: "x".repeat(249),
            topic_id: "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c".into(),
            partition: i32::try_from(index).ok(),
            high_watermark: Some(i64::MAX),
            log_start_offset: Some(i64::MAX),
            log_end_offset: Some(i64::MAX),
            records: Bytes::from(vec![1; usize::try_from(max_bytes / partitions + rest).unwrap()]),
            ..Default::default()
        }
    };
    v1::FetchResponse { partitions: (0..partitions).map(part).collect(), ..Default::default() }
}

#[tokio::test]
async fn an_answer_of_exactly_max_bytes_decodes_and_the_default_limit_would_refuse_it() {
    let node = FakeNode::start(1).await;
    for max_bytes in [4_194_303_u32, 4_194_304, 4_194_305, 8_388_608, 10_485_760] {
        for partitions in [1_u32, 200] {
            let expected = answer(max_bytes, partitions);
            let told = expected.clone();
            node.state().on_fetch = Some(Box::new(move |_| Some(Ok(told.clone()))));
            let channel = connect_lazy(&node.endpoint, &TransportOptions::default()).unwrap();
            let limit = limits::fetch_response(max_bytes, 0, usize::try_from(partitions).unwrap());
            let mut derived = LogServiceClient::new(channel.clone()).max_decoding_message_size(limit);
            let fetched = derived.fetch(Request::new(v1::FetchRequest::default())).await.unwrap();
            assert!(fetched.into_inner() == expected, "{max_bytes} bytes, {partitions} partitions");
            let mut default = LogServiceClient::new(channel);
            let refused = default.fetch(Request::new(v1::FetchRequest::default())).await.unwrap_err();
            assert_eq!(refused.code(), Code::OutOfRange, "{max_bytes} bytes, {partitions} partitions");
        }
    }
}

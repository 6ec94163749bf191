//! The task of one partition: takes batches, sends them in one request, tells their records.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use highwater_proto::v1;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_types::{ErrorCode, Offset, TopicPartition};
use highwater_wire::fetch::TopicRef;
use highwater_wire::produce::{
    ProducePartition, ProduceRecords, ProduceRequest, decode_response, encode_request,
};
use highwater_wire::trace;
use tokio::time::Instant;
use tonic::Request;

use super::Shared;
use super::batch::{ClosedBatch, Outcome};
use super::queue::PartitionQueue;
use crate::ClientError;
use crate::metadata::Leader;
use crate::route::{TryError, bad_answer, no_answer};

/// How much sooner than the call's deadline the leader is to give up, so that its answer arrives.
const DEADLINE_MARGIN: Duration = Duration::from_millis(500);

/// Sends the partition's batches, one request at a time, until it is dropped.
pub(super) async fn run(shared: Arc<Shared>, partition: TopicPartition, queue: Arc<PartitionQueue>) {
    loop {
        let batches = queue.take(&shared.config).await;
        let outcome = send(&shared, &partition, &batches).await;
        if batches.len() > 1 && outcome.as_ref().is_err_and(is_of_one_batch) {
            // The others are not to fail with it. Nothing of the request was appended.
            for batch in batches {
                let alone = VecDeque::from([batch]);
                let outcome = send(&shared, &partition, &alone).await;
                complete(&shared, alone, &outcome);
            }
        } else {
            complete(&shared, batches, &outcome);
        }
    }
}

/// Whether the request was refused for what one of its batches is.
fn is_of_one_batch(error: &ClientError) -> bool {
    matches!(
        error.code(),
        Some(ErrorCode::MessageTooLarge | ErrorCode::InvalidRecord | ErrorCode::CorruptMessage)
    )
}

/// The offset of the first record of the first batch, or why they were not delivered.
async fn send(shared: &Shared, partition: &TopicPartition, batches: &VecDeque<ClosedBatch>) -> Outcome {
    let records = joined(batches);
    let oldest = batches.iter().map(|batch| batch.opened).min().unwrap_or_else(Instant::now);
    let give_up = oldest + shared.config.delivery_timeout;
    let records = &records;
    shared
        .client
        .at_leader(partition, give_up, |leader| send_once(shared, partition, leader, records.clone()))
        .await
}

async fn send_once(
    shared: &Shared,
    partition: &TopicPartition,
    leader: Leader,
    records: Bytes,
) -> Result<Option<Offset>, TryError> {
    let timeout = shared.client.config().request_timeout;
    let request = encode_request(ProduceRequest {
        cluster: None,
        acks: shared.config.acks,
        timeout: timeout.saturating_sub(DEADLINE_MARGIN).max(timeout / 2),
        partitions: vec![ProducePartition {
            topic: TopicRef::Name(partition.topic.clone()),
            partition: partition.partition,
            current_leader_epoch: Some(leader.epoch),
            records: ProduceRecords::Batches(records),
        }],
    });
    let rpc = |channel, mut request: Request<v1::ProduceRequest>| async move {
        if let Some(context) = shared.config.trace {
            trace::inject(context, request.metadata_mut());
        }
        LogServiceClient::new(channel).produce(request).await
    };
    let answer = shared.client.call(&leader.endpoint, request, timeout, rpc).await?;
    let (results, throttle) = decode_response(answer).map_err(|e| bad_answer(&leader, e))?;
    let result = results.into_iter().next().ok_or_else(|| no_answer(&leader))?;
    let produced = result.outcome.map_err(TryError::Partition)?;
    // Whatever a peer says, the partition goes on after the time of one call.
    tokio::time::sleep(throttle.min(timeout)).await;
    Ok(produced.base_offset)
}

/// One batch is sent as it is; several are put behind each other, which costs a copy and saves a round trip each.
fn joined(batches: &VecDeque<ClosedBatch>) -> Bytes {
    let mut all = batches.iter();
    match (all.next(), all.next()) {
        (Some(only), None) => only.bytes.clone(),
        _ => {
            let size = batches.iter().map(|batch| batch.bytes.len()).sum();
            let mut joined = BytesMut::with_capacity(size);
            for batch in batches {
                joined.extend_from_slice(&batch.bytes);
            }
            joined.freeze()
        }
    }
}

fn complete(shared: &Shared, batches: VecDeque<ClosedBatch>, outcome: &Outcome) {
    if let Err(error) = outcome {
        shared.state().failed.get_or_insert_with(|| error.clone());
    }
    let mut before = 0;
    for batch in batches {
        let records = batch.records;
        batch.complete(outcome.clone().map(|base| base.map(|base| base.advance(before))));
        before += records;
    }
}

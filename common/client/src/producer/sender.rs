//! The task of one partition: takes its batches one after the other, sends each until its outcome is known, tells its records.
//!
//! What must hold: a batch is sent again with the same bytes as long as an earlier try of it may have been appended, so that
//! the leader knows it (design.md 6.10); one request carries one batch, because of a producer's batches a leader may
//! remember the newest only, after a restart. What follows an acknowledged batch goes to the same topic: one that was deleted and
//! created anew under its name is another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use highwater_proto::v1;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_records::Producer;
use highwater_types::{ErrorCode, Offset, Retry, TopicId, TopicPartition};
use highwater_wire::Reached;
use highwater_wire::fetch::TopicRef;
use highwater_wire::produce::{
    ProducePartition, ProduceRecords, ProduceRequest, decode_response, encode_request,
};
use highwater_wire::trace;
use tokio::time::Instant;
use tonic::Request;

use super::Shared;
use super::batch::{ClosedBatch, Outcome};
use super::identity::Identity;
use super::queue::PartitionQueue;
use crate::ClientError;
use crate::metadata::Leader;
use crate::route::{TryError, bad_answer, no_answer};

/// How much sooner than the call's deadline the leader is to give up, so that its answer arrives.
const DEADLINE_MARGIN: Duration = Duration::from_millis(500);

/// The least that a try has, also at the end of its batch's time.
const TRY_MIN: Duration = Duration::from_millis(100);

/// Sends the partition's batches, one at a time, until it is dropped.
pub(super) async fn run(shared: Arc<Shared>, partition: TopicPartition, queue: Arc<PartitionQueue>) {
    let mut identity = shared.first_id.map(Identity::new);
    let mut acknowledged_by = None;
    loop {
        let mut batch = queue.take(&shared.config).await;
        let outcome = deliver(&shared, &partition, &mut batch, identity.as_mut(), &mut acknowledged_by).await;
        if let Err(error) = &outcome {
            shared.state().failed.get_or_insert_with(|| error.clone());
        }
        batch.complete(outcome);
    }
}

/// A batch that was not acknowledged.
struct Failed {
    error: ClientError,
    /// Whether one of its tries may have been appended.
    is_unresolved: bool,
}

/// The offset of the batch's first record, or why it was not delivered.
async fn deliver(
    shared: &Shared,
    partition: &TopicPartition,
    batch: &mut ClosedBatch,
    mut identity: Option<&mut Identity>,
    acknowledged_by: &mut Option<TopicId>,
) -> Outcome {
    loop {
        let producer = identity.as_ref().map(|identity| identity.of_next_batch());
        if let Some(producer) = producer {
            batch.set_producer(producer);
        }
        let failed = match send(shared, partition, *acknowledged_by, batch).await {
            Ok((base_offset, topic_id)) => {
                *acknowledged_by = topic_id;
                if let Some(identity) = identity {
                    identity.on_acknowledged(batch.records);
                }
                return Ok(base_offset);
            }
            Err(failed) => failed,
        };
        let code = failed.error.code();
        let is_sent_again = identity
            .as_mut()
            .is_some_and(|identity| identity.on_failed(code, failed.is_unresolved, shared.fresh_id()));
        if !is_sent_again {
            return Err(explain(failed, partition, batch.records, producer));
        }
        tracing::info!(%partition, "the leader has forgotten this producer: it goes on under a new id");
    }
}

/// Tries the batch as it is until it is acknowledged, cannot be, or its time is over.
async fn send(
    shared: &Shared,
    partition: &TopicPartition,
    acknowledged_by: Option<TopicId>,
    batch: &ClosedBatch,
) -> Result<(Option<Offset>, Option<TopicId>), Failed> {
    let give_up = batch.opened + shared.config.delivery_timeout;
    // What a later try is told says nothing about an earlier one.
    let is_unresolved = &AtomicBool::new(false);
    let attempt = |leader| async move {
        let known = || shared.client.metadata().topic(&partition.topic).map(|topic| topic.record.id);
        let topic_id = acknowledged_by.or_else(known);
        let to = To { partition, topic_id, leader };
        let tried = send_once(shared, to, batch.bytes.clone(), give_up).await;
        tried
            .map(|base_offset| (base_offset, topic_id))
            .inspect_err(|error| _ = is_unresolved.fetch_or(may_be_appended(error), Ordering::Relaxed))
    };
    let sent = shared.client.at_leader(partition, give_up, attempt).await;
    sent.map_err(|error| Failed { error, is_unresolved: is_unresolved.load(Ordering::Relaxed) })
}

/// Where a try goes.
struct To<'a> {
    partition: &'a TopicPartition,
    /// Of the topic that is meant, where it is known.
    topic_id: Option<TopicId>,
    leader: Leader,
}

async fn send_once(
    shared: &Shared,
    To { partition, topic_id, leader }: To<'_>,
    records: Bytes,
    give_up: Instant,
) -> Result<Option<Offset>, TryError> {
    let left = give_up.saturating_duration_since(Instant::now()).max(TRY_MIN);
    let timeout = shared.client.config().request_timeout.min(left);
    let request = encode_request(ProduceRequest {
        cluster: None,
        acks: shared.config.acks,
        timeout: timeout.saturating_sub(DEADLINE_MARGIN).max(timeout / 2),
        partitions: vec![ProducePartition {
            topic: match topic_id {
                Some(id) => TopicRef::Both { name: partition.topic.clone(), id },
                None => TopicRef::Name(partition.topic.clone()),
            },
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
    let times = (Duration::ZERO, timeout);
    let answer = shared.client.call_leader(partition, &leader, request, times, rpc).await?;
    let (results, throttle) = decode_response(answer).map_err(|e| bad_answer(&leader, e))?;
    let result = results.into_iter().next().ok_or_else(|| no_answer(&leader))?;
    let produced = result.outcome.map_err(TryError::Partition)?;
    // Whatever a peer says, the partition goes on after the time of one call.
    tokio::time::sleep(throttle.min(timeout)).await;
    Ok(produced.base_offset)
}

/// Whether a try that failed so may have appended its batch. What is in doubt counts as appended.
fn may_be_appended(error: &TryError) -> bool {
    match error {
        TryError::Call(ClientError::Call { failure, .. }) => failure.reached == Reached::Unknown,
        TryError::Call(_) => true,
        TryError::Partition(error) => {
            // These come before the append, or with the end of the topic; so does whatever no retry can help.
            let is_refusal = matches!(
                error.code,
                ErrorCode::NotEnoughReplicas
                    | ErrorCode::FencedLeaderEpoch
                    | ErrorCode::UnknownLeaderEpoch
                    | ErrorCode::LeaderNotAvailable
                    | ErrorCode::UnknownTopicOrPartition
                    | ErrorCode::InconsistentTopicId
            );
            !is_refusal && error.retry() == Retry::Retryable
        }
    }
}

/// The error for people: whether the records may be in the log, and what is missing there.
fn explain(
    failed: Failed,
    partition: &TopicPartition,
    records: i32,
    producer: Option<Producer>,
) -> ClientError {
    let Failed { mut error, is_unresolved } = failed;
    if let ClientError::Answered { error, .. } = &mut error {
        if error.code == ErrorCode::OutOfOrderSequence {
            error.message.push_str(": records that were acknowledged before are not in the leader's log");
        }
        if error.code == ErrorCode::InconsistentTopicId {
            error
                .message
                .push_str(": it was created anew, and what was acknowledged before went to the old one");
        }
    }
    if !is_unresolved {
        return error;
    }
    let numbers = producer.map_or_else(String::new, |Producer { id, epoch, base_sequence }| {
        format!("; producer {id}, epoch {epoch}, from sequence {base_sequence} on")
    });
    let what = format!("a batch of {partition} (records: {records}{numbers})");
    ClientError::OutcomeUnknown { what, last: Box::new(error) }
}

#[cfg(test)]
#[path = "sender_test.rs"]
mod tests;

//! Calls that need a partition's leader: found, asked, and looked for again when it moved.

use std::future::Future;
use std::sync::Arc;

use highwater_proto::v1;
use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_types::units::counted;
use highwater_types::{ErrorCode, ReplicationError, Retry, TopicName, TopicPartition};
use highwater_wire::cluster::{DescribedTopic, decode_topic};
use highwater_wire::error::decode_error;
use highwater_wire::limits::DESCRIPTION_LIMIT;
use highwater_wire::{DecodeError, FailureKind};
use tokio::time::Instant;

use crate::client::{Client, Repeat};
use crate::metadata::{Leader, find};
use crate::{Backoff, ClientError};

/// How often a topic that nobody knows is asked for: it can be so new that not every node knows it, but a wrong name must
/// not cost the whole retry time.
const UNKNOWN_TOPIC_TRIES: u32 = 4;

/// How one try at a leader failed.
pub(crate) enum TryError {
    /// The call failed, or its answer does not follow the protocol.
    Call(ClientError),
    /// The partition answered with an error.
    Partition(ReplicationError),
}

impl From<ClientError> for TryError {
    fn from(error: ClientError) -> Self {
        Self::Call(error)
    }
}

/// The error of an answer that does not follow the protocol.
pub(crate) fn bad_answer(leader: &Leader, error: DecodeError) -> TryError {
    TryError::Call(ClientError::Answer { endpoint: leader.endpoint.clone(), error })
}

/// The error of an answer that leaves out the partition that was asked for.
pub(crate) fn no_answer(leader: &Leader) -> TryError {
    bad_answer(leader, DecodeError::invalid("partitions", "does not have the partition that was asked for"))
}

impl Client {
    /// A topic, as last described.
    ///
    /// # Errors
    /// As [`Client::describe_topic`].
    pub async fn topic(&self, name: &TopicName) -> Result<Arc<DescribedTopic>, ClientError> {
        match self.metadata().topic(name) {
            Some(known) => Ok(known),
            None => self.describe_topic(name).await,
        }
    }

    /// A topic, described now.
    ///
    /// # Errors
    /// [`ClientError::Answered`] with `UnknownTopicOrPartition` when no node knows it; [`ClientError::GaveUp`].
    pub async fn describe_topic(&self, name: &TopicName) -> Result<Arc<DescribedTopic>, ClientError> {
        self.describe_topic_until(name, self.give_up()).await
    }

    async fn describe_topic_until(
        &self,
        name: &TopicName,
        give_up: Instant,
    ) -> Result<Arc<DescribedTopic>, ClientError> {
        let mut backoff = Backoff::default();
        let mut tries = 0;
        loop {
            let error = match self.describe_topic_once(name, give_up).await? {
                Ok(described) => return Ok(self.metadata().learn(described)),
                Err(error) => error,
            };
            tries += 1;
            if error.retry() == Retry::Terminal || tries >= UNKNOWN_TOPIC_TRIES {
                self.metadata().forget(name);
                return Err(ClientError::Answered { what: name.to_string(), error });
            }
            tokio::time::sleep(backoff.after_failure(None)).await;
        }
    }

    async fn describe_topic_once(
        &self,
        name: &TopicName,
        give_up: Instant,
    ) -> Result<Result<DescribedTopic, ReplicationError>, ClientError> {
        let selector = v1::TopicSelector { topic: name.to_string(), topic_id: String::new() };
        let request = v1::DescribeTopicsRequest { topics: vec![selector] };
        let rpc = |channel, request| async move {
            ClusterServiceClient::new(channel)
                .max_decoding_message_size(DESCRIPTION_LIMIT)
                .describe_topics(request)
                .await
        };
        let (endpoint, answer) =
            self.call_any("describing the topic", request, Repeat::Always, give_up, rpc).await?;
        let invalid = |error| ClientError::Answer { endpoint: endpoint.clone(), error };
        let description = answer
            .topics
            .into_iter()
            .next()
            .ok_or_else(|| invalid(DecodeError::invalid("topics", "is empty")))?;
        if let Some(error) = description.error {
            return Ok(Err(decode_error(error).map_err(invalid)?));
        }
        let topic = description.topic.ok_or_else(|| invalid(DecodeError::invalid("topic", "is missing")))?;
        Ok(Ok(decode_topic(&topic).map_err(invalid)?))
    }

    /// Tries `attempt` at the partition's leader until it succeeds, cannot succeed, or `give_up` is reached.
    ///
    /// # Errors
    /// [`ClientError`] of the last try, in [`ClientError::GaveUp`] when the time was over.
    pub(crate) async fn at_leader<T, F, Fut>(
        &self,
        partition: &TopicPartition,
        give_up: Instant,
        attempt: F,
    ) -> Result<T, ClientError>
    where
        F: Fn(Leader) -> Fut,
        Fut: Future<Output = Result<T, TryError>>,
    {
        let mut backoff = Backoff::default();
        let mut unknown = 0;
        loop {
            let leader = self.find_leader(partition).await?;
            let known = leader.is_some();
            let error = match leader {
                Some(leader) => match attempt(leader.clone()).await {
                    Ok(done) => return Ok(done),
                    Err(error) => self.learn_from(partition, &leader, error)?,
                },
                None => {
                    let error =
                        ReplicationError::new(ErrorCode::LeaderNotAvailable, "has no leader at present");
                    Moved {
                        error: ClientError::Answered { what: partition.to_string(), error },
                        hinted: false,
                    }
                }
            };
            if matches!(
                error.error.code(),
                Some(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId)
            ) {
                unknown += 1;
                if unknown >= UNKNOWN_TOPIC_TRIES {
                    return Err(error.error);
                }
            }
            let wait = backoff.after_failure(retry_after(&error.error));
            if Instant::now() + wait >= give_up {
                let what = partition.to_string();
                return Err(ClientError::GaveUp { what, last: Box::new(error.error) });
            }
            tokio::time::sleep(wait).await;
            if !(known && error.hinted) {
                self.describe_topic_until(&partition.topic, give_up).await?;
            }
        }
    }

    /// The partition's leader; `None` while it has none, or nobody knows where it is.
    async fn find_leader(&self, partition: &TopicPartition) -> Result<Option<Leader>, ClientError> {
        let topic = self.topic(&partition.topic).await?;
        if find(&topic, partition.partition).is_none() {
            let have = counted(u64::from(topic.record.partitions.unsigned_abs()), "partition");
            return Err(ClientError::Usage(format!("{partition}: the topic has {have}")));
        }
        Ok(self.metadata().leader(partition))
    }

    /// Takes what a failed try says about who leads; an error that no further try can help is returned as such.
    fn learn_from(
        &self,
        partition: &TopicPartition,
        leader: &Leader,
        error: TryError,
    ) -> Result<Moved, ClientError> {
        match error {
            TryError::Call(ClientError::Call { endpoint, failure }) => {
                let hinted =
                    failure.leader.as_ref().is_some_and(|h| self.metadata().learn_hint(partition, h));
                let terminal = failure.kind == FailureKind::Terminal;
                let error = ClientError::Call { endpoint, failure };
                if terminal { Err(error) } else { Ok(Moved { error, hinted }) }
            }
            TryError::Call(error) => Err(error),
            TryError::Partition(error) => {
                let hinted = error.leader.as_ref().is_some_and(|h| self.metadata().learn_hint(partition, h));
                if error.code == ErrorCode::NotLeaderOrFollower && !hinted {
                    // It says nothing better than what led here: the address may be another program's by now.
                    self.pool().in_doubt(&leader.endpoint);
                }
                let terminal = error.retry() == Retry::Terminal;
                let error = ClientError::Answered { what: partition.to_string(), error };
                if terminal { Err(error) } else { Ok(Moved { error, hinted }) }
            }
        }
    }
}

/// A try that failed, and whether it told who leads now.
struct Moved {
    error: ClientError,
    hinted: bool,
}

fn retry_after(error: &ClientError) -> Option<std::time::Duration> {
    let ClientError::Call { failure, .. } = error else { return None };
    failure.retry_after
}

//! Calls that need a partition's leader: found, asked, and looked for again when it moved.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use highwater_proto::v1;
use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_types::units::counted;
use highwater_types::{Endpoint, ErrorCode, ReplicationError, Retry, TopicName, TopicPartition};
use highwater_wire::cluster::{DescribedTopic, decode_topic};
use highwater_wire::error::decode_error;
use highwater_wire::limits::DESCRIPTION_LIMIT;
use highwater_wire::{DecodeError, Failure, FailureKind, Reached};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::client::{Client, Repeat};
use crate::metadata::{Leader, find};
use crate::{Backoff, ClientError};

/// How often a topic that nobody knows is asked for: it can be so new that not every node knows it, but a wrong name must
/// not cost the whole retry time.
const UNKNOWN_TOPIC_TRIES: u32 = 4;

/// The longest pause between two tries at a partition's leader (`retry.backoff.max.ms` of Kafka's clients): so much later
/// than possible a partition that is led again is written to at most.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How much longer than it has to a leader may be silent before other nodes are asked whether it still leads.
const SILENCE: Duration = Duration::from_secs(1);

/// How often they are asked, for each topic, while it is silent; and how long they may take.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOK_TIME: Duration = Duration::from_secs(1);

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
        let (endpoint, answer) = self
            .call_any("describing the topic", naming(name), Repeat::Soon, give_up, describe_topics)
            .await?;
        decode_description(&endpoint, answer)
    }

    /// One call to a partition's leader, which may take `wait` by itself. It is given up as soon as another node says that the
    /// partition is led anew: a leader that has fallen silent is not waited for.
    ///
    /// # Errors
    /// As [`Client::call`]; of a call that was given up it is not known whether it was carried out.
    pub(crate) async fn call_leader<M, R, F, Fut>(
        &self,
        partition: &TopicPartition,
        leader: &Leader,
        message: M,
        (wait, timeout): (Duration, Duration),
        rpc: F,
    ) -> Result<R, ClientError>
    where
        F: FnOnce(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let answer = self.call(&leader.endpoint, message, timeout, rpc);
        let led_anew = async {
            tokio::time::sleep(wait + SILENCE).await;
            self.until_led_anew(partition, leader).await;
        };
        tokio::select! {
            biased;
            answer = answer => answer,
            () = led_anew => Err(self.given_up(partition, leader)),
        }
    }

    /// Waits until a leadership after this one is known, for which the others are asked.
    async fn until_led_anew(&self, partition: &TopicPartition, leader: &Leader) {
        while !self.metadata().is_led_after(partition, leader.epoch) {
            if self.metadata().is_look_due(&partition.topic, LOOK_EVERY) {
                let asked = self.next_endpoint_but(&leader.endpoint);
                let answer = self.call(&asked, naming(&partition.topic), LOOK_TIME, describe_topics).await;
                // Who cannot say it now is asked again, or another one is.
                if let Ok(Ok(described)) = answer.and_then(|answer| decode_description(&asked, answer)) {
                    self.metadata().learn(described);
                    continue;
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn given_up(&self, partition: &TopicPartition, leader: &Leader) -> ClientError {
        self.pool().in_doubt(&leader.endpoint);
        let failure = Failure {
            kind: FailureKind::Deadline,
            retry_after: None,
            status: Code::DeadlineExceeded,
            code: None,
            leader: None,
            reached: Reached::Unknown,
            message: format!("is silent, and another node leads {partition} now"),
        };
        ClientError::Call { endpoint: leader.endpoint.clone(), failure }
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
        let mut backoff = Backoff::up_to(PAUSE_MAX);
        let mut unknown = 0;
        loop {
            let leader = self.find_leader(partition).await?;
            let error = match &leader {
                Some(leader) => match attempt(leader.clone()).await {
                    Ok(done) => return Ok(done),
                    Err(error) => self.learn_from(partition, leader, error)?,
                },
                None => {
                    let error =
                        ReplicationError::new(ErrorCode::LeaderNotAvailable, "has no leader at present");
                    ClientError::Answered { what: partition.to_string(), error }
                }
            };
            // One of the id can be so new that its leader has not heard of it.
            let is_unknown = matches!(
                error.code(),
                Some(
                    ErrorCode::UnknownTopicOrPartition
                        | ErrorCode::UnknownTopicId
                        | ErrorCode::InconsistentTopicId
                )
            );
            if is_unknown {
                unknown += 1;
                if unknown >= UNKNOWN_TOPIC_TRIES {
                    return Err(error);
                }
            }
            let wait = backoff.after_failure(retry_after(&error));
            if Instant::now() + wait >= give_up {
                let what = partition.to_string();
                return Err(ClientError::GaveUp { what, last: Box::new(error) });
            }
            tokio::time::sleep(wait).await;
            if !leader.is_some_and(|tried| self.metadata().is_led_after(partition, tried.epoch)) {
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
    ) -> Result<ClientError, ClientError> {
        match error {
            TryError::Call(ClientError::Call { endpoint, failure }) => {
                if let Some(hint) = &failure.leader {
                    self.metadata().learn_hint(partition, hint);
                }
                let terminal = failure.kind == FailureKind::Terminal;
                let error = ClientError::Call { endpoint, failure };
                if terminal { Err(error) } else { Ok(error) }
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
                if terminal { Err(error) } else { Ok(error) }
            }
        }
    }
}

fn naming(topic: &TopicName) -> v1::DescribeTopicsRequest {
    let selector = v1::TopicSelector { topic: topic.to_string(), topic_id: String::new() };
    v1::DescribeTopicsRequest { topics: vec![selector] }
}

async fn describe_topics(
    channel: Channel,
    request: Request<v1::DescribeTopicsRequest>,
) -> Result<Response<v1::DescribeTopicsResponse>, Status> {
    let client = ClusterServiceClient::new(channel);
    client.max_decoding_message_size(DESCRIPTION_LIMIT).describe_topics(request).await
}

/// The one topic that was asked for.
fn decode_description(
    endpoint: &Endpoint,
    answer: v1::DescribeTopicsResponse,
) -> Result<Result<DescribedTopic, ReplicationError>, ClientError> {
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

fn retry_after(error: &ClientError) -> Option<Duration> {
    let ClientError::Call { failure, .. } = error else { return None };
    failure.retry_after
}

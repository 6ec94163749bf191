//! The consumer: reads partitions from a place on, and follows them.
//!
//! What holds:
//! - One task per partition fetches and decodes ahead of the reader by at most a few answers; a partition whose
//!   leader is away does not hold up the others.
//! - The next offset comes from the last batch's header, never from its records: a batch may be empty (cases.md: empty
//!   batch after compaction). Control batches are passed over, and so are records below the place that was asked for.
//! - Nothing is returned twice or left out while the leader's log holds it.
//! - The topic is named by its id too: a topic that is created again under the name ends the reading.
//!
//! Deliberately absent: consumer groups and stored positions.

use std::time::Duration;

use bytes::Bytes;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_records::{Record, batches, records};
use highwater_types::units::counted;
use highwater_types::{
    ErrorCode, Offset, PartitionIndex, TopicId, TopicName, TopicPartition, TopicProperties, WallTime,
};
use highwater_wire::fetch::{
    FetchPartition, FetchRequest, Fetched, NO_SESSION, TopicRef, decode_response, encode_request,
};
use highwater_wire::limits;
use highwater_wire::offsets::OffsetQuery;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::Client;
use crate::metadata::Leader;
use crate::route::{TryError, bad_answer, no_answer};
use crate::{Backoff, ClientError};

/// Answers that wait for the reader, for each partition.
const READ_AHEAD: usize = 2;
/// Batches that were adopted or were produced under an older limit can be larger than `max.message.bytes` says.
const LARGEST_BATCH_FLOOR: u32 = 64 << 20;
/// How often a batch that fails its checks is fetched again before it counts as damaged: it can be a view of a truncation.
const CORRUPT_TRIES: u32 = 3;
/// How long a consumer waits where the leader lacks records that it should have: it hands over to one that has them, as soon as
/// it has noticed.
const DATA_LOSS_PATIENCE: Duration = Duration::from_secs(3);
/// How much longer than its wait a fetch may take.
const FETCH_MARGIN: Duration = Duration::from_secs(10);

/// Where a consumer starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// The first retained record.
    Earliest,
    /// The high watermark: only what is produced from now on.
    Latest,
    /// This offset.
    Offset(Offset),
    /// The first record at or after this time; the end when there is none.
    Time(WallTime),
}

/// What a consumer does when its place is not in the log (any more).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResetPolicy {
    /// End with the error.
    #[default]
    Fail,
    /// Go on at the first retained record.
    Earliest,
    /// Go on at the high watermark.
    Latest,
}

/// How a consumer reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerConfig {
    /// `auto.offset.reset`.
    pub reset: ResetPolicy,
    /// `fetch.max.wait.ms`.
    pub max_wait: Duration,
    /// `fetch.min.bytes`.
    pub min_bytes: u32,
    /// `max.partition.fetch.bytes`: soft cap of one answer, in bytes.
    pub max_bytes: u32,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            reset: ResetPolicy::Fail,
            max_wait: Duration::from_millis(500),
            min_bytes: 1,
            max_bytes: 1 << 20,
        }
    }
}

/// What was read from one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Polled {
    /// The partition.
    pub partition: TopicPartition,
    /// The records, by offset; empty when there was nothing but control records or empty batches, and in the first answer
    /// of a partition that has nothing to read.
    pub records: Vec<Record>,
    /// Where the partition's reading goes on.
    pub next_offset: Offset,
    /// The high watermark that the leader told (exclusive): `next_offset` at or above it means that all was read.
    pub high_watermark: Offset,
}

/// Reads partitions of one topic. Dropping it ends its tasks.
#[derive(Debug)]
pub struct Consumer {
    partitions: Vec<TopicPartition>,
    answers: mpsc::Receiver<Result<Polled, ClientError>>,
    _tasks: JoinSet<()>,
}

impl Consumer {
    /// Starts to read `partitions` (all of the topic when empty).
    ///
    /// # Errors
    /// [`ClientError::Usage`] for a partition that the topic does not have; failures to find the topic.
    pub async fn start(
        client: &Client,
        topic: &TopicName,
        partitions: &[PartitionIndex],
        start: StartAt,
        config: ConsumerConfig,
    ) -> Result<Self, ClientError> {
        let described = client.describe_topic(topic).await?;
        let count = described.record.partitions;
        let all = (0..count).filter_map(PartitionIndex::new);
        let chosen: Vec<_> = if partitions.is_empty() { all.collect() } else { partitions.to_vec() };
        if let Some(wrong) = chosen.iter().find(|partition| partition.get() >= count) {
            return Err(ClientError::Usage(format!(
                "topic {topic} has {}, {wrong} was asked for",
                counted(u64::from(count.unsigned_abs()), "partition")
            )));
        }
        let partitions: Vec<_> =
            chosen.into_iter().map(|index| TopicPartition::new(topic.clone(), index)).collect();
        let (sender, answers) = mpsc::channel(READ_AHEAD.saturating_mul(partitions.len().max(1)));
        let mut tasks = JoinSet::new();
        for partition in &partitions {
            let reader = Reader {
                client: client.clone(),
                topic_id: described.record.id,
                partition: partition.clone(),
                config: config.clone(),
                largest_batch: largest_batch(&described.record.properties),
                answers: sender.clone(),
            };
            tasks.spawn(reader.run(start));
        }
        Ok(Self { partitions, answers, _tasks: tasks })
    }

    /// The partitions that are read.
    #[must_use]
    pub fn partitions(&self) -> &[TopicPartition] {
        &self.partitions
    }

    /// Waits for the next answer of any partition. Cancel safe.
    ///
    /// # Errors
    /// A failure that ended the reading of a partition; the others go on. [`ClientError::Closed`] once all have ended.
    pub async fn poll(&mut self) -> Result<Polled, ClientError> {
        self.answers.recv().await.unwrap_or(Err(ClientError::Closed))
    }
}

/// The largest batch to expect in a topic, in bytes.
pub(crate) fn largest_batch(properties: &TopicProperties) -> u32 {
    properties.max_message_bytes.max(LARGEST_BATCH_FLOOR)
}

/// Reads one partition.
struct Reader {
    client: Client,
    topic_id: TopicId,
    partition: TopicPartition,
    config: ConsumerConfig,
    largest_batch: u32,
    answers: mpsc::Sender<Result<Polled, ClientError>>,
}

impl Reader {
    async fn run(self, start: StartAt) {
        if let Err(error) = self.read(start).await {
            // A reader that is gone does not want it.
            drop(self.answers.send(Err(error)).await);
        }
    }

    async fn read(&self, start: StartAt) -> Result<(), ClientError> {
        let mut offset = self.find(start).await?;
        let (mut is_first, mut corrupt) = (true, 0);
        let mut lost_since: Option<Instant> = None;
        let mut backoff = Backoff::default();
        loop {
            let fetched = match self.fetch(offset).await {
                Err(error) if error.code() == Some(ErrorCode::OffsetOutOfRange) => {
                    offset = self.reset(error).await?;
                    continue;
                }
                Err(error) if error.code() == Some(ErrorCode::DataLoss) => {
                    if lost_since.get_or_insert_with(Instant::now).elapsed() >= DATA_LOSS_PATIENCE {
                        return Err(error);
                    }
                    tokio::time::sleep(backoff.after_failure(None)).await;
                    continue;
                }
                other => other?,
            };
            lost_since = None;
            let polled = match decode(&self.partition, offset, &fetched) {
                Ok(polled) => polled,
                Err(error) if corrupt < CORRUPT_TRIES => {
                    corrupt += 1;
                    tracing::warn!(partition = %self.partition, %error, "fetch a batch again");
                    tokio::time::sleep(backoff.after_failure(None)).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            corrupt = 0;
            backoff.reset();
            let is_news = polled.next_offset > offset || is_first;
            offset = polled.next_offset;
            is_first = false;
            if is_news && self.answers.send(Ok(polled)).await.is_err() {
                return Ok(());
            }
        }
    }

    async fn find(&self, start: StartAt) -> Result<Offset, ClientError> {
        let query = match start {
            StartAt::Offset(offset) => return Ok(offset),
            StartAt::Earliest => OffsetQuery::Earliest,
            StartAt::Latest => OffsetQuery::Latest,
            StartAt::Time(time) => OffsetQuery::AtOrAfter(time),
        };
        match self.client.offset(&self.partition, query).await?.offset {
            Some(offset) => Ok(offset),
            None => self.client.end_offset(&self.partition).await,
        }
    }

    async fn reset(&self, error: ClientError) -> Result<Offset, ClientError> {
        let offset = match self.config.reset {
            ResetPolicy::Fail => return Err(error),
            ResetPolicy::Earliest => self.find(StartAt::Earliest).await?,
            ResetPolicy::Latest => self.find(StartAt::Latest).await?,
        };
        tracing::warn!(partition = %self.partition, %error, %offset, "go on at another offset");
        Ok(offset)
    }

    async fn fetch(&self, offset: Offset) -> Result<Fetched, ClientError> {
        let give_up = Instant::now() + self.client.config().retry_timeout + self.config.max_wait;
        self.client.at_leader(&self.partition, give_up, |leader| self.fetch_once(leader, offset)).await
    }

    async fn fetch_once(&self, leader: Leader, offset: Offset) -> Result<Fetched, TryError> {
        let topic = TopicRef::Both { name: self.partition.topic.clone(), id: self.topic_id };
        let asked = FetchPartition {
            current_leader_epoch: Some(leader.epoch),
            ..FetchPartition::reading(topic, self.partition.partition, offset, self.config.max_bytes)
        };
        let request = encode_request(FetchRequest {
            cluster: None,
            replica: None,
            repair: false,
            session_id: 0,
            session_epoch: NO_SESSION,
            max_wait: self.config.max_wait,
            min_bytes: self.config.min_bytes,
            max_bytes: self.config.max_bytes,
            partitions: vec![asked],
            forgotten: Vec::new(),
        });
        let limit = limits::fetch_response(self.config.max_bytes, self.largest_batch, 1);
        let rpc = |channel, request| async move {
            LogServiceClient::new(channel).max_decoding_message_size(limit).fetch(request).await
        };
        let timeout = self.config.max_wait + FETCH_MARGIN;
        let times = (self.config.max_wait, timeout);
        let answer = self.client.call_leader(&self.partition, &leader, request, times, rpc).await?;
        let answer = decode_response(answer).map_err(|e| bad_answer(&leader, e))?;
        let result = answer.partitions.into_iter().next().ok_or_else(|| no_answer(&leader))?;
        let fetched = result.outcome.map_err(TryError::Partition)?;
        // An answer that a quota emptied asks for a pause; whatever it says, the next fetch comes within one call's time.
        tokio::time::sleep(answer.throttle.min(timeout)).await;
        Ok(fetched)
    }
}

/// The records of an answer from `from` on.
fn decode(partition: &TopicPartition, from: Offset, fetched: &Fetched) -> Result<Polled, ClientError> {
    let corrupt = |problem: String| ClientError::Corrupt { partition: partition.clone(), problem };
    let mut polled = Polled {
        partition: partition.clone(),
        records: Vec::new(),
        next_offset: from,
        high_watermark: fetched.snapshot.high_watermark,
    };
    let bytes: &Bytes = &fetched.records;
    for batch in batches(bytes) {
        let batch = batch.map_err(|e| corrupt(format!("at offset {}: {e}", polled.next_offset)))?;
        if !batch.crc_ok() {
            return Err(corrupt(format!("batch at offset {}: wrong CRC", batch.base_offset())));
        }
        if batch.next_offset() <= polled.next_offset {
            continue;
        }
        if !batch.is_control() {
            let decoded = records(&batch).map_err(|e| corrupt(e.to_string()))?;
            for record in decoded {
                let record =
                    record.map_err(|e| corrupt(format!("batch at offset {}: {e}", batch.base_offset())))?;
                if record.offset >= from {
                    polled.records.push(record);
                }
            }
        }
        polled.next_offset = batch.next_offset();
    }
    Ok(polled)
}

#[cfg(test)]
#[path = "consumer_test.rs"]
mod tests;

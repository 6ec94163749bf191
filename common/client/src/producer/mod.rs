//! The producer: records are collected into batches per partition and sent by one task per partition.
//!
//! What holds:
//! - One request is in flight per partition; the next batches grow meanwhile (design.md 6.10), so the order of records
//!   within a partition is the order of [`Producer::send`].
//! - Memory is bounded: [`Producer::send`] waits while [`ProducerConfig::buffer_bytes`] are not yet delivered.
//! - Delivery is at least once: a batch whose outcome is unknown is sent again until
//!   [`ProducerConfig::delivery_timeout`].
//!
//! Deliberately absent: producer ids and sequence numbers; they come with idempotence.

mod batch;
mod queue;
mod sender;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use highwater_records::{Compression, Header};
use highwater_types::{Offset, PartitionIndex, TopicName, TopicPartition, TraceContext, WallTime};
use highwater_wire::produce::Acks;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::partitioner::partition_for_key;
use crate::{ClientError, producer::batch::Outcome};
use queue::PartitionQueue;

/// What a record costs beside its key, value and headers, in bytes.
const RECORD_OVERHEAD: usize = 64;

/// How records are collected and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerConfig {
    /// `acks`: when a record counts as delivered.
    pub acks: Acks,
    /// `batch.size`: a batch is closed when its records would exceed this, in bytes before compression.
    pub batch_bytes: usize,
    /// `linger.ms`: how long a batch waits for more records when nothing is in flight.
    pub linger: Duration,
    /// `compression.type`.
    pub compression: Compression,
    /// `max.request.size`: how many bytes of batches one request carries; at least one batch.
    pub request_bytes: usize,
    /// `buffer.memory`: bytes of records that are not yet delivered.
    pub buffer_bytes: usize,
    /// `delivery.timeout.ms`: how long a batch is tried.
    pub delivery_timeout: Duration,
    /// The span that every Produce names as the one above it; absent = none.
    pub trace: Option<TraceContext>,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            acks: Acks::All,
            batch_bytes: 128 * 1024,
            linger: Duration::from_millis(5),
            compression: Compression::None,
            request_bytes: 1 << 20,
            buffer_bytes: 32 << 20,
            delivery_timeout: Duration::from_secs(120),
            trace: None,
        }
    }
}

/// The context of a span that begins a trace and is recorded, for [`ProducerConfig::trace`]. Nobody records the span
/// itself: it stands for the caller.
#[must_use]
pub fn new_trace() -> TraceContext {
    loop {
        // Zeros are no ids.
        if let Some(context) = TraceContext::new(rand::random(), rand::random(), true) {
            return context;
        }
    }
}

/// A record to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerRecord {
    /// The partition; absent = by the key, and without a key one after the other, batch by batch.
    pub partition: Option<PartitionIndex>,
    /// The key; absent = null.
    pub key: Option<Bytes>,
    /// The value; absent = null.
    pub value: Option<Bytes>,
    /// The headers, in order.
    pub headers: Vec<Header>,
    /// The time; absent = now.
    pub timestamp: Option<WallTime>,
}

impl ProducerRecord {
    /// A record with a value only.
    #[must_use]
    pub fn of_value(value: impl Into<Bytes>) -> Self {
        Self { value: Some(value.into()), ..Self::default() }
    }

    fn cost(&self) -> usize {
        let optional = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let headers: usize = self.headers.iter().map(|h| h.key.len() + optional(&h.value)).sum();
        optional(&self.key) + optional(&self.value) + headers + RECORD_OVERHEAD
    }
}

/// Where a delivered record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The partition.
    pub partition: TopicPartition,
    /// The offset; absent with `acks=0`.
    pub offset: Option<Offset>,
}

/// What becomes of one record. Dropping it changes nothing: the record is sent all the same.
#[derive(Clone, Debug)]
pub struct Delivery {
    partition: TopicPartition,
    /// The record's number within its batch.
    index: i64,
    outcome: watch::Receiver<Option<Outcome>>,
}

impl Delivery {
    /// The partition that the record goes to.
    #[must_use]
    pub const fn partition(&self) -> &TopicPartition {
        &self.partition
    }

    /// Waits until the record is delivered.
    ///
    /// # Errors
    /// Why its batch was not; [`ClientError::Closed`] when the producer was dropped before.
    pub async fn wait(mut self) -> Result<Position, ClientError> {
        let outcome = self.outcome.wait_for(Option::is_some).await.map_err(|_| ClientError::Closed)?.clone();
        let base = outcome.unwrap_or(Err(ClientError::Closed))?;
        Ok(Position { offset: base.map(|base| base.advance(self.index)), partition: self.partition })
    }
}

/// Sends records. Dropping it drops what was not delivered; call [`Producer::flush`] first.
#[derive(Debug)]
pub struct Producer {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

/// What the producer and its tasks share.
#[derive(Debug)]
struct Shared {
    client: Client,
    config: ProducerConfig,
    memory: Arc<Semaphore>,
    memory_bytes: u32,
    state: Mutex<State>,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    queues: BTreeMap<TopicPartition, Arc<PartitionQueue>>,
    /// The partition that records without a key go to until its batch is closed.
    sticky: BTreeMap<TopicName, i32>,
    /// The first failed batch since the last flush.
    failed: Option<ClientError>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of the state is one insertion or one replacement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Producer {
    /// A producer on a client's connections.
    ///
    /// # Errors
    /// [`ClientError::Usage`] when a size is not possible.
    pub fn new(client: Client, config: ProducerConfig) -> Result<Self, ClientError> {
        let memory_bytes = u32::try_from(config.buffer_bytes)
            .ok()
            .filter(|_| config.buffer_bytes >= config.batch_bytes && config.batch_bytes > 0)
            .ok_or_else(|| {
                ClientError::Usage("buffer_bytes has to hold a batch, and to be below 4 GiB".to_owned())
            })?;
        let shared = Shared {
            client,
            memory: Arc::new(Semaphore::new(config.buffer_bytes)),
            memory_bytes,
            config,
            state: Mutex::default(),
            stop: CancellationToken::new(),
        };
        Ok(Self { shared: Arc::new(shared), tasks: TaskTracker::new() })
    }

    /// Takes a record; waits while the buffer is full. The record is sent with its batch, whether the delivery is awaited
    /// or not.
    ///
    /// # Errors
    /// [`ClientError::Usage`] when the topic has no such partition or the record can never be sent; failures to find the
    /// topic.
    pub async fn send(&self, topic: &TopicName, record: ProducerRecord) -> Result<Delivery, ClientError> {
        let described = self.shared.client.topic(topic).await?;
        let cost =
            u32::try_from(record.cost()).ok().filter(|cost| *cost <= self.shared.memory_bytes).ok_or_else(
                || ClientError::Usage("the record is larger than the producer's buffer".to_owned()),
            )?;
        let memory = Arc::clone(&self.shared.memory).acquire_many_owned(cost).await;
        let memory = memory.map_err(|_| ClientError::Closed)?;
        let partition = self.partition_of(topic, &record, described.record.partitions)?;
        let queue = self.queue(&partition);
        let pushed =
            queue.push(&record, record.timestamp.unwrap_or_else(now), memory, &self.shared.config)?;
        if pushed.closed_a_batch && record.partition.is_none() && record.key.is_none() {
            let mut state = self.shared.state();
            let sticky = state.sticky.entry(topic.clone()).or_default();
            *sticky = sticky.wrapping_add(1);
        }
        Ok(Delivery { partition, index: pushed.index, outcome: pushed.outcome })
    }

    fn partition_of(
        &self,
        topic: &TopicName,
        record: &ProducerRecord,
        count: i32,
    ) -> Result<TopicPartition, ClientError> {
        let chosen = match (record.partition, &record.key) {
            (Some(partition), _) => Some(partition).filter(|partition| partition.get() < count),
            (None, Some(key)) => partition_for_key(key, count),
            (None, None) => {
                let turn = self.shared.state().sticky.get(topic).copied().unwrap_or(0);
                turn.checked_rem_euclid(count).and_then(PartitionIndex::new)
            }
        };
        let index = chosen.ok_or_else(|| {
            let asked = record.partition.map_or_else(|| "any".to_owned(), |p| p.to_string());
            ClientError::Usage(format!("topic {topic} has {count} partitions, {asked} was asked for"))
        })?;
        Ok(TopicPartition::new(topic.clone(), index))
    }

    /// The partition's queue, with its task.
    fn queue(&self, partition: &TopicPartition) -> Arc<PartitionQueue> {
        let mut state = self.shared.state();
        if let Some(queue) = state.queues.get(partition) {
            return Arc::clone(queue);
        }
        let queue = Arc::new(PartitionQueue::default());
        state.queues.insert(partition.clone(), Arc::clone(&queue));
        let run = sender::run(Arc::clone(&self.shared), partition.clone(), Arc::clone(&queue));
        let stop = self.shared.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(run).await });
        queue
    }

    /// Sends everything at once and waits until it is delivered.
    ///
    /// # Errors
    /// The first failure of a batch since the last flush.
    pub async fn flush(&self) -> Result<(), ClientError> {
        let queues: Vec<_> = self.shared.state().queues.values().map(Arc::clone).collect();
        for queue in queues {
            queue.close_open_batch();
        }
        // Every record holds its share of the memory until its batch has an outcome.
        drop(
            self.shared
                .memory
                .acquire_many(self.shared.memory_bytes)
                .await
                .map_err(|_| ClientError::Closed)?,
        );
        self.shared.state().failed.take().map_or(Ok(()), Err)
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.shared.stop.cancel();
        self.tasks.close();
    }
}

fn now() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
#[path = "producer_test.rs"]
mod tests;

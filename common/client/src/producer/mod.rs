//! The producer: records are collected into batches per partition and sent by one task per partition.
//!
//! What holds:
//! - One request is in flight per partition; the next batches grow meanwhile (design.md 6.10), so the order of records
//!   within a partition is the order of [`Producer::send`].
//! - Memory is bounded: [`Producer::send`] waits while [`ProducerConfig::buffer_bytes`] are not yet delivered.
//! - A batch whose outcome is unknown is sent again until [`ProducerConfig::delivery_timeout`]. With
//!   [`ProducerConfig::idempotence`] it is appended once, however often it is sent: it carries a producer id, an epoch and a
//!   sequence number, by which any leader knows a copy. Without, it can be there twice.
//!
//! Deliberately absent: transactions, and knowing a record again after the producer's own end: the next one has another id.

mod batch;
mod identity;
mod queue;
mod sender;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use highwater_records::{Compression, Header};
use highwater_types::units::counted;
use highwater_types::{Offset, PartitionIndex, TopicName, TopicPartition, TraceContext, WallTime};
use highwater_wire::produce::Acks;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::partitioner::partition_for_key;
use crate::{ClientError, producer::batch::Outcome};
use queue::PartitionQueue;

/// What a record costs beside its key, value and headers, in bytes.
const RECORD_OVERHEAD: usize = 64;

/// How large batches become when nobody says otherwise: somewhat less than what topics take and a Fetch asks for by default.
const BATCH_BYTES: usize = 1_000_000;

/// How records are collected and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerConfig {
    /// `acks`: when a record counts as delivered.
    pub acks: Acks,
    /// `enable.idempotence`: number the batches, so that one that is sent again is not appended again. It has an effect with
    /// [`Acks::All`] only. A leader that acknowledged alone can take records with it, and the numbers of the next ones would
    /// not follow; with [`Acks::None`] nobody says whether they do.
    pub idempotence: bool,
    /// `batch.size`: a batch is closed when its records would exceed this, or the topic's `max.message.bytes`, in bytes before
    /// compression. A request carries one batch, so this is also what one round trip can carry.
    pub batch_bytes: usize,
    /// `linger.ms`: how long a batch waits for more records when nothing is in flight.
    pub linger: Duration,
    /// `compression.type`.
    pub compression: Compression,
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
            idempotence: true,
            batch_bytes: BATCH_BYTES,
            linger: Duration::from_millis(5),
            compression: Compression::None,
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
    /// The producer's id at each partition until it needs another one there; absent: batches are not numbered.
    first_id: Option<i64>,
    state: Mutex<State>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct State {
    queues: BTreeMap<TopicPartition, Arc<PartitionQueue>>,
    /// The partition that records without a key go to until its batch is closed.
    sticky: BTreeMap<TopicName, i32>,
    /// The first failed batch since the last flush.
    failed: Option<ClientError>,
    /// Where producer ids come from.
    random: StdRng,
}

impl State {
    fn new(seed: u64) -> Self {
        Self {
            queues: BTreeMap::new(),
            sticky: BTreeMap::new(),
            failed: None,
            random: StdRng::seed_from_u64(seed),
        }
    }

    /// A producer id that nobody else has, for all practical purposes.
    fn fresh_id(&mut self) -> i64 {
        self.random.random_range(0..=i64::MAX)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of the state is one insertion or one replacement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh_id(&self) -> i64 {
        self.state().fresh_id()
    }
}

impl Producer {
    /// A producer on a client's connections.
    ///
    /// # Errors
    /// [`ClientError::Usage`] when a size is not possible.
    pub fn new(client: Client, config: ProducerConfig) -> Result<Self, ClientError> {
        Self::with_seed(client, config, rand::random())
    }

    /// The same, with producer ids that follow from a seed.
    pub(crate) fn with_seed(client: Client, config: ProducerConfig, seed: u64) -> Result<Self, ClientError> {
        let memory_bytes = u32::try_from(config.buffer_bytes)
            .ok()
            .filter(|_| config.buffer_bytes >= config.batch_bytes && config.batch_bytes > 0)
            .ok_or_else(|| {
                ClientError::Usage("buffer_bytes has to hold a batch, and to be below 4 GiB".to_owned())
            })?;
        let mut state = State::new(seed);
        let is_idempotent = config.idempotence && config.acks == Acks::All;
        let shared = Shared {
            client,
            memory: Arc::new(Semaphore::new(config.buffer_bytes)),
            memory_bytes,
            config,
            first_id: is_idempotent.then(|| state.fresh_id()),
            state: state.into(),
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
        let config = &self.shared.config;
        let timestamp = record.timestamp.unwrap_or_else(now);
        let largest = usize::try_from(described.record.properties.max_message_bytes).unwrap_or(usize::MAX);
        let batch_bytes = config.batch_bytes.min(largest);
        let pushed = self.queue(&partition).push(&record, timestamp, memory, config, batch_bytes)?;
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
            let have = counted(u64::from(count.unsigned_abs()), "partition");
            ClientError::Usage(format!("topic {topic} has {have}, {asked} was asked for"))
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
#[path = "idempotence_test.rs"]
mod idempotence_tests;
#[cfg(test)]
#[path = "producer_test.rs"]
mod tests;

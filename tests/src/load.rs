//! Idempotent producers with `acks=all` that ask one leader-svc after the other until one acknowledges; what they were told
//! is in a [`History`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_records::{BatchBuilder, Compression, Producer};
use highwater_types::WallTime;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::calls::{Calls, code, to};
use crate::cluster::Cluster;
use crate::history::{History, Outcome};
use crate::wait;

const PRODUCERS: usize = 4;
/// What is acknowledged after something happened, before it is believed that it goes on.
pub const ENOUGH: usize = 20;
/// After this a producer asks another server for the same record.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// Between two tries of a producer that was refused.
const TRY_PAUSE: Duration = Duration::from_millis(5);

/// A load, until it is ended.
#[derive(Debug)]
pub struct Load {
    /// What was produced, and what became of it.
    pub history: Arc<History>,
    acknowledged: Arc<Mutex<Vec<Instant>>>,
    stop: Arc<AtomicBool>,
    producers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts producers to partition 0 of `topic` that know these nodes, and waits for what they are acknowledged.
    pub async fn start(cluster: &Cluster, nodes: &[i32], topic: &str) -> Self {
        Self::after(Arc::default(), cluster, nodes, topic).await
    }

    /// The same, after what was produced already.
    pub async fn after(history: Arc<History>, cluster: &Cluster, nodes: &[i32], topic: &str) -> Self {
        let mut load = Self {
            history,
            acknowledged: Arc::default(),
            stop: Arc::new(AtomicBool::new(false)),
            producers: Vec::new(),
        };
        for number in 0..PRODUCERS {
            let producer = OneProducer {
                id: i64::try_from(number).expect("a few") + 1000,
                topic: topic.to_owned(),
                servers: nodes.iter().map(|node| Calls::of(cluster.leader(*node))).collect(),
                history: Arc::clone(&load.history),
                acknowledged: Arc::clone(&load.acknowledged),
                stop: Arc::clone(&load.stop),
            };
            load.producers.push(tokio::spawn(producer.run()));
        }
        load.goes_on().await;
        load
    }

    /// Waits until [`ENOUGH`] more records are acknowledged.
    pub async fn goes_on(&self) {
        let before = self.history.acknowledged();
        wait::until("acknowledgements", wait::SOON, async || {
            (self.history.acknowledged() > before + ENOUGH).then_some(())
        })
        .await;
    }

    /// The longest time from `since` on in which nothing was acknowledged, and how many records were after it.
    #[must_use]
    pub fn gap(&self, since: Instant) -> (Duration, usize) {
        let times = lock(&self.acknowledged);
        let first = times.partition_point(|at| *at < since).saturating_sub(1);
        let times = times.get(first..).unwrap_or_default();
        let gaps = times.windows(2).enumerate().map(|(index, pair)| match pair {
            [from, to] => (to.duration_since(*from), times.len() - index - 1),
            _ => unreachable!("windows of two"),
        });
        gaps.max().unwrap_or_default()
    }

    /// Ends it; the record that each producer has under way is of unknown outcome.
    ///
    /// # Panics
    /// When a leader did not know what it had acknowledged.
    pub async fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for producer in self.producers.drain(..) {
            producer.await.expect("the load does not panic");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct OneProducer {
    id: i64,
    topic: String,
    servers: VecDeque<Calls>,
    history: Arc<History>,
    acknowledged: Arc<Mutex<Vec<Instant>>>,
    stop: Arc<AtomicBool>,
}

impl OneProducer {
    async fn run(mut self) {
        let partition = format!("{}-0", self.topic);
        for sequence in 0.. {
            let value = format!("{}-{sequence}", self.id);
            self.history.attempt(&partition, value.as_bytes());
            let Some(offset) = self.deliver(sequence, &value).await else { return };
            lock(&self.acknowledged).push(Instant::now());
            self.history.outcome(&partition, value.as_bytes(), Outcome::Acknowledged(offset));
        }
    }

    /// The same batch again and again until it is acknowledged, or the load ends.
    async fn deliver(&mut self, sequence: i32, value: &str) -> Option<i64> {
        let batch = self.batch(sequence, value);
        while !self.stop.load(Ordering::Relaxed) {
            let server = self.servers.front()?.clone();
            match timeout(ANSWERED_WITHIN, produce(server, to(&self.topic, 0, batch.clone()))).await {
                Ok(Some(result)) if result.error.is_none() => return result.base_offset,
                Ok(Some(result)) => self.check_refusal(sequence, &result),
                Ok(None) | Err(_) => {}
            }
            self.servers.rotate_left(1);
            sleep(TRY_PAUSE).await;
        }
        None
    }

    /// A leader that does not know what was acknowledged before has lost it.
    fn check_refusal(&self, sequence: i32, result: &v1::ProducePartitionResult) {
        let lost = [v1::ErrorCode::UnknownProducer, v1::ErrorCode::OutOfOrderSequence];
        let code = code(result.error.as_ref());
        assert!(
            !code.is_some_and(|code| lost.contains(&code)),
            "producer {} at {sequence}: {:?}",
            self.id,
            result.error
        );
    }

    fn batch(&self, sequence: i32, value: &str) -> Vec<u8> {
        let producer = Producer { id: self.id, epoch: 0, base_sequence: sequence };
        let mut builder = BatchBuilder::new(Compression::None).producer(producer);
        builder.append(WallTime::from_millis(1000), None, Some(value.as_bytes()), &[]).expect("small");
        builder.build().expect("a batch has records").to_vec()
    }
}

/// The partition's part of the answer; `None` when there is no answer.
async fn produce(server: Calls, to: v1::ProducePartition) -> Option<v1::ProducePartitionResult> {
    let request =
        v1::ProduceRequest { acks: v1::Acks::All.into(), partitions: vec![to], ..Default::default() };
    server.log.clone().produce(request).await.ok()?.into_inner().partitions.into_iter().next()
}

//! Idempotent producers with `acks=all` that ask one leader-svc after the other until one acknowledges.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_records::{BatchBuilder, Compression, Producer};
use highwater_types::WallTime;
use system_tests::calls::{Calls, code, to};
use system_tests::cluster::Cluster;
use system_tests::history::{History, Outcome};
use system_tests::wait;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::{ENOUGH, NODES, TOPIC};

const PRODUCERS: usize = 4;
/// After this a producer asks another server for the same record.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// Between two tries of a producer that was refused.
const TRY_PAUSE: Duration = Duration::from_millis(5);

/// A load, until it is ended.
pub(crate) struct Load {
    /// What was produced, and what became of it.
    pub(crate) history: Arc<History>,
    acknowledged: Arc<Mutex<Vec<Instant>>>,
    stop: Arc<AtomicBool>,
    producers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts the producers, and waits for what they are acknowledged.
    pub(crate) async fn start(cluster: &Cluster) -> Self {
        let mut load = Self {
            history: Arc::new(History::default()),
            acknowledged: Arc::default(),
            stop: Arc::new(AtomicBool::new(false)),
            producers: Vec::new(),
        };
        for number in 0..PRODUCERS {
            let producer = OneProducer {
                id: i64::try_from(number).expect("a few") + 1000,
                servers: NODES.map(|node| Calls::of(cluster.leader(node))).into(),
                history: Arc::clone(&load.history),
                acknowledged: Arc::clone(&load.acknowledged),
                stop: Arc::clone(&load.stop),
            };
            load.producers.push(tokio::spawn(producer.run()));
        }
        wait::until("a load", wait::SOON, async || (load.history.acknowledged() > ENOUGH).then_some(()))
            .await;
        load
    }

    /// The longest time from `since` on in which nothing was acknowledged, and how many records were after it.
    pub(crate) fn gap(&self, since: Instant) -> (Duration, usize) {
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
    pub(crate) async fn end(&mut self) {
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
    servers: VecDeque<Calls>,
    history: Arc<History>,
    acknowledged: Arc<Mutex<Vec<Instant>>>,
    stop: Arc<AtomicBool>,
}

impl OneProducer {
    async fn run(mut self) {
        let partition = format!("{TOPIC}-0");
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
            match timeout(ANSWERED_WITHIN, produce(server, batch.clone())).await {
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
async fn produce(server: Calls, batch: Vec<u8>) -> Option<v1::ProducePartitionResult> {
    let request = v1::ProduceRequest {
        acks: v1::Acks::All.into(),
        partitions: vec![to(TOPIC, 0, batch)],
        ..Default::default()
    };
    server.log.clone().produce(request).await.ok()?.into_inner().partitions.into_iter().next()
}

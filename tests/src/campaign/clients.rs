//! The clients of a campaign: idempotent producers, of the product's own client library, and a consumer of every program,
//! which note in the history all that they are told.
//!
//! What must hold: nothing that a client was told is left out of the history; clients reach every program at all times, those
//! too that are cut off from the others. An error that does not say that the outcome is unknown promises that nothing was
//! appended.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use highwater_client::{
    Client, ClientConfig, ClientError, Delivery, Producer, ProducerConfig, ProducerRecord,
};
use highwater_proto::v1;
use highwater_types::{PartitionIndex, TopicName};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::{PARTITIONS, TOPICS};
use crate::calls::{Calls, code, from};
use crate::cluster::Cluster;
use crate::history::{History, Outcome};
use crate::traffic::{Answered, Read};

const PRODUCERS: u64 = 4;
/// Between two records of a producer.
const SEND_EVERY: Duration = Duration::from_millis(10);
/// So many records of a producer are under way at most.
const UNDER_WAY_MAX: usize = 1000;
/// Short enough for outcomes that stay unknown.
const DELIVERED_WITHIN: Duration = Duration::from_secs(5);
/// A leader that is silent for so long is given up.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// How long a consumer waits at a program with nothing new, and after an error.
const READ_WAIT: Duration = Duration::from_millis(50);
/// One fetch in so many goes back.
const REREAD_ONE_IN: u32 = 50;
/// By so many offsets at most.
const REREAD_MAX: i64 = 2000;

/// What the clients were told, beside the history.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) history: History,
    state: Mutex<ToldState>,
}

#[derive(Debug, Default)]
struct ToldState {
    acknowledged: BTreeMap<String, u64>,
    last: Option<Instant>,
    /// How long, and until when.
    longest_gap: Option<(Duration, Instant)>,
    /// What producers complained of, without what differs from one time to the next.
    failures: BTreeMap<String, u64>,
    /// What consumers were refused with.
    refusals: BTreeMap<String, u64>,
}

impl Told {
    fn state(&self) -> MutexGuard<'_, ToldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_acknowledged(&self, partition: &str) {
        let (mut state, now) = (self.state(), Instant::now());
        *state.acknowledged.entry(partition.to_owned()).or_default() += 1;
        if let Some(last) = state.last.replace(now) {
            state.longest_gap = state.longest_gap.max(Some((now.duration_since(last), now)));
        }
    }

    /// How many records of each partition were acknowledged.
    pub(super) fn acknowledged(&self) -> BTreeMap<String, u64> {
        self.state().acknowledged.clone()
    }

    /// The longest time in which no record of any partition was acknowledged, and when it ended.
    pub(super) fn longest_gap(&self) -> (Duration, Instant) {
        self.state().longest_gap.expect("several were acknowledged")
    }

    /// What was not done, and why, for people.
    pub(super) fn complaints(&self) -> String {
        let state = self.state();
        format!("producers: {:?}; consumers: {:?}", state.failures, state.refusals)
    }
}

/// The clients, until they are ended.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) told: Arc<Told>,
    stop_sending: Arc<AtomicBool>,
    stop_reading: Arc<AtomicBool>,
    producers: Vec<JoinHandle<()>>,
    consumers: Vec<JoinHandle<()>>,
}

impl Clients {
    pub(super) fn start(cluster: &Cluster, seed: u64) -> Self {
        let mut clients = Self {
            told: Arc::default(),
            stop_sending: Arc::default(),
            stop_reading: Arc::default(),
            producers: Vec::new(),
            consumers: Vec::new(),
        };
        for number in 0..PRODUCERS {
            let (told, stop) = (Arc::clone(&clients.told), Arc::clone(&clients.stop_sending));
            let sender = Sender { number, producer: producer(cluster), told, stop };
            clients.producers.push(tokio::spawn(sender.run()));
        }
        for (number, server) in (0..).zip(cluster.servers()) {
            let reader = Reader {
                calls: Calls::of(server),
                positions: partitions().map(|partition| (partition, 0)).collect(),
                told: Arc::clone(&clients.told),
                stop: Arc::clone(&clients.stop_reading),
                dice: StdRng::seed_from_u64(seed ^ number),
            };
            clients.consumers.push(tokio::spawn(reader.run()));
        }
        clients
    }

    /// Ends the producers; every record that they sent has its outcome then.
    pub(super) async fn end_sending(&mut self) {
        self.stop_sending.store(true, Ordering::Relaxed);
        for producer in self.producers.drain(..) {
            producer.await.expect("no producer panics");
        }
    }

    pub(super) async fn end_reading(&mut self) {
        self.stop_reading.store(true, Ordering::Relaxed);
        for consumer in self.consumers.drain(..) {
            consumer.await.expect("no consumer panics");
        }
    }
}

/// Every partition of every topic.
pub(super) fn partitions() -> impl Iterator<Item = (&'static str, i32)> {
    TOPICS.into_iter().flat_map(|(topic, ..)| (0..PARTITIONS).map(move |partition| (topic, partition)))
}

/// Who produced a value, and as which of its records.
///
/// # Panics
/// When it is no value of a campaign.
pub(super) fn number(value: &[u8]) -> (u64, u64) {
    let text = std::str::from_utf8(value).expect("values are text");
    let (producer, number) = text.split_once('-').expect("a producer and a number");
    (producer.parse().expect("a number"), number.parse().expect("a number"))
}

fn producer(cluster: &Cluster) -> Producer {
    let bootstrap = cluster.leaders().map(|server| server.address().into()).collect();
    let config = ClientConfig { request_timeout: ANSWERED_WITHIN, ..ClientConfig::new(bootstrap) };
    let client = Client::new(config).expect("there are nodes to ask");
    let config = ProducerConfig { delivery_timeout: DELIVERED_WITHIN, ..ProducerConfig::default() };
    Producer::new(client, config).expect("good settings")
}

/// One producer, which sends to all partitions in turn.
struct Sender {
    number: u64,
    producer: Producer,
    told: Arc<Told>,
    stop: Arc<AtomicBool>,
}

impl Sender {
    async fn run(self) {
        let (mut pace, mut under_way) = (interval(SEND_EVERY), JoinSet::new());
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let room = Arc::new(Semaphore::new(UNDER_WAY_MAX));
        for (number, (topic, index)) in (0_u64..).zip(partitions().collect::<Vec<_>>().into_iter().cycle()) {
            pace.tick().await;
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let permit = Arc::clone(&room).acquire_owned().await.expect("it is not closed");
            let (partition, value) = (format!("{topic}-{index}"), format!("{}-{number}", self.number));
            self.told.history.attempt(&partition, value.as_bytes());
            let record = ProducerRecord {
                partition: PartitionIndex::new(index),
                ..ProducerRecord::of_value(value.clone())
            };
            let topic: TopicName = topic.parse().expect("a name");
            match self.producer.send(&topic, record).await {
                Ok(delivery) => {
                    let told = Arc::clone(&self.told);
                    under_way.spawn(async move {
                        note_outcome(&told, &partition, &value, delivery).await;
                        drop(permit);
                    });
                }
                Err(error) => note_failure(&self.told, &partition, &value, &error),
            }
            while let Some(done) = under_way.try_join_next() {
                done.expect("no delivery panics");
            }
        }
        while let Some(done) = under_way.join_next().await {
            done.expect("no delivery panics");
        }
    }
}

async fn note_outcome(told: &Told, partition: &str, value: &str, delivery: Delivery) {
    match delivery.wait().await {
        Ok(position) => {
            let offset = position.offset.expect("acks=all tells the offset").get();
            told.history.outcome(partition, value.as_bytes(), Outcome::Acknowledged(offset));
            told.on_acknowledged(partition);
        }
        Err(error) => note_failure(told, partition, value, &error),
    }
}

fn note_failure(told: &Told, partition: &str, value: &str, error: &ClientError) {
    let is_unknown = matches!(error, ClientError::OutcomeUnknown { .. });
    if !is_unknown {
        told.history.outcome(partition, value.as_bytes(), Outcome::Refused);
    }
    let name = if is_unknown { "unknown" } else { "refused" };
    let why = error.code().map_or_else(|| "no answer".to_owned(), |code| format!("{code:?}"));
    *told.state().failures.entry(format!("{name}, {why}")).or_default() += 1;
}

/// Reads everything at one program, and now and then something again.
struct Reader {
    calls: Calls,
    positions: BTreeMap<(&'static str, i32), i64>,
    told: Arc<Told>,
    stop: Arc<AtomicBool>,
    dice: StdRng,
}

impl Reader {
    async fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let asked = self.positions.iter().map(|((topic, index), at)| from(topic, *index, *at));
            let request = v1::FetchRequest {
                max_wait_ms: Some(u32::try_from(READ_WAIT.as_millis()).expect("a moment")),
                min_bytes: Some(1),
                partitions: asked.collect(),
                ..Default::default()
            };
            // The program may be dead, or frozen.
            let answer = timeout(ANSWERED_WITHIN, self.calls.log.fetch(request)).await;
            let Ok(Ok(answer)) = answer else {
                sleep(READ_WAIT).await;
                continue;
            };
            let results = answer.into_inner().partitions;
            let has_read = results.iter().any(|result| !result.records.is_empty());
            for result in &results {
                self.note(result);
            }
            self.go_back();
            if !has_read {
                sleep(READ_WAIT).await;
            }
        }
    }

    fn note(&mut self, result: &v1::FetchPartitionResult) {
        let index = result.partition.unwrap_or(-1);
        let key = partitions().find(|(topic, known)| *topic == result.topic && *known == index);
        let at =
            key.and_then(|key| self.positions.get_mut(&key)).expect("only what was asked for is answered");
        if let Some(code) = code(result.error.as_ref()) {
            *self.told.state().refusals.entry(format!("{code:?}")).or_default() += 1;
            return;
        }
        let name = format!("{}-{index}", result.topic);
        let Answered { records, end } =
            Answered::decode(&result.records, *at).unwrap_or_else(|problem| panic!("{name}: {problem}"));
        self.told.history.read(&name, records.iter().map(Read::as_record));
        *at = end;
    }

    fn go_back(&mut self) {
        if !self.dice.random_ratio(1, REREAD_ONE_IN) {
            return;
        }
        let chosen = self.dice.random_range(0..self.positions.len());
        let by = self.dice.random_range(0..REREAD_MAX);
        if let Some(at) = self.positions.values_mut().nth(chosen) {
            *at = (*at - by).max(0);
        }
    }
}

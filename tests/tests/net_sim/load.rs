//! Producers with `acks=all` and readers of leaders and followers, by the product's client, on a host of their own; what
//! they were told and what they saw is in a [`History`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use highwater_client::transport::connect_lazy;
use highwater_client::{Client, Consumer, ConsumerConfig, Producer, ProducerConfig, ProducerRecord, StartAt};
use highwater_proto::v1;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_records::{batches, decode_records};
use highwater_types::{Offset, PartitionIndex, TopicName};
use parking_lot::Mutex;
use system_tests::history::{History, Outcome, ReadRecord};
use tokio::time::{sleep, timeout};
use tonic::Request;
use tonic::transport::Channel;

use super::cluster::{Cluster, NODES, client};
use super::network::SimNetwork;
use super::program::{agent, endpoint};

/// Where producers and readers are.
pub(crate) const HOST: &str = "load";

/// The topic, and its partitions.
pub(crate) const TOPIC: &str = "orders";
pub(crate) const PARTITIONS: i32 = 2;

const PRODUCERS: i32 = 2;

/// Between two records of a producer.
const PACE: Duration = Duration::from_millis(50);

/// How long a reader of a follower may be parked, how much longer its call may take, and what is between two after a failure.
const READER_WAIT: Duration = Duration::from_millis(500);
const ANSWER_MAX: Duration = Duration::from_millis(1_500);
const PAUSE: Duration = Duration::from_millis(200);

/// A load, until it is told to end.
#[derive(Clone)]
pub(crate) struct Load(Arc<Shared>);

#[derive(Default)]
struct Shared {
    history: History,
    stop: AtomicBool,
    running: AtomicUsize,
    /// When what was acknowledged, by partition.
    acknowledged: Mutex<Vec<(Duration, i32)>>,
    /// Records that readers of leaders, and of followers, saw.
    read: AtomicUsize,
    read_from_followers: AtomicUsize,
    faults: Mutex<Vec<String>>,
}

impl Load {
    /// Starts producers and readers of [`TOPIC`], which is there.
    pub(crate) fn start(cluster: &mut Cluster) -> Self {
        let shared = Arc::<Shared>::default();
        let load = Self(Arc::clone(&shared));
        shared.running.store(1, Ordering::Relaxed);
        cluster.on_host(HOST, |network| async move {
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..PRODUCERS {
                tasks.spawn(produce(Arc::clone(&shared), client(&network), number));
            }
            for partition in 0..PARTITIONS {
                tasks.spawn(read_leader(Arc::clone(&shared), client(&network), partition));
            }
            for node in NODES {
                tasks.spawn(read_follower(Arc::clone(&shared), network.clone(), node, node % PARTITIONS));
            }
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap();
            }
            shared.running.store(0, Ordering::Relaxed);
        });
        load
    }

    pub(crate) fn history(&self) -> &History {
        &self.0.history
    }

    /// Tells everybody to end; what is on its way is waited for.
    pub(crate) fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.running.load(Ordering::Relaxed) == 0
    }

    /// When, in virtual time, something was acknowledged by `partition` that was produced to it.
    pub(crate) fn acknowledged(&self, partition: i32) -> Vec<Duration> {
        let acknowledged = self.0.acknowledged.lock();
        acknowledged.iter().filter(|(_, of)| *of == partition).map(|(at, _)| *at).collect()
    }

    /// Whether each partition acknowledged something after `time`.
    pub(crate) fn is_acknowledged_after(&self, time: Duration) -> bool {
        (0..PARTITIONS).all(|partition| self.acknowledged(partition).last().is_some_and(|at| *at > time))
    }

    /// How many records were read from leaders and from followers.
    pub(crate) fn read(&self) -> [usize; 2] {
        [&self.0.read, &self.0.read_from_followers].map(|count| count.load(Ordering::Relaxed))
    }

    /// What must not be, beside what the history tells.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.0.faults.lock().clone()
    }
}

impl Shared {
    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

pub(crate) fn topic() -> TopicName {
    TOPIC.parse().unwrap()
}

pub(crate) fn name(partition: i32) -> String {
    format!("{TOPIC}-{partition}")
}

/// One record after the other; each is acknowledged behind the one before it.
async fn produce(shared: Arc<Shared>, client: Client, number: i32) {
    let partition = number % PARTITIONS;
    let producer = Producer::new(client, ProducerConfig::default()).unwrap();
    let mut last = None;
    for sequence in 0_u32.. {
        if shared.stops() {
            return;
        }
        let value = format!("{number}-{sequence}");
        shared.history.attempt(&name(partition), value.as_bytes());
        let record = ProducerRecord {
            partition: PartitionIndex::new(partition),
            ..ProducerRecord::of_value(value.clone())
        };
        let delivered = match producer.send(&topic(), record).await {
            Ok(delivery) => delivery.wait().await,
            Err(error) => Err(error),
        };
        if let Ok(position) = delivered {
            let offset = position.offset.unwrap();
            shared.history.outcome(&name(partition), value.as_bytes(), Outcome::Acknowledged(offset.get()));
            shared.acknowledged.lock().push((turmoil::sim_elapsed().unwrap(), partition));
            if last.replace(offset) >= Some(offset) {
                shared.faults.lock().push(format!("{value} was acknowledged at {offset}, after {last:?}"));
            }
        }
        sleep(PACE).await;
    }
}

/// Follows a partition by the product's consumer, and goes on where that gave up.
async fn read_leader(shared: Arc<Shared>, client: Client, partition: i32) {
    let mut next = Offset::ZERO;
    let partitions = [PartitionIndex::new(partition).unwrap()];
    while !shared.stops() {
        let begin = StartAt::Offset(next);
        let started = Consumer::start(&client, &topic(), &partitions, begin, ConsumerConfig::default()).await;
        let Ok(mut consumer) = started else {
            sleep(PAUSE).await;
            continue;
        };
        while !shared.stops() {
            match timeout(PAUSE, consumer.poll()).await {
                Ok(Ok(polled)) => {
                    next = polled.next_offset;
                    let records = polled.records.iter();
                    let read = records.map(|r| read_record(r.offset, r.value.as_deref()));
                    shared.history.read(&name(partition), read);
                    shared.read.fetch_add(polled.records.len(), Ordering::Relaxed);
                }
                Ok(Err(_)) => break,
                Err(_) => {}
            }
        }
    }
}

/// Follows a partition at a node's agent: what it serves of what it follows.
async fn read_follower(shared: Arc<Shared>, network: SimNetwork, node: i32, partition: i32) {
    let mut next = 0;
    let mut log = log_service(&network, &agent(node));
    while !shared.stops() {
        match read_once(&mut log, &shared.history, partition, next, READER_WAIT).await {
            Some(read) => {
                shared.read_from_followers.fetch_add(read.records, Ordering::Relaxed);
                next = read.next;
            }
            None => sleep(PAUSE).await,
        }
    }
}

/// Consumers of the product's client are not told in which leadership a record was appended.
fn read_record(offset: Offset, value: Option<&[u8]>) -> ReadRecord<'_> {
    ReadRecord { offset: offset.get(), epoch: -1, value: value.unwrap_or_default() }
}

/// The log service of the program on `host`.
pub(crate) fn log_service(network: &SimNetwork, host: &str) -> LogServiceClient<Channel> {
    LogServiceClient::new(connect_lazy(&endpoint(host), &network.transport()).unwrap())
}

/// What one answer to a consumer held.
pub(crate) struct Read {
    records: usize,
    /// Where reading goes on, and where it ends for now.
    pub(crate) next: i64,
    pub(crate) high_watermark: i64,
}

/// Reads once from `next` on, and notes it in the history; nothing where the partition is not served.
pub(crate) async fn read_once(
    log: &mut LogServiceClient<Channel>,
    history: &History,
    partition: i32,
    mut next: i64,
    max_wait: Duration,
) -> Option<Read> {
    let mut request = Request::new(fetch_request(partition, next, max_wait));
    request.set_timeout(max_wait + ANSWER_MAX);
    let answer = log.fetch(request).await.ok()?.into_inner();
    let result = answer.partitions.into_iter().next().filter(|result| result.error.is_none())?;
    let mut count = 0;
    for batch in batches(&result.records) {
        let batch = batch.expect("whole batches");
        let records = decode_records(&batch).expect("readable records");
        let read = records.iter().map(|r| read_record(r.offset, r.value.as_deref()));
        history.read(&name(partition), read.filter(|record| record.offset >= next));
        count += records.len();
        next = batch.next_offset().get();
    }
    Some(Read { records: count, next, high_watermark: result.high_watermark? })
}

/// A consumer's Fetch of one partition of the load's topic.
pub(crate) fn fetch_request(partition: i32, offset: i64, max_wait: Duration) -> v1::FetchRequest {
    let partition = v1::FetchPartition {
        topic: TOPIC.to_owned(),
        partition: Some(partition),
        fetch_offset: Some(offset),
        ..Default::default()
    };
    let max_wait_ms = Some(u32::try_from(max_wait.as_millis()).unwrap());
    v1::FetchRequest { max_wait_ms, partitions: vec![partition], ..Default::default() }
}

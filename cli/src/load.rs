//! Sends records and keeps account of what became of each: what `produce` and the demo have in common.
//!
//! What holds: records of one partition are accounted for in the order in which they were sent, partitions independently of
//! each other, so that a slow one does not change what is measured at another. Memory is bounded by the producer's buffer and
//! the length of the accounts' queues. A failure that is not one record's own stops the sending.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use highwater_client::{ClientError, Delivery, Producer, ProducerRecord};
use highwater_types::{ErrorCode, Offset, PartitionIndex, TopicName};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::ledger::Ledger;

/// How many records of one partition may be sent and not yet accounted for.
const OUTSTANDING: usize = 16 * 1024;
/// How many failures are kept with their reasons.
const FAILURES_KEPT: usize = 10;
/// Latencies are told apart to two digits.
const LATENCY_DIGITS: u8 = 2;

/// What was sent, as it goes on.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Records that are acknowledged.
    records: AtomicU64,
    /// Bytes of keys and values that are acknowledged.
    bytes: AtomicU64,
    /// Since when pauses are measured.
    measuring_since: OnceLock<Instant>,
}

impl Progress {
    /// How many records are acknowledged.
    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// How many bytes of keys and values are acknowledged.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// From now on a pause counts when it ends; where nothing was acknowledged yet, one begins now.
    pub(crate) fn begin_to_measure_pauses(&self) {
        self.measuring_since.get_or_init(Instant::now);
    }
}

/// Records that were not acknowledged: how many, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    /// How many.
    pub(crate) count: u64,
    /// The first ones: their number in the input, and why.
    pub(crate) first: Vec<(u64, String)>,
}

impl Failures {
    /// Counts one more.
    pub(crate) fn add(&mut self, number: u64, reason: String) {
        self.count = self.count.saturating_add(1);
        if self.first.len() < FAILURES_KEPT {
            self.first.push((number, reason));
        }
    }

    fn merge(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.first.extend(other.first);
        self.first.sort();
        self.first.truncate(FAILURES_KEPT);
    }
}

/// The whole account.
#[derive(Debug)]
pub(crate) struct Account {
    /// Records that were not acknowledged.
    pub(crate) failures: Failures,
    /// What is acknowledged in each partition, where it said at which offsets.
    pub(crate) ledgers: Vec<(PartitionIndex, Ledger)>,
    /// From the sending of a record to its acknowledgement, in microseconds.
    pub(crate) latencies: Histogram<u64>,
    /// The longest time in which a record of the partition waited and none was acknowledged, of those that were measured.
    pub(crate) pauses: BTreeMap<PartitionIndex, Duration>,
}

impl Account {
    /// Of nothing.
    pub(crate) fn empty() -> Self {
        Self {
            failures: Failures::default(),
            ledgers: Vec::new(),
            latencies: latency_histogram(),
            pauses: BTreeMap::new(),
        }
    }
}

/// A record that was sent.
#[derive(Debug)]
struct Outstanding {
    number: u64,
    bytes: u64,
    digest: u64,
    sent: Instant,
    delivery: Delivery,
}

/// Sends records to a topic.
#[derive(Debug)]
pub(crate) struct Loader {
    producer: Producer,
    topic: TopicName,
    /// Where the records of each partition wait for their outcome, by index.
    lanes: Vec<mpsc::Sender<Outstanding>>,
    collectors: JoinSet<Collector>,
    progress: Arc<Progress>,
    failures: Failures,
    stop: CancellationToken,
}

impl Loader {
    /// Sends with `producer` to a topic of so many partitions.
    pub(crate) fn new(producer: Producer, topic: TopicName, partitions: i32) -> Self {
        let (progress, stop) = (Arc::<Progress>::default(), CancellationToken::new());
        let (mut lanes, mut collectors) = (Vec::new(), JoinSet::new());
        for partition in (0..partitions).filter_map(PartitionIndex::new) {
            let (lane, outstanding) = mpsc::channel(OUTSTANDING);
            lanes.push(lane);
            let collector = Collector::new(partition, Arc::clone(&progress), stop.clone());
            collectors.spawn(collector.run(outstanding));
        }
        Self { producer, topic, lanes, collectors, progress, failures: Failures::default(), stop }
    }

    /// What is acknowledged so far.
    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Whether something failed that will fail for the next records too.
    pub(crate) fn must_stop(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Counts a record that cannot be sent.
    pub(crate) fn refuse(&mut self, number: u64, reason: String) {
        self.failures.add(number, reason);
    }

    /// Sends the record that is the `number`th of the input; waits while too much is under way. The digest goes to the
    /// ledger.
    pub(crate) async fn send(&mut self, number: u64, record: ProducerRecord, digest: u64) {
        let length = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let bytes = length(&record.key).saturating_add(length(&record.value));
        let sent = Instant::now();
        let delivery = match self.producer.send(&self.topic, record).await {
            Ok(delivery) => delivery,
            Err(error) => {
                self.failures.add(number, error.to_string());
                self.stop.cancel();
                return;
            }
        };
        let index = usize::try_from(delivery.partition().partition.get()).unwrap_or(usize::MAX);
        let outstanding = Outstanding { number, bytes, digest, sent, delivery };
        if let Some(lane) = self.lanes.get(index)
            && lane.send(outstanding).await.is_ok()
        {
            return;
        }
        self.failures.add(number, "the topic got more partitions meanwhile".to_owned());
        self.stop.cancel();
    }

    /// Waits until every record has its outcome.
    pub(crate) async fn finish(mut self) -> Account {
        // Each failure is also the outcome of its records.
        drop(self.producer.flush().await);
        drop(std::mem::take(&mut self.lanes));
        let mut account = Account { failures: self.failures, ..Account::empty() };
        while let Some(collector) = self.collectors.join_next().await {
            let Ok(collector) = collector else {
                account.failures.add(0, "the account of a partition was lost".to_owned());
                continue;
            };
            account.failures.merge(collector.failures);
            account.ledgers.push((collector.partition, collector.ledger));
            account.pauses.extend(collector.longest_pause.map(|pause| (collector.partition, pause)));
            if account.latencies.add(collector.latencies).is_err() {
                account.failures.add(0, "the latencies of a partition were lost".to_owned());
            }
        }
        account.ledgers.sort_by_key(|(partition, _)| *partition);
        account
    }
}

/// Accounts for the records of one partition.
#[derive(Debug)]
struct Collector {
    partition: PartitionIndex,
    progress: Arc<Progress>,
    stop: CancellationToken,
    failures: Failures,
    ledger: Ledger,
    latencies: Histogram<u64>,
    /// When the last acknowledgement came.
    last: Option<Instant>,
    longest_pause: Option<Duration>,
}

impl Collector {
    fn new(partition: PartitionIndex, progress: Arc<Progress>, stop: CancellationToken) -> Self {
        let (failures, ledger, latencies) = (Failures::default(), Ledger::default(), latency_histogram());
        Self { partition, progress, stop, failures, ledger, latencies, last: None, longest_pause: None }
    }

    async fn run(mut self, mut outstanding: mpsc::Receiver<Outstanding>) -> Self {
        while let Some(record) = outstanding.recv().await {
            let Outstanding { number, bytes, digest, sent, delivery } = record;
            match delivery.wait().await {
                Ok(position) => self.acknowledged(position.offset, bytes, digest, sent.elapsed()),
                Err(error) => {
                    if !is_its_own_fault(&error) {
                        self.stop.cancel();
                    }
                    self.failures.add(number, error.to_string());
                }
            }
        }
        self
    }

    fn acknowledged(&mut self, offset: Option<Offset>, bytes: u64, digest: u64, latency: Duration) {
        if let Some(offset) = offset {
            self.ledger.add(offset, digest);
        }
        self.latencies.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
        let last = self.last.replace(Instant::now());
        if let Some(since) = self.progress.measuring_since.get() {
            // Before the record was sent, nobody waited.
            let pause = last.unwrap_or(*since).elapsed().min(latency);
            self.longest_pause = self.longest_pause.max(Some(pause));
        }
        self.progress.records.fetch_add(1, Ordering::Relaxed);
        self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Whether another record can succeed where this one failed.
fn is_its_own_fault(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::MessageTooLarge | ErrorCode::InvalidRecord))
}

fn latency_histogram() -> Histogram<u64> {
    /// An hour, in microseconds; what takes longer counts as that.
    const LONGEST: u64 = 3_600_000_000;
    Histogram::new_with_bounds(1, LONGEST, LATENCY_DIGITS).expect("the bounds are legal constants")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_failures_the_first_are_kept_and_all_are_counted() {
        let (mut all, mut other) = (Failures::default(), Failures::default());
        (0..40).for_each(|n| all.add(2 * n + 1, "odd".to_owned()));
        (0..40).for_each(|n| other.add(2 * n, "even".to_owned()));
        all.merge(other);
        assert_eq!(all.count, 80);
        let numbers: Vec<_> = all.first.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn a_pause_counts_if_it_ends_while_pauses_are_measured() {
        let progress = Arc::<Progress>::default();
        let partition = PartitionIndex::new(0).unwrap();
        let mut collector = Collector::new(partition, Arc::clone(&progress), CancellationToken::new());
        let acknowledge = |collector: &mut Collector, pause: Duration, waited: Duration| {
            collector.last = collector.last.and_then(|last| last.checked_sub(pause));
            collector.acknowledged(None, 1, 0, waited);
            collector.longest_pause.map(|longest| longest.as_secs())
        };
        let [three, seven, minute] = [3, 7, 60].map(Duration::from_secs);
        assert_eq!(acknowledge(&mut collector, Duration::ZERO, minute), None);
        assert_eq!(acknowledge(&mut collector, minute, minute), None);
        progress.begin_to_measure_pauses();
        assert_eq!(acknowledge(&mut collector, seven, minute), Some(7));
        assert_eq!(acknowledge(&mut collector, three, minute), Some(7));
        assert_eq!(acknowledge(&mut collector, minute, three), Some(7), "nothing was sent for most of it");
    }

    #[test]
    fn only_a_record_s_own_fault_lets_the_next_be_sent() {
        let error = |code| ClientError::Answered {
            what: "orders-0".to_owned(),
            error: highwater_types::ReplicationError::new(code, "x"),
        };
        assert!(is_its_own_fault(&error(ErrorCode::MessageTooLarge)));
        assert!(!is_its_own_fault(&error(ErrorCode::UnknownTopicId)));
        assert!(!is_its_own_fault(&ClientError::Closed));
    }
}

//! A campaign against a cluster of real processes: three nodes, producers and consumers, and faults at random from one seed;
//! then the cluster heals, and everything that anybody was told is held against what is there.
//!
//! | module | holds |
//! |---|---|
//! | `faults` | what is done to programs, nodes and links, and when |
//! | `clients` | who produces and reads meanwhile |
//! | [`crate::history`] | the rules of what they were told |
//!
//! What must hold in the end: nothing acknowledged is missing and nothing is there twice, by its value and by its producer's
//! numbers; each producer's records are in order; whatever a consumer saw, at any program, is there; replicas are identical.
//! Deliberately absent: power losses and bad disks, which have tests of their own.

mod clients;
mod faults;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_records::batches;
use highwater_types::Program;

use self::clients::{Clients, Told};
use self::faults::Faults;
use crate::calls::Calls;
use crate::cluster::{Cluster, Plan};
use crate::etcd::Etcd;
use crate::links::Links;
use crate::log_files::LogBytes;
use crate::proxy::Proxy;
use crate::traffic::Traffic;
use crate::wait;

const NODES: [i32; 3] = [1, 2, 3];
/// Of each topic.
const PARTITIONS: i32 = 2;
/// Name, `durability`, `min.insync.replicas`.
const TOPICS: [(&str, &str, &str); 2] = [("flushed", "fsync", "2"), ("cached", "page-cache", "1")];
/// How long a cluster without faults may take to be whole again.
const HEALED_WITHIN: Duration = Duration::from_secs(60);
/// Faults that began so long before a gap can have to do with it.
const BEFORE_A_GAP: Duration = Duration::from_secs(8);
/// What has to be acknowledged in every partition then.
const ENOUGH: u64 = 20;

/// What a campaign did and found out.
#[derive(Debug)]
pub struct Report {
    seed: u64,
    span: Duration,
    faults: String,
    complaints: String,
    acknowledged: usize,
    unknown: usize,
    refused: usize,
    reads: u64,
    longest_gap: Duration,
    gap_ended: Duration,
    /// What was done shortly before and in the longest gap.
    gap_diary: String,
    healed_after: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, span, acknowledged, unknown, refused, reads, .. } = self;
        let Self { longest_gap, gap_ended, healed_after, .. } = self;
        writeln!(f, "campaign: seed {seed}, {span:?} of faults: {}", self.faults)?;
        writeln!(
            f,
            "{acknowledged} records acknowledged, {unknown} unknown, {refused} refused; {reads} read; nothing was \
             acknowledged for {longest_gap:.3?} at most, until {gap_ended:.3?}; every partition acknowledged again {healed_after:.3?} after the \
             last fault"
        )?;
        writeln!(f, "{}", self.complaints)?;
        write!(f, "around the longest time without an acknowledgement:\n{}", self.gap_diary)
    }
}

/// Runs a campaign of so long over a `file` store, or over this etcd.
///
/// # Panics
/// When anything does not hold, with all that was done.
pub async fn run(etcd: Option<&Etcd>, seed: u64, span: Duration) -> Report {
    let (cluster, links, stores) = start(etcd).await;
    let mut clients = Clients::start(&cluster, seed);
    until_acknowledged(&clients.told).await;
    let mut faults = Faults::new(cluster, links, stores, seed);
    faults.run(span).await;
    let ended = Instant::now();
    faults.until_all_serve().await;
    until_acknowledged(&clients.told).await;
    let healed_after = ended.elapsed();
    clients.end_sending().await;
    until_whole(&faults.cluster).await;
    clients.end_reading().await;
    let told = &clients.told;
    let mut violations = compare_replicas(&faults.cluster, told).await;
    told.history.check_order(clients::number);
    violations.extend(told.history.violations());
    violations.extend_from_slice(faults.problems());
    let (longest_gap, gap_ended) = told.longest_gap();
    let gap_ended = gap_ended.saturating_duration_since(faults.began());
    let gap_diary = faults.diary(gap_ended.saturating_sub(longest_gap + BEFORE_A_GAP)..gap_ended);
    let report = Report {
        seed,
        span,
        faults: faults.summary(),
        complaints: told.complaints(),
        acknowledged: told.history.acknowledged(),
        unknown: told.history.unknown(),
        refused: told.history.refused(),
        reads: told.history.reads(),
        longest_gap,
        gap_ended,
        gap_diary,
        healed_after,
    };
    assert!(violations.is_empty(), "{report}\n{} violations:\n{}", violations.len(), violations.join("\n"));
    report
}

/// Three nodes whose links, and whose ways to their store, go through proxies; topics with all in sync.
async fn start(etcd: Option<&Etcd>) -> (Cluster, Links, BTreeMap<i32, Proxy>) {
    let (links, mut plan) = Links::before(NODES.into_iter().fold(Plan::new(), Plan::node), &NODES).await;
    let mut stores = BTreeMap::new();
    if let Some(etcd) = etcd {
        for node in NODES {
            let proxy = Proxy::start(etcd.address(0)).await;
            for program in [Program::LeaderSvc, Program::FollowerAgent] {
                let store = format!("etcd:http://{}", proxy.address());
                plan = plan.set_on((node, program), "coordination", store);
            }
            stores.insert(node, proxy);
        }
    }
    let cluster = plan.start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(NODES.len()).await;
    for (topic, durability, min_isr) in TOPICS {
        let properties =
            [("durability", durability), ("min.insync.replicas", min_isr), ("segment.bytes", "65536")];
        calls.create_topic(topic, PARTITIONS, &NODES, &properties).await;
    }
    until_whole(&cluster).await;
    (cluster, links, stores)
}

/// Waits until something more is acknowledged in every partition.
async fn until_acknowledged(told: &Told) {
    let before = told.acknowledged();
    wait::until("acknowledgements in every partition", HEALED_WITHIN, async || {
        let now = told.acknowledged();
        let more = |(topic, index): (&str, i32)| {
            let name = format!("{topic}-{index}");
            now.get(&name) >= Some(&(before.get(&name).unwrap_or(&0) + ENOUGH))
        };
        clients::partitions().all(more).then_some(())
    })
    .await;
}

/// Waits until every partition is led, and its followers are in sync and have everything.
async fn until_whole(cluster: &Cluster) {
    wait::until("every partition to be whole", HEALED_WITHIN, async || {
        let mut whole = 0;
        for server in cluster.leaders() {
            let request = v1::DescribeReplicationRequest::default();
            let answer = Calls::of(server).replication.describe_replication(request).await.ok()?;
            whole += answer.into_inner().partitions.iter().filter(|row| is_whole(row)).count();
        }
        (whole == clients::partitions().count()).then_some(())
    })
    .await;
}

fn is_whole(row: &v1::LedPartition) -> bool {
    let has_all = |follower: &v1::FollowerProgress| {
        follower.in_sync == Some(true) && follower.acknowledged_offset == row.log_end_offset
    };
    row.followers.len() + 1 == NODES.len()
        && row.high_watermark == row.log_end_offset
        && row.followers.iter().all(has_all)
}

/// Reads every partition at its leader and at each follower for the last time; what is wrong with the files.
async fn compare_replicas(cluster: &Cluster, told: &Told) -> Vec<String> {
    let mut violations = Vec::new();
    for (topic, index) in clients::partitions() {
        let name = format!("{topic}-{index}");
        let found = Calls::of(cluster.leader(1)).until_led(topic).await;
        let led = found.partitions.iter().find(|partition| partition.partition == Some(index));
        let leader = led.and_then(|partition| partition.leader_id).expect("it is led");
        let end = Traffic::new(cluster.leader(leader).channel(), topic, index).read_last(&told.history).await;
        let log = |node| LogBytes::read(&cluster.data_dir(node).join(&name));
        let leaders = log(leader);
        if (leaders.good, leaders.end) != (leaders.bytes.len(), end) {
            violations.push(format!("{name}: the leader's files end at {}, {end} was read", leaders.end));
        }
        violations.extend(repeated(&leaders.bytes).into_iter().map(|what| format!("{name}: {what}")));
        for follower in NODES.into_iter().filter(|node| *node != leader) {
            Calls::of(cluster.agent(follower)).until_end(topic, index, end).await;
            Traffic::new(cluster.agent(follower).channel(), topic, index).read_last(&told.history).await;
            if log(follower).bytes != leaders.bytes {
                violations.push(format!(
                    "{name}: node {follower} holds other bytes than node {leader}, which leads"
                ));
            }
        }
    }
    violations
}

/// Batches whose producer, epoch and first sequence number another batch has too.
fn repeated(log: &[u8]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut repeated = Vec::new();
    for batch in batches(log).map_while(Result::ok) {
        let key = (batch.producer_id(), batch.producer_epoch(), batch.base_sequence());
        if !seen.insert(key) {
            let (id, epoch, sequence) = key;
            repeated.push(format!(
                "sequence {sequence} of producer {id}, epoch {epoch}, is at {} again",
                batch.base_offset()
            ));
        }
    }
    repeated
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_records::{BatchBuilder, Compression, Producer};
    use highwater_types::{Offset, WallTime};

    fn batch(offset: i64, epoch: i16, base_sequence: i32) -> Vec<u8> {
        let producer = Producer { id: 7, epoch, base_sequence };
        let mut builder = BatchBuilder::new(Compression::None)
            .producer(producer)
            .base_offset(Offset::new(offset).expect("not negative"));
        builder.append(WallTime::from_millis(1), None, Some(b"x"), &[]).expect("small");
        builder.build().expect("it has a record").to_vec()
    }

    #[test]
    fn a_batch_that_was_appended_twice_is_reported() {
        let log = [batch(0, 0, 0), batch(1, 0, 1), batch(2, 1, 0)].concat();
        assert_eq!(repeated(&log), Vec::<String>::new(), "another epoch begins at 0");
        let log = [log, batch(3, 0, 1)].concat();
        assert_eq!(repeated(&log), ["sequence 1 of producer 7, epoch 0, is at 3 again"]);
    }
}

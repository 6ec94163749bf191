//! The end of a run: everything works again, and then everything must be well.

use std::collections::BTreeSet;
use std::time::Duration;

use highwater_client::{CreateTopic, Placement};
use highwater_node::DRAIN_BOUND;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_types::{Durability, NodeId, PartitionRecord, TopicProperties};
use system_tests::history::History;
use system_tests::log_files::LogBytes;
use tokio::time::sleep;
use tonic::transport::Channel;

use super::cluster::{Cluster, NODES, client};
use super::load::{Load, PARTITIONS, log_service, name, read_once, topic};
use super::program::{agent, leader};

/// Within this time after everything works again, all replicas are in sync.
const HEALED_WITHIN: Duration = Duration::from_secs(30);

/// Within this time something is acknowledged that is produced then: a client whose connection is frozen finds out by its
/// keepalive.
const SERVED_WITHIN: Duration = Duration::from_secs(10);

/// Within this time producers and readers that are told to end have ended.
const ENDED_WITHIN: Duration = Duration::from_secs(10);

/// How long anything may take that only has to happen at all.
const SOON: Duration = Duration::from_secs(20);

/// Creates the topic of the load with replicas on all nodes, and waits until all are in sync.
pub(crate) fn create_topic(cluster: &mut Cluster, seed: u64) {
    let create = CreateTopic {
        name: topic(),
        partitions: PARTITIONS,
        placement: Placement::Nodes(NODES.map(|node| NodeId::new(node).unwrap()).to_vec()),
        properties: TopicProperties {
            durability: if seed.is_multiple_of(2) { Durability::PageCache } else { Durability::Fsync },
            min_insync_replicas: 2,
            ..TopicProperties::default()
        },
    };
    let programs = cluster.hosts().len();
    cluster.until("all programs are registered", SOON, |cluster| cluster.store.registered() == programs);
    cluster.ask(
        "a topic",
        SOON,
        |network| async move { client(&network).create_topic(&create).await.unwrap() },
    );
    until_in_sync(cluster);
}

/// Waits until all replicas are in sync; how long that took.
pub(crate) fn until_in_sync(cluster: &mut Cluster) -> Duration {
    cluster.until("all replicas are in sync", HEALED_WITHIN, |cluster| {
        let is_whole = |record: PartitionRecord| record.leader.is_some() && record.isr.len() == NODES.len();
        (0..PARTITIONS).all(|partition| is_whole(cluster.record(partition)))
    })
}

/// Heals the cluster and checks everything that must hold then; ends the load and the programs. How long it took until
/// all replicas were in sync.
pub(crate) fn check(cluster: &mut Cluster, load: &Load) -> Duration {
    cluster.heal();
    let healed = until_in_sync(cluster);
    let now = cluster.elapsed();
    cluster.until("records are acknowledged", SERVED_WITHIN, |_| load.is_acknowledged_after(now));
    load.stop();
    cluster.until("producers and readers end", ENDED_WITHIN, |_| load.has_ended());
    read_everything(cluster, load);
    load.history().assert_holds();
    assert_eq!(load.faults(), Vec::<String>::new());
    check_replicas(cluster);
    healed
}

/// Ends the programs of a cluster that is well, and checks that they do, and what they leave behind.
pub(crate) fn check_replicas(cluster: &mut Cluster) {
    stop_all(cluster);
    compare_logs(cluster);
}

/// Reads every replica from start to end, until all ends are the same.
fn read_everything(cluster: &mut Cluster, load: &Load) {
    for partition in 0..PARTITIONS {
        let leads = cluster.leader_of(partition).unwrap();
        let hosts = NODES.map(|node| if node == leads { leader(node) } else { agent(node) });
        let load = load.clone();
        cluster.ask("every replica is read to the same end", SOON, move |network| async move {
            let mut replicas = hosts.map(|host| log_service(&network, &host));
            loop {
                let mut ends = BTreeSet::new();
                for replica in &mut replicas {
                    ends.insert(read_all(replica, load.history(), partition).await);
                }
                if ends.len() == 1 && !ends.contains(&None) {
                    return;
                }
                sleep(Duration::from_millis(10)).await;
            }
        });
    }
}

/// Reads a partition up to where a consumer may; the end, where it is served.
async fn read_all(log: &mut LogServiceClient<Channel>, history: &History, partition: i32) -> Option<i64> {
    let mut next = 0;
    loop {
        let read = read_once(log, history, partition, next, Duration::ZERO).await?;
        if read.next == next {
            return (read.high_watermark == next).then_some(next);
        }
        next = read.next;
    }
}

/// Every program ends in its time, with nobody parked in it.
fn stop_all(cluster: &mut Cluster) {
    let hosts = cluster.hosts();
    hosts.iter().for_each(|host| cluster.stop(host));
    cluster.until("all programs have stopped", DRAIN_BOUND + Duration::from_secs(1), |cluster| {
        !hosts.iter().any(|host| cluster.is_running(host))
    });
    assert_eq!(cluster.faults(), Vec::<String>::new());
}

/// What lies on the disks is the same everywhere.
fn compare_logs(cluster: &Cluster) {
    for partition in 0..PARTITIONS {
        let logs = NODES.map(|node| LogBytes::read(&cluster.data_dir(node).join(name(partition))));
        let [first, others @ ..] = &logs;
        for other in others {
            assert_eq!((first.end, first.bytes.len()), (other.end, other.bytes.len()), "{}", name(partition));
            assert!(first.bytes == other.bytes, "{}: the logs differ", name(partition));
        }
        assert_eq!(first.good, first.bytes.len(), "{}: whole batches only", name(partition));
    }
}

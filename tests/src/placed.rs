//! Replicas whose directories are made before any program runs, and the record that fits them: histories that real nodes come
//! to by luck only. The topic `t`, of one partition.
//!
//! What must hold: each directory looks as if its log had been closed in order under this boot, so that what a program makes
//! of it follows from its log, its leaderships and its high watermark alone. Records of one offset and epoch are the same
//! bytes everywhere.

use std::fs;
use std::path::Path;

use highwater_coordination::{Coordination as _, FileCoordination, FileOptions, register_endpoint};
use highwater_log::checkpoint::{
    CheckpointFile, CheckpointState, write_leader_epochs, write_partition_metadata,
};
use highwater_log::{HighWatermark, OsStorage, boot_id};
use highwater_records::{BatchBuilder, Compression, batches};
use highwater_types::{
    ClusterId, Endpoint, Incarnation, IsrMember, LeaderEpoch, LeaderEpochCache, NodeId, Offset,
    PartitionIndex, PartitionRecord, TopicId, TopicIdPartition, TopicProperties, TopicRecord,
    UncleanElection, WallTime,
};

use crate::cluster::Cluster;

/// The topic's name.
pub const TOPIC: &str = "t";

/// A replica that is to be there.
#[derive(Debug, Clone)]
pub struct Placed {
    node: i32,
    /// The files by name; those of a Kafka directory may be more than segments.
    files: Vec<(String, Vec<u8>)>,
    end: i64,
    epochs: LeaderEpochCache,
    has_epoch_checkpoint: bool,
    high_watermark: HighWatermark,
}

impl Placed {
    /// On node `node`, batches of so many records in these epochs, one after the other; nothing of it is known to be
    /// committed.
    #[must_use]
    pub fn of_batches(node: i32, lengths: &[(i32, i64)]) -> Self {
        let (mut log, mut end) = (Vec::new(), 0);
        for (epoch, count) in lengths {
            log.extend(batch(*epoch, end..end + count));
            end += count;
        }
        Self::of_files(node, vec![("00000000000000000000.log".to_owned(), log)])
    }

    /// On node `node`, the files of a partition directory that Kafka wrote, but for its text files.
    #[must_use]
    pub fn of_directory(node: i32, directory: &Path) -> Self {
        let entries = fs::read_dir(directory).expect("the directory can be listed").flatten();
        let named = entries.filter_map(|entry| Some((entry.file_name().to_str()?.to_owned(), entry.path())));
        let of_log = named.filter(|(name, _)| name.starts_with("0000"));
        let files = of_log.map(|(name, path)| (name, fs::read(path).expect("a file can be read"))).collect();
        Self::of_files(node, files)
    }

    fn of_files(node: i32, files: Vec<(String, Vec<u8>)>) -> Self {
        let (mut epochs, mut end) = (LeaderEpochCache::new(), 0);
        for (_, log) in files.iter().filter(|(name, _)| name.ends_with(".log")) {
            for batch in batches(log) {
                let batch = batch.expect("whole batches");
                epochs.assign(batch.leader_epoch().expect("a leader's batches"), batch.base_offset());
                end = batch.next_offset().get();
            }
        }
        let high_watermark = HighWatermark { offset: Offset::ZERO, epoch: None };
        Self { node, files, end, epochs, has_epoch_checkpoint: true, high_watermark }
    }

    /// It knows that `offset` is committed, from a leader of `leader_epoch`.
    #[must_use]
    pub fn committed(mut self, offset: i64, leader_epoch: i32) -> Self {
        self.high_watermark = HighWatermark { offset: at(offset), epoch: Some(epoch(leader_epoch)) };
        self
    }

    /// It has led in `leader_epoch` since its log's end, without a record.
    #[must_use]
    pub fn leadership_without_records(mut self, leader_epoch: i32) -> Self {
        self.epochs.assign(epoch(leader_epoch), at(self.end));
        self
    }

    /// Its epoch checkpoint is lost.
    #[must_use]
    pub fn without_epoch_checkpoint(mut self) -> Self {
        self.has_epoch_checkpoint = false;
        self
    }

    /// Its incarnation.
    fn incarnation(node: i32) -> Incarnation {
        Incarnation::new(u64::from(node.unsigned_abs()) + 0xF0).expect("not 0")
    }

    fn write(&self, cluster: &Cluster, topic: TopicId) {
        let directory = cluster.data_dir(self.node).join(format!("{TOPIC}-0"));
        fs::create_dir_all(&directory).expect("the place is ours");
        for (name, bytes) in &self.files {
            fs::write(directory.join(name), bytes).expect("the place is ours");
        }
        if self.has_epoch_checkpoint {
            write_leader_epochs(&OsStorage, &directory, &self.epochs).expect("the place is ours");
        }
        write_partition_metadata(&OsStorage, &directory, topic).expect("the place is ours");
        let state = CheckpointState {
            recovery_point: at(self.end),
            high_watermark: self.high_watermark,
            highest_leader_epoch: self.epochs.latest().map(|entry| entry.epoch),
            clean: true,
            boot_id: Some(boot_id(None).expect("the kernel knows its boot")),
            flush_target: at(self.end),
            ..CheckpointState::new(topic, Self::incarnation(self.node))
        };
        let (mut file, _) = CheckpointFile::open(&OsStorage, &directory).expect("the place is ours");
        file.write_durable(&state).expect("the place is ours");
    }
}

/// What the store says of the partition.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Who leads, or led last.
    pub leader: i32,
    /// In which epoch.
    pub leader_epoch: i32,
    /// The in-sync set.
    pub isr: Vec<i32>,
    /// The epoch of an unclean election, where the leader's log ended then, and who was passed over.
    pub unclean: Option<(i32, i64, i32)>,
    /// The topic's properties.
    pub properties: TopicProperties,
}

/// Makes the directories, and the record of a topic whose replicas are on their nodes, in this order. The cluster's programs have
/// been there before, but none runs yet.
pub async fn place(cluster: &Cluster, replicas: &[Placed], recorded: Recorded) -> TopicId {
    let topic = TopicId::random();
    replicas.iter().for_each(|replica| replica.write(cluster, topic));
    let options = FileOptions::default();
    let store = FileCoordination::open(&cluster.coordination_dir(), options).await.expect("the store opens");
    store.ensure_cluster_id(ClusterId::random()).await.expect("the store can be written");
    for server in cluster.servers() {
        let (id, program) = server.id();
        let address = Endpoint::from(server.address());
        register_endpoint(&store, node(id), program, &address).await.expect("the store can be written");
    }
    let record = TopicRecord {
        id: topic,
        name: TOPIC.parse().expect("a name"),
        partitions: 1,
        properties: recorded.properties,
        deleted: false,
    };
    let partition = TopicIdPartition::new(topic, PartitionIndex::new(0).expect("an index"));
    let new = PartitionRecord::new(partition, replicas.iter().map(|replica| node(replica.node)).collect());
    let created = store.create_topic(record, vec![new.clone()]).await.expect("the store can be written");
    assert!(created.committed().is_some(), "the topic is new");
    let member = |id: &i32| IsrMember { node: node(*id), incarnation: Placed::incarnation(*id) };
    let unclean = recorded.unclean.map(|(unclean, log_end, passed_over)| UncleanElection {
        epoch: epoch(unclean),
        log_end: at(log_end),
        passed_over: vec![member(&passed_over)],
    });
    let led = PartitionRecord {
        leader: Some(node(recorded.leader)),
        leader_epoch: Some(epoch(recorded.leader_epoch)),
        isr: recorded.isr.iter().map(member).collect(),
        unclean,
        ..new.clone()
    };
    let swapped = store.swap_partition(led, new.partition_epoch).await.expect("the store can be written");
    assert!(swapped.committed().is_some(), "nobody else changes the record");
    topic
}

/// A batch of records that say where they are.
fn batch(leader_epoch: i32, offsets: std::ops::Range<i64>) -> Vec<u8> {
    let mut builder =
        BatchBuilder::new(Compression::None).base_offset(at(offsets.start)).leader_epoch(epoch(leader_epoch));
    for offset in offsets {
        let value = format!("{offset}@{leader_epoch}");
        builder
            .append(WallTime::from_millis(1000), None, Some(value.as_bytes()), &[])
            .expect("a small batch");
    }
    builder.build().expect("a batch has records").to_vec()
}

fn at(offset: i64) -> Offset {
    Offset::new(offset).expect("an offset")
}

fn epoch(epoch: i32) -> LeaderEpoch {
    LeaderEpoch::new(epoch).expect("an epoch")
}

fn node(id: i32) -> NodeId {
    NodeId::new(id).expect("a node id")
}

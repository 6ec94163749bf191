//! What a partition and a node remember beside the records.
//!
//! - `checkpoint`: our own file of truth per partition, two slots written in place (`slots.rs`, `state.rs`).
//! - Kafka's text files, written temp + flush + rename + directory flush: `leader-epoch-checkpoint`
//!   (`leader_epochs.rs`), `partition.metadata` (`partition_metadata.rs`); and those that are only read when a directory
//!   of Kafka's is adopted (`kafka_node.rs`).
//!
//! A damaged text file is never an error: what can be read is returned with the reason why the rest cannot, and the log
//! decides (everything in them can be made again from the batches).

mod kafka_node;
mod leader_epochs;
mod partition_metadata;
mod slots;
mod state;
mod text;

pub(crate) use kafka_node::KAFKA_NODE_FILES;
pub use kafka_node::{KafkaCheckpoints, KafkaOffsets, read_kafka_checkpoints};
pub use leader_epochs::{LEADER_EPOCH_FILE, LoadedEpochs, read_leader_epochs, write_leader_epochs};
pub use partition_metadata::{
    LoadedPartitionMetadata, PARTITION_METADATA_FILE, read_partition_metadata, write_partition_metadata,
};
pub use slots::{CHECKPOINT_FILE, CheckpointFile, LoadedCheckpoint};
pub use state::{CheckpointState, LOST_RANGES_MAX};

//! The partition log on a storage: segments, indexes, recovery, checkpoints, the partition lock.

#![deny(clippy::indexing_slicing)]

mod adopt;
mod boot_id;
mod buffer_pool;
pub mod checkpoint;
mod config;
mod data_dir;
mod disk_id;
mod epoch_runs;
mod error;
mod index;
mod lock;
mod log;
mod meta_properties;
mod names;
mod partition_files;
mod range;
mod read_only;
mod report;
mod segment;
mod segments;
mod side_file;
pub mod storage;
mod vouched;
mod walk;

pub use adopt::{AdoptOptions, Adoptable, Adopted, adopt_partition, list_adoptable};
pub use boot_id::boot_id;
pub use buffer_pool::{BufferPool, ReadBuffer};
pub use config::LogConfig;
pub use data_dir::{
    AGENT_SOCKET, DataDirScan, PartitionDirectory, finish_removals, is_node_file, remove_partition,
    scan_data_dir,
};
pub use disk_id::{DISK_ID_FILE, DiskIdFile};
pub use epoch_runs::{EpochContradiction, EpochRuns};
pub use error::{AppendError, LogError, OpenError, ReadError, Unusable};
pub use lock::{LockGuard, PartitionLocks};
pub use log::{
    CutOrder, FollowerAppend, LeaderAppend, Log, LogPositions, LogRead, LogSnapshot, OnDamage, OpenOptions,
    ReadLimits, Retained, TimestampHit, Truncated,
};
pub use meta_properties::{META_PROPERTIES_FILE, MetaProperties, MetaPropertiesError};
pub use names::OtherKind;
pub use partition_files::{OtherFile, PartitionFiles, SegmentFiles};
pub use range::OffsetRange;
pub use read_only::{BadBytes, IndexCheck, IndexState, Judgement, ReadOnlyLog, Scanned, SegmentScan};
pub use report::{Damage, HighWatermark, IndexKind, OpenReport, Renewal, Repair};

pub use storage::{
    Access, DirEntry, OsFile, OsStorage, Storage, StorageError, StorageFile, StorageOperation, StorageResult,
};
pub use vouched::{Missing, Vouched};

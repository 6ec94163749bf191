//! The partition log on a storage: segments, indexes, recovery, checkpoints, the partition lock.

#![deny(clippy::indexing_slicing)]

pub mod checkpoint;
mod config;
mod disk_id;
mod error;
mod lock;
mod log;
mod range;
mod report;
pub mod storage;

pub use config::LogConfig;
pub use disk_id::{DISK_ID_FILE, DiskIdFile};
pub use error::{AppendError, LogError, OpenError, ReadError, Unusable};
pub use lock::{LockGuard, PartitionLocks};
pub use log::{
    CutOrder, FollowerAppend, LeaderAppend, Log, LogPositions, LogRead, OnDamage, OpenOptions, ReadLimits,
    Retained, TimestampHit, Truncated,
};
pub use range::OffsetRange;
pub use report::{Damage, HighWatermark, IndexKind, OpenReport, Renewal, Repair};

pub use storage::{
    Access, DirEntry, OsFile, OsStorage, Storage, StorageError, StorageFile, StorageOperation, StorageResult,
};

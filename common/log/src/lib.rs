//! The partition log on a storage: segments, indexes, recovery, checkpoints, the partition lock.

#![deny(clippy::indexing_slicing)]

pub mod storage;

pub use storage::{
    Access, DirEntry, OsFile, OsStorage, Storage, StorageError, StorageFile, StorageOperation, StorageResult,
};

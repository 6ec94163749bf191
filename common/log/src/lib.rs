//! The partition log on a storage: segments, indexes, recovery, checkpoints, the partition lock.

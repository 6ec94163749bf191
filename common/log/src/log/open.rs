//! Opening a log: what the directory says, what of it holds, and what follows for high watermark and incarnation
//! (design.md 2 and 6.3). Everything in the log is flushed when it is open; everything put right is in the report.

use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use highwater_types::TopicPartition;
use parking_lot::Mutex;

use super::flush::Unflushed;
use super::index_cache::IndexCache;
use super::opening::Opening;
use super::persisted::Persisted;
use super::{Log, OpenOptions, Writer};
use crate::checkpoint::{
    CheckpointFile, LoadedCheckpoint, LoadedPartitionMetadata, read_partition_metadata,
    write_partition_metadata,
};
use crate::{LockGuard, OpenError, OpenReport, Storage};

impl<S: Storage> Log<S> {
    /// Opens `<data_dir>/<topic>-<partition>`, creating it when it does not exist: recovers what an unclean stop left, flushes
    /// it, and reports everything that was found. `lock` is the partition's lock, which the log holds from now on.
    ///
    /// # Errors
    /// [`OpenError::OtherTopic`] when the directory is another topic's; else what the disk says. The lock is freed then.
    pub fn open(
        storage: S,
        data_dir: &Path,
        partition: TopicPartition,
        lock: impl Into<Arc<LockGuard>>,
        options: OpenOptions,
    ) -> Result<(Self, OpenReport), OpenError> {
        let dir: Arc<Path> = data_dir.join(partition.directory_name()).into();
        let existed = storage.exists(&dir)?;
        if !existed {
            storage.create_dir_all(&dir)?;
            storage.sync_dir(data_dir)?;
        }
        check_topic(&storage, &dir, &options)?;
        let (mut file, loaded) = CheckpointFile::open(&storage, &dir)?;
        let mut opening = Opening::new(&storage, dir, &options, existed, loaded);
        let view = opening.recover(&mut file)?;
        opening.settle(&view);
        let is_stored = opening.stored.as_ref() == Some(&opening.state);
        if !is_stored {
            file.write_durable(&opening.state)?;
        } else if !opening.state.clean {
            // What was found may not have reached the disk: whoever wrote it failed or was killed. A replica could stand with
            // that incarnation, and lose it with the power.
            file.make_durable()?;
        }
        let report = opening.report(&view);
        report_to_operators(&partition, &report);
        let remembered = ArcSwap::from_pointee(opening.state.clone());
        let persisted = Persisted {
            file,
            is_durable: !is_stored || !opening.state.clean,
            marked_open: !opening.state.clean && opening.state.boot_id == Some(options.boot_id),
            state: opening.state,
            ceiling: None,
        };
        let dir = opening.dir;
        let log = Self {
            storage: storage.clone(),
            dir,
            partition,
            topic_id: options.topic_id,
            boot_id: options.boot_id,
            config: ArcSwap::from_pointee(options.config.clone()),
            view: ArcSwap::from_pointee(view),
            publishing: Mutex::new(()),
            writer: Mutex::new(Writer { active_since: options.now }),
            flushing: Mutex::new(()),
            unflushed: Mutex::new(Unflushed::nothing()),
            persisted: Mutex::new(persisted),
            remembered,
            failed: OnceLock::new(),
            closed: AtomicBool::new(false),
            index_cache: IndexCache::new(),
            read_buffers: options.read_buffers,
            lock: Mutex::new(Some(lock.into())),
        };
        assert_eq!(log.flushed(), log.log_end(), "what is open is flushed");
        assert!(report.high_watermark.offset <= log.log_end(), "the high watermark is within the log");
        Ok((log, report))
    }
}

/// Refuses another topic's directory, before anything in it is touched.
fn check_topic<S: Storage>(storage: &S, dir: &Path, options: &OpenOptions) -> Result<(), OpenError> {
    let other = |found| OpenError::OtherTopic {
        directory: dir.display().to_string(),
        expected: options.topic_id,
        found,
    };
    if let LoadedCheckpoint::Found(state) = CheckpointFile::read(storage, dir)?
        && state.topic_id != options.topic_id
    {
        return Err(other(state.topic_id));
    }
    match read_partition_metadata(storage, dir)? {
        LoadedPartitionMetadata::Found(id) if id == options.topic_id => Ok(()),
        LoadedPartitionMetadata::Found(id) => Err(other(id)),
        LoadedPartitionMetadata::Absent | LoadedPartitionMetadata::Damaged(_) => {
            Ok(write_partition_metadata(storage, dir, options.topic_id)?)
        }
    }
}

fn report_to_operators(partition: &TopicPartition, report: &OpenReport) {
    for repair in &report.repairs {
        tracing::warn!(%partition, "{repair}");
    }
    for damage in &report.damage {
        tracing::error!(%partition, "{damage}");
    }
}

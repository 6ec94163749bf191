//! Assigning leaderships, and the epoch cache's file (S36, S45).

use std::sync::Arc;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{LeaderEpoch, LeaderEpochCache, Offset};

use super::Log;
use crate::checkpoint::write_leader_epochs;
use crate::segments::View;
use crate::{LogError, Storage, StorageResult};

impl<S: Storage> Log<S> {
    /// A leadership begins at the log end, even if no record is ever written in it (S36). Durable before it is used (S45).
    /// Returns where it begins: where it began already, when it is the latest known one.
    ///
    /// # Errors
    /// [`LogError::Refused`] when the log knows a higher epoch; else what the disk says, and nothing is assigned then.
    pub fn assign_epoch(&self, epoch: LeaderEpoch) -> Result<Offset, LogError> {
        let _writer = self.writer.lock();
        self.usable()?;
        let view = self.view.load_full();
        if let Some(latest) = view.epochs.latest() {
            if latest.epoch == epoch {
                return Ok(latest.start);
            }
            if latest.epoch > epoch {
                let refused = format!(
                    "epoch {epoch} cannot begin: the log of {} knows epoch {}",
                    self.partition, latest.epoch
                );
                return Err(LogError::Refused(refused));
            }
        }
        let mut epochs = view.epochs.as_ref().clone();
        epochs.assign(epoch, view.log_end);
        self.store_epochs(&epochs)?;
        let published = self.publish(|view| View { epochs: Arc::new(epochs), ..view.clone() });
        assert_eq!(published.epochs.latest().map(|e| e.epoch), Some(epoch), "the epoch is the latest");
        assert_eq!(published.log_end, view.log_end, "nothing was appended meanwhile");
        Ok(view.log_end)
    }

    /// Writes the epoch cache's file as a whole, durably.
    pub(super) fn store_epochs(&self, epochs: &LeaderEpochCache) -> StorageResult<()> {
        write_leader_epochs(&self.storage, &self.dir, epochs)
    }

    /// The same for epochs that the records tell of. It flushes the directory, which hides that a truncation did not.
    pub(super) fn store_epochs_of_records(&self, epochs: &LeaderEpochCache) -> StorageResult<()> {
        if is_planted(PlantedFault::RemovalNotSynced) { Ok(()) } else { self.store_epochs(epochs) }
    }
}

//! Facts of one moment, for checks that must not mix two (S21, S22).

use std::sync::Arc;

use highwater_types::{LeaderEpochCache, Offset};

use super::Log;
use crate::{LogPositions, Storage};

/// What a log says of itself, all from one view.
#[derive(Clone, Debug)]
pub struct LogSnapshot {
    /// Where it starts and ends.
    pub positions: LogPositions,
    /// The leaderships that it holds.
    pub epochs: Arc<LeaderEpochCache>,
    /// The base offset of the segment that is appended to.
    pub active_segment: Offset,
}

impl<S: Storage> Log<S> {
    /// Positions and epochs of one moment.
    pub fn snapshot(&self) -> LogSnapshot {
        let view = self.view.load();
        LogSnapshot {
            positions: view.positions(),
            epochs: Arc::clone(&view.epochs),
            active_segment: view.active.base(),
        }
    }
}

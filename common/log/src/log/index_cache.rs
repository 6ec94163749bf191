//! Which closed segments have their indexes in memory: the last few that were read. Bounds the memory of a log by its readers,
//! not by its size (an index is about 0.2 % of its segment).

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::segment::Segment;
use crate::storage::Storage;

/// How many closed segments of one log keep their indexes in memory.
const LOADED_MAX: usize = 4;

#[derive(Debug)]
pub(super) struct IndexCache<S: Storage> {
    loaded: Mutex<VecDeque<Arc<Segment<S>>>>,
}

impl<S: Storage> IndexCache<S> {
    pub(super) fn new() -> Self {
        Self { loaded: Mutex::new(VecDeque::new()) }
    }

    /// A closed segment's index is about to be used: it is among the last few now; the one least recently used is forgotten.
    pub(super) fn used(&self, segment: &Arc<Segment<S>>) {
        let mut loaded = self.loaded.lock();
        if loaded.back().is_some_and(|last| Arc::ptr_eq(last, segment)) {
            return;
        }
        loaded.retain(|s| !Arc::ptr_eq(s, segment));
        loaded.push_back(Arc::clone(segment));
        while loaded.len() > LOADED_MAX {
            if let Some(oldest) = loaded.pop_front() {
                oldest.unload_indexes();
            }
        }
        debug_assert!(loaded.len() <= LOADED_MAX, "bounded");
    }
}

//! What is remembered of a replica between steps: what it said of itself, and its log by batches, which is read again only as
//! far as it changed.

use std::sync::Arc;

use highwater_log::storage::sim::SimStorage;
use highwater_log::{Log, OffsetRange, ReadLimits};
use highwater_records::batches;
use highwater_types::Offset;

use super::history::Batch;
use super::observe::Said;

/// What is remembered of a replica.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    pub(super) log: Option<Arc<Log<SimStorage>>>,
    generation: u64,
    damage: Vec<OffsetRange>,
    pub(super) batches: Vec<Batch>,
    /// What a cut took since the step before.
    pub(super) removed: Vec<Batch>,
    end: Offset,
    pub(super) said: Option<Said>,
    /// What was said in the step that is being looked at.
    pub(super) saying: Option<Said>,
    pub(super) version: usize,
}

impl Shadow {
    /// Reads what the log got since the last time, or all of it when it was cut, repaired, or is another one.
    /// What rots in it counts as held: it is not lost, but cannot be served.
    pub(super) fn refresh(
        &mut self,
        log: &Arc<Log<SimStorage>>,
        rotten: Option<Batch>,
    ) -> Result<(), String> {
        let positions = log.positions();
        let same = self.log.as_ref().is_some_and(|known| Arc::ptr_eq(known, log));
        let was_cut = same && self.generation != positions.generation;
        let damage: Vec<_> = log.damage().into_iter().map(|damage| damage.range).collect();
        let before = if was_cut { std::mem::take(&mut self.batches) } else { Vec::new() };
        if !same || was_cut || self.end > positions.log_end || self.damage != damage {
            self.batches.clear();
            self.end = positions.log_start;
        }
        self.end = self.end.max(positions.log_start);
        self.log = Some(Arc::clone(log));
        (self.generation, self.damage) = (positions.generation, damage);
        self.read_on(log, positions.log_end, rotten)?;
        self.batches.retain(|batch| batch.next > positions.log_start);
        let is_gone = |batch: &Batch| batch.base >= positions.log_start && !self.batches.contains(batch);
        self.removed.extend(before.into_iter().filter(is_gone));
        Ok(())
    }

    fn read_on(
        &mut self,
        log: &Log<SimStorage>,
        log_end: Offset,
        rotten: Option<Batch>,
    ) -> Result<(), String> {
        while self.end < log_end {
            let limits =
                ReadLimits { max_bytes: 1 << 20, min_one_batch: true, upper: log_end, checked: true };
            match log.read(self.end, limits) {
                Ok(read) if read.batches > 0 => {
                    for view in batches(&read.records) {
                        let view = view.map_err(|error| format!("a log holds no batch: {error}"))?;
                        self.batches.push(Batch::of(&view));
                    }
                    self.end = read.next;
                }
                Ok(_) => self.end = log_end,
                Err(_) if rotten.is_some_and(|batch| batch.base == self.end) => {
                    self.batches.extend(rotten);
                    self.end = rotten.map_or(log_end, |batch| batch.next);
                }
                // What is damaged is not read; what comes after it is.
                Err(_) => {
                    let after =
                        self.damage.iter().filter(|range| range.start <= self.end && self.end < range.end);
                    self.end = after.map(|range| range.end).max().unwrap_or(log_end);
                }
            }
        }
        Ok(())
    }
}

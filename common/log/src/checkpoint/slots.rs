//! The `checkpoint` file: two slots, written in place in turn.
//!
//! # Why two slots are enough
//!
//! A write goes to one slot of 4096 bytes and the power may fail in it: the slot is then old, new, or torn, and a torn
//! one is told by its checksum. So at every moment one slot must be *synced* (whole on the platter) and left alone.
//! That is the one rule: **a write never goes over the last synced slot** (`synced`). From it follows:
//!
//! - A lazy write goes to the other slot, again and again, and is never flushed by itself. Whatever the power leaves of
//!   it, the synced slot is whole. If it survives whole, it has the higher sequence and is as true as when it was
//!   written; else the state falls back to the synced one. So a lazy write may only carry what is safe to lose: a high
//!   watermark, a log start and a recovery point *that moved up*.
//! - A durable write goes to the other slot too, then the file is flushed. Only when that succeeded does the written slot
//!   become the synced one, and the older one free. If the flush fails, the rule still protects the old slot; a later
//!   durable write writes its whole slot again, so it does not depend on pages that the failed flush dropped.
//! - After a durable write the older slot still holds an older state, maybe with *higher* positions (before a
//!   truncation). It cannot win: the synced slot has the higher sequence and is never written before another slot is
//!   synced. (If the synced slot itself rots on the platter, the older state is believed; recovery then meets a log that
//!   ends below its recovery point and calls it damage.)
//! - After a restart the slot with the highest sequence may be a lazy one that only the page cache holds (the program
//!   died, not the host). To go over the other slot, which may be the only one on the platter, would break the rule. So
//!   the first write after an open writes that newest slot again, byte for byte, and flushes. A flush alone would not
//!   do: one that failed earlier made the kernel take the lost page for clean. (Tearing this write does no harm: either
//!   the platter has the same bytes already, or the other slot is the synced one.)
//! - Before the first durable write there is no synced slot to fall back to, so a lazy write is made durable then.
//!
//! Deliberately absent: when to write what (the log decides), and the lock (whoever holds the partition's lock writes).

use std::path::{Path, PathBuf};

use super::state::{self, BadSlot, CheckpointState, SLOT_BYTES};
use crate::storage::{Access, Storage, StorageFile, StorageResult};

/// The file's name in a partition's directory.
pub const CHECKPOINT_FILE: &str = "checkpoint";

/// Which of the two slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    First,
    Second,
}

impl Slot {
    const BOTH: [Self; 2] = [Self::First, Self::Second];

    const fn position(self) -> u64 {
        match self {
            Self::First => 0,
            Self::Second => SLOT_BYTES as u64,
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// What a checkpoint file held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadedCheckpoint {
    /// The newest valid state.
    Found(CheckpointState),
    /// There is no file, or nothing was ever written to it.
    Absent,
    /// There is a file but no valid slot; why not.
    Unusable(String),
}

impl LoadedCheckpoint {
    /// The state, if there is one.
    #[must_use]
    pub fn into_state(self) -> Option<CheckpointState> {
        match self {
            Self::Found(state) => Some(state),
            Self::Absent | Self::Unusable(_) => None,
        }
    }
}

/// The checkpoint file of a partition, open for writing by whoever holds the partition's lock.
#[derive(Debug)]
pub struct CheckpointFile<S: Storage> {
    file: S::File,
    /// The newest valid slot; what a write must spare.
    newest: Option<Slot>,
    /// The sequence of the last write; only rises.
    sequence: u64,
    /// Whether `newest` is known to be on the platter. False after an open, until the first write.
    is_flushed: bool,
}

impl<S: Storage> CheckpointFile<S> {
    /// Opens the file in `dir`, which exists, and reads it; creates it (its name durable) when there is none.
    ///
    /// # Errors
    /// What the disk says. A file without a valid slot is not an error.
    pub fn open(storage: &S, dir: &Path) -> StorageResult<(Self, LoadedCheckpoint)> {
        let path = path_in(dir);
        let file = match storage.open(&path, Access::ReadWrite) {
            Err(e) if e.is_not_found() => {
                let file = storage.create_new(&path)?;
                storage.sync_dir(dir)?;
                file
            }
            opened => opened?,
        };
        let (loaded, newest, sequence) = load(&file)?;
        Ok((Self { file, newest, sequence, is_flushed: false }, loaded))
    }

    /// Reads the file in `dir` and writes nothing: for read-only openers. A write that is under way elsewhere may hide the
    /// newest state; then the one before it is returned.
    ///
    /// # Errors
    /// What the disk says.
    pub fn read(storage: &S, dir: &Path) -> StorageResult<LoadedCheckpoint> {
        match storage.open(&path_in(dir), Access::ReadOnly) {
            Err(e) if e.is_not_found() => Ok(LoadedCheckpoint::Absent),
            opened => Ok(load(&opened?)?.0),
        }
    }

    /// Writes `state` so that it survives everything from the return on: what lowers a position, renews an incarnation, or
    /// notes an epoch.
    ///
    /// # Errors
    /// What the disk says. Then either the state before or this one is found later.
    ///
    /// # Panics
    /// When there are more lost ranges than [`super::LOST_RANGES_MAX`].
    pub fn write_durable(&mut self, state: &CheckpointState) -> StorageResult<()> {
        let slot = self.write(state)?;
        self.file.sync_data()?;
        self.newest = Some(slot);
        Ok(())
    }

    /// Writes `state` without a flush: a power loss may bring back the state before. Only for positions that moved up.
    ///
    /// # Errors
    /// What the disk says. Then either the state before or this one is found later.
    ///
    /// # Panics
    /// As [`Self::write_durable`].
    pub fn write_lazy(&mut self, state: &CheckpointState) -> StorageResult<()> {
        if self.newest.is_none() {
            return self.write_durable(state);
        }
        self.write(state).map(drop)
    }

    /// Writes the slot that may be lost; the caller decides what becomes of it.
    fn write(&mut self, state: &CheckpointState) -> StorageResult<Slot> {
        self.make_durable()?;
        let slot = self.newest.map_or(Slot::First, Slot::other);
        assert!(self.newest != Some(slot), "the last synced slot is never written over");
        assert!(self.sequence < u64::MAX, "a sequence number is left");
        self.sequence += 1;
        self.file.write_all_at(&state.encode(self.sequence), slot.position())?;
        Ok(slot)
    }

    /// Flushes what was found when the file was opened: it may have been left in the page cache. Every write does so first.
    ///
    /// # Errors
    /// What the disk says.
    pub fn make_durable(&mut self) -> StorageResult<()> {
        if self.is_flushed {
            return Ok(());
        }
        if let Some(slot) = self.newest {
            let bytes = read_slot(&self.file, slot)?;
            self.file.write_all_at(&bytes, slot.position())?;
            self.file.sync_data()?;
        }
        self.is_flushed = true;
        Ok(())
    }
}

fn path_in(dir: &Path) -> PathBuf {
    dir.join(CHECKPOINT_FILE)
}

/// The state of the valid slot with the highest sequence, that slot, and that sequence.
fn load<F: StorageFile>(file: &F) -> StorageResult<(LoadedCheckpoint, Option<Slot>, u64)> {
    let mut best: Option<(u64, Slot, CheckpointState)> = None;
    let mut bad = Vec::new();
    for slot in Slot::BOTH {
        match state::decode(&read_slot(file, slot)?) {
            Ok((sequence, state)) if best.as_ref().is_none_or(|(known, ..)| *known < sequence) => {
                best = Some((sequence, slot, state));
            }
            Ok(_) => {}
            Err(reason) => bad.push(reason),
        }
    }
    if let Some((sequence, slot, state)) = best {
        return Ok((LoadedCheckpoint::Found(state), Some(slot), sequence));
    }
    let loaded = match bad.as_slice() {
        [BadSlot::Empty, BadSlot::Empty] => LoadedCheckpoint::Absent,
        reasons => {
            let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
            LoadedCheckpoint::Unusable(format!("slots: {}", reasons.join("; ")))
        }
    };
    Ok((loaded, None, 0))
}

/// A slot's bytes; what the file does not have reads as zeros.
fn read_slot<F: StorageFile>(file: &F, slot: Slot) -> StorageResult<Vec<u8>> {
    let mut bytes = vec![0; SLOT_BYTES];
    file.read_up_to(&mut bytes, slot.position())?;
    Ok(bytes)
}

#[cfg(test)]
#[path = "slots_test.rs"]
mod tests;

//! The slot rules on a disk that crashes: whatever was durable is found, or something newer.

use std::path::Path;

use highwater_types::Offset;
use nix::libc;

use super::super::state::tests::some_state;
use super::*;
use crate::storage::sim::SimStorage;
use crate::storage::{OsStorage, StorageOperation};

const DIR: &str = "/d/t-0";

fn with_dir(seed: u64) -> SimStorage {
    let storage = SimStorage::new(seed);
    storage.create_dir_all(Path::new(DIR)).unwrap();
    storage.sync_dir(Path::new("/")).unwrap();
    storage.sync_dir(Path::new("/d")).unwrap();
    storage
}

/// A state that can be told from the others by its number.
fn numbered(number: i64) -> CheckpointState {
    let mut state = some_state();
    state.recovery_point = Offset::new(number).unwrap();
    if number % 3 == 0 {
        // Longer than a sector, so that a torn slot mixes two states.
        for i in 0..40 {
            let start = Offset::new(1000 + number + 20 * i).unwrap();
            state.add_lost_range(crate::OffsetRange::new(start, start.next()));
        }
    }
    state
}

fn open(storage: &SimStorage) -> StorageResult<(CheckpointFile<SimStorage>, Option<i64>)> {
    let (file, loaded) = CheckpointFile::open(storage, Path::new(DIR))?;
    Ok((file, loaded.into_state().map(|state| state.recovery_point.get())))
}

fn found(storage: &SimStorage) -> Option<i64> {
    let loaded = CheckpointFile::read(storage, Path::new(DIR)).unwrap();
    loaded.into_state().map(|state| {
        let number = state.recovery_point.get();
        assert_eq!(state, numbered(number), "the state is one that was written, as a whole");
        number
    })
}

/// What a run attempted last and what it knows to be durable.
#[derive(Default)]
struct Progress {
    attempted: i64,
    durable: Option<i64>,
}

/// Writes states 1, 2, … in the pattern of `bits` (1 = durable), and starts anew in the middle. Ends at the first error.
fn run(storage: &SimStorage, bits: u32, progress: &mut Progress) -> StorageResult<()> {
    let (mut file, _) = open(storage)?;
    for step in 0..10 {
        if step == 5 {
            drop(file);
            (file, _) = open(storage)?;
        }
        progress.attempted += 1;
        let state = numbered(progress.attempted);
        if bits & (1 << step) == 0 {
            file.write_lazy(&state)?;
        } else {
            file.write_durable(&state)?;
            progress.durable = Some(progress.attempted);
        }
    }
    Ok(())
}

#[test]
fn a_power_loss_at_any_point_leaves_the_last_durable_state_or_a_newer_one() {
    for seed in 0..1_000_u64 {
        let bits = u32::try_from(seed.wrapping_mul(2_654_435_761) % 1024).unwrap();
        for stop in [seed % 35, (seed + 17) % 35] {
            let storage = with_dir(seed);
            storage.disk().stop_after(stop);
            let mut progress = Progress::default();
            let outcome = run(&storage, bits, &mut progress);
            let storage = storage.power_loss();
            let after = found(&storage);
            let context = format!("seed {seed}, stop {stop}, bits {bits:b}, {outcome:?}: found {after:?}");
            assert!(after >= progress.durable && after.unwrap_or(0) <= progress.attempted, "{context}");

            // The next life keeps the rule too, whatever it found.
            let mut next = Progress { attempted: progress.attempted, durable: after };
            storage.disk().stop_after(stop);
            let outcome = run(&storage, !bits, &mut next);
            let after = found(&storage.power_loss());
            assert!(after >= next.durable, "second life of {context}, then {outcome:?}: found {after:?}");
        }
    }
}

#[test]
fn a_dead_process_leaves_the_last_state_that_it_wrote() {
    for stop in 0..40 {
        let storage = with_dir(stop);
        storage.disk().stop_after(stop);
        let mut progress = Progress::default();
        let outcome = run(&storage, 0b01_0010_0001, &mut progress);
        let after = found(&storage.crash_process()).unwrap_or(0);
        let oldest = if outcome.is_ok() { progress.attempted } else { progress.attempted - 1 };
        assert!(
            (oldest..=progress.attempted).contains(&after),
            "stop {stop}: {after}, wrote {}",
            progress.attempted
        );
    }
}

#[test]
fn a_lowered_state_is_never_followed_by_the_higher_one_before_it() {
    for seed in 0..300 {
        let storage = with_dir(seed);
        let (mut file, _) = open(&storage).unwrap();
        file.write_durable(&numbered(500)).unwrap();
        file.write_lazy(&numbered(700)).unwrap();
        file.write_durable(&numbered(50)).unwrap();
        file.write_lazy(&numbered(60)).unwrap();
        assert!([Some(50), Some(60)].contains(&found(&storage.power_loss())), "seed {seed}");
    }
}

#[test]
fn lazy_writes_cost_no_flush_and_a_durable_one_costs_one() {
    let storage = with_dir(1);
    let flushes = std::sync::Arc::new(parking_lot::Mutex::new(0));
    let (mut file, _) = open(&storage).unwrap();
    file.write_durable(&numbered(1)).unwrap();
    let count = std::sync::Arc::clone(&flushes);
    storage
        .disk()
        .set_trace(move |event| *count.lock() += u32::from(event.operation == StorageOperation::Sync));
    for number in 2..100 {
        file.write_lazy(&numbered(number)).unwrap();
    }
    assert_eq!(*flushes.lock(), 0);
    file.write_durable(&numbered(100)).unwrap();
    assert_eq!(*flushes.lock(), 1);
}

#[test]
fn a_failed_flush_never_costs_the_state_before_it() {
    for seed in 0..300 {
        let storage = with_dir(seed);
        let path = Path::new(DIR).join(CHECKPOINT_FILE);
        let (mut file, _) = open(&storage).unwrap();
        file.write_durable(&numbered(1)).unwrap();
        storage.disk().fail_next(StorageOperation::Sync, &path, libc::EIO);
        assert!(file.write_durable(&numbered(2)).is_err());

        // The page cache shows the lost state to the next process; going on from it must not cost the old one.
        let storage = storage.crash_process();
        let (mut file, _) = open(&storage).unwrap();
        storage.disk().fail_next(StorageOperation::Sync, &path, libc::EIO);
        assert!(file.write_lazy(&numbered(3)).is_err());
        file.write_lazy(&numbered(6)).unwrap();
        let after = found(&storage.power_loss());
        assert!(after >= Some(1), "seed {seed}: {after:?}");
    }
}

#[test]
fn nothing_written_and_nothing_readable_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let read = || CheckpointFile::read(&OsStorage, dir.path()).unwrap();
    assert_eq!(read(), LoadedCheckpoint::Absent);
    let (mut file, loaded) = CheckpointFile::open(&OsStorage, dir.path()).unwrap();
    assert_eq!(loaded, LoadedCheckpoint::Absent);
    assert_eq!(read(), LoadedCheckpoint::Absent, "an empty file holds nothing");
    file.write_lazy(&numbered(1)).unwrap();
    file.write_lazy(&numbered(2)).unwrap();
    assert_eq!(read(), LoadedCheckpoint::Found(numbered(2)));

    let path = dir.path().join(CHECKPOINT_FILE);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 8192);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096 + 100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(read(), LoadedCheckpoint::Found(numbered(1)), "the other slot stands in");
    std::fs::write(&path, [b'x'; 16]).unwrap();
    assert!(matches!(read(), LoadedCheckpoint::Unusable(reason) if reason.contains("wrong magic")));
    let (mut file, loaded) = CheckpointFile::open(&OsStorage, dir.path()).unwrap();
    assert!(matches!(loaded, LoadedCheckpoint::Unusable(_)));
    file.write_durable(&numbered(3)).unwrap();
    assert_eq!(read(), LoadedCheckpoint::Found(numbered(3)));
}

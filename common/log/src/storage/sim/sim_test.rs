//! What the simulated disk loses in a crash, what it must keep, and that it is deterministic.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use nix::libc;
use parking_lot::Mutex;

use super::*;
use crate::storage::{Storage, StorageFile, StorageOperation, conformance};

const SEEDS: u64 = 200;

fn with_data_dir(seed: u64) -> SimStorage {
    let storage = SimStorage::new(seed);
    storage.create_dir_all(Path::new("/d")).unwrap();
    storage.sync_dir(Path::new("/")).unwrap();
    storage
}

fn put(storage: &SimStorage, path: &str, bytes: &[u8]) -> SimFile {
    let file = storage.create_new(Path::new(path)).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn durably(storage: &SimStorage, path: &str, bytes: &[u8]) -> SimFile {
    let file = put(storage, path, bytes);
    file.sync_all().unwrap();
    storage.sync_dir(Path::new(path).parent().unwrap()).unwrap();
    file
}

fn read(storage: &SimStorage, path: &str) -> Vec<u8> {
    storage.read_small(Path::new(path), u64::MAX).unwrap()
}

/// The outcomes of one scenario over many seeds.
fn outcomes<T: Ord>(scenario: impl Fn(u64) -> T) -> BTreeSet<T> {
    (0..SEEDS).map(scenario).collect()
}

#[test]
fn the_simulated_disk_passes_the_suite_of_every_storage() {
    conformance::all(&with_data_dir(1), Path::new("/d"));
}

#[test]
fn what_was_flushed_survives_every_power_loss() {
    for seed in 0..SEEDS {
        let storage = with_data_dir(seed);
        durably(&storage, "/d/f", &[5; 10_000]);
        let storage = storage.power_loss().power_loss();
        assert_eq!(read(&storage, "/d/f"), [5; 10_000], "seed {seed}");
    }
}

#[test]
fn a_dead_process_loses_nothing_that_it_wrote_but_cannot_go_on() {
    let storage = with_data_dir(1);
    let file = put(&storage, "/d/f", b"not flushed");
    let neighbour = storage.disk().process();
    let next = storage.crash_process();
    assert_eq!(read(&next, "/d/f"), b"not flushed");
    assert!(
        file.write_all_at(b"x", 0).is_err()
            && file.sync_all().is_err()
            && storage.list_dir(Path::new("/d")).is_err()
    );
    assert!(neighbour.list_dir(Path::new("/d")).is_ok(), "the other process of the node lives on");
}

#[test]
fn unflushed_pages_survive_in_any_subset_and_can_be_torn() {
    let kinds = outcomes(|seed| {
        let storage = with_data_dir(seed);
        let file = durably(&storage, "/d/f", &[0; 3 * 4096]);
        file.write_all_at(&[1; 3 * 4096], 0).unwrap();
        let after = read(&storage.power_loss(), "/d/f");
        assert_eq!(after.len(), 3 * 4096);
        assert!(after.chunks(512).all(|sector| sector.iter().all(|b| b == &sector[0])), "a sector is whole");
        after.chunks(4096).map(|page| page.iter().map(|b| u32::from(*b)).sum::<u32>()).collect::<Vec<_>>()
    });
    for wanted in [vec![0, 0, 0], vec![4096, 4096, 4096], vec![0, 4096, 0], vec![4096, 0, 4096]] {
        assert!(kinds.contains(&wanted), "{wanted:?} never happens");
    }
    assert!(kinds.iter().flatten().any(|sum| ![0, 4096].contains(sum)), "no page is ever torn");
}

#[test]
fn an_unflushed_tail_is_missing_zero_or_there() {
    let kinds = outcomes(|seed| {
        let storage = with_data_dir(seed);
        let file = durably(&storage, "/d/f", &[1; 1000]);
        file.write_all_at(&[2; 9000], 1000).unwrap();
        let after = read(&storage.power_loss(), "/d/f");
        assert!(after[..1000].iter().all(|b| *b == 1));
        (after.len() == 1000, after.len() == 10_000, after[1000..].contains(&0), after[1000..].contains(&2))
    });
    assert!(kinds.contains(&(true, false, false, false)), "the tail is missing");
    assert!(kinds.contains(&(false, true, false, true)), "the tail is there");
    assert!(kinds.contains(&(false, true, true, true)), "the length is there, but not every page");
}

#[test]
fn an_unflushed_cut_can_come_undone() {
    let lengths = outcomes(|seed| {
        let storage = with_data_dir(seed);
        let file = durably(&storage, "/d/f", &[1; 8192]);
        file.set_len(4096).unwrap();
        let after = read(&storage.power_loss(), "/d/f");
        assert!(after.iter().all(|b| *b == 1));
        after.len()
    });
    assert_eq!(lengths, BTreeSet::from([4096, 8192]));
}

#[test]
fn a_flushed_cut_stays_cut_even_when_the_file_grows_again() {
    for seed in 0..SEEDS {
        let storage = with_data_dir(seed);
        let file = durably(&storage, "/d/f", &[1; 8192]);
        file.set_len(100).unwrap();
        file.sync_data().unwrap();
        file.set_len(8192).unwrap();
        let after = read(&storage.power_loss(), "/d/f");
        assert!(after.len() >= 100 && after[100..].iter().all(|b| *b == 0), "seed {seed}");
    }
}

#[test]
fn unflushed_names_vanish_come_back_and_revert() {
    let names = |storage: &SimStorage| {
        let listed = storage.list_dir(Path::new("/d")).unwrap();
        listed.iter().map(|e| e.utf8_name().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    let kinds = outcomes(|seed| {
        let storage = with_data_dir(seed);
        durably(&storage, "/d/gone", b"1");
        durably(&storage, "/d/old", b"2");
        storage.remove_file(Path::new("/d/gone")).unwrap();
        put(&storage, "/d/made", b"3").sync_all().unwrap();
        storage.rename(Path::new("/d/old"), Path::new("/d/renamed")).unwrap();
        names(&storage.power_loss())
    });
    let all: BTreeSet<String> = (0..8)
        .map(|bits| {
            let gone = if bits & 1 == 0 { "gone " } else { "" };
            let made = if bits & 2 == 0 { "" } else { "made " };
            format!("{gone}{made}{}", if bits & 4 == 0 { "old" } else { "renamed" })
        })
        .collect();
    assert_eq!(kinds, all);
}

#[test]
fn an_atomic_write_leaves_the_old_bytes_or_the_new_ones_wherever_the_power_is_cut() {
    let mut seen = BTreeSet::new();
    for (seed, stop) in (0..SEEDS).flat_map(|seed| (0..8).map(move |stop| (seed, stop))) {
        let storage = with_data_dir(seed);
        storage.write_atomically(Path::new("/d/f"), &[1; 5000]).unwrap();
        storage.disk().stop_after(stop);
        let written = storage.write_atomically(Path::new("/d/f"), &[2; 6000]);
        let after = read(&storage.power_loss(), "/d/f");
        let new = after == [2; 6000];
        assert!(new || after == [1; 5000], "seed {seed}, stopped after {stop}: {} bytes", after.len());
        assert!(new || written.is_err(), "what was reported as done is done");
        seen.insert(new);
    }
    assert_eq!(seen.len(), 2, "both happen");
}

#[test]
fn a_failed_flush_loses_pages_that_a_later_flush_does_not_write() {
    let lost = outcomes(|seed| {
        let storage = with_data_dir(seed);
        let file = durably(&storage, "/d/f", &[1; 4096]);
        file.write_all_at(&[2; 4096], 0).unwrap();
        storage.disk().fail_next(StorageOperation::Sync, Path::new("/d/f"), libc::EIO);
        assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(read(&storage, "/d/f"), [2; 4096], "programs still see the lost page");
        file.sync_data().unwrap();
        file.drop_clean_cache().unwrap();
        let left = read(&storage, "/d/f");
        assert_eq!(left, read(&storage.power_loss(), "/d/f"), "what it reads then is on the disk");
        left != [2; 4096]
    });
    assert_eq!(lost, BTreeSet::from([false, true]));
}

#[test]
fn an_injected_fault_hits_one_operation_on_one_path() {
    let storage = with_data_dir(1);
    let (a, b) = (put(&storage, "/d/a", b"aa"), put(&storage, "/d/b", b"bb"));
    for operation in [StorageOperation::Read, StorageOperation::Write] {
        storage.disk().fail_next(operation, Path::new("/d/a"), libc::EIO);
    }
    let mut buf = [0; 2];
    b.read_exact_at(&mut buf, 0).unwrap();
    b.write_all_at(b"BB", 0).unwrap();
    let error = a.read_at(&mut buf, 0).unwrap_err();
    assert_eq!((error.raw_os_error(), error.path()), (Some(libc::EIO), Path::new("/d/a")));
    assert_eq!(a.write_all_at(b"AA", 0).unwrap_err().raw_os_error(), Some(libc::EIO));
    a.write_all_at(b"AA", 0).unwrap();
    assert_eq!(read(&storage, "/d/a"), b"AA");
}

#[test]
fn a_full_disk_takes_what_fits_and_removing_gives_space_back() {
    let storage = with_data_dir(1);
    storage.disk().set_space_left(Some(10));
    let file = put(&storage, "/d/a", b"12345678");
    let full = file.write_all_at(b"90xx", 8).unwrap_err();
    assert!(full.is_disk_full());
    assert_eq!(read(&storage, "/d/a"), b"1234567890");
    file.write_all_at(b"overwriting fits"[..10].as_ref(), 0).unwrap();
    assert!(storage.create_new(Path::new("/d/b")).unwrap_err().is_disk_full());
    storage.remove_file(Path::new("/d/a")).unwrap();
    put(&storage, "/d/b", b"12345");
}

#[test]
fn a_stop_ends_a_write_in_part_and_everything_after_it() {
    let written = outcomes(|seed| {
        let storage = with_data_dir(seed);
        let file = put(&storage, "/d/f", b"");
        storage.disk().stop_after(1);
        file.write_all_at(&[1; 4], 0).unwrap();
        assert!(file.write_all_at(&[2; 4], 4).is_err() && storage.disk().is_stopped());
        assert!(storage.remove_file(Path::new("/d/f")).is_err());
        read(&storage.crash_process(), "/d/f").len()
    });
    assert_eq!(written, BTreeSet::from([4, 5, 6, 7, 8]));
}

#[test]
fn a_seed_and_the_calls_decide_everything() {
    let run = |seed| {
        let storage = with_data_dir(seed);
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        storage.disk().set_trace(move |event| sink.lock().push(event.clone()));
        for i in 0..20 {
            put(&storage, &format!("/d/{i}"), &[i; 9000]);
        }
        let storage = storage.power_loss();
        let files = storage.list_dir(Path::new("/d")).unwrap();
        let bytes: Vec<_> =
            files.iter().map(|e| read(&storage, &format!("/d/{}", e.utf8_name().unwrap()))).collect();
        let events = events.lock().clone();
        (files, bytes, events)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

#[test]
fn a_copy_holds_what_was_seen_and_knows_nothing_of_what_comes_later() {
    let storage = SimStorage::new(1);
    let (dir, path) = (Path::new("/data"), Path::new("/data/file"));
    storage.create_dir_all(dir).unwrap();
    let file = storage.create_new(path).unwrap();
    file.write_all_at(b"then", 0).unwrap();
    let copy = storage.disk().copy(2);
    file.write_all_at(b"now!", 0).unwrap();

    let of_copy = copy.process().power_loss();
    assert_eq!(of_copy.read_small(path, 10).unwrap(), b"then", "unflushed there, flushed in the copy");
    of_copy.remove_file(path).unwrap();
    assert_eq!(storage.read_small(path, 10).unwrap(), b"now!");
}

//! The suite that every [`Storage`] must pass: one function per promise of the trait. [`all`] runs them.
//!
//! What a crash leaves cannot be tried on a real disk from inside, so it is tested on the simulated one only.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a test suite: a failure is a panic"
)]

use std::io::{ErrorKind, IoSlice};
use std::path::Path;

use super::{Access, Storage, StorageFile, StorageOperation};

type Check<S> = fn(&S, &Path);

/// Runs the whole suite in fresh directories below `dir`, which exists.
pub fn all<S: Storage>(storage: &S, dir: &Path) {
    let suite: &[(&str, Check<S>)] = &[
        ("names", names_are_created_once_listed_in_order_and_removed),
        ("positions", writes_and_reads_are_positional),
        ("vectors", vectored_writes_write_every_slice),
        ("lengths", lengths_are_cut_and_extended_with_zeros),
        ("rename", a_rename_replaces_and_stays_in_its_directory),
        ("unlinked", a_removed_file_lives_on_for_who_has_it_open),
        ("read-only", a_file_opened_for_reading_cannot_be_written),
        ("trees", directories_are_created_and_removed_as_trees),
        ("errors", errors_name_the_operation_and_the_path),
        ("threads", threads_share_one_file),
        ("cache", what_is_dropped_from_memory_is_read_from_the_disk),
        ("small", small_files_are_replaced_whole_and_read_within_a_limit),
    ];
    for (name, check) in suite {
        let dir = dir.join(name);
        storage.create_dir_all(&dir).unwrap();
        check(storage, &dir);
        storage.sync_dir(&dir).unwrap();
    }
}

fn names_are_created_once_listed_in_order_and_removed<S: Storage>(storage: &S, dir: &Path) {
    for name in ["b", "a", "c"] {
        storage.create_new(&dir.join(name)).unwrap().write_all_at(b"xyz", 0).unwrap();
    }
    storage.create_dir_all(&dir.join("d")).unwrap();
    assert_eq!(storage.create_new(&dir.join("a")).unwrap_err().kind(), ErrorKind::AlreadyExists);

    let listed = storage.list_dir(dir).unwrap();
    let listed: Vec<_> = listed.iter().map(|e| (e.utf8_name().unwrap(), e.is_dir, e.len)).collect();
    assert_eq!(listed, [("a", false, 3), ("b", false, 3), ("c", false, 3), ("d", true, 0)]);

    storage.remove_file(&dir.join("b")).unwrap();
    assert!(!storage.exists(&dir.join("b")).unwrap());
    assert!(storage.exists(&dir.join("c")).unwrap() && storage.exists(&dir.join("d")).unwrap());
    assert!(storage.remove_file(&dir.join("b")).unwrap_err().is_not_found());
    assert_eq!(storage.file_len(&dir.join("c")).unwrap(), 3);
}

fn what_is_dropped_from_memory_is_read_from_the_disk<S: Storage>(storage: &S, dir: &Path) {
    let file = storage.create_new(&dir.join("f")).unwrap();
    file.write_all_at(b"written", 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(b" and not yet", 7).unwrap();
    file.drop_clean_cache().unwrap();
    let mut read = [0; 19];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"written and not yet");
}

fn writes_and_reads_are_positional<S: Storage>(storage: &S, dir: &Path) {
    let file = storage.create_new(&dir.join("f")).unwrap();
    file.write_all_at(b"world", 10_000).unwrap();
    file.write_all_at(b"hello", 0).unwrap();
    file.write_all_at(b"", 50_000).unwrap();
    assert_eq!(file.len().unwrap(), 10_005, "an empty write does not extend");

    let mut buf = [9; 8];
    assert_eq!(file.read_at(&mut buf, 9_998).unwrap(), 7);
    assert_eq!(&buf[..7], b"\0\0world", "a gap reads as zeros");
    assert_eq!(file.read_at(&mut buf, 10_005).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, 99_999).unwrap(), 0);
    assert_eq!(file.read_exact_at(&mut buf, 9_998).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    file.read_exact_at(&mut buf[..5], 0).unwrap();
    assert_eq!(&buf[..5], b"hello");
    file.sync_data().unwrap();
}

fn vectored_writes_write_every_slice<S: Storage>(storage: &S, dir: &Path) {
    let file = storage.create_new(&dir.join("f")).unwrap();
    let slices = [IoSlice::new(b""), IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")];
    file.write_vectored_at(&slices, 3).unwrap();
    file.write_vectored_at(&[], 100).unwrap();
    assert_eq!(file.len().unwrap(), 8);
    let mut buf = [0; 8];
    file.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"\0\0\0abcde");
}

fn lengths_are_cut_and_extended_with_zeros<S: Storage>(storage: &S, dir: &Path) {
    let file = storage.create_new(&dir.join("f")).unwrap();
    file.write_all_at(&[7; 9000], 0).unwrap();
    file.set_len(100).unwrap();
    assert_eq!(file.len().unwrap(), 100);
    file.set_len(5000).unwrap();
    let mut buf = vec![1; 5000];
    file.read_exact_at(&mut buf, 0).unwrap();
    assert!(buf[..100].iter().all(|b| *b == 7) && buf[100..].iter().all(|b| *b == 0));
    file.sync_all().unwrap();
}

fn a_rename_replaces_and_stays_in_its_directory<S: Storage>(storage: &S, dir: &Path) {
    storage.create_new(&dir.join("old")).unwrap().write_all_at(b"new bytes", 0).unwrap();
    storage.create_new(&dir.join("target")).unwrap().write_all_at(b"x", 0).unwrap();
    storage.rename(&dir.join("old"), &dir.join("target")).unwrap();
    assert_eq!(storage.file_len(&dir.join("target")).unwrap(), 9);
    assert!(!storage.exists(&dir.join("old")).unwrap());
    assert!(storage.rename(&dir.join("old"), &dir.join("x")).unwrap_err().is_not_found());

    storage.create_dir_all(&dir.join("a/b")).unwrap();
    storage.rename(&dir.join("a"), &dir.join("c")).unwrap();
    assert!(storage.exists(&dir.join("c/b")).unwrap());
    let across = storage.rename(&dir.join("target"), &dir.join("c/target")).unwrap_err();
    assert_eq!(across.kind(), ErrorKind::CrossesDevices);
}

fn a_removed_file_lives_on_for_who_has_it_open<S: Storage>(storage: &S, dir: &Path) {
    let file = storage.create_new(&dir.join("f")).unwrap();
    file.write_all_at(b"still here", 0).unwrap();
    storage.remove_file(&dir.join("f")).unwrap();
    storage.create_new(&dir.join("f")).unwrap();
    let mut buf = [0; 10];
    file.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"still here");
    assert_eq!(storage.file_len(&dir.join("f")).unwrap(), 0, "the new file is another one");
}

fn a_file_opened_for_reading_cannot_be_written<S: Storage>(storage: &S, dir: &Path) {
    let path = dir.join("f");
    storage.create_new(&path).unwrap().write_all_at(b"abc", 0).unwrap();
    let reader = storage.open(&path, Access::ReadOnly).unwrap();
    assert!(reader.write_all_at(b"x", 0).is_err());
    assert!(reader.set_len(0).is_err());
    let writer = storage.open(&path, Access::ReadWrite).unwrap();
    writer.write_all_at(b"x", 0).unwrap();
    let mut buf = [0; 3];
    reader.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"xbc", "both see the same bytes");
    assert_eq!(reader.path(), path);
}

fn directories_are_created_and_removed_as_trees<S: Storage>(storage: &S, dir: &Path) {
    let deep = dir.join("a/b/c");
    storage.create_dir_all(&deep).unwrap();
    storage.create_dir_all(&deep).unwrap();
    storage.create_new(&deep.join("f")).unwrap();
    storage.remove_dir_all(&dir.join("a")).unwrap();
    assert!(!storage.exists(&dir.join("a")).unwrap());
    assert!(storage.remove_dir_all(&dir.join("a")).unwrap_err().is_not_found());
    assert!(storage.sync_dir(&dir.join("a")).unwrap_err().is_not_found());
}

fn errors_name_the_operation_and_the_path<S: Storage>(storage: &S, dir: &Path) {
    let missing = dir.join("missing");
    let opened = storage.open(&missing, Access::ReadOnly).unwrap_err();
    assert_eq!((opened.operation(), opened.path()), (StorageOperation::Open, missing.as_path()));
    assert!(opened.is_not_found() && opened.to_string().contains("missing"));
    let listed = storage.list_dir(&missing).unwrap_err();
    assert_eq!(listed.operation(), StorageOperation::List);
    let created = storage.create_new(&missing.join("f")).unwrap_err();
    assert_eq!((created.operation(), created.kind()), (StorageOperation::Create, ErrorKind::NotFound));
    assert!(storage.file_len(&missing).unwrap_err().is_not_found());
}

fn threads_share_one_file<S: Storage>(storage: &S, dir: &Path) {
    const THREADS: u8 = 4;
    const BLOCK: usize = 3000;
    let file = &storage.create_new(&dir.join("f")).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let start = u64::from(thread) * BLOCK as u64;
                let block = [thread; BLOCK];
                file.write_all_at(&block, start).unwrap();
                let mut read = [99; BLOCK];
                file.read_exact_at(&mut read, start).unwrap();
                assert_eq!(read, block);
            });
        }
    });
    assert_eq!(file.len().unwrap(), u64::from(THREADS) * BLOCK as u64);
}

fn small_files_are_replaced_whole_and_read_within_a_limit<S: Storage>(storage: &S, dir: &Path) {
    let path = dir.join("f");
    storage.write_atomically(&path, b"a long first text").unwrap();
    storage.write_atomically(&path, b"second").unwrap();
    assert_eq!(storage.read_small(&path, 6).unwrap(), b"second");
    assert_eq!(storage.read_small(&path, 5).unwrap_err().kind(), ErrorKind::FileTooLarge);
    assert_eq!(storage.list_dir(dir).unwrap().len(), 1, "no temporary file is left");
}

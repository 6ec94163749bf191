//! The partition locks within a process, between processes, and on the simulated disk.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use highwater_types::{PartitionIndex, TopicId};

use super::*;
use crate::storage::sim::SimDisk;

/// Tells [`holds_a_lock_until_it_is_killed`] where to lock.
const CHILD_DIR: &str = "HIGHWATER_LOCK_TEST_DIR";

fn partition(index: i32) -> TopicIdPartition {
    let topic: TopicId = "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c".parse().unwrap();
    TopicIdPartition::new(topic, PartitionIndex::new(index).unwrap())
}

/// What must hold for two processes that share a data directory.
fn exclude_each_other(one: &PartitionLocks, other: &PartitionLocks) {
    let guard = one.try_lock(partition(0)).unwrap().unwrap();
    assert!(one.try_lock(partition(0)).unwrap().is_none(), "a process excludes itself");
    assert!(one.clone().try_lock(partition(0)).unwrap().is_none());
    assert!(other.try_lock(partition(0)).unwrap().is_none(), "and others");
    let neighbours: Vec<_> = (1..200).map(|i| other.try_lock(partition(i)).unwrap().unwrap()).collect();
    assert!(one.try_lock_disk_id().unwrap().is_some());
    let leader = one.try_lock_program(Program::LeaderSvc).unwrap().unwrap();
    let agent = other.try_lock_program(Program::FollowerAgent).unwrap().unwrap();
    assert!(other.try_lock_program(Program::LeaderSvc).unwrap().is_none(), "one process of each program");
    drop((leader, agent));
    assert!(other.try_lock_program(Program::LeaderSvc).unwrap().is_some());
    drop(guard);
    let guard = other.try_lock(partition(0)).unwrap().unwrap();
    assert!(one.try_lock(partition(0)).unwrap().is_none());
    drop(neighbours);
    assert!(one.try_lock(partition(0)).unwrap().is_none(), "freeing the neighbours freed nothing else");
    assert!(one.try_lock(partition(7)).unwrap().is_some());
    drop(guard);
    assert!(one.try_lock(partition(0)).unwrap().is_some());
}

#[test]
fn one_holder_per_partition_on_the_operating_systems_disk() {
    let dir = tempfile::tempdir().unwrap();
    exclude_each_other(
        &PartitionLocks::open(dir.path()).unwrap(),
        &PartitionLocks::open(dir.path()).unwrap(),
    );
    assert_eq!(fs::read_dir(dir.path().join("locks")).unwrap().count(), 64);
}

#[test]
fn who_only_reads_sees_whether_a_lock_is_held_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let is_locked = |index| PartitionLocks::is_locked(dir.path(), partition(index)).unwrap();
    assert!(!is_locked(0), "no lock files yet");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "and none were made");
    let locks = PartitionLocks::open(dir.path()).unwrap();
    let guard = locks.try_lock(partition(0)).unwrap().unwrap();
    assert!(is_locked(0) && !is_locked(1));
    assert!(is_locked(0), "looking frees nothing");
    drop(guard);
    assert!(!is_locked(0));
}

#[test]
fn one_holder_per_partition_on_the_simulated_disk() {
    let disk = SimDisk::new(1);
    exclude_each_other(
        &PartitionLocks::simulated(&disk.process()),
        &PartitionLocks::simulated(&disk.process()),
    );
}

#[test]
fn the_simulated_kernel_frees_the_locks_of_the_dead() {
    let disk = SimDisk::new(1);
    let (dying, living) = (disk.process(), PartitionLocks::simulated(&disk.process()));
    let stale = PartitionLocks::simulated(&dying);
    let stale_guard = stale.try_lock(partition(0)).unwrap().unwrap();
    let _next = dying.crash_process();
    let guard = living.try_lock(partition(0)).unwrap().unwrap();
    drop(stale_guard);
    assert!(stale.try_lock(partition(0)).is_err(), "the dead lock nothing");
    let another = PartitionLocks::simulated(&disk.process());
    assert!(another.try_lock(partition(0)).unwrap().is_none(), "nor free what is not theirs");
    drop(guard);
}

#[test]
fn positions_never_change() {
    // Programs of different versions meet at these bytes.
    let positions: Vec<u64> = [0, 1, i32::MAX].map(partition).map(position_of).to_vec();
    assert_eq!(positions, [7_848_705_402_972_496_957, 7_160_000_224_506_050_164, 6_764_161_331_931_854_494]);
}

#[test]
fn a_child_process_inherits_no_lock_file() {
    let dir = tempfile::tempdir().unwrap();
    let locks = PartitionLocks::open(dir.path()).unwrap();
    let Kernel::Os { partitions, disk_id } = &locks.inner.kernel else { panic!("opened on a directory") };
    for lock in partitions.iter().chain([disk_id]) {
        let flags = fcntl(&lock.file, FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC, "{}", lock.path.display());
    }
}

/// Starts this test binary again as a process that holds the lock of partition 0, and returns when it does.
fn holder(dir: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "lock::tests::holds_a_lock_until_it_is_killed"])
        .env(CHILD_DIR, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line.contains("lock held")), "the child takes the lock");
    child
}

#[test]
#[ignore = "not a test of its own: the process that the tests of the lock start and kill"]
fn holds_a_lock_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let locks = PartitionLocks::open(Path::new(&dir)).unwrap();
    let guard = locks.try_lock(partition(0)).unwrap().unwrap();
    println!("lock held");
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(guard);
}

#[test]
fn another_process_is_excluded_until_the_holder_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let locks = PartitionLocks::open(dir.path()).unwrap();
    let mut child = holder(dir.path());
    assert!(locks.try_lock(partition(0)).unwrap().is_none(), "the child holds it");
    assert!(locks.try_lock(partition(1)).unwrap().is_some(), "only this partition");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(locks.try_lock(partition(0)).unwrap().is_some(), "the kernel freed it");
}

#[test]
fn another_process_gets_the_lock_when_the_holder_ends() {
    let dir = tempfile::tempdir().unwrap();
    let locks = PartitionLocks::open(dir.path()).unwrap();
    let mut child = holder(dir.path());
    assert!(locks.try_lock(partition(0)).unwrap().is_none());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(locks.try_lock(partition(0)).unwrap().is_some());
}

//! The rotation of a disk's identity: every place where a start can stop, and what the next start then says.

use std::cell::Cell;
use std::time::Duration;

use super::*;
use crate::{FileCoordination, FileOptions};

type Disk = Cell<Option<Incarnation>>;

fn id(raw: u64) -> Incarnation {
    Incarnation::new(raw).unwrap()
}

fn node() -> NodeId {
    NodeId::new(1).unwrap()
}

async fn store() -> (tempfile::TempDir, FileCoordination) {
    let dir = tempfile::tempdir().unwrap();
    let store = FileCoordination::open(dir.path(), FileOptions::default()).await.unwrap();
    (dir, store)
}

async fn start(store: &FileCoordination, disk: &Disk, fresh: u64) -> DiskVerdict {
    rotate_disk_identity(store, node(), Program::LeaderSvc, disk.get(), id(fresh), async |_, next| {
        disk.set(Some(next));
        Ok::<_, String>(())
    })
    .await
    .unwrap()
    .verdict
}

/// A start that stops before, or right after, the identity is on the disk.
async fn crashed_start(store: &FileCoordination, disk: &Disk, fresh: u64, written: bool) -> DiskVerdict {
    let seen = Cell::new(None);
    let error = rotate_disk_identity(
        store,
        node(),
        Program::LeaderSvc,
        disk.get(),
        id(fresh),
        async |verdict, next| {
            seen.set(Some(verdict));
            if written {
                disk.set(Some(next));
            }
            Err("power loss".to_owned())
        },
    )
    .await
    .unwrap_err();
    assert!(matches!(error, RotationError::Disk(_)), "{error}");
    seen.get().unwrap()
}

#[tokio::test]
async fn a_new_node_is_fresh_and_then_known() {
    let (_dir, store) = store().await;
    let disk = Disk::default();
    assert_eq!(start(&store, &disk, 1).await, DiskVerdict::Fresh);
    assert_eq!(disk.get(), Some(id(1)));
    assert_eq!(start(&store, &disk, 2).await, DiskVerdict::Known);
    let record = store.refresh().await.unwrap().node(node()).unwrap().as_ref().clone();
    assert_eq!((record.disk_current, record.disk_next), (Some(id(2)), None));
}

#[tokio::test]
async fn each_start_has_a_greater_number_than_all_before_it() {
    let (_dir, store) = store().await;
    let disk = Disk::default();
    let mut last = 0;
    for (fresh, program) in (1..7).zip([Program::LeaderSvc, Program::FollowerAgent].into_iter().cycle()) {
        crashed_start(&store, &disk, 100 + fresh, fresh % 2 == 0).await;
        let rotated =
            rotate_disk_identity(&store, node(), program, disk.get(), id(fresh), async |_, next| {
                disk.set(Some(next));
                Ok::<_, String>(())
            });
        let start = rotated.await.unwrap().start;
        assert!(start > last, "{start} after {last}");
        last = start;
    }
}

#[tokio::test]
async fn a_lost_or_copied_disk_is_foreign() {
    let (_dir, store) = store().await;
    let disk = Disk::default();
    start(&store, &disk, 1).await;
    let copy = Disk::new(disk.get());
    start(&store, &disk, 2).await;
    assert_eq!(start(&store, &copy, 3).await, DiskVerdict::Foreign, "a copy from before the last start");
    assert_eq!(start(&store, &disk, 4).await, DiskVerdict::Foreign, "the original, after the copy ran");
    assert_eq!(start(&store, &Disk::default(), 5).await, DiskVerdict::Foreign, "an empty disk");
}

#[tokio::test]
async fn a_start_that_stops_halfway_leaves_the_disk_known() {
    let (_dir, store) = store().await;
    let disk = Disk::default();
    assert_eq!(crashed_start(&store, &disk, 1, false).await, DiskVerdict::Fresh);
    assert_eq!(crashed_start(&store, &disk, 2, false).await, DiskVerdict::Fresh, "it never ran");
    start(&store, &disk, 3).await;
    assert_eq!(crashed_start(&store, &disk, 4, false).await, DiskVerdict::Known);
    assert_eq!(crashed_start(&store, &disk, 5, true).await, DiskVerdict::Known);
    assert_eq!(disk.get(), Some(id(5)));
    assert_eq!(start(&store, &disk, 6).await, DiskVerdict::Known);
}

#[tokio::test]
async fn a_foreign_disk_stays_foreign_until_it_was_dealt_with() {
    let (_dir, store) = store().await;
    start(&store, &Disk::default(), 1).await;
    let other = Disk::new(Some(id(77)));
    assert_eq!(crashed_start(&store, &other, 2, false).await, DiskVerdict::Foreign);
    assert_eq!(start(&store, &other, 3).await, DiskVerdict::Foreign);
    assert_eq!(start(&store, &other, 4).await, DiskVerdict::Known);
}

/// A start that must change nothing.
async fn refused_start(store: &FileCoordination, disk: &Disk) -> RotationError<String> {
    let never = async |_, _| -> Result<(), String> { unreachable!("nothing is written to the disk") };
    let refused = rotate_disk_identity(store, node(), Program::LeaderSvc, disk.get(), id(9), never).await;
    refused.unwrap_err()
}

#[tokio::test]
async fn a_second_disk_is_refused_while_the_node_runs_on_its_own() {
    let (_dir, store) = store().await;
    let disk = Disk::default();
    start(&store, &disk, 1).await;
    for program in [Program::LeaderSvc, Program::FollowerAgent] {
        let alive = async {
            loop {
                store.renew_liveness(node(), program).await.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let other = Disk::default();
        let error = tokio::select! {
            error = refused_start(&store, &other) => error,
            () = alive => unreachable!("renews for ever"),
        };
        assert!(matches!(error, RotationError::Running(_)), "{program}: {error}");
    }
    assert_eq!(start(&store, &disk, 2).await, DiskVerdict::Known, "the node's own disk is as it was");
}

#[tokio::test]
async fn a_used_disk_is_refused_by_a_store_that_never_saw_the_node() {
    let (_dir, store) = store().await;
    let disk = Disk::new(Some(id(7)));
    let error = refused_start(&store, &disk).await;
    assert!(matches!(error, RotationError::OtherStore(_)), "{error}");
    assert!(store.refresh().await.unwrap().node(node()).is_none());
}

#[tokio::test]
async fn registering_the_same_address_again_writes_nothing() {
    let (_dir, store) = store().await;
    let address = "n1:9400".parse().unwrap();
    let first = register_endpoint(&store, node(), Program::LeaderSvc, &address).await.unwrap();
    let again = register_endpoint(&store, node(), Program::LeaderSvc, &address).await.unwrap();
    assert_eq!((first.version, again), (1, first));
}

//! Disks that fail under a leader: the partition ends its leadership, and comes back only when that loses nothing.

mod support;

use std::fs;

use highwater_proto::v1;
use support::{batch, code, eventually, shape, start};

#[tokio::test]
async fn a_failed_append_ends_the_leadership_and_recovery_begins_the_next() {
    // KAFKA-10778: after one failed append no further one may succeed until recovery.
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[("segment.bytes", "1024")]).await;
    node.topic("other", &[]).await;
    node.append("t", batch(1, 700)).await;
    // The next segment cannot be created.
    let obstacle = dir.path().join("data-1/t-0/00000000000000000001.log");
    fs::create_dir(&obstacle).unwrap();
    let failed = node.produce("t", v1::Acks::All, batch(1, 700)).await;
    assert_eq!(code(&failed.error), Some(v1::ErrorCode::StorageError));
    let next = node.produce("t", v1::Acks::All, batch(1, 10)).await;
    assert!(next.error.is_some(), "nothing is appended behind a failure");
    assert_eq!(node.append("other", batch(1, 10)).await, 0, "other partitions go on");
    fs::remove_dir(&obstacle).unwrap();
    let topic = node.leads("t").await;
    assert_eq!(topic.partitions[0].leader_epoch, Some(1), "a new leadership after the recovery");
    assert_eq!(shape(&node.fetch_one("t", 0).await.records), [(0, 1, 0)]);
    assert_eq!(node.append("t", batch(1, 700)).await, 1);
    node.stop().await;
}

#[tokio::test]
async fn a_directory_that_was_removed_is_never_led_empty() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[("segment.bytes", "1024")]).await;
    node.append("t", batch(1, 700)).await;
    fs::remove_dir_all(dir.path().join("data-1/t-0")).unwrap();
    let failed = node.produce("t", v1::Acks::All, batch(1, 700)).await;
    assert_eq!(code(&failed.error), Some(v1::ErrorCode::StorageError), "the next segment has no place");
    let error = eventually(async || {
        let error = node.fetch_one("t", 0).await.error?;
        error.message.contains("incarnation").then_some(error)
    })
    .await;
    assert_eq!(code(&Some(error)), Some(v1::ErrorCode::LeaderNotAvailable));
    let topic = node.describe("t").await.unwrap();
    assert_eq!(topic.partitions[0].leader_epoch, Some(0), "acknowledged records are gone: nobody leads");
    node.stop().await;
}

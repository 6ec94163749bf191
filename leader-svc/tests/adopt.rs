//! Topics over directories that exist already.
#![allow(clippy::unwrap_used, reason = "a test that fails here shows where")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use highwater_proto::v1;
use support::{Node, batch, shape, start};
use tonic::{Code, Status};

/// A directory with the log of a topic `t` as another cluster left it: two batches, of epochs 0 and 1.
async fn history(root: &Path) -> PathBuf {
    let other = root.join("other");
    fs::create_dir(&other).unwrap();
    let node = start(&other).await;
    node.topic("t", &[]).await;
    node.append("t", batch(3, 10)).await;
    node.stop().await;
    let node = start(&other).await;
    node.leads("t").await;
    node.append("t", batch(2, 10)).await;
    node.stop().await;
    let directory = root.join("kafka");
    fs::create_dir_all(directory.join("t-0")).unwrap();
    for entry in fs::read_dir(other.join("data-1/t-0")).unwrap() {
        let entry = entry.unwrap();
        // Kafka has no such file.
        if entry.file_name() != "checkpoint" {
            fs::copy(entry.path(), directory.join("t-0").join(entry.file_name())).unwrap();
        }
    }
    directory
}

async fn adopt(node: &Node, directory: &Path) -> Result<v1::Topic, Status> {
    let request = v1::AdoptTopicRequest {
        topic: "t".into(),
        directory: directory.display().to_string(),
        ..Default::default()
    };
    node.cluster.clone().adopt_topic(request).await.map(|answer| answer.into_inner().topic.unwrap())
}

fn log_bytes(directory: &Path) -> Vec<u8> {
    fs::read(directory.join("t-0/00000000000000000000.log")).unwrap()
}

#[tokio::test]
async fn an_adopted_history_is_served_and_goes_on_above_its_epochs() {
    let root = tempfile::tempdir().unwrap();
    let directory = history(root.path()).await;
    let before = log_bytes(&directory);
    let node = start(root.path()).await;
    let adopted = adopt(&node, &directory).await.unwrap();
    let topic = node.leads("t").await;
    assert_eq!(adopted.topic_id, topic.topic_id);
    let metadata = fs::read_to_string(directory.join("t-0/partition.metadata")).unwrap();
    assert!(metadata.contains("topic_id"), "the id is the directory's own");
    let partition = &topic.partitions[0];
    assert_eq!((partition.leader_id, partition.leader_epoch), (Some(1), Some(2)));
    assert_eq!(partition.isr.len(), 1, "the importer alone");
    let fetched = node.fetch_one("t", 0).await;
    assert_eq!(fetched.records, before, "byte for byte");
    assert_eq!(fetched.high_watermark, Some(5));
    assert_eq!(node.append("t", batch(1, 10)).await, 5);
    assert_eq!(shape(&node.fetch_one("t", 5).await.records), [(5, 1, 2)]);
    assert_eq!(log_bytes(&directory), before, "the source is only read");
    assert_eq!(adopt(&node, &directory).await.unwrap_err().code(), Code::AlreadyExists);
    node.stop().await;
}

#[tokio::test]
async fn a_topic_adopted_again_after_its_deletion_is_another_topic() {
    let root = tempfile::tempdir().unwrap();
    let directory = history(root.path()).await;
    let node = start(root.path()).await;
    let first = adopt(&node, &directory).await.unwrap();
    node.leads("t").await;
    let selector = v1::TopicSelector { topic: "t".into(), topic_id: String::new() };
    let request = v1::DeleteTopicRequest { topic: Some(selector) };
    node.cluster.clone().delete_topic(request).await.unwrap();
    let gone = root.path().join("data-1/t-0");
    support::eventually(async || (!gone.exists()).then_some(())).await;
    let second = adopt(&node, &directory).await.unwrap();
    assert_ne!(first.topic_id, second.topic_id, "the id of a deleted topic is never used again");
    node.leads("t").await;
    assert_eq!(node.fetch_one("t", 0).await.high_watermark, Some(5));
    node.stop().await;
}

#[tokio::test]
async fn what_cannot_be_adopted_is_refused_and_leaves_nothing_behind() {
    let root = tempfile::tempdir().unwrap();
    let directory = history(root.path()).await;
    let node = start(root.path()).await;
    let missing = adopt(&node, &root.path().join("nowhere")).await.unwrap_err();
    assert_eq!(missing.code(), Code::InvalidArgument);
    assert!(missing.message().contains("nowhere"), "{missing}");
    let empty = root.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(adopt(&node, &empty).await.unwrap_err().message().contains("t-0"));

    // A second partition, damaged in its first batch while a valid one follows.
    let damaged = directory.join("t-1");
    fs::create_dir(&damaged).unwrap();
    let mut bytes = log_bytes(&directory);
    bytes[70] ^= 1;
    fs::write(damaged.join("00000000000000000000.log"), bytes).unwrap();
    let error = adopt(&node, &directory).await.unwrap_err();
    assert_eq!(error.code(), Code::DataLoss);
    assert!(error.message().contains("t-1"), "{error}");
    for name in ["t-0", "t-1"] {
        assert!(!root.path().join("data-1").join(name).exists(), "{name}: all or nothing");
    }
    fs::rename(&damaged, directory.join("t-2")).unwrap();
    let hole = adopt(&node, &directory).await.unwrap_err();
    assert!(hole.message().contains("t-1"), "a hole in the numbers: {hole}");
    assert!(node.describe("t").await.is_none());
    node.stop().await;
}

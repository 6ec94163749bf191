//! The pair in one process: leader-svc and follower-agent by their `build`, over gRPC on loopback and real directories.
//!
//! What is shown here is what needs both programs and neither processes nor faults: records flow, the in-sync set grows,
//! the high watermark follows, a restart goes on where it was, loops are mapped as documented.

#[path = "pair/nodes.rs"]
mod nodes;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_wire::failure::classify;
use nodes::{Cluster, Following, eventually, records_of};
use system_tests::calls::code;
use system_tests::disk::{ReadOnly, SmallDisk};
use tonic::Code;

/// One leader, two followers, and a topic of one partition on all three that everybody is in sync with.
async fn three(topic: &str, properties: &[(&str, &str)]) -> (Cluster, Following, Following) {
    let mut cluster = Cluster::new();
    cluster.lead(1).await;
    let (two, three) = (cluster.follow(2, &[]).await, cluster.follow(3, &[]).await);
    cluster.create(topic, 1, &[1, 2, 3], properties).await;
    cluster.until_in_sync(topic, &[1, 2, 3]).await;
    (cluster, two, three)
}

#[tokio::test(flavor = "multi_thread")]
async fn records_reach_both_followers_byte_for_byte_and_all_of_them_commit() {
    let (cluster, two, three) = three("orders", &[("min.insync.replicas", "3")]).await;
    for round in 0..50 {
        let base = cluster.produce("orders", 0, v1::Acks::All, 20).await.unwrap();
        assert_eq!(base, round * 20, "no gap and no duplicate");
    }
    for follower in [&two, &three] {
        let row = eventually(async || {
            follower.partition("orders", 0).await.filter(|row| row.high_watermark == Some(1000))
        })
        .await;
        assert_eq!((row.log_end_offset, row.acknowledged_offset), (Some(1000), Some(1000)));
        assert_eq!((row.lag_records, row.state()), (Some(0), v1::FetchState::Fetching));
        let read = records_of(follower.channel(), "orders", 990).await;
        assert_eq!(
            read.into_iter().map(|record| record.0).collect::<Vec<_>>(),
            (990..1000).collect::<Vec<_>>()
        );
    }
    two.stop().await;
    three.stop().await;
    let leaders = cluster.log_bytes(1, "orders-0");
    assert_eq!(leaders.len(), 1);
    assert_eq!(cluster.log_bytes(2, "orders-0"), leaders);
    assert_eq!(cluster.log_bytes(3, "orders-0"), leaders);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_follower_goes_on_at_its_log_end() {
    let (mut cluster, two, _three) = three("orders", &[]).await;
    cluster.produce("orders", 0, v1::Acks::All, 500).await.unwrap();
    two.until_log_end("orders", 0, 500).await;
    let incarnation = two.partition("orders", 0).await.unwrap().incarnation;
    two.stop().await;
    cluster.produce("orders", 0, v1::Acks::Leader, 10).await.unwrap();
    let two = cluster.follow(2, &[]).await;
    two.until_log_end("orders", 0, 510).await;
    let fetchers = two.describe().await.fetchers;
    let log = cluster.log_bytes(1, "orders-0").values().map(Vec::len).sum::<usize>() as u64;
    let fetched: u64 = fetchers.iter().filter_map(|fetcher| fetcher.bytes).sum();
    assert!(fetched > 0 && fetched < log / 10, "only what was missing: {fetched} of {log}");
    assert_eq!(two.partition("orders", 0).await.unwrap().incarnation, incarnation, "still the same replica");
    cluster.until_in_sync("orders", &[1, 2, 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_goes_on_under_its_leaders_next_epoch() {
    let (mut cluster, two, _three) = three("orders", &[]).await;
    cluster.produce("orders", 0, v1::Acks::All, 10).await.unwrap();
    let before = two.partition("orders", 0).await.unwrap().leader_epoch;
    cluster.stop_leader(1).await;
    // Another port: the same leader at another address is another loop (S15).
    cluster.lead(1).await;
    cluster.produce_until_taken("orders", 0, v1::Acks::All, 10).await;
    two.until_log_end("orders", 0, 20).await;
    let row = two.partition("orders", 0).await.unwrap();
    assert!(row.leader_epoch > before, "{:?} after {before:?}", row.leader_epoch);
    assert_eq!(two.describe().await.fetchers.len(), 1, "the loop to the old address has ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_four_partitions_of_two_leaders_are_mapped_the_same_after_a_restart() {
    let mut cluster = Cluster::new();
    cluster.lead(1).await;
    cluster.lead(2).await;
    let settings = [("num.replica.fetchers", "3")];
    let three = cluster.follow(3, &settings).await;
    cluster.create("of-one", 12, &[1, 3], &[]).await;
    cluster.create("of-two", 12, &[2, 3], &[]).await;
    let mapping = async |follower: &Following| -> Option<BTreeMap<(String, i32), (i32, u32)>> {
        let fetchers = follower.describe().await.fetchers;
        assert!(fetchers.len() <= 6, "{fetchers:?}");
        let rows = fetchers.iter().flat_map(|fetcher| {
            let place = (fetcher.leader_id.unwrap(), fetcher.fetcher.unwrap());
            fetcher.partitions.iter().map(move |row| ((row.topic.clone(), row.partition.unwrap()), place))
        });
        let mapping: BTreeMap<_, _> = rows.collect();
        (mapping.len() == 24).then_some(mapping)
    };
    let first = eventually(async || mapping(&three).await).await;
    three.stop().await;
    let three = cluster.follow(3, &settings).await;
    let second = eventually(async || mapping(&three).await).await;
    assert_eq!(first, second);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caught_up_follower_fetches_twice_a_second() {
    let (cluster, two, _three) = three("orders", &[]).await;
    cluster.produce("orders", 0, v1::Acks::All, 10).await.unwrap();
    two.until_high_watermark("orders", 0, 10).await;
    let fetches = async || two.describe().await.fetchers.iter().filter_map(|f| f.fetches).sum::<u64>();
    let before = fetches().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let sent = fetches().await - before;
    assert!((18..=22).contains(&sent), "{sent} fetches in 10 s");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_serves_reads_up_to_its_high_watermark_and_names_the_leader_for_the_rest() {
    let (cluster, two, _three) = three("orders", &[]).await;
    cluster.produce("orders", 0, v1::Acks::All, 10).await.unwrap();
    two.until_high_watermark("orders", 0, 10).await;
    let fetched = nodes::fetch(two.channel(), "orders", 0, Duration::ZERO).await.unwrap();
    assert_eq!((fetched.error, fetched.high_watermark, fetched.records.is_empty()), (None, Some(10), false));
    // A consumer that waits at the end is woken by what the follower learns is committed.
    let channel = two.channel();
    let waiting =
        tokio::spawn(async move { nodes::fetch(channel, "orders", 10, Duration::from_secs(20)).await });
    cluster.produce("orders", 0, v1::Acks::All, 1).await.unwrap();
    let woken = waiting.await.unwrap().unwrap();
    assert_eq!((woken.error, woken.records.is_empty()), (None, false));

    // Only the leader's log is the one to be cut against (S41).
    let asked = v1::OffsetsForLeaderEpochPartition {
        topic: "orders".to_owned(),
        partition: Some(0),
        leader_epoch: Some(0),
        ..Default::default()
    };
    let request = v1::OffsetsForLeaderEpochRequest { replica_id: None, partitions: vec![asked] };
    let mut log = v1::log_service_client::LogServiceClient::new(two.channel());
    let answer = log.offsets_for_leader_epoch(request).await.unwrap().into_inner();
    let error = answer.partitions.into_iter().next().and_then(|answered| answered.error);
    assert_eq!(code(error.as_ref()), Some(v1::ErrorCode::NotLeaderOrFollower));

    let refused = nodes::produce(two.channel(), "orders", 0, v1::Acks::All, 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let hint = classify(&refused).leader.expect("it says who leads");
    assert_eq!(hint.leader.map(|leader| leader.get()), Some(1));
    assert_eq!(hint.endpoint.map(|endpoint| endpoint.to_string()), Some(cluster.address(1).to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_topics_replica_goes_and_the_others_stay() {
    let (cluster, two, _three) = three("orders", &[]).await;
    cluster.create("others", 1, &[1, 2, 3], &[]).await;
    cluster.until_in_sync("others", &[1, 2, 3]).await;
    assert!(cluster.data_dir(2).join("orders-0").exists());
    cluster.delete("orders").await;
    eventually(async || (!cluster.data_dir(2).join("orders-0").exists()).then_some(())).await;
    assert!(cluster.data_dir(2).join("others-0").exists());
    assert!(two.partition("orders", 0).await.is_none());
    cluster.produce("others", 0, v1::Acks::All, 10).await.unwrap();
    two.until_log_end("others", 0, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_a_store_follows_through_its_leader() {
    let mut cluster = Cluster::new();
    cluster.lead(1).await;
    let through = format!("leader:{}", cluster.address(1));
    let two = cluster.follow(2, &[("coordination", &through)]).await;
    cluster.create("orders", 1, &[1, 2], &[("min.insync.replicas", "2")]).await;
    cluster.until_in_sync("orders", &[1, 2]).await;
    cluster.produce("orders", 0, v1::Acks::All, 10).await.unwrap();
    two.until_high_watermark("orders", 0, 10).await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_starts_before_every_leader_lives_and_joins_when_one_comes() {
    let mut cluster = Cluster::new();
    let free = nodes::free_address().await;
    let through = format!("leader:{free}");
    let two = cluster.follow(2, &[("coordination", &through)]).await;
    assert!(!nodes::is_serving(two.channel()).await, "it lives, and serves nothing yet");
    cluster.lead_at(1, free).await;
    eventually(async || nodes::is_serving(two.channel()).await.then_some(())).await;
    cluster.create("orders", 1, &[1, 2], &[]).await;
    cluster.until_in_sync("orders", &[1, 2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_cache_topic_replicates_too() {
    let properties = [("durability", "page-cache"), ("min.insync.replicas", "3")];
    let (cluster, two, three) = three("quick", &properties).await;
    for _ in 0..20 {
        cluster.produce("quick", 0, v1::Acks::All, 50).await.unwrap();
    }
    for follower in [&two, &three] {
        follower.until_high_watermark("quick", 0, 1000).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_larger_than_every_limit_passes_whole_and_others_after_it() {
    let (cluster, two, _three) = three("large", &[("max.message.bytes", "4MiB")]).await;
    cluster.produce("large", 0, v1::Acks::All, 1).await.unwrap();
    cluster.produce_bytes("large", 0, v1::Acks::All, 3_000_000).await.unwrap();
    cluster.produce("large", 0, v1::Acks::All, 1).await.unwrap();
    two.until_high_watermark("large", 0, 3).await;
}

/// KAFKA-8346: the fault of one partition ended the loop, and with it every other partition.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_whose_directory_cannot_be_written_stops_no_other_and_heals_without_a_restart() {
    let mut cluster = Cluster::new();
    cluster.lead(1).await;
    let two = cluster.follow(2, &[]).await;
    cluster.create("orders", 3, &[1, 2], &[]).await;
    cluster.until_in_sync("orders", &[1, 2]).await;
    two.stop().await;
    for partition in 0..3 {
        cluster.produce("orders", partition, v1::Acks::Leader, 100).await.unwrap();
    }
    let read_only = ReadOnly::new(&cluster.data_dir(2).join("orders-1"));
    let two = cluster.follow(2, &[]).await;
    for partition in [0, 2] {
        two.until_log_end("orders", partition, 100).await;
    }
    let failed = eventually(async || two.failed("orders", 1).await).await;
    assert!(failed.reason.contains("Read-only file system"), "{}", failed.reason);
    drop(read_only);
    two.until_log_end("orders", 1, 100).await;
    assert!(two.failed("orders", 1).await.is_none());
}

/// tokio#4296: what a full disk did not take was acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_acknowledges_nothing_that_it_did_not_take_and_goes_on_once_there_is_room() {
    let mut cluster = Cluster::new();
    std::fs::create_dir(cluster.data_dir(2)).unwrap();
    let disk = SmallDisk::mount(&cluster.data_dir(2), 8 << 20);
    cluster.lead(1).await;
    let two = cluster.follow(2, &[]).await;
    cluster.create("orders", 1, &[1, 2], &[]).await;
    cluster.until_in_sync("orders", &[1, 2]).await;
    disk.fill();
    for _ in 0..10 {
        cluster.produce_bytes("orders", 0, v1::Acks::Leader, 100_000).await.unwrap();
    }
    let failed = eventually(async || two.failed("orders", 0).await).await;
    assert!(failed.reason.contains("No space left"), "{}", failed.reason);
    assert!(failed.log_end_offset < Some(10), "{:?}", failed.log_end_offset);
    assert!(failed.acknowledged_offset <= failed.log_end_offset);
    let known = cluster.acknowledged("orders", 0, 2).await;
    assert!(known <= failed.log_end_offset, "the leader was told {known:?}");
    disk.free();
    two.until_log_end("orders", 0, 10).await;
    two.stop().await;
    assert_eq!(cluster.log_bytes(2, "orders-0"), cluster.log_bytes(1, "orders-0"));
}

/// dfinity/ic#10455: a dead connection was used for ever, because each call's time-out ended its own stream only.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_connection_is_replaced() {
    let mut cluster = Cluster::new();
    let proxy = cluster.lead_behind_proxy(1).await;
    let two = cluster.follow(2, &[]).await;
    cluster.create("orders", 1, &[1, 2], &[]).await;
    cluster.until_in_sync("orders", &[1, 2]).await;
    proxy.freeze_open();
    let frozen = Instant::now();
    cluster.produce("orders", 0, v1::Acks::Leader, 10).await.unwrap();
    two.until_log_end("orders", 0, 10).await;
    assert!(frozen.elapsed() < Duration::from_secs(20), "{:?}", frozen.elapsed());
}

/// qdrant#832: a peer kept its name but moved, and the old address belonged to somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_a_program_that_leads_nothing_of_what_is_asked_is_replaced() {
    let mut cluster = Cluster::new();
    let proxy = cluster.lead_behind_proxy(1).await;
    let two = cluster.follow(2, &[]).await;
    cluster.create("orders", 1, &[1, 2], &[]).await;
    cluster.until_in_sync("orders", &[1, 2]).await;
    // Another leader-svc of the cluster takes the old address; the leader is reached by the same name again, but only over
    // a new connection.
    cluster.lead(3).await;
    proxy.retarget(cluster.address(3));
    proxy.cut_open();
    let trouble = async || {
        let fetchers = two.describe().await.fetchers;
        fetchers.into_iter().flat_map(|f| f.partitions).find(|row| row.state() == v1::FetchState::Delayed)
    };
    eventually(async || trouble().await).await;
    proxy.retarget(cluster.address(1));
    let moved = Instant::now();
    cluster.produce("orders", 0, v1::Acks::Leader, 10).await.unwrap();
    two.until_log_end("orders", 0, 10).await;
    assert!(moved.elapsed() < Duration::from_secs(10), "{:?}", moved.elapsed());
}

/// design.md 2: acknowledged records that rotted are read from the leader again, by a replica that says that it is another.
#[tokio::test(flavor = "multi_thread")]
async fn damage_in_the_middle_of_a_log_is_repaired_from_the_leader() {
    let properties = [("durability", "page-cache")];
    let (mut cluster, two, _three) = three("orders", &properties).await;
    for _ in 0..10 {
        cluster.produce("orders", 0, v1::Acks::All, 10).await.unwrap();
    }
    two.until_high_watermark("orders", 0, 100).await;
    let before = two.partition("orders", 0).await.unwrap();
    eventually(async || (cluster.checkpointed(2, "orders-0") == Some(100)).then_some(())).await;
    two.kill().await;
    let whole = cluster.log_bytes(2, "orders-0");
    let (name, mut bytes) = whole.clone().into_iter().next().unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(cluster.data_dir(2).join("orders-0").join(name), bytes).unwrap();

    let two = cluster.follow(2, &[]).await;
    eventually(async || (cluster.log_bytes(2, "orders-0") == whole).then_some(())).await;
    let after = eventually(async || {
        two.partition("orders", 0).await.filter(|row| row.acknowledged_offset == Some(100))
    })
    .await;
    assert_ne!(after.incarnation, before.incarnation, "what it had acknowledged was gone for a while");
    cluster.until_in_sync("orders", &[1, 2, 3]).await;
}

//! Clocks of producers that nobody may trust (metrictank#1302): records dated in the future, in the past, or not at all
//! replicate as they are, and neither lag nor readiness nor the time index believes them.

use std::path::Path;
use std::time::SystemTime;

use highwater_records::{BatchBuilder, Compression, batches, decode_records};
use highwater_types::{Program, WallTime};
use system_tests::calls::Calls;
use system_tests::cluster::{Plan, is_serving};
use system_tests::log_files::{LogBytes, segments};
use system_tests::wait;

/// An entry of the time index: a timestamp of 8 bytes, then an offset of 4, relative to the segment's.
const ENTRY_BYTES: usize = 12;

fn now_millis() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_millis()).expect("before the year 292 million")
}

fn stamped(timestamp: i64) -> Vec<u8> {
    let mut batch = BatchBuilder::new(Compression::None);
    batch.append(WallTime::from_millis(timestamp), None, Some(&[b'v'; 300]), &[]).expect("a small batch");
    batch.build().expect("it has a record").to_vec()
}

fn timestamps(log: &LogBytes) -> Vec<i64> {
    let records = batches(log.good_bytes()).map(|batch| batch.expect("whole batches"));
    let records = records.flat_map(|batch| decode_records(&batch).expect("readable records"));
    records.map(|record| record.timestamp.as_millis()).collect()
}

/// The entries of a segment's time index; unused room at its end is zero.
fn time_index(segment: &Path) -> Vec<(i64, i32)> {
    let bytes = std::fs::read(segment.with_extension("timeindex")).expect("every segment has a time index");
    let entries = bytes.chunks_exact(ENTRY_BYTES).map(|entry| {
        let (timestamp, offset) = entry.split_at(8);
        let timestamp = i64::from_be_bytes(timestamp.try_into().expect("8 bytes"));
        (timestamp, i32::from_be_bytes(offset.try_into().expect("4 bytes")))
    });
    entries.filter(|entry| *entry != (0, 0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn record_timestamps_are_copied_and_believed_by_nobody() {
    let plan = Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent);
    let mut cluster = plan.start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    leader.create_topic("t", 1, &[1, 2], &[("index.interval.bytes", "0"), ("segment.bytes", "1024")]).await;
    let now = now_millis();
    let stamps = [now - 86_400_000, now, -1, now + 10_000, now, i64::MAX, now - 86_400_000, now];
    for stamp in stamps {
        leader.append("t", 0, stamped(stamp)).await;
    }
    leader.until_in_sync("t", 1).await;
    Calls::of(cluster.agent(2)).until_followed_to("t", 1, 8).await;

    let row = leader.rows("t").await.into_iter().next().expect("it leads");
    let follower = row.followers.first().expect("it has a follower");
    assert_eq!(follower.lag_records, Some(0));
    assert!(follower.lag_ms.is_some_and(|lag| lag <= 1000), "{:?}", follower.lag_ms);
    for server in [cluster.leader(1), cluster.agent(2)] {
        assert!(is_serving(server.address()).await, "{server} is ready");
    }
    for (node, program) in [(1, Program::LeaderSvc), (2, Program::FollowerAgent)] {
        assert!(cluster.server_mut((node, program)).terminate(wait::SOON).await.success());
        let directory = cluster.data_dir(node).join("t-0");
        assert_eq!(timestamps(&LogBytes::read(&directory)), stamps, "on node {node}");
        let indexes: Vec<_> = segments(&directory).iter().map(|segment| time_index(segment)).collect();
        assert!(indexes.iter().flatten().count() > 1, "on node {node}: {indexes:?}");
        for entries in &indexes {
            assert!(entries.is_sorted_by_key(|entry| entry.0), "on node {node}: {indexes:?}");
            assert!(entries.is_sorted_by_key(|entry| entry.1), "on node {node}: {indexes:?}");
            assert!(
                entries.iter().all(|(time, offset)| *time > 0 && *offset >= 0),
                "on node {node}: {indexes:?}"
            );
        }
    }
}

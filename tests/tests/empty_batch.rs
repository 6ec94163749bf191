//! A batch whose records were all compacted away (brod#263, kafka-go#813, KAFKA-17076): it still covers its offsets, for
//! the leader that restarts on it and for the follower that fetches it.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use highwater_proto::v1;
use highwater_records::{BatchBuilder, Compression};
use highwater_types::{LeaderEpoch, Offset, Program, WallTime};
use system_tests::calls::{Calls, batch};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::log_files::LogBytes;
use system_tests::ports;
use system_tests::relay::{Relay, Seen};

const LEADER: ServerId = (1, Program::LeaderSvc);
/// FX2: covers 8737 to 8747, of epoch 10.
const FX2: &str = "000000000000222100000031000000000235fe512800000000000affffffffffffffff00000000000003e8\
                   ffffffffffffffffffffffffffff00000000";
const FIRST: i64 = 8737;
const NEXT: i64 = 8748;

fn fx2() -> Vec<u8> {
    let digits = FX2.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("digits"));
    digits.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
}

/// A record at 8748, of the epoch of FX2.
fn record_after() -> Vec<u8> {
    let mut batch = BatchBuilder::new(Compression::None)
        .base_offset(Offset::new(NEXT).expect("an offset"))
        .leader_epoch(LeaderEpoch::new(0).expect("an epoch"));
    batch.append(WallTime::from_millis(1000), None, Some(b"after"), &[]).expect("a small batch");
    batch.build().expect("it has a record").to_vec()
}

/// Where the follower read, each time that it asked for records.
type Reads = Arc<Mutex<Vec<i64>>>;

async fn pair() -> (Cluster, Relay, Reads) {
    let at = ports::loopback();
    let plan =
        Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent).advertise(LEADER, at);
    let reads = Reads::default();
    let noted = Arc::clone(&reads);
    let relay = Relay::start(at, plan.address(LEADER), move |seen| {
        if let Seen::Request(request, _) = seen
            && request.max_bytes != Some(0)
        {
            let offsets = request.partitions.iter().filter_map(|asked| asked.fetch_offset);
            noted.lock().unwrap_or_else(PoisonError::into_inner).extend(offsets);
        }
    })
    .await;
    let cluster = plan.start().await;
    Calls::of(cluster.leader(1)).until_nodes(2).await;
    (cluster, relay, reads)
}

/// Lets the leader adopt a log with these segments.
async fn adopt(cluster: &Cluster, segments: &[(i64, Vec<u8>)]) -> Calls {
    let directory = cluster.place().join("compacted");
    let partition = directory.join("t-0");
    fs::create_dir_all(&partition).expect("the temporary place is writable");
    for (base, bytes) in segments {
        fs::write(partition.join(format!("{base:020}.log")), bytes).expect("the temporary place is writable");
    }
    let leader = Calls::of(cluster.leader(1));
    let request = v1::AdoptTopicRequest {
        topic: "t".to_owned(),
        directory: directory.display().to_string(),
        replicas: vec![1, 2],
        ..Default::default()
    };
    leader.cluster.clone().adopt_topic(request).await.expect("the directory is sound");
    leader.until_led("t").await;
    leader
}

fn log(data_dir: &Path) -> LogBytes {
    LogBytes::read(&data_dir.join("t-0"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_takes_an_empty_batch_unchanged_and_fetches_behind_it() {
    let (cluster, _relay, reads) = pair().await;
    let leader = adopt(&cluster, &[(FIRST, fx2()), (NEXT, record_after())]).await;
    leader.until_in_sync("t", 1).await;
    let follower = log(&cluster.data_dir(2));
    assert_eq!(follower.end, NEXT + 1);
    assert!(follower.bytes.starts_with(&fx2()), "61 bytes, unchanged");
    assert!(follower.bytes == log(&cluster.data_dir(1)).bytes);
    let reads = reads.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let at_the_batch = reads.iter().filter(|offset| (FIRST..NEXT).contains(*offset)).count();
    assert!(at_the_batch <= 2, "it is not fetched for ever: {reads:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_log_ends_with_an_empty_batch_goes_on_behind_it_after_a_restart() {
    let (mut cluster, _relay, reads) = pair().await;
    let leader = adopt(&cluster, &[(FIRST, fx2())]).await;
    leader.until_in_sync("t", 1).await;
    assert_eq!(log(&cluster.data_dir(2)).end, NEXT);
    for _ in 0..2 {
        cluster.server_mut(LEADER).kill();
        cluster.start_and_wait(LEADER).await;
        leader.until_led("t").await;
        leader.until_in_sync("t", 1).await;
        let row = leader.rows("t").await.into_iter().next().expect("it leads");
        assert_eq!((row.log_end_offset, row.log_start_offset), (Some(NEXT), Some(FIRST)));
    }
    let next_reads = reads.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(next_reads.contains(&NEXT), "the next fetch reads behind the batch: {next_reads:?}");
    assert_eq!(leader.append("t", 0, batch(1, 10)).await, NEXT);
    leader.until_in_sync("t", 1).await;
    assert_eq!(log(&cluster.data_dir(2)).end, NEXT + 1);
}

//! Checkpoints that a crash left empty, torn or full of zeros (liftbridge#333, linkedin/kafka#401): a follower starts all
//! the same, says so once, and keeps its log.

use std::fs;
use std::path::Path;

use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::log_files::LogBytes;
use system_tests::wait;

const AGENT: ServerId = (2, Program::FollowerAgent);
const RECORDS: i64 = 50;
const SLOT_BYTES: usize = 4096;

/// What a crash made of a file, and how.
type Damage = (&'static str, fn(&Path));

const DAMAGES: [Damage; 4] = [
    ("0 bytes", |file| fs::write(file, "").expect("writable")),
    ("a zero only", |file| fs::write(file, "0\n").expect("writable")),
    ("16 NUL bytes", |file| fs::write(file, [0; 16]).expect("writable")),
    ("a last line cut short", cut_short),
];

/// Takes the last bytes of a text, and of a file with slots all but the beginning of the first.
fn cut_short(file: &Path) {
    let bytes = fs::read(file).expect("readable");
    let keep = if bytes.len() >= SLOT_BYTES { 20 } else { bytes.len() - 2 };
    fs::write(file, bytes.get(..keep).expect("longer than that")).expect("writable");
}

async fn row(agent: &Calls) -> Option<v1::FollowedPartition> {
    agent.followed().await.remove(&("t".to_owned(), 0)).filter(|row| row.log_end_offset.is_some())
}

/// A pair in sync at 50.
async fn pair() -> Cluster {
    let plan = Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent);
    let cluster = plan.start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    leader.create_topic("t", 1, &[1, 2], &[]).await;
    leader.until_in_sync("t", 1).await;
    for _ in 0..RECORDS / 10 {
        leader.append("t", 0, batch(10, 10)).await;
    }
    leader.until_in_sync("t", 1).await;
    cluster
}

/// Kills the follower, damages the file, and starts the follower while its leader says nothing; then lets it speak.
async fn starts_over(
    cluster: &mut Cluster,
    file: &str,
    damage: fn(&Path),
    what: &str,
) -> v1::FollowedPartition {
    let agent = Calls::of(cluster.agent(2));
    agent.until_followed_to("t", 1, RECORDS).await;
    cluster.server_mut(AGENT).kill();
    damage(&cluster.data_dir(2).join("t-0").join(file));
    cluster.leader(1).process().freeze();
    let before = cluster.agent(2).warnings().len();
    cluster.start_and_wait(AGENT).await;
    let alone = wait::until(what, wait::SOON, async || row(&agent).await).await;
    let warnings = cluster.agent(2).warnings().split_off(before);
    cluster.leader(1).process().thaw();
    agent.until_followed_to("t", 1, RECORDS).await;
    Calls::of(cluster.leader(1)).until_in_sync("t", 1).await;

    assert_eq!(alone.log_end_offset, Some(RECORDS), "{what}: the log is kept");
    assert_eq!(warnings.len(), 1, "{what}: one warning: {warnings:#?}");
    let read = |node| LogBytes::read(&cluster.data_dir(node).join("t-0"));
    assert!(read(1).bytes == read(2).bytes, "{what}");
    alone
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_starts_without_its_checkpoint() {
    let mut cluster = pair().await;
    for (name, damage) in DAMAGES {
        let what = format!("the checkpoint is {name}");
        let alone = starts_over(&mut cluster, "checkpoint", damage, &what).await;
        assert_eq!(
            alone.high_watermark, alone.log_start_offset,
            "{what}: nothing is known of what is committed"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_starts_without_its_epoch_checkpoint() {
    let mut cluster = pair().await;
    for (name, damage) in DAMAGES {
        let what = format!("the epoch checkpoint is {name}");
        let alone = starts_over(&mut cluster, "leader-epoch-checkpoint", damage, &what).await;
        assert_eq!(alone.last_fetched_epoch, Some(0), "{what}: the batches say which epochs there are");
    }
}

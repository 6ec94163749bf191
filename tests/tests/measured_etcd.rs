//! What a change of a record in etcd costs, and how soon others see it. etcd runs on this machine and does not flush, so
//! the figures are those of the store's own work.

#![cfg(feature = "etcd")]
#![allow(
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "figures for people; a panic fails the test"
)]

use std::time::{Duration, Instant};

use highwater_coordination::{Coordination as _, EtcdCoordination, EtcdOptions};
use highwater_types::{NodeId, NodeRecord, Program};
use system_tests::etcd::Etcd;
use system_tests::wait;

const CHANGES: u32 = 300;
/// Far above the usual 2 ms of each.
const MEDIAN_MAX: Duration = Duration::from_millis(100);

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_takes_milliseconds_and_is_seen_by_others_within_milliseconds() {
    let Some(etcd) = Etcd::start(1).await else { return };
    let open = async || {
        EtcdCoordination::open(&etcd.endpoints(), EtcdOptions::default()).await.expect("etcd is there")
    };
    let (writer, reader) = (open().await, open().await);
    let node = NodeId::new(1).expect("not negative");
    let (mut view, mut record) = (reader.view(), NodeRecord::new(node));
    let (mut swaps, mut sights, mut renewals) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CHANGES {
        let begun = Instant::now();
        let version = record.version;
        record = writer.swap_node(record, version).await.expect("etcd is there").committed().expect("ours");
        swaps.push(begun.elapsed());
        let newer = view.wait_for(|view| view.node(node).is_some_and(|seen| seen.version >= record.version));
        drop(tokio::time::timeout(wait::SOON, newer).await.expect("seen in time").expect("the store lives"));
        sights.push(begun.elapsed());
        let begun = Instant::now();
        writer.renew_liveness(node, Program::LeaderSvc).await.expect("etcd is there");
        renewals.push(begun.elapsed());
    }
    let (swap, sight, renewal) = (median(swaps), median(sights), median(renewals));
    println!(
        "medians of {CHANGES}: swap {swap:?}, seen by another {sight:?} after it began, renewal {renewal:?}"
    );
    assert!(sight < MEDIAN_MAX && renewal < MEDIAN_MAX, "swap {swap:?}, seen {sight:?}, renewal {renewal:?}");
}

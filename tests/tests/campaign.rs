//! Three real nodes under four producers, while programs and nodes are killed, stopped, restarted and cut from each other at
//! random: nothing acknowledged is lost or there twice, nothing that anybody saw vanishes, and the cluster heals.
//!
//! Each test prints its seed; `HWTEST_SEED` repeats one (the order of faults, not what the machine makes of it), and
//! `HWTEST_CAMPAIGN_SECONDS` sets how long there are faults.

#![allow(clippy::print_stdout, reason = "a run is repeated by the seed that it printed")]

use std::env;
use std::time::Duration;

use system_tests::campaign;
use system_tests::etcd::Etcd;
use system_tests::tier::rounds;

fn number_from(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

async fn run(store: &str, etcd: Option<&Etcd>) {
    let seed = number_from("HWTEST_SEED").unwrap_or_else(rand::random);
    let seconds = number_from("HWTEST_CAMPAIGN_SECONDS").unwrap_or_else(|| rounds(60, 600).into());
    println!("{store}: seed {seed}");
    let report = campaign::run(etcd, seed, Duration::from_secs(seconds)).await;
    println!("{store}: {report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_over_a_file_store_whatever_dies_stops_or_is_cut_off() {
    run("file", None).await;
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_over_etcd_whatever_dies_stops_or_is_cut_off() {
    let Some(etcd) = Etcd::start(1).await else { return };
    run("etcd", Some(&etcd)).await;
}

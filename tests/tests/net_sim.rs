//! The network simulation: the real leader-svc and follower-agent of three nodes, over gRPC on turmoil's TCP, under its
//! virtual clock. tests/README.md says what follows from the seed and what does not.
//!
//! `HWTEST_NET_SEEDS=4271..4272` runs these seeds in place of the tier's; with `HWTEST_NET_LOG=info` they tell what goes wrong
//! and what the programs say of it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails here shows where")]
#![allow(clippy::print_stdout, reason = "the numbers of a run are its result")]

#[cfg(not(tokio_unstable))]
compile_error!(
    "net_sim needs tokio's seeded scheduler: build with --cfg tokio_unstable, which .cargo/config.toml sets; a variable \
     RUSTFLAGS replaces that file's flags and has to repeat it"
);

#[path = "net_sim/chaos.rs"]
mod chaos;
#[path = "net_sim/cluster.rs"]
mod cluster;
#[path = "net_sim/load.rs"]
mod load;
#[path = "net_sim/network.rs"]
mod network;
#[path = "net_sim/program.rs"]
mod program;
#[path = "net_sim/settled.rs"]
mod settled;
#[path = "net_sim/store.rs"]
mod store;
#[path = "net_sim/writer.rs"]
mod writer;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster::{Cluster, NODES};
use highwater_log::PartitionLocks;
use highwater_node::DRAIN_BOUND;
use highwater_telemetry::LogFormat;
use load::Load;
use program::{FETCH_DEADLINE, LAG_MAX, SESSION_TIMEOUT, agent, leader};
use store::Reach;
use system_tests::tier::rounds;

/// The variable that has seeds told in words: what the programs' `log.filter` is.
const LOG: &str = "HWTEST_NET_LOG";

/// How long things go wrong in one run.
const CHAOS: Duration = Duration::from_secs(12);

/// After a failed call, until the next one is on its way: back-off, and a connection.
const RECONNECTED_WITHIN: Duration = Duration::from_secs(1);

/// From the sign that a leader is gone until another one is on record.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(1);

/// From the order to stop until another leader acknowledges.
const HANDED_OVER_WITHIN: Duration = Duration::from_millis(200);

/// How long a log is held by somebody else, when its agent starts.
const HELD_FOR: Duration = Duration::from_millis(40);

/// What a client's keepalive takes to find out that a connection is frozen, and what it then takes to ask elsewhere.
const KEEPALIVE: Duration = Duration::from_secs(8);

/// How long answers are lost in tests of a lost answer, and within which time what went before has arrived.
const LOST: Duration = Duration::from_millis(200);
const ON_ITS_WAY: Duration = Duration::from_millis(50);

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A cluster whose replicas are in sync.
fn started(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(seed);
    cluster.start_all();
    settled::create_topic(&mut cluster, seed);
    cluster
}

/// The same, with a load that is served, and the leader of partition 0.
fn loaded(seed: u64) -> (Cluster, Load, i32) {
    let mut cluster = started(seed);
    let load = Load::start(&mut cluster);
    cluster.until("records are acknowledged", Duration::from_secs(5), |_| {
        load.is_acknowledged_after(Duration::ZERO)
    });
    cluster.run_for(Duration::from_secs(1));
    let leads = cluster.leader_of(0).unwrap();
    (cluster, load, leads)
}

/// Waits until somebody else leads partition 0; how long that took.
fn until_taken_over(cluster: &mut Cluster, from: i32, bound: Duration) -> Duration {
    cluster.until("another one leads", bound, |cluster| cluster.leader_of(0).is_some_and(|node| node != from))
}

/// Waits until partition 0 acknowledges something after `time`; how long after `time` it does.
fn until_acknowledged(cluster: &mut Cluster, load: &Load, time: Duration, bound: Duration) -> Duration {
    let last = || load.acknowledged(0).last().copied().unwrap_or_default();
    cluster.until("partition 0 acknowledges", bound, |_| last() > time);
    last() - time
}

/// A node beside this one.
const fn other(node: i32) -> i32 {
    node % 3 + 1
}

/// The seeds of this run.
fn seeds() -> Range<u64> {
    let Ok(asked) = std::env::var("HWTEST_NET_SEEDS") else { return 0..rounds(16, 500).into() };
    let bounds = asked.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    bounds.unwrap_or_else(|| panic!("HWTEST_NET_SEEDS is '{asked}'; FROM..TO is allowed"))
}

/// What a seed does, in words, where they are asked for.
fn tell(at: Duration, what: &str) {
    if std::env::var_os(LOG).is_some() {
        println!("{at:?} {what}");
    }
}

fn run(seed: u64) {
    if let Ok(filter) = std::env::var(LOG) {
        // Of many seeds the first one sets it up.
        _ = highwater_telemetry::init(LogFormat::Text, &filter);
    }
    let began = Instant::now();
    let mut cluster = started(seed);
    let load = Load::start(&mut cluster);
    let faults = chaos::run(&mut cluster, seed, CHAOS, tell);
    let healed = settled::check(&mut cluster, &load);
    let [read, read_from_followers] = load.read();
    println!(
        "seed {seed}: {} acknowledged, {read} read of leaders, {read_from_followers} of followers; {faults:?}; in sync \
         {healed:?} after the last; {:?} of virtual time in {:?}",
        load.history().acknowledged(),
        cluster.elapsed(),
        began.elapsed()
    );
}

#[test]
fn nothing_acknowledged_is_lost_whatever_the_network_does() {
    let seeds = seeds();
    let next = AtomicU64::new(seeds.start);
    let worker = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) {
                return;
            }
            // A thread of its own, whose name is in the message of a failure.
            let thread = std::thread::Builder::new().name(format!("seed {seed}")).spawn(move || run(seed));
            let ended = thread.unwrap().join();
            assert!(ended.is_ok(), "HWTEST_NET_SEEDS={seed}..{} runs it again", seed + 1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(worker);
        }
    });
}

#[test]
fn a_fetch_whose_answer_is_lost_is_given_up_at_its_deadline_and_made_anew() {
    let (mut cluster, load, leads) = loaded(1);
    let (from, to) = (leader(leads), agent(other(leads)));
    cluster.cut_one_way(&from, &to);
    cluster.run_for(LOST);
    // What was lost is not sent again: the connection is frozen, and looks well from both ends.
    cluster.mend(&from, &to);
    let mended = cluster.elapsed();
    cluster.run_for(ON_ITS_WAY);
    let silence =
        until_acknowledged(&mut cluster, &load, mended + ON_ITS_WAY, FETCH_DEADLINE + RECONNECTED_WITHIN);
    println!("nothing was acknowledged for {silence:?}");
    assert!(silence > FETCH_DEADLINE / 2, "it was the deadline that found out, after {silence:?}");
    assert_eq!(cluster.record(0).isr.len(), NODES.len(), "and nobody left the in-sync set");
    settled::check(&mut cluster, &load);
}

#[test]
fn a_produce_whose_answer_is_lost_is_sent_again_and_appended_once() {
    let (mut cluster, load, leads) = loaded(7);
    let from = leader(leads);
    cluster.cut_one_way(&from, load::HOST);
    cluster.run_for(LOST);
    cluster.mend(&from, load::HOST);
    let mended = cluster.elapsed();
    let silence = until_acknowledged(&mut cluster, &load, mended, KEEPALIVE + RECONNECTED_WITHIN);
    println!("nothing was acknowledged for {silence:?}");
    assert!(silence > KEEPALIVE / 2, "it was the keepalive that found out, after {silence:?}");
    settled::check(&mut cluster, &load);
}

#[test]
fn a_leader_cut_off_from_store_and_followers_refuses_writes_within_its_session_timeout() {
    let mut cluster = started(2);
    let leads = cluster.leader_of(0).unwrap();
    let host = leader(leads);
    let last = writer::start(&mut cluster, &host, 0);
    cluster.run_for(Duration::from_secs(2));
    let cut = cluster.elapsed();
    assert!(last.get() > cut - millis(500), "it is written to until then");
    cluster.store.set_reach(&host, Reach::Away);
    for other in cluster.hosts().iter().filter(|other| **other != host) {
        cluster.cut(&host, other);
    }
    let taken = until_taken_over(&mut cluster, leads, SESSION_TIMEOUT + TAKEN_OVER_WITHIN);
    cluster.run_for(SESSION_TIMEOUT);
    println!("written to for {:?}, another one leads after {taken:?}", last.get().saturating_sub(cut));
    // The last fetch that counted was on its way when the link was cut, and the last answer takes its way, too.
    assert!(
        last.get() <= cut + SESSION_TIMEOUT + cluster::ON_ITS_WAY_MAX * 2,
        "written to for {:?}",
        last.get().saturating_sub(cut)
    );
    cluster.heal();
    settled::until_in_sync(&mut cluster);
    cluster.run_for(Duration::from_secs(1));
    settled::check_replicas(&mut cluster);
}

#[test]
fn a_machine_that_vanishes_is_replaced_within_the_session_timeout() {
    let (mut cluster, load, leads) = loaded(3);
    cluster.vanish(leads, &[load::HOST]);
    let taken = until_taken_over(&mut cluster, leads, SESSION_TIMEOUT + TAKEN_OVER_WITHIN);
    // A client that waits for an answer of the machine finds out by its keepalive.
    let led = cluster.elapsed();
    let silence =
        until_acknowledged(&mut cluster, &load, led, KEEPALIVE + RECONNECTED_WITHIN - SESSION_TIMEOUT);
    println!("another one leads after {taken:?}, acknowledges {silence:?} later");
    settled::check(&mut cluster, &load);
}

#[test]
fn a_leader_that_is_killed_while_fetches_are_parked_is_replaced_at_once() {
    let (mut cluster, load, leads) = loaded(4);
    cluster.kill(&leader(leads));
    let taken = until_taken_over(&mut cluster, leads, TAKEN_OVER_WITHIN);
    let led = cluster.elapsed();
    let silence = until_acknowledged(&mut cluster, &load, led, RECONNECTED_WITHIN);
    println!("another one leads after {taken:?}, acknowledges {silence:?} later");
    settled::check(&mut cluster, &load);
}

#[test]
fn a_stop_answers_whoever_is_parked_and_hands_over() {
    let mut cluster = started(5);
    let leads = cluster.leader_of(0).unwrap();
    let host = leader(leads);
    let parked = writer::park(&mut cluster, &host, 0, Duration::from_secs(30));
    cluster.run_for(Duration::from_secs(2));
    assert_eq!(parked.get(), Duration::ZERO, "it waits");
    let told = cluster.elapsed();
    cluster.stop(&host);
    let taken = until_taken_over(&mut cluster, leads, TAKEN_OVER_WITHIN);
    let stopped = cluster.until("it stops", DRAIN_BOUND, |cluster| !cluster.is_running(&host));
    println!("another one leads after {taken:?}, it stopped {stopped:?} later");
    assert!(parked.get() > told, "the consumer was answered");
    cluster.heal();
    settled::until_in_sync(&mut cluster);
    settled::check_replicas(&mut cluster);
}

/// The successor's agent lets its readers go and lends the log; the agent beside the old leader takes the log as soon as it is free.
#[test]
fn a_stop_under_load_with_readers_of_followers_holds_acknowledgements_up_for_less_than_a_fifth_of_a_second() {
    for seed in 40..48 {
        let (mut cluster, load, leads) = loaded(seed);
        let told = cluster.elapsed();
        cluster.stop(&leader(leads));
        let taken = until_taken_over(&mut cluster, leads, HANDED_OVER_WITHIN);
        let led = cluster.elapsed();
        let silence = until_acknowledged(&mut cluster, &load, led, HANDED_OVER_WITHIN - (led - told));
        println!("seed {seed}: another one leads after {taken:?}, acknowledges {silence:?} later");
    }
}

#[test]
fn a_log_that_the_other_program_held_for_a_moment_is_followed_at_once() {
    let mut cluster = started(9);
    let node = other(cluster.leader_of(0).unwrap());
    let in_sync = |partition| move |cluster: &Cluster| cluster.record(partition).isr.len() == NODES.len();
    cluster.kill(&agent(node));
    cluster.until("it has left", RECONNECTED_WITHIN, |cluster| !in_sync(0)(cluster));
    let id = cluster.record(0).id();
    let lock = PartitionLocks::open(&cluster.data_dir(node)).unwrap().try_lock(id).unwrap();
    assert!(lock.is_some(), "nobody holds it");
    cluster.start(&agent(node));
    cluster.run_for(HELD_FOR);
    drop(lock);
    let free = cluster.until("it is in sync", LAG_MAX, in_sync(0));
    println!("in sync {free:?} after it was free");
    assert!(free < millis(100), "it was looked at again too late");
}

#[test]
fn messages_that_were_held_across_a_leadership_change_nothing() {
    let (mut cluster, load, leads) = loaded(6);
    let host = leader(leads);
    NODES.map(agent).iter().for_each(|follower| cluster.hold(&host, follower));
    // The leader shrinks the in-sync set to itself, and nothing more is acknowledged.
    cluster.until("the followers are late", LAG_MAX * 2, |cluster| cluster.record(0).isr.len() == 1);
    cluster.kill(&host);
    cluster.run_for(Duration::from_secs(1));
    cluster.start(&host);
    cluster.run_for(Duration::from_secs(1));
    settled::check(&mut cluster, &load);
}

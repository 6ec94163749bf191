//! A follower that dies at any moment under load, by SIGKILL or by power loss of its node (tokio#4296): what it
//! acknowledged it has, and what it has is the leader's log from the start, without a gap and without a duplicate.
//!
//! Each test prints its seed; `HWTEST_SEED` replays one, `HWTEST_KILL_ROUNDS` sets how many rounds all tests together
//! make. A relay before the leader keeps the highest acknowledgement, so that nothing that was said is missed.

#![allow(clippy::print_stdout, reason = "a run is repeated by the seed that it printed")]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use highwater_proto::v1;
use highwater_records::{BatchBuilder, Compression};
use highwater_types::{Program, WallTime};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use system_tests::calls::{Calls, to};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::history::{History, Outcome};
use system_tests::log_files::LogBytes;
use system_tests::power_loss::Unflushed;
use system_tests::relay::{Relay, Seen};
use system_tests::tier::rounds;
use system_tests::traffic::Traffic;
use system_tests::{ports, wait};
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);
const TOPICS: [(&str, &str); 2] = [("flushed", "fsync"), ("cached", "page-cache")];
/// Between two batches of the load, per topic.
const LOAD_EVERY: Duration = Duration::from_millis(15);
/// How many batches a burst has, per topic.
const BURST_BATCHES: usize = 12;
/// Logs begin anew after so many rounds: each round compares them whole.
const ROUNDS_PER_SCENE: u32 = 25;

/// How the follower dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    /// SIGKILL: the page cache stays. Now and then the leader dies too, and leads again in a new epoch.
    Killed,
    /// Everything that was not flushed is lost.
    PowerLost,
    /// What was not flushed is partly there.
    PowerLostTorn,
}

/// What a follower said about one partition, as one incarnation.
#[derive(Debug, Clone, Copy, Default)]
struct Said {
    /// The highest offset that it acknowledged.
    highest: i64,
    /// The same at its last death: it must not say less again.
    floor: i64,
    /// Whether it has said anything since.
    lives: bool,
    /// Whether acknowledged bytes may be gone: it must not say anything again.
    retired: bool,
}

/// What the follower said, by topic id and incarnation, and what it should not have said.
#[derive(Debug, Default)]
struct Ledger {
    said: BTreeMap<(String, String), Said>,
    /// The connections of this life and of those before. What a dead process sent may arrive after its death.
    connections: BTreeSet<SocketAddr>,
    dead: BTreeSet<SocketAddr>,
    violations: Vec<String>,
}

impl Ledger {
    fn note(&mut self, request: &v1::FetchRequest, from: SocketAddr) {
        let is_late = self.dead.contains(&from);
        if !is_late {
            self.connections.insert(from);
        }
        for asked in request.partitions.iter().filter(|_| request.replica_id.is_some()) {
            let fetched = asked.fetch_offset.expect("a follower says where it reads");
            let acknowledged = asked.acknowledged_offset.unwrap_or(fetched);
            let incarnation = asked.incarnation.clone().expect("a follower says which incarnation it is");
            let said = self.said.entry((asked.topic_id.clone(), incarnation)).or_default();
            said.highest = said.highest.max(acknowledged);
            if is_late {
                said.floor = said.highest;
            }
            said.lives |= !is_late;
            let is_less = !is_late && (said.retired || acknowledged < said.floor);
            if is_less || acknowledged > fetched {
                self.violations
                    .push(format!("{acknowledged} acknowledged, {fetched} fetched, after {said:?}"));
            }
        }
    }

    /// The follower has died, and what it says from now on is another life's. What of `retired` it acknowledged may be gone.
    fn on_death(&mut self, retired: Option<&str>) {
        self.dead.append(&mut self.connections);
        for ((topic, _), said) in &mut self.said {
            said.floor = said.highest;
            said.lives = false;
            said.retired |= retired == Some(topic.as_str());
        }
    }

    /// What was said about a topic, by each incarnation.
    fn of(&self, topic_id: &str) -> Vec<Said> {
        self.said.iter().filter(|((topic, _), _)| topic == topic_id).map(|(_, said)| *said).collect()
    }
}

/// A leader and a follower under load, with the relay between them.
struct Scene {
    cluster: Cluster,
    ledger: Arc<Mutex<Ledger>>,
    history: Arc<History>,
    topics: BTreeMap<&'static str, v1::Topic>,
    load: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    dice: StdRng,
    _relay: Relay,
}

impl Scene {
    async fn start(death: Death, seed: u64) -> Self {
        let relay_at = ports::loopback();
        let mut plan = Plan::new()
            .program(1, Program::LeaderSvc)
            .program(2, Program::FollowerAgent)
            .advertise(LEADER, relay_at)
            .set(Program::FollowerAgent, "replica.high.watermark.checkpoint.interval.ms", "100ms");
        if death != Death::Killed {
            plan = plan.with_power_loss(2);
        }
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let noted = Arc::clone(&ledger);
        let relay = Relay::start(relay_at, plan.address(LEADER), move |seen| match seen {
            Seen::Request(request, from) => lock(&noted).note(request, from),
            Seen::Answer(..) => {}
        })
        .await;
        let cluster = plan.start().await;
        let leader = Calls::of(cluster.leader(1));
        leader.until_nodes(2).await;
        let mut topics = BTreeMap::new();
        for (name, durability) in TOPICS {
            let properties = [("durability", durability), ("segment.bytes", "65536")];
            topics.insert(name, leader.create_topic(name, 1, &[1, 2], &properties).await);
            leader.until_in_sync(name, 1).await;
        }
        let (history, stop) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
        let load = start_load(&cluster, &history, &stop, seed);
        Self {
            cluster,
            ledger,
            history,
            topics,
            load,
            stop,
            dice: StdRng::seed_from_u64(seed),
            _relay: relay,
        }
    }

    fn topic_id(&self, name: &str) -> &str {
        &self.topics.get(name).expect("one of the topics").topic_id
    }

    /// The follower dies in the middle of its work, or of its start; then it is looked at, and started again.
    async fn round(&mut self, death: Death, number: u32) {
        if self.dice.random_bool(0.75) {
            self.until_followed_again().await;
        }
        let bursts = self.dice.random_bool(0.5);
        if bursts {
            self.start_burst(number);
        }
        // This pause is the fault itself: the moment of the death.
        let longest = if bursts { 60 } else { 500 };
        sleep(Duration::from_millis(self.dice.random_range(0..longest))).await;
        match death {
            Death::Killed => self.cluster.server_mut(AGENT).kill(),
            Death::PowerLost => self.cluster.lose_power(2, Unflushed::Lost),
            Death::PowerLostTorn => {
                let unflushed = Unflushed::Torn(self.dice.random());
                self.cluster.lose_power(2, unflushed);
            }
        }
        self.look_at_the_dead(death, number);
        if death == Death::Killed && self.dice.random_bool(0.2) {
            self.cluster.server_mut(LEADER).kill();
            self.cluster.start(LEADER);
        }
        // Under `page-cache` nobody knows what a power loss took: the replica must come back as another.
        let retired = (death != Death::Killed).then(|| self.topic_id("cached"));
        lock(&self.ledger).on_death(retired);
        self.cluster.start(AGENT);
    }

    /// Gives the follower so much at once that it dies over it: answers that wait for their append, appends that wait for
    /// their flush.
    fn start_burst(&mut self, round: u32) {
        for (topic, _) in TOPICS {
            for number in 0..BURST_BATCHES {
                let (calls, history) = (Calls::of(self.cluster.leader(1)), Arc::clone(&self.history));
                let name = format!("burst-{round}-{number}");
                let mut dice = StdRng::seed_from_u64(self.dice.random());
                self.load.push(tokio::spawn(async move {
                    produce_batch(&calls, &history, topic, &name, 16_000, &mut dice).await;
                }));
            }
        }
    }

    /// Waits until this life of the follower has said something about each topic.
    async fn until_followed_again(&self) {
        for (name, _) in TOPICS {
            let what = format!("the follower to fetch {name} again");
            wait::until(&what, wait::SOON, async || {
                lock(&self.ledger).of(self.topic_id(name)).iter().any(|said| said.lives).then_some(())
            })
            .await;
        }
    }

    /// What must hold whenever the follower is dead.
    fn look_at_the_dead(&self, death: Death, round: u32) {
        let said = lock(&self.ledger);
        assert!(said.violations.is_empty(), "before round {round}: {:#?}", said.violations);
        for (name, durability) in TOPICS {
            let directory = format!("{name}-0");
            let follower = LogBytes::read(&self.cluster.data_dir(2).join(&directory));
            // Read later: the leader has at least what the follower had.
            let leader = LogBytes::read(&self.cluster.data_dir(1).join(&directory));
            let kept = if death == Death::Killed { &follower.bytes } else { follower.good_bytes() };
            assert!(
                leader.bytes.starts_with(kept),
                "round {round}: {name} is not the leader's to {}: {}",
                follower.end,
                difference(&leader, &follower)
            );
            if death == Death::Killed || durability == "fsync" {
                let said = said.of(self.topic_id(name));
                assert!(said.len() <= 1, "round {round}: {name}: nothing is gone, but there are {said:?}");
                let highest = said.iter().map(|said| said.highest).max().unwrap_or(0);
                assert!(
                    follower.end >= highest,
                    "round {round}: {name} ends at {}, {highest} was said",
                    follower.end
                );
            }
        }
    }

    /// Ends the load, lets the follower have everything, and holds both logs and the producers' history together.
    async fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for load in self.load.drain(..) {
            load.await.expect("the load does not panic");
        }
        self.cluster.serving(LEADER).await;
        let leader = Calls::of(self.cluster.leader(1));
        for (name, _) in TOPICS {
            leader.until_in_sync(name, 1).await;
            Traffic::new(self.cluster.leader(1).channel(), name, 0).read_all(&self.history).await;
        }
        assert!(self.cluster.server_mut(AGENT).terminate(wait::SOON).await.success());
        let said = lock(&self.ledger);
        assert!(said.violations.is_empty(), "{:#?}", said.violations);
        for (name, _) in TOPICS {
            let read = |node| LogBytes::read(&self.cluster.data_dir(node).join(format!("{name}-0")));
            let (leader, follower) = (read(1), read(2));
            assert_eq!(
                (leader.good, leader.end),
                (leader.bytes.len(), follower.end),
                "{name}: no gap, no duplicate"
            );
            assert!(leader.bytes == follower.bytes, "{name} is the same on both");
        }
        self.history.assert_holds();
    }
}

/// Where two logs differ, and what each holds there, for whoever has to find out why.
fn difference(leader: &LogBytes, follower: &LogBytes) -> String {
    let same = leader.bytes.iter().zip(&follower.bytes).take_while(|(a, b)| a == b).count();
    let around = |log: &LogBytes| {
        let rest = log.bytes.get(same..).unwrap_or_default();
        let shown = rest.iter().take(32).map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{} bytes, good to {} (offset {}), there {shown}", log.bytes.len(), log.good, log.end)
    };
    format!("they differ from byte {same} on; leader: {}; follower: {}", around(leader), around(follower))
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Per topic: a producer with acks=all, and batches of many sizes with acks=1, until told to stop.
fn start_load(
    cluster: &Cluster,
    history: &Arc<History>,
    stop: &Arc<AtomicBool>,
    seed: u64,
) -> Vec<JoinHandle<()>> {
    let mut load = Vec::new();
    for (name, _) in TOPICS {
        let (mut traffic, history, stop) =
            (Traffic::new(cluster.leader(1).channel(), name, 0), Arc::clone(history), Arc::clone(stop));
        let (calls, noted, stopped) = (Calls::of(cluster.leader(1)), Arc::clone(&history), Arc::clone(&stop));
        load.push(tokio::spawn(async move {
            let mut pace = paced();
            for number in 0_u64.. {
                pace.tick().await;
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                traffic.produce(&history, &format!("{name}-all-{number}")).await;
            }
        }));
        load.push(tokio::spawn(async move {
            let (mut pace, mut dice) = (paced(), StdRng::seed_from_u64(seed ^ 1));
            for number in 0_u64.. {
                pace.tick().await;
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                produce_batch(&calls, &noted, name, &format!("one-{number}"), 600, &mut dice).await;
            }
        }));
    }
    load
}

fn paced() -> Interval {
    let mut pace = interval(LOAD_EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

/// Produces a batch with acks=1; what became of it is in the history.
async fn produce_batch(
    calls: &Calls,
    history: &History,
    topic: &str,
    name: &str,
    longest: usize,
    dice: &mut StdRng,
) {
    let partition = format!("{topic}-0");
    let mut batch = BatchBuilder::new(Compression::None);
    let mut values = Vec::new();
    for record in 0..dice.random_range(1..20) {
        let mut value = format!("{topic}-{name}-{record}-").into_bytes();
        value.resize(value.len() + dice.random_range(0..longest), b'x');
        batch.append(WallTime::from_millis(1000), None, Some(&value), &[]).expect("a small batch");
        history.attempt(&partition, &value);
        values.push(value);
    }
    let records = batch.build().expect("it has records").to_vec();
    let request = v1::ProduceRequest {
        acks: v1::Acks::Leader.into(),
        partitions: vec![to(topic, 0, records)],
        ..Default::default()
    };
    // Any failure leaves it open what became of the batch: the leader may have died meanwhile.
    let Ok(answer) = calls.log.clone().produce(request).await else { return };
    let result = answer.into_inner().partitions.into_iter().next().expect("one partition was produced to");
    let Some(base) = result.base_offset.filter(|_| result.error.is_none()) else { return };
    for (offset, value) in (base..).zip(&values) {
        history.outcome(&partition, value, Outcome::Acknowledged(offset));
    }
}

fn number_from(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Deaths of one kind: one in so many of all rounds.
async fn deaths(death: Death, one_in: u32) {
    let seed = number_from("HWTEST_SEED").unwrap_or_else(rand::random);
    let all = number_from("HWTEST_KILL_ROUNDS")
        .map_or_else(|| rounds(30, 200), |all| u32::try_from(all).expect("few"));
    let own = all.div_ceil(one_in);
    println!("{death:?}: seed {seed}, {own} rounds of {all}");
    for first in (0..own).step_by(ROUNDS_PER_SCENE as usize) {
        let mut scene = Scene::start(death, seed.wrapping_add(u64::from(first))).await;
        for round in first..own.min(first + ROUNDS_PER_SCENE) {
            scene.round(death, round).await;
        }
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_killed_at_any_moment_has_what_it_acknowledged() {
    deaths(Death::Killed, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_loses_what_was_not_flushed_has_what_it_acknowledged_as_flushed() {
    deaths(Death::PowerLost, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_whose_unflushed_writes_are_torn_has_what_it_acknowledged_as_flushed() {
    deaths(Death::PowerLostTorn, 4).await;
}

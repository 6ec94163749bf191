//! The fault driver of a campaign: from one seed, it kills programs and nodes (SIGKILL), stops them (SIGSTOP) and lets them
//! go on, restarts them (SIGTERM), and cuts nodes from each other and from their store.
//!
//! What must hold: a program that ends without having been told to is a problem, except where it starts while it cannot have
//! its store; then it is started again, as a supervisor would. Pauses here are the faults themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use highwater_types::Program;
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::sleep;

use super::NODES;
use crate::cluster::{Cluster, ServerId};
use crate::kernel;
use crate::links::{Link, Links};
use crate::process::ended_by;
use crate::proxy::{Passage, Proxy};
use crate::wait;

/// So many faults last at the same time at most.
const AT_ONCE_MAX: usize = 3;
/// How often the driver looks what is to be done.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// One pause in so many is long enough for everybody to be in sync again.
const CALM_ONE_IN: u32 = 8;
const CALM: Duration = Duration::from_secs(5);
/// In milliseconds.
const PAUSES: std::ops::Range<u64> = 50..1500;
/// Shorter than a session, and longer than one: half of the faults each; in milliseconds.
const SHORT: std::ops::Range<u64> = 30..1500;
const LONG: std::ops::Range<u64> = 3200..7000;
/// So long after its start a program that has printed nothing need not know yet how to stop in order: it may have been stopped for
/// most of that.
const STARTING: Duration = Duration::from_secs(10);
/// A program that ended at its start is started again after this.
const START_AGAIN_AFTER: Duration = Duration::from_millis(300);

/// What can be done to a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    KillProgram,
    KillNode,
    StopProgram,
    StopNode,
    RestartProgram,
    RestartNode,
    CutPair,
    CutOneWay,
    CutNode,
    CutFromStore,
}

const KINDS: [Kind; 10] = [
    Kind::KillProgram,
    Kind::KillNode,
    Kind::StopProgram,
    Kind::StopNode,
    Kind::RestartProgram,
    Kind::RestartNode,
    Kind::CutPair,
    Kind::CutOneWay,
    Kind::CutNode,
    Kind::CutFromStore,
];

/// A fault that lasts.
#[derive(Debug)]
struct Lasting {
    until: Instant,
    what: Effect,
}

#[derive(Debug)]
enum Effect {
    /// Does not run.
    Dead(Vec<ServerId>),
    /// Does nothing.
    Stopped(Vec<ServerId>),
    Cut(BTreeMap<Link, Passage>),
    /// Together with its links, where it is cut off from the other nodes too.
    NoStore(i32, BTreeMap<Link, Passage>),
}

/// The cluster, and who disturbs it.
#[derive(Debug)]
pub(super) struct Faults {
    pub(super) cluster: Cluster,
    links: Links,
    /// When, and what it had printed before.
    started: BTreeMap<ServerId, (Instant, usize)>,
    /// Between a node and its store, where the store is reached by the network.
    stores: BTreeMap<i32, Proxy>,
    dice: StdRng,
    lasting: Vec<Lasting>,
    counts: BTreeMap<Kind, u32>,
    stopped_with_store: u32,
    started_again: u32,
    began: Instant,
    diary: Vec<(Duration, String)>,
    problems: Vec<String>,
}

impl Faults {
    pub(super) fn new(cluster: Cluster, links: Links, stores: BTreeMap<i32, Proxy>, seed: u64) -> Self {
        let faults = Self {
            cluster,
            links,
            started: BTreeMap::new(),
            stores,
            dice: StdRng::seed_from_u64(seed),
            lasting: Vec::new(),
            counts: BTreeMap::new(),
            stopped_with_store: 0,
            started_again: 0,
            began: Instant::now(),
            diary: Vec::new(),
            problems: Vec::new(),
        };
        for id in servers() {
            faults.links.note_process(id, faults.cluster.server(id).process().id());
        }
        faults
    }

    /// Disturbs the cluster for so long, then ends every fault.
    pub(super) async fn run(&mut self, span: Duration) {
        let end = Instant::now() + span;
        let mut next = Instant::now();
        while Instant::now() < end {
            self.end_due(Instant::now()).await;
            self.look_after_the_running().await;
            if Instant::now() >= next && self.lasting.len() < AT_ONCE_MAX {
                self.begin().await;
                let calm = self.dice.random_ratio(1, CALM_ONE_IN);
                next = Instant::now() + if calm { CALM } else { self.millis(PAUSES) };
            }
            sleep(LOOK_EVERY).await;
        }
        let last = self.lasting.iter().map(|fault| fault.until).max();
        self.end_due(last.unwrap_or(end)).await;
        self.note("every fault has ended".to_owned());
    }

    /// Waits until every program serves; those that could not have their store at their start are started again.
    pub(super) async fn until_all_serve(&mut self) {
        for id in servers() {
            self.start_if_ended(id).await;
            self.cluster.serving(id).await;
        }
    }

    /// What was done, for people.
    pub(super) fn summary(&self) -> String {
        let kinds: Vec<_> = self.counts.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
        format!(
            "{}; stopped while it wrote to the store: {}, started again without a store: {}",
            kinds.join(", "),
            self.stopped_with_store,
            self.started_again
        )
    }

    /// From when on its moments are counted.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// What was done from one moment to another.
    pub(super) fn diary(&self, span: std::ops::Range<Duration>) -> String {
        let lines = self.diary.iter().filter(|(at, _)| span.contains(at));
        let lines: Vec<_> = lines.map(|(at, what)| format!("{:>7.3} s: {what}", at.as_secs_f64())).collect();
        lines.join("\n")
    }

    /// What no fault explains.
    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    fn note(&mut self, what: String) {
        self.diary.push((self.began.elapsed(), what));
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.dice.random_range(range))
    }

    fn until(&mut self) -> Instant {
        let range = if self.dice.random_bool(0.5) { SHORT } else { LONG };
        Instant::now() + self.millis(range)
    }

    /// Programs that no fault holds at present, of one node or of all.
    fn free(&self, node: Option<i32>) -> Vec<ServerId> {
        let held: BTreeSet<ServerId> =
            self.lasting.iter().flat_map(|fault| fault.what.servers().iter().copied()).collect();
        servers().filter(|id| !held.contains(id) && node.is_none_or(|node| node == id.0)).collect()
    }

    /// One program, or both of one node, that nothing holds.
    fn choose(&mut self, whole_node: bool) -> Option<Vec<ServerId>> {
        if whole_node {
            let node = self.node();
            let free = self.free(Some(node));
            return (free.len() == 2).then_some(free);
        }
        let free = self.free(None);
        let chosen = self.dice.random_range(0..free.len().max(1));
        free.get(chosen).map(|id| vec![*id])
    }

    fn node(&mut self) -> i32 {
        let chosen = self.dice.random_range(0..NODES.len());
        NODES.get(chosen).copied().expect("one of them")
    }

    async fn begin(&mut self) {
        let chosen = self.dice.random_range(0..KINDS.len());
        let kind = KINDS.get(chosen).copied().expect("one of them");
        let until = self.until();
        let what = match kind {
            Kind::KillProgram | Kind::RestartProgram => self.choose(false).map(Effect::Dead),
            Kind::KillNode | Kind::RestartNode => self.choose(true).map(Effect::Dead),
            Kind::StopProgram => self.choose(false).map(Effect::Stopped),
            Kind::StopNode => self.choose(true).map(Effect::Stopped),
            Kind::CutPair | Kind::CutOneWay | Kind::CutNode => Some(Effect::Cut(self.cut(kind))),
            Kind::CutFromStore if self.stores.is_empty() => None,
            Kind::CutFromStore => {
                let node = self.node();
                let links = if self.dice.random_bool(0.5) {
                    all_links_of(node, Passage::Silent)
                } else {
                    BTreeMap::new()
                };
                Some(Effect::NoStore(node, links))
            }
        };
        let Some(what) = what else { return };
        self.note(format!("{kind:?}: {what:?} for {:?}", until.saturating_duration_since(Instant::now())));
        *self.counts.entry(kind).or_default() += 1;
        match &what {
            Effect::Dead(ids) if matches!(kind, Kind::RestartProgram | Kind::RestartNode) => {
                self.terminate(ids).await
            }
            Effect::Dead(ids) => self.kill(ids).await,
            Effect::Stopped(ids) => self.stop(ids),
            Effect::Cut(_) | Effect::NoStore(..) => {}
        }
        self.lasting.push(Lasting { until, what });
        self.disturb_network();
    }

    /// Which links a cut cuts, and how.
    fn cut(&mut self, kind: Kind) -> BTreeMap<Link, Passage> {
        let passage = if self.dice.random_bool(0.75) { Passage::Silent } else { Passage::Refused };
        let one = self.node();
        if kind == Kind::CutNode {
            return all_links_of(one, passage);
        }
        let others: Vec<i32> = NODES.into_iter().filter(|node| *node != one).collect();
        let other = others.get(self.dice.random_range(0..others.len())).copied().expect("one of them");
        let mut links = BTreeMap::from([((one, other), passage)]);
        if kind == Kind::CutPair {
            links.insert((other, one), passage);
        }
        links
    }

    async fn kill(&mut self, ids: &[ServerId]) {
        for id in ids {
            self.cluster.server_mut(*id).kill();
            self.links.on_end(*id).await;
        }
    }

    async fn terminate(&mut self, ids: &[ServerId]) {
        for id in ids {
            // It may have ended by itself since it was looked at.
            if let Some(status) = self.cluster.server_mut(*id).process_mut().ended() {
                self.problems.push(format!("{} ended: {status}", self.cluster.server(*id)));
                self.cluster.server_mut(*id).kill();
            } else {
                let begun = Instant::now();
                let status = self.cluster.server_mut(*id).terminate(wait::SOON).await;
                self.note(format!("{id:?} ended after {:?}: {status}", begun.elapsed()));
                let printed = self.cluster.server(*id).output().len();
                let starts = self
                    .started
                    .get(id)
                    .is_some_and(|(at, before)| printed == *before && begun.duration_since(*at) < STARTING);
                if !(status.success() || starts && ended_by(status, Signal::SIGTERM)) {
                    self.problems
                        .push(format!("{} ended at SIGTERM with {status}", self.cluster.server(*id)));
                }
            }
            self.links.on_end(*id).await;
        }
    }

    fn stop(&mut self, ids: &[ServerId]) {
        for id in ids {
            let process = self.cluster.server(*id).process();
            process.freeze();
            // One that is stopped so stops every change of the store.
            if kernel::has_write_lock(process.id(), &self.cluster.coordination_dir()) {
                self.stopped_with_store += 1;
                self.note(format!("{id:?} was stopped while it wrote to the store"));
            }
        }
    }

    async fn end_due(&mut self, now: Instant) {
        let (due, lasting) =
            std::mem::take(&mut self.lasting).into_iter().partition(|fault| fault.until <= now);
        self.lasting = lasting;
        for fault in &due {
            self.note(format!("ends: {:?}", fault.what));
            match &fault.what {
                Effect::Dead(ids) => {
                    for id in ids {
                        self.start(*id).await;
                    }
                }
                Effect::Stopped(ids) => ids.iter().for_each(|id| self.cluster.server(*id).process().thaw()),
                Effect::Cut(_) | Effect::NoStore(..) => {}
            }
        }
        if !due.is_empty() {
            self.disturb_network();
        }
    }

    /// Cuts what lasting faults cut, and nothing else.
    fn disturb_network(&self) {
        let (mut links, mut without_store) = (BTreeMap::new(), BTreeSet::new());
        for fault in &self.lasting {
            match &fault.what {
                Effect::Cut(cut) => links.extend(cut),
                Effect::NoStore(node, cut) => {
                    links.extend(cut);
                    without_store.insert(*node);
                }
                Effect::Dead(_) | Effect::Stopped(_) => {}
            }
        }
        self.links.disturb(&links);
        for (node, store) in &self.stores {
            let silent = without_store.contains(node);
            store.set_passage(if silent { Passage::Silent } else { Passage::Open });
        }
    }

    async fn start(&mut self, id: ServerId) {
        let printed = self.cluster.server(id).output().len();
        self.cluster.start(id);
        self.started.insert(id, (Instant::now(), printed));
        let process = self.cluster.server(id).process().id();
        self.links.on_start(id, process).await;
    }

    /// Starts programs again that ended because they could not have their store.
    async fn look_after_the_running(&mut self) {
        for id in self.free(None) {
            self.start_if_ended(id).await;
        }
    }

    async fn start_if_ended(&mut self, id: ServerId) {
        let Some(status) = self.cluster.server_mut(id).process_mut().ended() else { return };
        let last = self.cluster.server(id).output().lines().last().unwrap_or_default().to_owned();
        self.note(format!("{id:?} ended by itself, {status}: {last}"));
        // The file store too may be out of reach: who was stopped while it wrote keeps it.
        let no_store = |fault: &Lasting| matches!(fault.what, Effect::NoStore(..) | Effect::Stopped(_));
        if !self.lasting.iter().any(no_store) {
            self.problems.push(format!("{} ended by itself, {status}: {last}", self.cluster.server(id)));
        }
        self.started_again += 1;
        self.kill(&[id]).await;
        sleep(START_AGAIN_AFTER).await;
        self.start(id).await;
    }
}

impl Drop for Faults {
    #[allow(
        clippy::print_stderr,
        reason = "a campaign that failed shows what was done, and where everything is"
    )]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let place = self.cluster.keep();
            eprintln!(
                "{}\ndata and output of all programs are kept in {}",
                self.diary(Duration::ZERO..Duration::MAX),
                place.display()
            );
        }
    }
}

impl Effect {
    /// The programs that do not run, or do nothing.
    fn servers(&self) -> &[ServerId] {
        match self {
            Self::Dead(ids) | Self::Stopped(ids) => ids,
            Self::Cut(_) | Self::NoStore(..) => &[],
        }
    }
}

fn servers() -> impl Iterator<Item = ServerId> {
    NODES
        .into_iter()
        .flat_map(|node| [Program::LeaderSvc, Program::FollowerAgent].map(|program| (node, program)))
}

fn all_links_of(node: i32, passage: Passage) -> BTreeMap<Link, Passage> {
    let others = NODES.into_iter().filter(|other| *other != node);
    others.flat_map(|other| [((node, other), passage), ((other, node), passage)]).collect()
}

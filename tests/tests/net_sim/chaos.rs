//! What goes wrong, as a seed has it: links that are cut, cut one way and held, programs that are killed, stopped and
//! started, machines that vanish, a store that is out of reach or loses its answers.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::cluster::{Cluster, NODES};
use super::load;
use super::store::Reach;

/// Between two changes.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 100..=1_500;

/// Links that are broken at the same time at most.
const BROKEN_MAX: usize = 5;

/// How many of each kind of fault there were.
pub(crate) type Faults = BTreeMap<&'static str, u32>;

/// Lets things go wrong for `time`; `tell` gets each change in words.
pub(crate) fn run(cluster: &mut Cluster, seed: u64, time: Duration, tell: fn(Duration, &str)) -> Faults {
    let mut chaos = Chaos { random: StdRng::seed_from_u64(seed), faults: Faults::new() };
    let until = cluster.elapsed() + time;
    while cluster.elapsed() < until {
        let pause = Duration::from_millis(chaos.random.random_range(PAUSE_MS));
        cluster.run_for(pause);
        if let Some((kind, what)) = chaos.change(cluster) {
            tell(cluster.elapsed(), &format!("{kind}: {what}"));
            *chaos.faults.entry(kind).or_default() += 1;
        }
    }
    chaos.faults
}

struct Chaos {
    random: StdRng,
    faults: Faults,
}

/// The kind of a change, and what was changed.
type Change = Option<(&'static str, String)>;

impl Chaos {
    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of.choose(&mut self.random).unwrap().clone()
    }

    fn change(&mut self, cluster: &mut Cluster) -> Change {
        match self.random.random_range(0..100) {
            0..40 => self.break_link(cluster),
            40..60 => self.mend_link(cluster),
            60..80 => self.end_or_start(cluster),
            80..85 => self.vanish(cluster),
            _ => Some(self.store(cluster)),
        }
    }

    /// Two hosts, of which one at least is a program's.
    fn pair(&mut self, cluster: &Cluster) -> (String, String) {
        let mut hosts = cluster.hosts();
        let a = self.one(&hosts);
        hosts.push(load::HOST.to_owned());
        hosts.retain(|host| *host != a);
        (a, self.one(&hosts))
    }

    fn break_link(&mut self, cluster: &mut Cluster) -> Change {
        let (a, b) = self.pair(cluster);
        if !cluster.is_whole(&a, &b) || cluster.broken().len() >= BROKEN_MAX {
            return None;
        }
        let kind = self.random.random_range(0..3);
        match kind {
            0 => cluster.cut(&a, &b),
            1 => cluster.cut_one_way(&a, &b),
            _ => cluster.hold(&a, &b),
        }
        Some((["link cut", "link cut one way", "link held"][kind], format!("{a} to {b}")))
    }

    fn mend_link(&mut self, cluster: &mut Cluster) -> Change {
        let (a, b) = cluster.broken().choose(&mut self.random)?.clone();
        cluster.mend(&a, &b);
        Some(("link mended", format!("{a} to {b}")))
    }

    fn end_or_start(&mut self, cluster: &mut Cluster) -> Change {
        let host = self.one(&cluster.hosts());
        let kind = if !cluster.is_running(&host) {
            cluster.start(&host);
            "program started"
        } else if self.random.random_bool(0.5) {
            cluster.kill(&host);
            "program killed"
        } else {
            cluster.stop(&host);
            "program stopped"
        };
        Some((kind, host))
    }

    /// A machine is gone; it comes back by mended links and started programs.
    fn vanish(&mut self, cluster: &mut Cluster) -> Change {
        let node = self.one(&NODES);
        if cluster.broken().len() >= BROKEN_MAX {
            return None;
        }
        cluster.vanish(node, &[load::HOST]);
        Some(("machine vanished", node.to_string()))
    }

    fn store(&mut self, cluster: &Cluster) -> (&'static str, String) {
        let reach = self.one(&[Reach::Good, Reach::Good, Reach::Away, Reach::AnswersLost]);
        let mut hosts = cluster.hosts();
        if self.random.random_bool(0.8) {
            hosts = vec![self.one(&hosts)];
        }
        hosts.iter().for_each(|host| cluster.store.set_reach(host, reach));
        let kind = match reach {
            Reach::Good => "store in reach",
            Reach::Away => "store out of reach",
            Reach::AnswersLost => "store's answers lost",
        };
        (kind, hosts.join(", "))
    }
}

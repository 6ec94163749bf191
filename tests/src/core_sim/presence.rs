//! What a leader hears of its followers apart from what they hold: that one is dead, rightly or not, that its replica has failed,
//! that a person paused it. Each takes a member out of the in-sync set at once; none may cost a record.
//!
//! Chance has a stream of its own here: a run without such news is the same as if there were none.

use highwater_protocol::Randomness;
use highwater_protocol::follower::{FetchAsk, FetchIntent};

use super::cluster::Cluster;
use super::node::{Which, index_of, node_id};

/// How often there is news, in 1000 steps; in most runs never.
pub(super) fn rate_of(seed: u64) -> (u64, Randomness) {
    let mut random = Randomness::new(seed ^ 0x0bad_beef_0bad_beef);
    let rate = [0, 0, 0, 30, 100][usize::try_from(random.up_to(4)).unwrap_or(0)];
    (rate, random)
}

impl Cluster {
    /// There may be news.
    pub(super) fn news_by_chance(&mut self) {
        if self.scenario.news == 0 || self.news.up_to(999) >= self.scenario.news {
            return;
        }
        let mut pick = |count: usize| usize::try_from(self.news.up_to(count as u64 - 1)).unwrap_or(0);
        let (node, partition) = (pick(self.nodes.len()), pick(self.scenario.partitions.len()));
        match self.news.up_to(3) {
            0 | 1 => self.hear_of_death(node, partition),
            2 => self.tell_failure(node, partition),
            _ => self.pause_or_resume(node, partition),
        }
    }

    /// The leader at `node` takes a follower's agent for dead. Mostly it is; a port can refuse for other reasons.
    fn hear_of_death(&mut self, node: usize, partition: usize) {
        let now = self.now().monotonic;
        let other = usize::try_from(self.news.up_to(self.nodes.len() as u64 - 1)).unwrap_or(0);
        let (is_wrong, is_again) = (self.news.up_to(4) == 0, self.news.up_to(2) == 0);
        if other == node || (self.nodes[other].agent.is_up() && !is_wrong) {
            return;
        }
        let is_up = self.nodes[node].leader_svc.is_up();
        let Some(leads) = self.nodes[node].leads_mut(partition).filter(|_| is_up) else { return };
        leads.absent.insert(node_id(other));
        if is_again {
            leads.replica.on_follower_still_gone(node_id(other), now);
        } else {
            leads.replica.on_follower_gone(node_id(other), now);
        }
        self.count_fault("follower taken for dead");
        self.execute_effects(node, partition);
    }

    /// A replica that has failed says so.
    fn tell_failure(&mut self, node: usize, partition: usize) {
        if !self.nodes[node].agent.is_up() {
            return;
        }
        let Some(followed) = &self.nodes[node].followed[partition] else { return };
        let Some(ask) = followed.replica.inspect(|core| core.failed_ask()) else { return };
        let (leader, serial) = (followed.replica.inspect(|core| core.leader()), followed.serial);
        self.count_fault("failure told to the leader");
        self.ask(node, partition, index_of(leader), serial, ask);
    }

    /// A person pauses a replica, or resumes it.
    fn pause_or_resume(&mut self, node: usize, partition: usize) {
        if !self.nodes[node].agent.is_up() {
            return;
        }
        if self.nodes[node].suspended[partition] {
            self.resume(node, partition);
        } else {
            self.nodes[node].suspended[partition] = true;
            self.count_fault("replica paused by a person");
        }
    }

    /// It also gets out of every failure and delay.
    fn resume(&mut self, node: usize, partition: usize) {
        let now = self.now();
        self.nodes[node].suspended[partition] = false;
        let Some(followed) = &self.nodes[node].followed[partition] else { return };
        let step = followed.replica.on_resume(now);
        self.absorb(node, partition, step);
    }

    /// Faults stop: nobody is paused any more.
    pub(super) fn resume_all(&mut self) {
        self.scenario.news = 0;
        for node in 0..self.nodes.len() {
            for partition in 0..self.scenario.partitions.len() {
                if self.nodes[node].suspended[partition] && self.nodes[node].program(Which::Agent).is_up() {
                    self.resume(node, partition);
                }
                self.nodes[node].suspended[partition] = false;
            }
        }
    }

    /// What a replica asks: a paused one for no records, and only what is still owed.
    pub(super) fn intended(&mut self, node: usize, partition: usize) -> Option<FetchAsk> {
        let now = self.now().monotonic;
        let followed = self.nodes[node].followed[partition].as_ref()?;
        let FetchIntent::Ask(ask) = followed.replica.intent(now) else { return None };
        if !self.nodes[node].suspended[partition] {
            return Some(ask);
        }
        let owes = followed.replica.owes_acknowledgement();
        // Whether the leader has heard of the pause, chance says.
        (owes || self.news.up_to(3) == 0).then(|| ask.suspended())
    }
}

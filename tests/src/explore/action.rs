//! What may happen next.

use std::fmt;

use super::NODES;
use super::state::{Role, State};

/// One thing that happens. Numbers are of nodes, or places in a list of what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    // === agents ===
    /// An agent opens the log and follows the recorded leader.
    Follow(u8),
    /// It follows a leader of before, because it has seen nothing newer.
    FollowFormer(u8, u8),
    /// A fetch, which arrives at once; its answer is under way. The answer to an earlier one is lost.
    Fetch(u8),
    /// A fetch that arrives late.
    SendLate(u8),
    /// The fetch at this place arrives.
    Arrive(u8),
    /// The answer arrives.
    Take(u8),
    /// The answer arrives, and will come again.
    TakeTwice(u8),
    /// The answer will come late.
    Delay(u8),
    /// A late answer arrives.
    TakeLate(u8, u8),
    /// The oldest work on the log is done.
    Work(u8),
    /// The leader tells its range, or does not.
    Range(u8),
    /// What is appended is flushed, by an agent or a leader.
    Flush(u8),

    // === leaders and candidates ===
    /// A node that has the log open sees the record as it stands.
    Observe(u8),
    /// A leader sees the record that it knows, once more.
    Look(u8),
    /// A node is elected.
    Stand(u8),
    /// A candidate's write is under way, and it does not hear of it.
    StandUnheard(u8),
    /// It tries again, and hears.
    StandAgain(u8),
    /// The leader gives up in favour of the second node.
    Resign(u8, u8),
    /// The leader appends a record.
    Append(u8),
    /// A timer of the leader is due.
    Tick(u8),
    /// The leader lives through `replica.lag.time.max.ms`.
    Lapse(u8),
    /// The leader finds a follower dead.
    Gone(u8, u8),

    // === the store ===
    /// The write at this place is made, or conflicts.
    Make(u8),
    /// Its writer hears of it.
    Hear(u8),
    /// Its writer does not, and gives up; the write may be made late.
    TimeOut(u8),

    // === faults ===
    /// The programs of a node die.
    Crash(u8),
    /// A node loses power, and this many records that were not flushed are found after it.
    LosePower(u8, u8),
    /// A node's disk is replaced by an empty one.
    EmptyDisk(u8),
}

/// Places of a list, as an action names them.
fn places(list: usize) -> std::ops::Range<u8> {
    0..u8::try_from(list).expect("few things are under way")
}

impl State {
    /// What may happen, as far as the roles of nodes say; some of it turns out to change nothing.
    pub(super) fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::with_capacity(24);
        let away = usize::from(self.bounds.is_two);
        for node in places(NODES - away) {
            self.actions_of(node, &mut actions);
        }
        for at in places(self.writes.len()) {
            let write = &self.writes[usize::from(at)];
            if write.outcome.is_some() {
                actions.push(Action::Hear(at));
            } else {
                actions.push(Action::Make(at));
                if !write.abandoned && self.left.timeouts > 0 {
                    actions.push(Action::TimeOut(at));
                }
            }
        }
        actions.extend(places(self.requests.len()).map(Action::Arrive));
        actions
    }

    fn actions_of(&self, node: u8, actions: &mut Vec<Action>) {
        let twin = &self.nodes[usize::from(node)];
        let left = &self.left;
        match &twin.role {
            Role::Idle => {
                actions.push(Action::Follow(node));
                if left.stale > 0 {
                    actions.extend(places(self.former.len()).map(|at| Action::FollowFormer(node, at)));
                }
            }
            Role::Follows(follows) => {
                actions.extend([Action::Observe(node), Action::Fetch(node), Action::Flush(node)]);
                if follows.answer.is_some() {
                    actions.push(Action::Take(node));
                }
                actions.extend(places(follows.late.len()).map(|at| Action::TakeLate(node, at)));
                if !follows.work.is_empty() {
                    actions.push(Action::Work(node));
                }
                if follows.question.is_some() {
                    actions.push(Action::Range(node));
                }
                if left.late > 0 {
                    actions.push(Action::SendLate(node));
                    if follows.answer.is_some() {
                        actions.extend([Action::TakeTwice(node), Action::Delay(node)]);
                    }
                }
            }
            Role::Leads(_) => {
                let always = [Action::Observe, Action::Look, Action::Append, Action::Flush, Action::Tick];
                actions.extend(always.map(|action| action(node)));
                actions.push(Action::Lapse(node));
                for other in places(NODES).filter(|other| *other != node) {
                    actions.extend([Action::Gone(node, other), Action::Resign(node, other)]);
                }
            }
            Role::Stands(_) => actions.push(Action::StandAgain(node)),
        }
        if matches!(twin.role, Role::Idle | Role::Follows(_)) {
            actions.push(Action::Stand(node));
            if left.timeouts > 0 {
                actions.push(Action::StandUnheard(node));
            }
        }
        if left.crashes > 0 && !matches!(twin.role, Role::Idle) {
            actions.push(Action::Crash(node));
        }
        if left.power_losses > 0 {
            let unflushed = twin.log.end().since(twin.log.flushed);
            let kept = 0..=u8::try_from(unflushed).expect("few records");
            actions.extend(kept.map(|kept| Action::LosePower(node, kept)));
        }
        if left.empty_disks > 0 {
            actions.push(Action::EmptyDisk(node));
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Follow(n) => write!(f, "n{n} follows the recorded leader"),
            Self::FollowFormer(n, at) => {
                write!(f, "n{n} has seen nothing newer, and follows former leader {at}")
            }
            Self::Fetch(n) => write!(f, "n{n} fetches"),
            Self::SendLate(n) => write!(f, "n{n} fetches, and that will arrive late"),
            Self::Arrive(at) => write!(f, "late fetch {at} arrives"),
            Self::Take(n) => write!(f, "n{n} takes its answer"),
            Self::TakeTwice(n) => write!(f, "n{n} takes its answer, which will come again"),
            Self::Delay(n) => write!(f, "the answer to n{n} will come late"),
            Self::TakeLate(n, at) => write!(f, "n{n} takes late answer {at}"),
            Self::Work(n) => write!(f, "n{n} works on its log"),
            Self::Range(n) => write!(f, "n{n} hears the leader's range"),
            Self::Flush(n) => write!(f, "n{n} flushes"),
            Self::Observe(n) => write!(f, "n{n} sees the record"),
            Self::Look(n) => write!(f, "n{n} sees the record that it knows"),
            Self::Stand(n) => write!(f, "n{n} is elected"),
            Self::StandUnheard(n) => write!(f, "n{n} stands and does not hear what became of it"),
            Self::StandAgain(n) => write!(f, "n{n} tries again to be elected, and hears"),
            Self::Resign(n, to) => write!(f, "n{n} resigns for n{to}"),
            Self::Append(n) => write!(f, "n{n} appends a record"),
            Self::Tick(n) => write!(f, "n{n} looks at its timers"),
            Self::Lapse(n) => write!(f, "replica.lag.time.max.ms passes at n{n}"),
            Self::Gone(n, other) => write!(f, "n{n} finds n{other} dead"),
            Self::Make(at) => write!(f, "the store makes write {at}, if it may"),
            Self::Hear(at) => write!(f, "the writer of {at} hears of it"),
            Self::TimeOut(at) => write!(f, "the writer of {at} gives up"),
            Self::Crash(n) => write!(f, "n{n} crashes"),
            Self::LosePower(n, kept) => {
                write!(f, "n{n} loses power; {kept} unflushed records are found after it")
            }
            Self::EmptyDisk(n) => write!(f, "n{n} gets an empty disk"),
        }
    }
}

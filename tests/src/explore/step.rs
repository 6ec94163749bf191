//! One action, done.

use std::sync::Arc;

use highwater_coordination::{CasOutcome, check_change};
use highwater_types::{PartitionEpoch, PartitionRecord};

use super::action::Action;
use super::state::{Role, State, spend};
use crate::core_sim::Batch;

/// What an action comes to: `Ok(false)` = nothing, so it did not happen; `Err` = a rule is broken.
pub(super) type Done = Result<bool, String>;

impl State {
    /// The state after `action`; `None` where it changes nothing.
    ///
    /// # Errors
    /// The rule that it breaks at once; what the invariants say of the new state is not asked here.
    pub(super) fn after(&self, action: Action) -> Result<Option<Self>, String> {
        let mut next = self.clone();
        next.steps += 1;
        let happened = next.act(action)?;
        Ok(happened.then_some(next))
    }

    fn act(&mut self, action: Action) -> Done {
        let at = usize::from;
        match action {
            Action::Follow(n) => self.follow_recorded(at(n)),
            Action::FollowFormer(n, which) => self.follow_former(at(n), at(which)),
            Action::Fetch(n) => self.fetch(at(n)),
            Action::SendLate(n) => Ok(self.send_late(at(n))),
            Action::Arrive(which) => self.arrive(at(which)),
            Action::Take(n) => self.take(at(n), false),
            Action::TakeTwice(n) => self.take(at(n), true),
            Action::Delay(n) => Ok(self.delay(at(n))),
            Action::TakeLate(n, which) => self.take_late(at(n), at(which)),
            Action::Work(n) => self.work(at(n)),
            Action::Range(n) => self.range(at(n)),
            Action::Flush(n) => self.flush(at(n)),
            Action::Observe(n) => self.observe(at(n)),
            Action::Look(n) => self.look(at(n)),
            Action::Stand(n) => self.stand(at(n)),
            Action::StandUnheard(n) => self.stand_unheard(at(n)),
            Action::StandAgain(n) => self.stand_again(at(n)),
            Action::Resign(n, to) => self.resign(at(n), at(to)),
            Action::Append(n) => self.append(at(n)),
            Action::Tick(n) => self.tick(at(n)),
            Action::Lapse(n) => self.lapse(at(n)),
            Action::Gone(n, other) => self.gone(at(n), at(other)),
            Action::Make(which) => self.make(at(which)),
            Action::Hear(which) => self.hear(at(which)),
            Action::TimeOut(which) => self.time_out(at(which)),
            Action::Crash(n) => Ok(self.crash(at(n))),
            Action::LosePower(n, kept) => Ok(self.lose_power(at(n), at(kept))),
            Action::EmptyDisk(n) => Ok(self.empty_disk(at(n))),
        }
    }

    fn flush(&mut self, node: usize) -> Done {
        if self.nodes[node].log.flushed == self.nodes[node].log.end() {
            return Ok(false);
        }
        let twin = self.node(node);
        twin.log.flushed = twin.log.end();
        let flushed = twin.log.flushed;
        match &mut twin.role {
            Role::Follows(follows) => follows.core.on_flushed(follows.core.log_version(), flushed),
            Role::Leads(leads) => {
                leads.core.on_flushed(flushed, leads.now);
                self.absorb_effects(node)?;
            }
            Role::Idle | Role::Stands(_) => return Ok(false),
        }
        Ok(true)
    }

    /// A program that has the log open sees the record as it stands.
    fn observe(&mut self, node: usize) -> Done {
        let record = Arc::clone(&self.record);
        match &self.nodes[node].role {
            Role::Follows(_) => self.follower_sees(node, &record),
            Role::Leads(leads) if record.partition_epoch > leads.core.partition_epoch() => {
                self.leader_sees(node, &record)?;
                Ok(true)
            }
            Role::Leads(_) | Role::Idle | Role::Stands(_) => Ok(false),
        }
    }

    // === the store ===

    /// Replaces the record, if its version is the expected one.
    pub(super) fn swap(
        &mut self,
        new: &PartitionRecord,
        expected: PartitionEpoch,
    ) -> Result<CasOutcome<Arc<PartitionRecord>>, String> {
        if self.record.partition_epoch != expected {
            return Ok(CasOutcome::Conflict(Arc::clone(&self.record)));
        }
        let new = PartitionRecord { partition_epoch: expected.next(), ..new.clone() };
        check_change(&self.record, &new)?;
        if self.left.stale > 0
            && let Some(former) = self.record.leader.zip(self.record.leader_epoch)
            && self.record.leader_epoch != new.leader_epoch
        {
            Arc::make_mut(&mut self.former).push(former);
        }
        self.record = Arc::new(new);
        self.forget_hopeless();
        Ok(CasOutcome::Committed(Arc::clone(&self.record)))
    }

    /// Writes that nobody waits for, and that can only conflict.
    fn forget_hopeless(&mut self) {
        let version = self.record.partition_epoch;
        if self.writes.iter().any(|write| write.abandoned && write.expected != version) {
            Arc::make_mut(&mut self.writes).retain(|write| !write.abandoned || write.expected == version);
        }
    }

    fn make(&mut self, which: usize) -> Done {
        let changes_isr = self.writes[which].new.leader_epoch == self.record.leader_epoch;
        let is_made = self.writes[which].expected == self.record.partition_epoch;
        if is_made && changes_isr && !spend(&mut self.left.isr_changes) {
            return Ok(false);
        }
        let mut write = Arc::make_mut(&mut self.writes).remove(which);
        let outcome = self.swap(&write.new, write.expected)?;
        if !write.abandoned {
            write.outcome = Some(outcome);
            Arc::make_mut(&mut self.writes).push(write);
        }
        Ok(true)
    }

    // === history ===

    /// A leader's high watermark covers these: they are committed, acknowledged and seen from now on.
    pub(super) fn note_committed(&mut self, node: usize) {
        let Some(leads) = self.leads(node) else { return };
        let end = leads.core.high_watermark();
        if end <= self.history.committed_end {
            return;
        }
        let log = self.nodes[node].log.from(self.history.committed_end);
        let committed: Vec<Batch> = log.iter().copied().filter(|batch| batch.next <= end).collect();
        let history = Arc::make_mut(&mut self.history);
        for batch in committed {
            history.committed.insert(batch.base, batch);
            // Whoever leads may tell the producer at once, and let a consumer read it.
            history.acknowledged.insert(batch.base, batch);
            history.seen.insert(batch.base, batch);
        }
        (history.committed_end, history.highest_end) = (end, end);
    }
}

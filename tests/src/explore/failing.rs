//! What goes wrong at a node.

use super::log_twin::{KnownHighWatermark, LogTwin, index, offset};
use super::state::{Role, State, spend};

impl State {
    /// The programs of a node die. Its page cache outlives them.
    pub(super) fn crash(&mut self, node: usize) -> bool {
        if !spend(&mut self.left.crashes) {
            return false;
        }
        self.die(node);
        true
    }

    /// Of what was not flushed the first `kept` records are found afterwards.
    pub(super) fn lose_power(&mut self, node: usize, kept: usize) -> bool {
        let log = &self.nodes[node].log;
        let changes_nothing = matches!(self.nodes[node].role, Role::Idle) && log.clean;
        if changes_nothing || !spend(&mut self.left.power_losses) {
            return false;
        }
        self.die(node);
        let durability = self.bounds.durability;
        let twin = self.node(node);
        let end = offset(index(twin.log.flushed) + kept);
        if twin.log.lose_power(end, durability) {
            twin.renew(node);
        }
        true
    }

    pub(super) fn empty_disk(&mut self, node: usize) -> bool {
        if !spend(&mut self.left.empty_disks) {
            return false;
        }
        self.die(node);
        let twin = self.node(node);
        twin.log = LogTwin::new(twin.log.incarnation);
        twin.renew(node);
        true
    }

    fn die(&mut self, node: usize) {
        let (checkpointed, durability) = (self.bounds.checkpointed, self.bounds.durability);
        let twin = self.node(node);
        let known: Option<KnownHighWatermark> = match &twin.role {
            Role::Follows(follows) => {
                Some((follows.core.high_watermark(), follows.core.high_watermark_epoch()))
            }
            Role::Leads(leads) => Some((leads.core.high_watermark(), Some(leads.core.epoch()))),
            Role::Idle | Role::Stands(_) => None,
        };
        if let Some(known) = known.filter(|_| checkpointed) {
            twin.log.write_checkpoint(known, durability);
        }
        twin.role = Role::Idle;
        twin.starts += 1;
        twin.sent = 0;
        self.give_up_writes(node);
    }
}

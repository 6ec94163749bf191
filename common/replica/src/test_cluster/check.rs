//! What must hold after each step, from outside the code under test: it keeps its own memory of what was committed and
//! acknowledged, and compares bytes.

use highwater_log::storage::sim::SimStorage;
use highwater_types::Offset;

use super::{Cluster, Role, bytes_below};
use crate::OpenReplica;

impl Cluster {
    /// Every invariant that concerns running machines.
    pub(crate) fn check(&mut self) {
        // Leaders first: what they commit in this step is committed when followers are looked at.
        let mut indexes: Vec<_> = (0..self.machines.len()).collect();
        indexes.sort_by_key(|index| !matches!(self.machines[*index].role, Role::Leader(_)));
        for index in indexes {
            let Some(log) = self.log(index) else { continue };
            let positions = log.positions();
            let high_watermark = match &self.machines[index].role {
                Role::Down => continue,
                Role::Leader(leader) => leader.high_watermark(),
                Role::Follower(side) => side.replica.inspect(|core| core.high_watermark()),
            };
            // During a cut the core is told after the log; nothing is asked or served in between, and no step ends there.
            assert!(positions.log_start <= high_watermark, "machine {index}: log start ≤ HW");
            assert!(high_watermark <= positions.log_end, "machine {index}: HW ≤ log end");
            if positions.log_start > Offset::ZERO {
                // What retention deleted cannot be compared any more.
                continue;
            }
            let below = bytes_below(&log, high_watermark);
            if high_watermark > self.committed_end {
                assert!(
                    matches!(self.machines[index].role, Role::Leader(_)),
                    "machine {index}: a follower's HW {high_watermark} is not above every leader's {}",
                    self.committed_end
                );
                assert!(
                    below.starts_with(&self.committed),
                    "machine {index}: a commit extends what is committed (StrongIsr)"
                );
                (self.committed, self.committed_end) = (below, high_watermark);
            } else {
                assert!(
                    self.committed.starts_with(&below),
                    "machine {index}: below its HW it holds what is committed (WeakIsr)"
                );
            }
        }
        let leader = self.record.leader;
        assert!(leader.is_none_or(|node| self.record.isr_member(node).is_some()), "LeaderInIsr");
    }

    /// What opening a log must find: what it acknowledged and, if it is electable, all that is committed
    /// (ValidHighWatermark, and what makes an election safe). A loss at the end that is on record counts as found: nobody else
    /// has the records (design.md 6.3).
    pub(super) fn check_opened(&self, index: usize, open: &OpenReplica<SimStorage>) {
        let machine = &self.machines[index];
        if let Some((incarnation, acknowledged)) = machine.acknowledged
            && incarnation == open.incarnation()
        {
            assert!(
                open.log_end() >= acknowledged,
                "machine {index} acknowledged {acknowledged}, has {}",
                open.log_end()
            );
        }
        if self.record.is_electable(machine.node, open.incarnation()) {
            let lost = open.report().damage.iter().filter(|damage| damage.at_end).map(|damage| damage.range);
            let found = lost.map(|range| range.end).max().unwrap_or_default().max(open.log_end());
            assert!(found >= self.committed_end, "machine {index} is electable and lacks committed records");
            let below = bytes_below(&open.log, self.committed_end.min(open.log_end()));
            assert!(
                self.committed.starts_with(&below)
                    && (below.len() == self.committed.len() || open.log_end() < self.committed_end),
                "machine {index} is electable and has other records than the committed ones"
            );
        }
    }

    /// After a cut that the leader ordered, less is held of what was acknowledged under earlier leaders.
    pub(crate) fn note_cut(&mut self, index: usize) {
        let Role::Follower(side) = &self.machines[index].role else { return };
        let end = side.replica.log().log_end();
        if let Some((_, acknowledged)) = &mut self.machines[index].acknowledged {
            *acknowledged = (*acknowledged).min(end);
        }
    }

    /// An unclean election of this replica was ordered: what it lacks is not missed any more.
    pub(crate) fn accept_loss(&mut self, elected: &OpenReplica<SimStorage>) {
        self.committed = bytes_below(&elected.log, elected.log_end());
        self.committed_end = elected.log_end();
    }

    /// How much is committed.
    pub(crate) const fn committed_end(&self) -> Offset {
        self.committed_end
    }

    /// Every running log holds the same bytes up to its end, as many as the leader's.
    pub(crate) fn assert_identical(&self) {
        let logs: Vec<_> = (0..self.machines.len()).filter_map(|index| self.log(index)).collect();
        assert_eq!(logs.len(), self.machines.len(), "all run");
        let whole: Vec<_> = logs.iter().map(|log| bytes_below(log, log.log_end())).collect();
        assert!(whole.windows(2).all(|pair| pair[0] == pair[1]), "all logs are identical");
        let epochs: Vec<_> = logs.iter().map(|log| log.epochs().entries().to_vec()).collect();
        let with_records = |entries: &[highwater_types::EpochEntry], end: Offset| -> Vec<_> {
            entries.iter().copied().filter(|entry| entry.start < end).collect()
        };
        let end = logs[0].log_end();
        assert!(
            epochs.windows(2).all(|pair| with_records(&pair[0], end) == with_records(&pair[1], end)),
            "and their epochs"
        );
    }
}

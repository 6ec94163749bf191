//! What goes wrong. Only what design.md allows for: whoever loses what it acknowledged loses its incarnation too, and the last
//! electable replica of a partition is spared most of the time, because without it a partition only waits for a person.

use highwater_log::checkpoint::{CheckpointFile, LoadedCheckpoint};
use highwater_log::storage::sim::SimDisk;
use highwater_log::{Storage, StorageOperation};
use highwater_types::Durability;
use nix::libc;

use super::cluster::Cluster;
use super::node::{Led, Running, Which, data_dir, empty_disk, node_id};
use super::scenario::FaultKind;

impl Cluster {
    /// Something goes wrong, of a kind that this run has.
    pub(super) fn fault(&mut self) {
        if self.scenario.faults.is_empty() {
            return;
        }
        let at = self.pick(self.scenario.faults.len());
        let node = self.pick(self.nodes.len());
        match self.scenario.faults[at] {
            FaultKind::Kill => {
                let which = if self.one_in(2) { Which::LeaderSvc } else { Which::Agent };
                self.nodes[node].kill(which);
                self.count_fault("program killed");
            }
            FaultKind::PowerLoss => self.power_loss(node),
            FaultKind::Blackout => {
                let all_durable = self.scenario.partitions.iter().all(|p| p.durability == Durability::Fsync);
                if all_durable || self.one_in(20) {
                    (0..self.nodes.len()).for_each(|node| self.nodes[node].lose_power());
                    self.count_fault("all power lost");
                }
            }
            FaultKind::StopInWrite => {
                let operations = self.up_to(12);
                self.nodes[node].disk.stop_after(operations);
                self.count_fault("stopped in a write");
            }
            FaultKind::Pause => {
                let which = if self.one_in(2) { Which::LeaderSvc } else { Which::Agent };
                let program = self.nodes[node].program_mut(which);
                if program.running == Running::Up {
                    program.running = Running::Paused;
                    self.count_fault("program stopped by a signal");
                }
            }
            FaultKind::Cut => self.cut(node),
            FaultKind::Outage => {
                self.store.outage = true;
                self.count_fault("store outage");
            }
            FaultKind::EmptyDisk => self.empty_disk(node),
            FaultKind::OldDisk => self.old_disk(node),
            FaultKind::FailedFlush => self.failed_flush(node),
            FaultKind::FullDisk => {
                let left = self.up_to(400);
                self.nodes[node].disk.set_space_left(Some(left));
                self.count_fault("disk full");
            }
            FaultKind::LostSegment => self.lose_segment(node),
        }
    }

    /// Faults that last end by themselves.
    pub(super) fn recover_by_chance(&mut self) {
        if self.network.has_cuts() && self.one_in(60) {
            self.network.mend();
        }
        if self.store.outage && self.one_in(30) {
            self.store.outage = false;
        }
        if self.one_in(60) {
            let node = self.pick(self.nodes.len());
            self.nodes[node].disk.set_space_left(None);
        }
    }

    fn power_loss(&mut self, node: usize) {
        if self.can_do_without(node, |durability| durability == Durability::PageCache) {
            self.nodes[node].lose_power();
            self.count_fault("power lost");
        }
    }

    fn cut(&mut self, node: usize) {
        if self.one_in(3) {
            self.network.cut_store(node);
            self.count_fault("cut from the store");
        } else {
            let other = self.pick(self.nodes.len());
            if other != node {
                self.network.cut(node, other);
                self.count_fault("link cut");
            }
        }
    }

    fn empty_disk(&mut self, node: usize) {
        if !self.can_do_without(node, |_| true) {
            return;
        }
        let seed = self.random.next_u64();
        self.replace_disk(node, empty_disk(seed));
        self.count_fault("disk replaced by an empty one");
    }

    /// A copy is made, and used some time after a later start of the node: one since the last start would pass for the disk
    /// itself (design.md 6.3, limit).
    fn old_disk(&mut self, node: usize) {
        let starts = self.nodes[node].starts;
        match self.nodes[node].copy.take() {
            None => {
                let seed = self.random.next_u64();
                self.nodes[node].copy = Some((starts, self.nodes[node].disk.copy(seed)));
            }
            Some((at, copy)) if at < starts && self.can_do_without(node, |_| true) => {
                self.replace_disk(node, copy);
                self.count_fault("disk replaced by an old copy");
            }
            kept => self.nodes[node].copy = kept,
        }
    }

    fn replace_disk(&mut self, node: usize, disk: SimDisk) {
        self.nodes[node].swap_disk(disk);
        self.nodes[node].acknowledged.iter_mut().for_each(|held| *held = None);
    }

    fn failed_flush(&mut self, node: usize) {
        let partition = self.pick(self.scenario.partitions.len());
        if !self.can_do_without(node, |_| true) {
            return;
        }
        let log = match (&self.nodes[node].led[partition], &self.nodes[node].followed[partition]) {
            (Led::Leads(leads), _) => std::sync::Arc::clone(leads.replica.log()),
            (_, Some(followed)) => followed.replica.log(),
            _ => return,
        };
        let segment = log.snapshot().active_segment;
        let path = log.directory().join(format!("{:020}.log", segment.get()));
        self.nodes[node].disk.fail_next(StorageOperation::Sync, &path, libc::EIO);
        self.nodes[node].flush_failed = true;
        self.count_fault("flush failed");
    }

    /// The newest segment of a log is gone, after the log was closed in order: all of it is vouched for, so the loss shows. Only
    /// of a log that is committed as a whole: then replication fills the lost tail before the replica is in sync again.
    fn lose_segment(&mut self, node: usize) {
        let partition = self.pick(self.scenario.partitions.len());
        if !self.others_can_do(node, |_| true) {
            return;
        }
        self.leave(node, partition);
        self.stop_leading(node, partition);
        let dir = data_dir().join(format!("topic{partition}-0"));
        let storage = self.nodes[node].disk.process();
        let loaded = CheckpointFile::read(&storage, &dir).ok().and_then(LoadedCheckpoint::into_state);
        let is_open = !matches!(self.nodes[node].led[partition], Led::Not);
        let committed = self.histories[partition].committed_end;
        if is_open || loaded.is_none_or(|state| !state.clean || state.recovery_point > committed) {
            return;
        }
        let mut files = storage.list_dir(&dir).unwrap_or_default();
        files.retain(|file| file.utf8_name().is_some_and(|name| name.ends_with(".log")) && file.len > 0);
        let Some(last) = files.into_iter().map(|file| file.name).max() else { return };
        if storage.remove_file(&dir.join(last)).and_then(|()| storage.sync_dir(&dir)).is_ok() {
            self.nodes[node].incarnations[partition] = None;
            self.nodes[node].segment_lost = true;
            self.count_fault("segment lost");
        }
    }

    /// Whether each partition that the loss would concern has another electable member; rarely it need not.
    fn can_do_without(&mut self, node: usize, concerns: impl Fn(Durability) -> bool) -> bool {
        self.others_can_do(node, concerns) || self.one_in(100)
    }

    fn others_can_do(&self, node: usize, concerns: impl Fn(Durability) -> bool) -> bool {
        (0..self.scenario.partitions.len()).all(|partition| {
            let record = self.store.current(partition);
            !concerns(self.scenario.partitions[partition].durability)
                || record.isr_member(node_id(node)).is_none()
                || record.isr.iter().any(|m| {
                    let other = super::node::index_of(m.node);
                    other != node && self.nodes[other].incarnations[partition] == Some(m.incarnation)
                })
        })
    }

    /// A node whose disk stopped in the middle of a change is dead; what comes back is what a crash leaves.
    pub(super) fn bury(&mut self) {
        for node in 0..self.nodes.len() {
            if !self.nodes[node].disk.is_stopped() {
                continue;
            }
            let all_durable = self.scenario.partitions.iter().all(|p| p.durability == Durability::Fsync);
            if all_durable && self.one_in(2) {
                self.nodes[node].lose_power();
            } else {
                self.nodes[node].kill(Which::LeaderSvc);
                self.nodes[node].kill(Which::Agent);
            }
        }
    }
}

//! What goes wrong. Only what design.md allows for: whoever loses what it acknowledged loses its incarnation too, and the last
//! electable replica of a partition is spared most of the time, because without it a partition only waits for a person.

use std::ffi::OsString;
use std::path::PathBuf;

use highwater_log::checkpoint::{CheckpointFile, LoadedCheckpoint};
use highwater_log::storage::sim::{SimDisk, SimStorage};
use highwater_log::{Storage, StorageOperation};
use highwater_records::batches;
use highwater_types::Durability;
use nix::libc;

use super::cluster::Cluster;
use super::history::Batch;
use super::node::{Led, Running, Which, data_dir, empty_disk, node_id};
use super::scenario::FaultKind;

/// Steps within which what was flushed is mostly acknowledged.
const STEPS_TO_ACKNOWLEDGE: u64 = 8;

impl Cluster {
    /// Something goes wrong, of a kind that this run has.
    ///
    /// # Errors
    /// A rule that was found broken meanwhile.
    pub(super) fn fault(&mut self) -> Result<(), String> {
        if self.scenario.faults.is_empty() {
            return Ok(());
        }
        let at = self.pick(self.scenario.faults.len());
        let anywhere = self.pick(self.nodes.len());
        // Where much is not flushed most is at stake.
        let slow = self.scenario.slow_disk.filter(|_| self.one_in(2));
        let node = slow.unwrap_or(anywhere);
        match self.scenario.faults[at] {
            FaultKind::Kill => {
                let which = if self.one_in(2) { Which::LeaderSvc } else { Which::Agent };
                self.nodes[node].kill(which);
                self.count_fault("program killed");
                if self.scenario.faults.contains(&FaultKind::PowerLoss) && self.one_in(2) {
                    self.nodes[node].doomed_when_open = true;
                }
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
            FaultKind::FailedFlush => drop(self.failed_flush(node)),
            FaultKind::DyingDisk => {
                if self.failed_flush(node) {
                    self.nodes[node].doomed = Some(STEPS_TO_ACKNOWLEDGE);
                }
            }
            FaultKind::FullDisk => {
                let left = self.up_to(400);
                self.nodes[node].disk.set_space_left(Some(left));
                self.count_fault("disk full");
            }
            FaultKind::LostSegment => self.lose_segment(node),
            FaultKind::Rot => self.rot(node),
            FaultKind::UncleanElection => {
                let partition = self.pick(self.scenario.partitions.len());
                // Mostly where it is of use, and not before.
                if self.one_in(4) || !self.can_go_on(partition) {
                    self.order_unclean(node, partition)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a member of the in-sync set that may lead is up.
    fn can_go_on(&self, partition: usize) -> bool {
        let record = self.store.current(partition);
        record.is_new()
            || record.isr.iter().any(|member| {
                let node = &self.nodes[super::node::index_of(member.node)];
                node.leader_svc.is_up() && node.incarnations[partition] == Some(member.incarnation)
            })
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

    /// A log has been opened: what its last holder wrote and did not flush may be gone before anybody flushes it.
    pub(super) fn doom_when_open(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        if std::mem::take(&mut node.doomed_when_open) && !self.healing {
            node.doomed = Some(STEPS_TO_ACKNOWLEDGE);
        }
    }

    fn power_loss(&mut self, node: usize) {
        self.nodes[node].doomed = None;
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
            // What rots in a copy nobody would know of once the disk itself is repaired.
            None if self.rotten.iter().flatten().any(|(rots, _)| *rots == node) => {}
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

    /// Answers whether one will fail.
    fn failed_flush(&mut self, node: usize) -> bool {
        let partition = self.pick(self.scenario.partitions.len());
        if !self.can_do_without(node, |_| true) {
            return false;
        }
        let log = match (&self.nodes[node].led[partition], &self.nodes[node].followed[partition]) {
            (Led::Leads(leads), _) => std::sync::Arc::clone(leads.replica.log()),
            (_, Some(followed)) => followed.replica.log(),
            _ => return false,
        };
        let segment = log.snapshot().active_segment;
        let path = log.directory().join(format!("{:020}.log", segment.get()));
        self.nodes[node].disk.fail_next(StorageOperation::Sync, &path, libc::EIO);
        self.nodes[node].flush_failed = true;
        self.count_fault("flush failed");
        true
    }

    /// A segment of a log is gone, after the log was closed in order: all of it is vouched for, so the loss shows. Then
    /// replication fills a lost tail, and repair what was before, before the replica is in sync again.
    fn lose_segment(&mut self, node: usize) {
        let partition = self.pick(self.scenario.partitions.len());
        let Some((storage, dir, segments)) = self.close_in_order(node, partition) else { return };
        if segments.is_empty() {
            return;
        }
        let lost = &segments[self.pick(segments.len())];
        if storage.remove_file(&dir.join(lost)).and_then(|()| storage.sync_dir(&dir)).is_ok() {
            self.nodes[node].incarnations[partition] = None;
            self.nodes[node].segment_lost = true;
            self.count_fault("segment lost");
        }
    }

    /// A record rots in a segment below the newest one. Opening the log does not find that; who reads the record does
    /// (ARCHITECTURE, failure model).
    fn rot(&mut self, node: usize) {
        let partition = self.pick(self.scenario.partitions.len());
        let Some((storage, dir, segments)) = self.close_in_order(node, partition) else { return };
        let loaded = CheckpointFile::read(&storage, &dir).ok().and_then(LoadedCheckpoint::into_state);
        // A hole that a lost segment made longer is not repaired.
        if segments.len() < 2 || loaded.is_none_or(|state| !state.lost_ranges.is_empty()) {
            return;
        }
        let path = dir.join(&segments[self.pick(segments.len() - 1)]);
        let bytes = storage.read_small(&path, 1 << 20).unwrap_or_default();
        let mut found = Vec::new();
        let mut end = 0;
        for view in batches(&bytes).map_while(Result::ok) {
            end += view.size() as u64;
            found.push((Batch::of(&view), end));
        }
        if found.is_empty() {
            return;
        }
        let (batch, end) = found[self.pick(found.len())];
        if self.nodes[node].disk.rot(&path, end - 1).is_ok() {
            self.rotten[partition] = Some((node, batch));
            self.count_fault("record rotten");
        }
    }

    /// Closes a replica's log in order: its directory, and the names of its segments, the oldest first. `None` where others could
    /// not do without it, or not all of it is committed.
    fn close_in_order(
        &mut self,
        node: usize,
        partition: usize,
    ) -> Option<(SimStorage, PathBuf, Vec<OsString>)> {
        // At most one replica's record rots, and then no other one loses any.
        if self.rotten[partition].is_some() || !self.others_can_do(node, |_| true) {
            return None;
        }
        self.leave(node, partition);
        self.stop_leading(node, partition);
        let dir = data_dir().join(format!("topic{partition}-0"));
        let storage = self.nodes[node].disk.process();
        let loaded = CheckpointFile::read(&storage, &dir).ok().and_then(LoadedCheckpoint::into_state);
        let is_open = !matches!(self.nodes[node].led[partition], Led::Not);
        let committed = self.histories[partition].committed_end;
        if is_open || loaded.is_none_or(|state| !state.clean || state.recovery_point > committed) {
            return None;
        }
        let mut files = storage.list_dir(&dir).unwrap_or_default();
        files.retain(|file| file.utf8_name().is_some_and(|name| name.ends_with(".log")) && file.len > 0);
        Some((storage, dir, files.into_iter().map(|file| file.name).collect()))
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
            if let Some(steps) = self.nodes[node].doomed
                && !self.nodes[node].disk.has_faults()
                && self.one_in(steps)
            {
                self.power_loss(node);
            }
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

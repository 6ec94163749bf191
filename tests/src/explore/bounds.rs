//! How much may happen in an exploration.

use std::fmt;
use std::time::Duration;

use highwater_protocol::follower::{BackoffConfig, FollowerConfig};
use highwater_protocol::leader::LeaderConfig;
use highwater_types::Durability;

/// The size of an exploration. A number is how often something may happen in one run, all nodes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How records are acknowledged.
    pub durability: Durability,
    /// `min.insync.replicas`.
    pub min_isr: u32,
    /// Whether nobody has led the partition yet. Else one node leads in epoch 1, and the others follow it.
    pub is_new: bool,
    /// Whether the third node stays away, so that two can do more.
    pub is_two: bool,
    /// Whether work that a follower decided on waits while other things happen, and is not done at once.
    pub work_waits: bool,
    /// Whether the checkpoint is always up to date, so that a high watermark outlives a crash; else it never does.
    pub checkpointed: bool,
    /// Records.
    pub records: u8,
    /// Leaderships after the first.
    pub elections: u8,
    /// Leaderships that are given up in order.
    pub resignations: u8,
    /// Changes of the in-sync set that the store makes.
    pub isr_changes: u8,
    /// Programs that die.
    pub crashes: u8,
    /// Nodes that lose power.
    pub power_losses: u8,
    /// Disks that are replaced by empty ones.
    pub empty_disks: u8,
    /// Writes whose outcome is unknown: they may be made late, or never.
    pub timeouts: u8,
    /// Requests and answers that come late, or twice.
    pub late: u8,
    /// Times at which a leader lives through `replica.lag.time.max.ms`.
    pub lapses: u8,
    /// Followers that are taken for dead.
    pub gone: u8,
    /// Agents that start by an older record.
    pub stale: u8,
}

impl Bounds {
    /// Nothing happens but fetches and flushes.
    pub const QUIET: Self = Self {
        durability: Durability::Fsync,
        min_isr: 1,
        is_new: false,
        is_two: false,
        work_waits: false,
        checkpointed: false,
        records: 0,
        elections: 0,
        resignations: 0,
        isr_changes: 0,
        crashes: 0,
        power_losses: 0,
        empty_disks: 0,
        timeouts: 0,
        late: 0,
        lapses: 0,
        gone: 0,
        stale: 0,
    };

    /// The same, where records are acknowledged before they are flushed.
    pub const PAGE_CACHE: Self = Self { durability: Durability::PageCache, ..Self::QUIET };

    /// Two nodes on which the partition is new: whoever stands first is alone in the in-sync set.
    pub const TWO_NODES: Self = Self { is_new: true, is_two: true, ..Self::QUIET };

    /// The bounds that are counted down, by name.
    pub(super) fn counts(&mut self) -> [(&'static str, &mut u8); 12] {
        [
            ("records", &mut self.records),
            ("elections", &mut self.elections),
            ("resignations", &mut self.resignations),
            ("ISR changes", &mut self.isr_changes),
            ("crashes", &mut self.crashes),
            ("power losses", &mut self.power_losses),
            ("empty disks", &mut self.empty_disks),
            ("time-outs", &mut self.timeouts),
            ("late messages", &mut self.late),
            ("lapses", &mut self.lapses),
            ("gone", &mut self.gone),
            ("stale", &mut self.stale),
        ]
    }

    pub(super) const fn leader_config(&self) -> LeaderConfig {
        LeaderConfig {
            durability: self.durability,
            min_insync_replicas: self.min_isr,
            replica_lag_time_max: Duration::from_millis(400),
            // At once, so that neither adds states that differ in times only.
            high_watermark_propagation: Duration::ZERO,
            isr_retry: Duration::ZERO,
        }
    }

    pub(super) const fn follower_config(&self) -> FollowerConfig {
        let (first, max) = (Duration::from_millis(10), Duration::from_millis(10));
        FollowerConfig {
            durability: self.durability,
            max_bytes: 1,
            read_ahead_bytes: 100,
            backoff: BackoffConfig { first, max, max_attempts: 1 },
        }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut copy = *self;
        let counted: Vec<_> = copy
            .counts()
            .into_iter()
            .filter(|(_, most)| **most > 0)
            .map(|(name, most)| format!("{name} {most}"))
            .collect();
        let flags = [
            (self.is_new, "new"),
            (self.is_two, "two nodes"),
            (self.work_waits, "work waits"),
            (self.checkpointed, "checkpointed"),
            (self.min_isr > 1, "min ISR 2"),
        ];
        let flags = flags.iter().filter(|(is_on, _)| *is_on).map(|(_, name)| *name);
        let durability = match self.durability {
            Durability::Fsync => "fsync",
            Durability::PageCache => "page-cache",
        };
        let words = std::iter::once(durability).chain(flags).map(str::to_owned).chain(counted);
        f.write_str(&words.collect::<Vec<_>>().join(", "))
    }
}

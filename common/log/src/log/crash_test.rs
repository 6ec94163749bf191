//! Crashes at random moments, on the simulated disk: whatever is interrupted, the log opens as a prefix of what was written,
//! and nothing that was flushed is gone.
//!
//! The model is a list of batches. An operation changes it from one state to the next; a crash in the middle of one leaves the
//! log in either, less an unflushed tail.

use std::path::Path;

use bytes::Bytes;

use super::fixture_test::{NOW, SimTestDisk, batch_dated, e, hw, o, options, read_all, try_open};
use crate::storage::sim::SimStorage;
use crate::{CutOrder, Log, LogConfig, OpenOptions};
use highwater_records::{batches, set_base_offset, set_leader_epoch};
use highwater_types::{Durability, Offset, WallTime};
use uuid::Uuid;

/// A small generator; the seed decides everything.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn count(&mut self, below: u64) -> usize {
        usize::try_from(self.roll(below)).unwrap()
    }
}

/// What the log should hold.
#[derive(Clone, Debug, Default)]
struct Model {
    batches: Vec<(Offset, Offset, Bytes)>,
    /// Everything below was flushed, and may not get lost.
    flushed: Offset,
    log_start: Offset,
    epoch: i32,
}

impl Model {
    fn end(&self) -> Offset {
        self.batches.last().map_or(self.log_start, |b| b.1.max(self.log_start))
    }

    fn push(&mut self, bytes: &Bytes, epoch: i32) {
        for batch in batches(bytes) {
            let mut stamped = batch.unwrap().bytes().to_vec();
            let base = self.end();
            set_base_offset(&mut stamped, base).unwrap();
            set_leader_epoch(&mut stamped, e(epoch)).unwrap();
            let next = batches(&stamped).next().unwrap().unwrap().next_offset();
            self.batches.push((base, next, stamped.into()));
        }
        self.epoch = epoch;
    }

    fn cut(&mut self, target: Offset) {
        self.batches.retain(|b| b.1 <= target);
        self.flushed = self.flushed.min(self.end());
    }

    /// Whether `bytes`, read from `start` on, are a prefix of this that lacks nothing flushed.
    fn allows(&self, start: Offset, end: Offset, bytes: &[u8]) -> bool {
        let held = self.batches.iter().filter(|b| start < b.1 && b.1 <= end);
        let expected: Vec<u8> = held.flat_map(|b| b.2.iter().copied()).collect();
        let is_boundary =
            end == self.log_start || end == Offset::ZERO || self.batches.iter().any(|b| b.1 == end);
        expected == bytes && is_boundary && end >= self.flushed.min(self.end())
    }
}

struct Run {
    disk: SimTestDisk,
    dice: Dice,
    config: LogConfig,
    model: Model,
    /// The model as it would be had the interrupted operation been done.
    next: Model,
    seed: u64,
    boots: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let config = LogConfig { segment_bytes: 2000, index_interval_bytes: 300, ..LogConfig::default() };
        Self {
            disk: SimTestDisk::seeded(seed),
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            config,
            model: Model::default(),
            next: Model::default(),
            seed,
            boots: 0,
        }
    }

    fn open(&mut self) -> Log<SimStorage> {
        let boot_id = Uuid::from_u128(u128::from(self.boots) + 1);
        let options = OpenOptions { boot_id, ..options(self.config.clone()) };
        let (log, report) =
            try_open(&self.disk, options).unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
        assert_eq!(report.damage, [], "seed {}: {report:?}", self.seed);
        assert!(report.high_watermark.offset <= log.log_end(), "seed {}", self.seed);
        log
    }

    /// One operation; what it would make of the model is in `next` while it runs.
    fn step(&mut self, log: &Log<SimStorage>) -> Result<(), ()> {
        self.next = self.model.clone();
        match self.dice.roll(12) {
            0..=5 => self.append(log)?,
            6 | 7 => {
                self.next.flushed = self.model.end();
                let done = log.flush().map_err(drop)?;
                assert_eq!(done.flushed, self.model.end(), "seed {}", self.seed);
            }
            8 => {
                let span = self.model.end().since(self.model.log_start) + 1;
                let back = i64::try_from(self.dice.roll(span.min(40))).unwrap();
                let target = o((self.model.end().get() - back).max(self.model.log_start.get()));
                self.next.cut(target);
                // The checkpoint is lowered before anything else: from there on the flushed tail may go.
                self.model.flushed = self.model.flushed.min(target);
                let done = log.truncate_to(target, o(0), CutOrder::Leader).map_err(drop)?;
                assert_eq!(done.positions.log_end, self.next.end(), "seed {}", self.seed);
            }
            9 => {
                let room = self.model.flushed.since(self.model.log_start);
                let up = if room == 0 { 0 } else { i64::try_from(self.dice.roll(room)).unwrap() };
                self.next.log_start = o(self.model.log_start.get() + up);
                log.raise_log_start(self.next.log_start).map_err(drop)?;
                log.write_checkpoint(hw(self.model.flushed.get(), 0), log.positions().generation)
                    .map_err(drop)?;
            }
            10 => {
                let high_watermark = hw(self.model.flushed.get(), 0);
                log.write_checkpoint_lazy(high_watermark, log.positions().generation).map_err(drop)?;
            }
            _ => {
                self.next.epoch += 1;
                log.assign_epoch(e(self.next.epoch)).map_err(drop)?;
            }
        }
        self.model = self.next.clone();
        Ok(())
    }

    fn append(&mut self, log: &Log<SimStorage>) -> Result<(), ()> {
        let epoch = self.model.epoch;
        let sizes = 1 + self.dice.count(6);
        let inputs: Vec<_> = (0..sizes)
            .map(|_| batch_dated(1 + self.dice.count(4), 1 + self.dice.count(200), self.some_time()))
            .collect();
        for input in &inputs {
            self.next.push(input, epoch);
        }
        let appended = if self.dice.roll(2) == 0 {
            log.append_as_leader(&inputs, e(epoch), NOW).map(|done| done.next)
        } else {
            let already = self.model.batches.len();
            let sent: Vec<_> = self.next.batches.iter().skip(already).map(|b| b.2.clone()).collect();
            log.append_as_follower(&sent.concat().into(), e(epoch), NOW).map(|done| done.next)
        };
        assert_eq!(appended.map_err(drop)?, self.next.end(), "seed {}", self.seed);
        Ok(())
    }

    fn some_time(&mut self) -> WallTime {
        WallTime::from_millis(match self.dice.roll(8) {
            0 => -1,
            1 => i64::MAX,
            _ => NOW.as_millis() + i64::try_from(self.dice.roll(1000)).unwrap(),
        })
    }

    /// Opens what a crash left, compares it with what it may be, and goes on from there.
    fn check(&mut self) -> Log<SimStorage> {
        let log = self.open();
        let positions = log.positions();
        let bytes = read_all(&log, positions.log_start);
        let allowed = [&self.model, &self.next]
            .into_iter()
            .find(|m| m.allows(positions.log_start, positions.log_end, &bytes));
        let Some(allowed) = allowed else {
            panic!(
                "seed {}: {positions:?}, {:?} is neither a prefix of {:?} nor of {:?}",
                self.seed,
                super::fixture_test::shape(&bytes),
                shape(&self.model),
                shape(&self.next)
            );
        };
        assert!(positions.log_start <= self.next.log_start.max(self.model.log_start), "seed {}", self.seed);
        for batch in batches(&bytes).map(Result::unwrap) {
            let known = log.epochs().epoch_at(batch.base_offset().max(positions.log_start));
            assert_eq!(known, batch.leader_epoch(), "seed {}: {:?}", self.seed, log.epochs());
        }
        let mut model = allowed.clone();
        model.batches.retain(|b| b.1 <= positions.log_end);
        (model.flushed, model.log_start) = (positions.log_end, positions.log_start);
        // Epochs rise for ever, also when the log has forgotten the last one.
        model.epoch = model.epoch.max(self.next.epoch).max(self.model.epoch);
        self.model = model.clone();
        self.next = model;
        log
    }

    fn round(&mut self, log: &Log<SimStorage>) {
        let operations = self.dice.roll(120);
        self.disk.disk.stop_after(operations);
        for _ in 0..60 {
            if self.step(log).is_err() {
                break;
            }
        }
    }
}

fn shape(model: &Model) -> (Vec<(i64, i64, i32)>, Offset, Offset) {
    let batches = model.batches.iter().flat_map(|b| super::fixture_test::shape(&b.2)).collect();
    (batches, model.flushed, model.log_start)
}

#[test]
fn a_power_loss_at_any_moment_leaves_a_prefix_with_everything_flushed() {
    for seed in 0..250 {
        let mut run = Run::new(seed);
        let mut log = run.open();
        for _ in 0..6 {
            run.round(&log);
            drop(log.abandon());
            run.disk.power_loss();
            run.boots += 1;
            log = run.check();
        }
    }
}

#[test]
fn a_killed_process_loses_nothing_that_was_appended() {
    for seed in 0..120 {
        let mut run = Run::new(seed);
        run.config.durability = Durability::PageCache;
        let mut log = run.open();
        let incarnation = log.incarnation();
        for _ in 0..6 {
            run.round(&log);
            // An append that was interrupted had not been acknowledged; what came before it had.
            run.model.flushed = run.model.end().min(run.next.end());
            run.disk.storage = run.disk.storage.crash_process();
            log = run.check();
            assert_eq!(log.incarnation(), incarnation, "seed {seed}: the page cache outlives the process");
        }
    }
}

#[test]
fn a_crash_while_opening_is_no_different() {
    for seed in 0..100 {
        let mut run = Run::new(1_000 + seed);
        let mut log = run.open();
        for _ in 0..4 {
            run.round(&log);
            drop(log.abandon());
            run.disk.power_loss();
            run.boots += 1;
            for _ in 0..3 {
                let operations = run.dice.roll(25);
                run.disk.disk.stop_after(operations);
                let boot_id = Uuid::from_u128(u128::from(run.boots) + 1);
                drop(try_open(&run.disk, OpenOptions { boot_id, ..options(run.config.clone()) }));
                run.disk.power_loss();
                run.boots += 1;
            }
            log = run.check();
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_log() {
    let outcome = || {
        let mut run = Run::new(7);
        let log = run.open();
        run.round(&log);
        run.disk.power_loss();
        let log = run.check();
        let dir = Path::new("/data/orders-0");
        assert_eq!(log.directory(), dir);
        (log.positions(), read_all(&log, log.log_start()))
    };
    assert_eq!(outcome(), outcome());
}

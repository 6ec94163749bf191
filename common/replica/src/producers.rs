//! The producers of one replica's log: their state, kept beside the log by snapshots (design.md 6.10).
//!
//! What must hold: the state is that of the log below `covers`, nothing more; after a truncation it is rolled back, or built
//! anew, before anything is appended. It is built from the newest snapshot and the headers after it, so that taking a
//! leadership costs a bounded part of the log.

use bytes::Bytes;
use highwater_log::{Log, LogError, Storage};
use highwater_protocol::producer_state::{Admission, ProducerStates, Sequenced, Undo};
use highwater_records::{BatchHeader, batches};
use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{Offset, ReplicationError};

/// After how many bytes of log a new snapshot is worth its write.
const SNAPSHOT_EVERY_BYTES: u64 = 16 << 20;

/// How many snapshots are kept: a cut can take the newest.
const KEPT_SNAPSHOTS: usize = 3;

/// The producers of a log.
#[derive(Debug, Default)]
pub(crate) struct Producers {
    states: ProducerStates,
    /// The log below here is in `states`.
    covers: Offset,
    /// Where the newest snapshot was taken.
    snapshot_at: Offset,
}

/// An input as its producer's batches; of none, or of several.
enum Input {
    /// Not of an idempotent producer.
    Plain,
    /// Its batches, each with how many offsets it takes.
    Sequenced(Vec<(Sequenced, i64)>),
}

impl Producers {
    /// Builds the state of the log as it is now. *Blocks.*
    pub(crate) fn load<S: Storage>(log: &Log<S>) -> Result<Self, LogError> {
        let mut producers = Self { covers: log.log_start(), ..Self::default() };
        if is_planted(PlantedFault::ProducersForgottenAtStart) {
            producers.covers = log.log_end();
            return Ok(producers);
        }
        for at in log.producer_snapshots()? {
            let read = log.read_producer_snapshot(at)?;
            match ProducerStates::decode(&read, crc32c::crc32c) {
                Ok(states) => {
                    let covers = at.max(log.log_start());
                    producers = Self { states, covers, snapshot_at: at };
                    break;
                }
                Err(bad) => {
                    tracing::warn!(partition = %log.partition(), %at, ?bad, "a snapshot of producers is damaged: the log is read instead")
                }
            }
        }
        producers.catch_up(log)?;
        Ok(producers)
    }

    fn catch_up<S: Storage>(&mut self, log: &Log<S>) -> Result<(), LogError> {
        let states = &mut self.states;
        let end = log.visit_headers(self.covers, |header| {
            if let Some(batch) = sequenced(header) {
                states.on_appended(&batch, header.base_offset(), header.next_offset());
            }
        })?;
        self.covers = end;
        debug_assert!(self.snapshot_at <= self.covers, "a snapshot lies below the log end");
        Ok(())
    }

    /// Decides each input of a leader's append, whose first batch will get `next`: appended, answered as a duplicate, or
    /// refused. Of an input with several batches all are duplicates, or none. The undo is to be kept until it is appended.
    pub(crate) fn admit(
        &mut self,
        inputs: &[Bytes],
        mut next: Offset,
    ) -> (Vec<Result<Admission, ReplicationError>>, Undo) {
        let mut undo = Undo::default();
        let decide = |input: &Bytes| {
            let admission = match read_input(input) {
                Input::Plain => Ok(Admission::New),
                Input::Sequenced(batches) => self.admit_batches(&batches, next, &mut undo),
            };
            if admission == Ok(Admission::New) {
                next = next.advance(offsets_of(input));
            }
            admission
        };
        (inputs.iter().map(decide).collect(), undo)
    }

    fn admit_batches(
        &mut self,
        batches: &[(Sequenced, i64)],
        next: Offset,
        undo: &mut Undo,
    ) -> Result<Admission, ReplicationError> {
        let mut own = Undo::default();
        let (mut at, mut duplicate, mut fresh) = (next, None::<(Offset, Offset)>, 0_usize);
        for (batch, count) in batches {
            let end = at.advance(*count);
            match self.states.admit(batch, at, end, &mut own) {
                Ok(Admission::New) => fresh += 1,
                Ok(Admission::Duplicate { first, next }) => {
                    duplicate = Some(duplicate.map_or((first, next), |(from, _)| (from, next)));
                }
                Err(error) => {
                    self.states.undo(own);
                    return Err(error.for_batch(batch));
                }
            }
            at = end;
        }
        match duplicate {
            None => {
                undo.append(own);
                Ok(Admission::New)
            }
            Some((first, next)) if fresh == 0 => Ok(Admission::Duplicate { first, next }),
            Some(_) => {
                self.states.undo(own);
                Err(ReplicationError::new(
                    highwater_types::ErrorCode::OutOfOrderSequence,
                    "some batches of the request were appended before, others were not",
                ))
            }
        }
    }

    /// An input was appended from `first` on without being asked about.
    pub(crate) fn observe_at(&mut self, first: Offset, input: &Bytes) {
        let mut at = first;
        for batch in batches(input).map_while(Result::ok) {
            let next = at.advance(count(batch.header()));
            if let Some(batch) = sequenced(batch.header()) {
                self.states.on_appended(&batch, at, next);
            }
            at = next;
        }
    }

    /// What was admitted is in the log, which ends at `end`.
    pub(crate) fn on_appended(&mut self, end: Offset) {
        debug_assert!(end >= self.covers, "an append moves the end");
        self.covers = end;
    }

    /// What was admitted was not appended.
    pub(crate) fn undo(&mut self, undo: Undo) {
        self.states.undo(undo);
    }

    /// These batches were appended as they came, up to `end`.
    pub(crate) fn observe(&mut self, records: &Bytes, end: Offset) {
        for batch in batches(records).map_while(Result::ok) {
            let header = batch.header();
            if let Some(batch) = sequenced(header).filter(|_| header.next_offset() <= end) {
                self.states.on_appended(&batch, header.base_offset(), header.next_offset());
            }
        }
        self.covers = end;
    }

    /// The log was cut, or another one has taken its place. *Blocks.*
    pub(crate) fn on_replaced<S: Storage>(&mut self, log: &Log<S>) -> Result<(), LogError> {
        let end = log.log_end();
        if is_planted(PlantedFault::TruncationKeepsProducers) {
            self.covers = end;
            return Ok(());
        }
        // Also removes the snapshots above the end, before anything is appended there.
        let newest = log.producer_snapshots()?.first().copied().unwrap_or_default();
        if end <= self.covers && end > log.log_start() && self.states.truncate_to(end) {
            (self.covers, self.snapshot_at) = (end, newest);
            return Ok(());
        }
        *self = Self::load(log)?;
        Ok(())
    }

    /// Keeps a snapshot when enough was appended since the last one, or at all with `at_once`. *Blocks.*
    pub(crate) fn maybe_snapshot<S: Storage>(&mut self, log: &Log<S>, at_once: bool) -> Result<(), LogError> {
        let moved = self.covers > self.snapshot_at;
        let is_due = at_once || log.bytes_between(self.snapshot_at, self.covers) >= SNAPSHOT_EVERY_BYTES;
        // Of a log that no idempotent producer ever wrote there is nothing to keep.
        let is_worth_it = !self.states.is_empty() || self.snapshot_at > Offset::ZERO;
        if !moved || !is_due || !is_worth_it {
            return Ok(());
        }
        let bytes = self.states.encode(crc32c::crc32c);
        log.write_producer_snapshot(self.covers, &bytes, KEPT_SNAPSHOTS)?;
        self.snapshot_at = self.covers;
        Ok(())
    }
}

/// The batch as its producer counts it; `None` = of no idempotent producer, or a control batch, which has no sequence.
fn sequenced(header: &BatchHeader) -> Option<Sequenced> {
    let is_its = header.producer_id() >= 0 && header.producer_epoch() >= 0 && header.base_sequence() >= 0;
    (is_its && !header.is_control()).then(|| Sequenced {
        producer: header.producer_id(),
        epoch: header.producer_epoch(),
        first_sequence: header.base_sequence(),
        last_sequence: header.last_sequence(),
        timestamp: header.max_timestamp().as_millis(),
    })
}

fn read_input(input: &Bytes) -> Input {
    let each = batches(input).map_while(Result::ok);
    let found: Vec<_> =
        each.filter_map(|batch| sequenced(batch.header()).map(|s| (s, count(batch.header())))).collect();
    if found.is_empty() { Input::Plain } else { Input::Sequenced(found) }
}

fn count(header: &BatchHeader) -> i64 {
    i64::from(header.last_offset_delta()).saturating_add(1)
}

fn offsets_of(input: &Bytes) -> i64 {
    batches(input).map_while(Result::ok).map(|batch| count(batch.header())).sum()
}

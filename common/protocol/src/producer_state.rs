//! Idempotent producers of one partition: which batch is new, which was appended before (design.md 6.10).
//!
//! ```text
//!   producer 7, epoch 0:   [0..4] [5..9] [10..10] ...      the last five are remembered, with their offsets
//!     next 11..12  new            5..9  duplicate, answered with its offsets
//!     next 13..13  out of order   6..9  out of order: no batch is exactly this
//! ```
//! What holds: sequences of a producer's epoch are appended without a hole and never twice; an unknown producer begins at
//! sequence 0; after 2^31 - 1 comes 0. The state is a function of the log below an offset, so it is rebuilt from the log, and
//! rolled back with it. Deliberately absent: transactions; who keeps the state where (`snapshot` only encodes it).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{ErrorCode, Offset, ReplicationError};

mod snapshot;

pub use snapshot::BadSnapshot;

/// How many batches of a producer are remembered: as many as Kafka's clients may have in flight.
const REMEMBERED_BATCHES: usize = 5;

/// How many producers of a partition are remembered; beyond that, who was silent longest is forgotten.
const REMEMBERED_PRODUCERS: usize = 10_000;

/// A batch of an idempotent producer, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequenced {
    /// The producer's id, ≥ 0.
    pub producer: i64,
    /// The producer's epoch, ≥ 0.
    pub epoch: i16,
    /// The sequence number of its first record, ≥ 0.
    pub first_sequence: i32,
    /// That of its last one; below the first one where it wraps around.
    pub last_sequence: i32,
    /// Its largest timestamp, in milliseconds: only kept for tools.
    pub timestamp: i64,
}

/// What is to be done with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Append it.
    New,
    /// It is in the log already: answer with where, under its own acks rule.
    Duplicate {
        /// Its first offset.
        first: Offset,
        /// The offset after its last one.
        next: Offset,
    },
}

/// Why a batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceError {
    /// Nothing is known of the producer, and its sequence is not 0.
    UnknownProducer,
    /// Not the next batch, and none of those that are remembered.
    OutOfOrder {
        /// The sequence that comes next.
        expected: i32,
    },
    /// A newer epoch of the producer has been seen.
    Fenced {
        /// That epoch.
        current: i16,
    },
}

impl SequenceError {
    /// As a partition's error, for the batch that it concerns.
    #[must_use]
    pub fn for_batch(self, batch: &Sequenced) -> ReplicationError {
        let (producer, found) = (batch.producer, batch.first_sequence);
        let (code, why) = match self {
            Self::UnknownProducer => (
                ErrorCode::UnknownProducer,
                format!("is not known here and begins at sequence {found}, not at 0"),
            ),
            Self::OutOfOrder { expected } => {
                (ErrorCode::OutOfOrderSequence, format!("sends sequence {found}; {expected} comes next"))
            }
            Self::Fenced { current } => (
                ErrorCode::InvalidProducerEpoch,
                format!("sends under epoch {}; epoch {current} has begun", batch.epoch),
            ),
        };
        ReplicationError::new(code, format!("producer {producer} {why}"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Appended {
    first_sequence: i32,
    last_sequence: i32,
    first: Offset,
    next: Offset,
    timestamp: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Producer {
    epoch: i16,
    /// The newest last; never empty.
    batches: VecDeque<Appended>,
    /// Whether older batches than these were appended, or may have been.
    has_older: bool,
}

impl Producer {
    fn newest(&self) -> Option<&Appended> {
        self.batches.back()
    }
}

/// The producers of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerStates {
    producers: BTreeMap<i64, Producer>,
}

/// What producers were before batches were admitted, to take the admission back.
#[derive(Clone, Debug, Default)]
pub struct Undo(Vec<(i64, Option<Producer>)>);

impl Undo {
    /// Adds later admissions to these.
    pub fn append(&mut self, mut later: Self) {
        self.0.append(&mut later.0);
    }
}

impl ProducerStates {
    /// How many producers are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Whether nobody is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// What is to be done with a batch that a client sends.
    ///
    /// # Errors
    /// [`SequenceError`].
    pub fn check(&self, batch: &Sequenced) -> Result<Admission, SequenceError> {
        debug_assert!(batch.producer >= 0 && batch.first_sequence >= 0, "an idempotent producer's batch");
        let Some(known) = self.producers.get(&batch.producer) else {
            let begins = batch.first_sequence == 0 || is_planted(PlantedFault::UnknownProducerAnySequence);
            return if begins { Ok(Admission::New) } else { Err(SequenceError::UnknownProducer) };
        };
        if batch.epoch < known.epoch {
            return Err(SequenceError::Fenced { current: known.epoch });
        }
        if batch.epoch > known.epoch {
            let begins = batch.first_sequence == 0;
            return if begins { Ok(Admission::New) } else { Err(SequenceError::OutOfOrder { expected: 0 }) };
        }
        let is_same = |appended: &&Appended| {
            appended.first_sequence == batch.first_sequence && appended.last_sequence == batch.last_sequence
        };
        if let Some(original) = known.batches.iter().rev().find(is_same) {
            return Ok(Admission::Duplicate { first: original.first, next: original.next });
        }
        let expected = known.newest().map_or(0, |newest| after(newest.last_sequence));
        if batch.first_sequence == expected {
            Ok(Admission::New)
        } else {
            Err(SequenceError::OutOfOrder { expected })
        }
    }

    /// The same, and takes a new batch in at `first`, where it will be appended before any other; `next` is the offset after
    /// it. Keep `undo` until it is appended.
    ///
    /// # Errors
    /// As [`Self::check`]; nothing is taken in.
    pub fn admit(
        &mut self,
        batch: &Sequenced,
        first: Offset,
        next: Offset,
        undo: &mut Undo,
    ) -> Result<Admission, SequenceError> {
        let admission = self.check(batch)?;
        if admission == Admission::New {
            undo.0.push((batch.producer, self.producers.get(&batch.producer).cloned()));
            self.on_appended(batch, first, next);
        }
        Ok(admission)
    }

    /// Takes admissions back: their batches were not appended.
    pub fn undo(&mut self, undo: Undo) {
        for (producer, before) in undo.0.into_iter().rev() {
            match before {
                Some(before) => self.producers.insert(producer, before),
                None => self.producers.remove(&producer),
            };
        }
        debug_assert!(self.producers.values().all(|p| !p.batches.is_empty()), "who is known has appended");
    }

    /// A batch is in the log at `first..next`, whoever admitted it: by replication, or read again.
    pub fn on_appended(&mut self, batch: &Sequenced, first: Offset, next: Offset) {
        debug_assert!(first < next, "a batch of a producer has records");
        let appended = Appended {
            first_sequence: batch.first_sequence,
            last_sequence: batch.last_sequence,
            first,
            next,
            timestamp: batch.timestamp,
        };
        match self.producers.entry(batch.producer) {
            Entry::Occupied(mut known) if known.get().epoch == batch.epoch => {
                let known = known.get_mut();
                known.batches.push_back(appended);
                if known.batches.len() > REMEMBERED_BATCHES {
                    known.batches.pop_front();
                    known.has_older = true;
                }
            }
            // A new epoch forgets the older one: what it sent is fenced, and after a cut it is read again.
            Entry::Occupied(mut known) => {
                known.insert(Producer { epoch: batch.epoch, batches: [appended].into(), has_older: true });
            }
            Entry::Vacant(unknown) => {
                let has_older = batch.first_sequence != 0;
                unknown.insert(Producer { epoch: batch.epoch, batches: [appended].into(), has_older });
            }
        }
        self.forget_the_silent();
        debug_assert!(self.producers.len() <= REMEMBERED_PRODUCERS, "the number of producers is bounded");
    }

    /// The log was cut to `end`. Answers whether the state is now that of the log: `false` means that it has to be built anew,
    /// from a snapshot or from the log, because what came before the cut batches is not remembered.
    #[must_use]
    pub fn truncate_to(&mut self, end: Offset) -> bool {
        if is_planted(PlantedFault::TruncationKeepsProducers) {
            return true;
        }
        let mut is_whole = true;
        self.producers.retain(|_, producer| {
            let before = producer.batches.len();
            producer.batches.retain(|batch| batch.next <= end);
            // With fewer than five, older ones belong to the window again.
            is_whole &= producer.batches.len() == before || !producer.has_older;
            !producer.batches.is_empty()
        });
        debug_assert!(
            self.producers.values().all(|p| p.newest().is_some_and(|newest| newest.next <= end)),
            "nothing at or after the cut is remembered"
        );
        is_whole
    }

    fn forget_the_silent(&mut self) {
        while self.producers.len() > REMEMBERED_PRODUCERS {
            let silent = self.producers.iter().min_by_key(|(_, p)| p.newest().map(|newest| newest.next));
            let Some(id) = silent.map(|(id, _)| *id) else { return };
            self.producers.remove(&id);
        }
    }
}

/// The sequence number after this one: after the largest comes 0.
const fn after(sequence: i32) -> i32 {
    if sequence == i32::MAX { 0 } else { sequence + 1 }
}

#[cfg(test)]
#[path = "producer_state_test.rs"]
mod tests;

//! What producers were told against what can be read: the check that nothing acknowledged is missing.
//!
//! Every record that a test produces has a value that no other record has. What must hold, for each partition:
//! - an acknowledged record is readable at the offset that was acknowledged;
//! - a record whose outcome the producer does not know is there once or not at all, a refused one not at all;
//! - nothing is readable that nobody produced, and offsets rise;
//! - whoever reads an offset twice, from any replica and at any time, reads the same record of the same leadership;
//! - what anybody has read is there in the end, where a test reads that by [`History::read_last`];
//! - records of a producer stand in the order in which it sent them, where a test asks by [`History::check_order`].
//!
//! Deliberately absent: any order between partitions, and between producers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A partition, as `topic-index`.
pub type Partition = String;

/// How an attempt to produce a record went, as far as its producer knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// No answer, or one that leaves it open.
    Unknown,
    /// Acknowledged, at this offset.
    Acknowledged(i64),
    /// Refused with an error that promises that nothing was appended.
    Refused,
}

/// A record as somebody read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRecord<'a> {
    /// Where.
    pub offset: i64,
    /// The leadership in which it was appended; -1: the batch names none.
    pub epoch: i32,
    /// What.
    pub value: &'a [u8],
}

/// A record that was read: in which leadership it was appended, and its value.
type Seen = (i32, Vec<u8>);

/// The record of one test, filled by its producers and readers at the same time.
#[derive(Debug, Default)]
pub struct History {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    attempts: BTreeMap<Partition, BTreeMap<Vec<u8>, Outcome>>,
    /// What the first reader of each offset read.
    seen: BTreeMap<Partition, BTreeMap<i64, Seen>>,
    reads: u64,
    violations: Vec<String>,
}

impl History {
    /// Notes that a record is about to be sent.
    ///
    /// # Panics
    /// When the value was used before: records could then not be told apart.
    pub fn attempt(&self, partition: &str, value: &[u8]) {
        let mut state = self.state();
        let attempts = state.attempts.entry(partition.to_owned()).or_default();
        let before = attempts.insert(value.to_owned(), Outcome::Unknown);
        assert!(before.is_none(), "{} is produced twice", String::from_utf8_lossy(value));
    }

    /// Notes the answer to an attempt.
    ///
    /// # Panics
    /// When there was no such attempt, or it has another answer already.
    pub fn outcome(&self, partition: &str, value: &[u8], outcome: Outcome) {
        let mut state = self.state();
        let attempt = state.attempts.get_mut(partition).and_then(|attempts| attempts.get_mut(value));
        let attempt =
            attempt.unwrap_or_else(|| panic!("{} was not attempted", String::from_utf8_lossy(value)));
        assert_eq!(*attempt, Outcome::Unknown, "an attempt is answered once");
        *attempt = outcome;
    }

    /// Notes what one reader got, in the order in which it got it.
    pub fn read<'a>(&self, partition: &str, records: impl IntoIterator<Item = ReadRecord<'a>>) {
        self.state().read(partition, records.into_iter());
    }

    /// The same, of somebody who reads the whole log when nothing is appended any more: what anybody has read before is
    /// there.
    pub fn read_last<'a>(&self, partition: &str, records: impl IntoIterator<Item = ReadRecord<'a>>) {
        let mut last = BTreeSet::new();
        let mut state = self.state();
        state.read(partition, records.into_iter().inspect(|record| _ = last.insert(record.offset)));
        let State { seen, violations, .. } = &mut *state;
        let gone = seen.get(partition).into_iter().flatten().filter(|(offset, _)| !last.contains(offset));
        violations.extend(gone.map(|(offset, seen)| {
            format!("{partition}: {offset} was {}, and is not there in the end", shown(seen))
        }));
    }

    /// Checks the order of what was read. `number` tells of a value who produced it, and as which of its records.
    pub fn check_order(&self, number: impl Fn(&[u8]) -> (u64, u64)) {
        let mut guard = self.state();
        let State { seen, violations, .. } = &mut *guard;
        for (partition, seen) in seen {
            let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
            for (offset, (_, value)) in seen {
                let (producer, number) = number(value);
                let before = newest.insert(producer, number);
                if let Some(before) = before.filter(|before| *before >= number) {
                    violations.push(format!(
                        "{partition}: {} at {offset} stands behind number {before} of its producer",
                        text(value)
                    ));
                }
            }
        }
    }

    /// How many records were read, each time by anybody.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.state().reads
    }

    /// How many records have an outcome that is not known, or none.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Unknown))
    }

    /// How many records were refused.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Refused))
    }

    /// How many records were acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Acknowledged(_)))
    }

    fn count(&self, which: impl Fn(&Outcome) -> bool) -> usize {
        self.state().attempts.values().flat_map(BTreeMap::values).filter(|outcome| which(outcome)).count()
    }

    /// Every rule that did not hold, once everything readable has been noted by [`History::read`].
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let state = self.state();
        let nothing = BTreeMap::new();
        let mut violations = state.violations.clone();
        for (partition, attempts) in &state.attempts {
            let seen = state.seen.get(partition).unwrap_or(&nothing);
            violations.extend(lost(partition, attempts, seen));
        }
        for (partition, seen) in &state.seen {
            violations.extend(unexpected(partition, state.attempts.get(partition), seen));
        }
        violations
    }

    /// Fails the test with every rule that did not hold.
    ///
    /// # Panics
    /// When there is one, or when nothing was acknowledged: a test in which nothing could get lost proves nothing.
    pub fn assert_holds(&self) {
        let violations = self.violations();
        assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
        assert!(self.acknowledged() > 0, "nothing was acknowledged");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn read<'a>(&mut self, partition: &str, records: impl Iterator<Item = ReadRecord<'a>>) {
        let seen = self.seen.entry(partition.to_owned()).or_default();
        let mut last = None;
        for ReadRecord { offset, epoch, value } in records {
            self.reads += 1;
            if let Some(after) = last.filter(|last| *last >= offset) {
                self.violations.push(format!("{partition}: {offset} was read after {after}"));
            }
            last = Some(offset);
            let first = seen.entry(offset).or_insert_with(|| (epoch, value.to_owned()));
            if (first.0, first.1.as_slice()) != (epoch, value) {
                let now = shown(&(epoch, value.to_owned()));
                self.violations.push(format!("{partition}: {offset} was {}, then {now}", shown(first)));
            }
        }
    }
}

fn lost(partition: &str, attempts: &BTreeMap<Vec<u8>, Outcome>, seen: &BTreeMap<i64, Seen>) -> Vec<String> {
    let missing = attempts.iter().filter_map(|(value, outcome)| match outcome {
        Outcome::Acknowledged(offset) if seen.get(offset).is_none_or(|(_, seen)| seen != value) => {
            Some((value, offset))
        }
        Outcome::Acknowledged(_) | Outcome::Unknown | Outcome::Refused => None,
    });
    missing
        .map(|(value, offset)| {
            let found = seen.get(offset).map_or_else(|| "nothing".to_owned(), |(_, found)| text(found));
            format!("{partition}: acknowledged {offset} = {}, found {found}", text(value))
        })
        .collect()
}

fn unexpected(
    partition: &str,
    attempts: Option<&BTreeMap<Vec<u8>, Outcome>>,
    seen: &BTreeMap<i64, Seen>,
) -> Vec<String> {
    let mut by_value: BTreeMap<&[u8], Vec<i64>> = BTreeMap::new();
    for (offset, (_, value)) in seen {
        by_value.entry(value).or_default().push(*offset);
    }
    let mut violations = Vec::new();
    for (value, offsets) in by_value {
        match attempts.and_then(|attempts| attempts.get(value)) {
            None => {
                violations.push(format!("{partition}: {} at {offsets:?} was never produced", text(value)))
            }
            Some(Outcome::Refused) => {
                violations.push(format!("{partition}: {} at {offsets:?} was refused", text(value)))
            }
            Some(Outcome::Acknowledged(_) | Outcome::Unknown) if offsets.len() > 1 => {
                violations
                    .push(format!("{partition}: {} is there more than once, at {offsets:?}", text(value)));
            }
            Some(Outcome::Acknowledged(_) | Outcome::Unknown) => {}
        }
    }
    violations
}

fn shown((epoch, value): &Seen) -> String {
    format!("{} of epoch {epoch}", text(value))
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

#[cfg(test)]
#[path = "history_test.rs"]
mod tests;

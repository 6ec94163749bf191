//! What producers were told against what can be read: the check that nothing acknowledged is missing.
//!
//! Every record that a test produces has a value that no other record has. What must hold, for each partition:
//! - an acknowledged record is readable at the offset that was acknowledged;
//! - a record whose outcome the producer does not know is there once or not at all, a refused one not at all;
//! - nothing is readable that nobody produced, and offsets rise;
//! - whoever reads an offset twice, from any replica and at any time, reads the same record.
//!
//! Deliberately absent: any order between partitions, and the order of records whose producers did not wait for each
//! other.

use std::collections::BTreeMap;
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

/// The record of one test, filled by its producers and readers at the same time.
#[derive(Debug, Default)]
pub struct History {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    attempts: BTreeMap<Partition, BTreeMap<Vec<u8>, Outcome>>,
    /// What the first reader of each offset read.
    seen: BTreeMap<Partition, BTreeMap<i64, Vec<u8>>>,
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
    pub fn read<'a>(&self, partition: &str, records: impl IntoIterator<Item = (i64, &'a [u8])>) {
        let mut guard = self.state();
        let State { seen, violations, .. } = &mut *guard;
        let seen = seen.entry(partition.to_owned()).or_default();
        let mut last = None;
        for (offset, value) in records {
            if let Some(after) = last.filter(|last| *last >= offset) {
                violations.push(format!("{partition}: {offset} was read after {after}"));
            }
            last = Some(offset);
            let first = seen.entry(offset).or_insert_with(|| value.to_owned());
            if first != value {
                violations.push(format!("{partition}: {offset} was {}, then {}", text(first), text(value)));
            }
        }
    }

    /// How many records were acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        let state = self.state();
        let outcomes = state.attempts.values().flat_map(BTreeMap::values);
        outcomes.filter(|outcome| matches!(outcome, Outcome::Acknowledged(_))).count()
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

fn lost(
    partition: &str,
    attempts: &BTreeMap<Vec<u8>, Outcome>,
    seen: &BTreeMap<i64, Vec<u8>>,
) -> Vec<String> {
    let missing = attempts.iter().filter_map(|(value, outcome)| match outcome {
        Outcome::Acknowledged(offset) if seen.get(offset) != Some(value) => Some((value, offset)),
        Outcome::Acknowledged(_) | Outcome::Unknown | Outcome::Refused => None,
    });
    missing
        .map(|(value, offset)| {
            let found = seen.get(offset).map_or_else(|| "nothing".to_owned(), |found| text(found));
            format!("{partition}: acknowledged {offset} = {}, found {found}", text(value))
        })
        .collect()
}

fn unexpected(
    partition: &str,
    attempts: Option<&BTreeMap<Vec<u8>, Outcome>>,
    seen: &BTreeMap<i64, Vec<u8>>,
) -> Vec<String> {
    let mut by_value: BTreeMap<&[u8], Vec<i64>> = BTreeMap::new();
    for (offset, value) in seen {
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

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two acknowledged records, one whose outcome is unknown, one refused.
    fn history() -> History {
        let history = History::default();
        for value in ["a", "b", "c", "d"] {
            history.attempt("t-0", value.as_bytes());
        }
        history.outcome("t-0", b"a", Outcome::Acknowledged(0));
        history.outcome("t-0", b"b", Outcome::Acknowledged(1));
        history.outcome("t-0", b"d", Outcome::Refused);
        history
    }

    fn reading(records: &[(i64, &str)]) -> Vec<String> {
        let history = history();
        history.read("t-0", records.iter().map(|(offset, value)| (*offset, value.as_bytes())));
        history.violations()
    }

    #[test]
    fn what_was_acknowledged_is_enough_and_an_unknown_record_may_be_there() {
        assert_eq!(reading(&[(0, "a"), (1, "b")]), Vec::<String>::new());
        assert_eq!(reading(&[(0, "a"), (1, "b"), (5, "c")]), Vec::<String>::new());
    }

    #[test]
    fn a_missing_or_moved_record_is_reported() {
        assert_eq!(reading(&[(0, "a")]), ["t-0: acknowledged 1 = b, found nothing"]);
        assert_eq!(reading(&[(0, "a"), (1, "c"), (2, "b")]), ["t-0: acknowledged 1 = b, found c"]);
        assert_eq!(reading(&[]).len(), 2);
    }

    #[test]
    fn a_duplicate_is_reported() {
        assert_eq!(reading(&[(0, "a"), (1, "b"), (2, "a")]), ["t-0: a is there more than once, at [0, 2]"]);
    }

    #[test]
    fn what_nobody_produced_or_was_refused_is_reported() {
        assert_eq!(reading(&[(0, "a"), (1, "b"), (2, "x")]), ["t-0: x at [2] was never produced"]);
        assert_eq!(reading(&[(0, "a"), (1, "b"), (2, "d")]), ["t-0: d at [2] was refused"]);
    }

    #[test]
    fn a_reader_that_goes_back_is_reported() {
        assert_eq!(reading(&[(1, "b"), (0, "a")]), ["t-0: 0 was read after 1"]);
    }

    #[test]
    fn two_readers_that_differ_are_reported() {
        let history = history();
        history.read("t-0", [(0, b"a".as_slice()), (1, b"b")]);
        history.read("t-0", [(0, b"a".as_slice()), (1, b"c")]);
        assert_eq!(history.violations(), ["t-0: 1 was b, then c"]);
    }

    #[test]
    #[should_panic(expected = "nothing was acknowledged")]
    fn a_history_without_acknowledgements_proves_nothing() {
        History::default().assert_holds();
    }
}

//! Who sends the batches of one partition, and with which sequence numbers (design.md 6.10).
//!
//! ```text
//!   id 7, epoch 0:  0..9  10..14  15..15       acknowledged: the next batch goes on where the last one ended
//!   id 7, epoch 1:  0..3                       it is unknown what became of a batch: a late copy of it is refused from now on
//!   id 9, epoch 0:  0..3                       the leader knows nothing of id 7 any more
//! ```
//! What must hold: numbers are given again only where it is certain that no record has them, else a leader would take a new
//! batch for the copy of an old one. After 2^31 - 1 comes 0, as in Kafka.

use highwater_records::Producer;
use highwater_types::ErrorCode;

/// The identity under which the next batch of a partition is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    id: i64,
    epoch: i16,
    next_sequence: i32,
}

impl Identity {
    /// A producer that has sent nothing.
    pub(super) const fn new(id: i64) -> Self {
        Self { id, epoch: 0, next_sequence: 0 }
    }

    /// What the next batch carries.
    pub(super) const fn of_next_batch(self) -> Producer {
        Producer { id: self.id, epoch: self.epoch, base_sequence: self.next_sequence }
    }

    /// A batch of so many records is acknowledged.
    pub(super) const fn on_acknowledged(&mut self, records: i32) {
        debug_assert!(records > 0, "a batch has records");
        // The sum is below 2^32, and its lowest 31 bits are what is left of it after each round.
        self.next_sequence = self.next_sequence.wrapping_add(records) & i32::MAX;
        debug_assert!(self.next_sequence >= 0, "-1 stands for a batch without a producer");
    }

    /// A batch has failed, and `is_unresolved`: it may be in the log all the same. `fresh` is an id that nobody has. Answers
    /// whether the batch is to be sent again, under the new identity.
    pub(super) fn on_failed(&mut self, code: Option<ErrorCode>, is_unresolved: bool, fresh: i64) -> bool {
        if is_unresolved {
            *self = self.in_the_next_epoch(fresh);
            return false;
        }
        match code {
            // It was the first try, so nothing can be there twice. Who begins at 0 is never unknown.
            Some(ErrorCode::UnknownProducer) => {
                let is_worth_it = self.next_sequence > 0;
                *self = Self::new(fresh);
                is_worth_it
            }
            // Nobody else can go on either: the next batches begin anew.
            Some(ErrorCode::OutOfOrderSequence | ErrorCode::InvalidProducerEpoch) => {
                *self = Self::new(fresh);
                false
            }
            // Nothing was appended: the next batch takes the numbers.
            _ => false,
        }
    }

    fn in_the_next_epoch(self, fresh: i64) -> Self {
        let next = self.epoch.checked_add(1).map(|epoch| Self { epoch, next_sequence: 0, ..self });
        next.unwrap_or_else(|| Self::new(fresh))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(id: i64, epoch: i16, next_sequence: i32) -> Identity {
        Identity { id, epoch, next_sequence }
    }

    fn after(mut before: Identity, code: Option<ErrorCode>, is_unresolved: bool) -> (Identity, bool) {
        let again = before.on_failed(code, is_unresolved, 9);
        (before, again)
    }

    #[test]
    fn after_the_largest_sequence_number_comes_0() {
        for (before, records, next) in [
            (0, 3, 3),
            (i32::MAX - 2, 2, i32::MAX),
            (i32::MAX - 2, 3, 0),
            (i32::MAX - 2, 5, 2),
            (i32::MAX, 1, 0),
            (i32::MAX, i32::MAX, i32::MAX - 1),
        ] {
            let mut identity = at(7, 0, before);
            identity.on_acknowledged(records);
            assert_eq!(identity, at(7, 0, next), "{records} from {before} on");
        }
    }

    #[test]
    fn numbers_are_given_again_where_nothing_was_appended() {
        for code in [None, Some(ErrorCode::MessageTooLarge), Some(ErrorCode::NotEnoughReplicas)] {
            assert_eq!(after(at(7, 1, 5), code, false), (at(7, 1, 5), false));
        }
    }

    #[test]
    fn after_an_unknown_outcome_a_new_epoch_begins_whatever_the_last_try_was_told() {
        for code in [None, Some(ErrorCode::UnknownProducer), Some(ErrorCode::OutOfOrderSequence)] {
            assert_eq!(after(at(7, 1, 5), code, true), (at(7, 2, 0), false));
        }
        assert_eq!(after(at(7, i16::MAX, 5), None, true), (at(9, 0, 0), false), "epochs do not go round");
    }

    #[test]
    fn who_is_unknown_and_has_nothing_unresolved_sends_the_batch_again_under_a_new_id() {
        let unknown = Some(ErrorCode::UnknownProducer);
        assert_eq!(after(at(7, 1, 5), unknown, false), (at(9, 0, 0), true));
        assert_eq!(after(at(7, 1, 0), unknown, false), (at(9, 0, 0), false), "nobody may be unknown at 0");
    }

    #[test]
    fn who_cannot_go_on_fails_once_and_begins_anew() {
        for code in [ErrorCode::OutOfOrderSequence, ErrorCode::InvalidProducerEpoch] {
            assert_eq!(after(at(7, 1, 5), Some(code), false), (at(9, 0, 0), false));
        }
    }
}

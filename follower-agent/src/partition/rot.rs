//! Damage that readers meet in a log that is followed: told once per place, and looked for, so that it is repaired.
//!
//! What must hold: readers that ask again and again cost one check per [`CHECK_EVERY`]. Deliberately absent: the check, which is
//! the replica's, and the repair of what it finds (`repair`).

use std::time::Duration;

use highwater_log::ReadError;
use highwater_serving::DamageNote;
use highwater_types::{MonotonicTime, Offset, PartitionIndex, TopicName};
use parking_lot::Mutex;

/// The least time between two checks of a partition: each reads a whole segment.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RotWatch {
    note: DamageNote,
    checked: Mutex<Option<MonotonicTime>>,
}

impl RotWatch {
    /// A read failed; answers which segment is to be checked for damage that is not known yet, if any: by its base.
    pub(super) fn met(
        &self,
        topic: &TopicName,
        partition: PartitionIndex,
        error: &ReadError,
        now: MonotonicTime,
    ) -> Option<Offset> {
        self.note.note(topic, partition, error);
        let ReadError::Corrupt { segment, .. } = error else { return None };
        let mut checked = self.checked.lock();
        if checked.is_some_and(|last| now.since(last) < CHECK_EVERY) {
            return None;
        }
        *checked = Some(now);
        Some(*segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_that_meet_damage_have_it_looked_for_at_most_every_five_seconds() {
        let offset = |at: i64| Offset::new(at).unwrap();
        let corrupt = |asked: i64, segment: i64| ReadError::Corrupt {
            asked: offset(asked),
            segment: offset(segment),
            position: 0,
            reason: "rot".to_owned(),
        };
        let (watch, topic) = (RotWatch::default(), "orders".parse().unwrap());
        let met = |error: &ReadError, millis| {
            watch.met(&topic, PartitionIndex::new(0).unwrap(), error, MonotonicTime::from_millis(millis))
        };
        assert_eq!(met(&ReadError::Overtaken, 0), None);
        assert_eq!(met(&corrupt(12, 10), 1000), Some(offset(10)));
        assert_eq!(met(&corrupt(12, 10), 5999), None);
        assert_eq!(met(&corrupt(25, 20), 5999), None, "another segment waits for its turn");
        assert_eq!(met(&corrupt(25, 20), 6000), Some(offset(20)));
    }
}

//! Damage that a reader of a partition met, in the program's log once per place.
//!
//! What must hold: readers that ask again and again make no flood. Deliberately absent: what is done about it.

use std::collections::BTreeSet;

use highwater_log::ReadError;
use highwater_types::{Offset, PartitionIndex, TopicName};
use parking_lot::Mutex;

/// See the module.
#[derive(Debug, Default)]
pub struct DamageNote {
    place: Mutex<Option<Offset>>,
    /// The bases of segments in which damage was met that was not known.
    segments: Mutex<BTreeSet<Offset>>,
}

impl DamageNote {
    /// A read failed. Says so when it met damage at another place than the last time; answers whether it did.
    pub fn note(&self, topic: &TopicName, partition: PartitionIndex, error: &ReadError) -> bool {
        let place = match error {
            ReadError::Damaged { range, .. } => range.start,
            ReadError::Corrupt { segment, .. } => {
                self.on_met(*segment);
                *segment
            }
            ReadError::OutOfRange { .. }
            | ReadError::Overtaken
            | ReadError::Unusable(_)
            | ReadError::Storage(_) => return false,
        };
        let is_news = self.place.lock().replace(place) != Some(place);
        if is_news {
            tracing::error!(
                partition = %format_args!("{topic}-{partition}"),
                %error,
                "readers meet damage in the log; they get the rest; `highwater log verify` names every damaged range",
            );
        }
        is_news
    }

    /// There is damage in this segment that is not known to the log.
    pub fn on_met(&self, segment: Offset) {
        self.segments.lock().insert(segment);
    }

    /// The bases of segments in which damage was met that was not known to the log.
    #[must_use]
    pub fn segments(&self) -> Vec<Offset> {
        self.segments.lock().iter().copied().collect()
    }

    /// The damage of this segment is known to the log now.
    pub fn on_known(&self, segment: Offset) {
        self.segments.lock().remove(&segment);
    }
}

#[cfg(test)]
mod tests {
    use highwater_log::OffsetRange;

    use super::*;

    #[test]
    fn damage_is_news_once_per_place_and_other_errors_are_none() {
        let offset = |at: i64| Offset::new(at).unwrap();
        let note = DamageNote::default();
        let topic: TopicName = "orders".parse().unwrap();
        let met = |error: &ReadError| note.note(&topic, PartitionIndex::new(0).unwrap(), error);
        let damaged = |asked, from| ReadError::Damaged {
            asked: offset(asked),
            range: OffsetRange { start: offset(from), end: offset(from + 10) },
        };
        assert!(met(&damaged(12, 10)));
        assert_eq!(note.segments(), [], "the log knows of it");
        assert!(!met(&damaged(15, 10)), "the same range, asked for elsewhere");
        assert!(!met(&ReadError::Overtaken));
        assert!(met(&damaged(30, 30)));
        let corrupt = ReadError::Corrupt {
            asked: offset(45),
            segment: offset(40),
            position: 7,
            reason: "rot".to_owned(),
        };
        assert!(met(&corrupt));
        note.on_met(offset(50));
        assert_eq!(note.segments(), [40, 50].map(offset));
        note.on_known(offset(30));
        note.on_known(offset(40));
        assert_eq!(note.segments(), [offset(50)]);
    }
}

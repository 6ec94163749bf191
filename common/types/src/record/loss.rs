//! What a replica lost by an unclean election.

use std::fmt;

use crate::{LeaderEpoch, Offset};

/// What one replica held and the leader of an unclean election did not: exact for this replica, known once it was cut
/// (design.md 6.13). The high watermark that a replica knows may be old, so more can have been committed than it can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UncleanLoss {
    /// The leadership that began by the election.
    pub election: LeaderEpoch,
    /// The first lost offset.
    pub from: Offset,
    /// What is lost below this had been committed for certain; nothing, where it is not above `from`.
    pub committed: Offset,
    /// The end of what is lost (exclusive); from `committed` on it may have been committed.
    pub end: Offset,
}

impl UncleanLoss {
    /// This loss and a later one: a log is cut in several rounds. Those of an older election give way.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        if self.election != later.election {
            return later;
        }
        Self {
            election: self.election,
            from: self.from.min(later.from),
            committed: self.committed.max(later.committed),
            end: self.end.max(later.end),
        }
    }
}

impl fmt::Display for UncleanLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, committed, end, .. } = self;
        if from >= end {
            f.write_str("nothing is lost")
        } else if committed <= from {
            write!(f, "offsets [{from}, {end}) may have been committed, and are lost")
        } else if committed >= end {
            write!(f, "offsets [{from}, {end}) were committed, and are lost")
        } else {
            write!(
                f,
                "offsets [{from}, {committed}) were committed, [{committed}, {end}) may have been, and all are lost"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(election: i32, [from, committed, end]: [i64; 3]) -> UncleanLoss {
        let offset = |raw| Offset::new(raw).unwrap();
        UncleanLoss {
            election: LeaderEpoch::new(election).unwrap(),
            from: offset(from),
            committed: offset(committed),
            end: offset(end),
        }
    }

    #[test]
    fn rounds_of_one_cut_are_one_loss() {
        // High watermark 8 of a log that ended at 15, cut to 10 and then to 4: what lay at 8 and 9 may have been committed.
        assert_eq!(loss(3, [10, 8, 15]).and(loss(3, [4, 8, 10])), loss(3, [4, 8, 15]));
        // High watermark 13: the first cut lowers it to 10.
        assert_eq!(loss(3, [10, 13, 15]).and(loss(3, [4, 10, 10])), loss(3, [4, 13, 15]));
        assert_eq!(
            loss(3, [10, 13, 15]).and(loss(5, [12, 12, 13])),
            loss(5, [12, 12, 13]),
            "a newer election"
        );
    }

    #[test]
    fn it_says_what_is_certain_and_what_is_not() {
        let said = |offsets| loss(3, offsets).to_string();
        assert_eq!(
            said([10, 13, 15]),
            "offsets [10, 13) were committed, [13, 15) may have been, and all are lost"
        );
        assert_eq!(said([10, 15, 15]), "offsets [10, 15) were committed, and are lost");
        assert_eq!(said([10, 8, 15]), "offsets [10, 15) may have been committed, and are lost");
        assert_eq!(said([10, 10, 10]), "nothing is lost");
    }
}

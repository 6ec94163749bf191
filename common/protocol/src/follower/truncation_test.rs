//! Cut points: the epoch known, not known, and none at all (S38; cases.md, rule 3).

use highwater_types::LeaderEpochCache;
use proptest::prelude::*;

use super::*;
use crate::test_values::{at, cache, epoch, offset};

#[test]
fn a_known_epoch_is_cut_to_the_earlier_of_both_ends() {
    // own: 0..4@1 5..7@2
    let own = cache(&[(1, 0), (2, 5)]);
    assert_eq!(cut_point(at(3, 1), &own, offset(8)), offset(3), "the leader's end is earlier");
    assert_eq!(cut_point(at(9, 1), &own, offset(8)), offset(5), "the own end is earlier");
    assert_eq!(cut_point(at(6, 2), &own, offset(8)), offset(6));
    assert_eq!(cut_point(at(20, 2), &own, offset(8)), offset(8), "never above the own log end");
}

#[test]
fn an_unknown_epoch_is_cut_to_the_end_of_the_largest_smaller_one() {
    // own: 0@0 1@2 2@4
    let own = cache(&[(0, 0), (2, 1), (4, 2)]);
    assert_eq!(cut_point(at(2, 3), &own, offset(3)), offset(2));
    assert_eq!(cut_point(at(1, 1), &own, offset(2)), offset(1));
}

#[test]
fn an_epoch_below_all_own_ones_cuts_to_the_leaders_end_or_the_own_start() {
    let own = cache(&[(5, 10)]);
    assert_eq!(cut_point(at(3, 2), &own, offset(20)), offset(3));
    assert_eq!(cut_point(at(15, 2), &own, offset(20)), offset(10));
}

#[test]
fn without_own_epochs_the_leaders_end_counts() {
    assert_eq!(cut_point(at(3, 2), &LeaderEpochCache::new(), offset(8)), offset(3));
    assert_eq!(cut_point(at(30, 2), &LeaderEpochCache::new(), offset(8)), offset(8));
}

/// One leadership: who takes it, how many records it writes, who then holds how many of the leader's records.
type Leadership = (usize, usize, usize, usize);

const REPLICAS: usize = 4;

/// Logs as they come to be: each epoch has one leader, which adds to whatever log it has (an unclean election too), and a
/// follower that has settled holds a prefix of its leader's log. A record is its epoch and its number within the run.
fn logs(leaderships: &[Leadership]) -> Vec<Vec<(i32, usize)>> {
    let mut logs = vec![Vec::new(); REPLICAS];
    for (number, (leader, writes, follower, holds)) in leaderships.iter().copied().enumerate() {
        let epoch = i32::try_from(number).unwrap();
        logs[leader].extend((0..writes).map(|n| (epoch, n)));
        logs[follower] = logs[leader].iter().copied().take(holds).collect();
    }
    logs
}

fn cache_of(log: &[(i32, usize)]) -> LeaderEpochCache {
    let mut cache = LeaderEpochCache::new();
    for (index, (e, _)) in log.iter().enumerate() {
        cache.assign(epoch(*e), offset(i64::try_from(index).unwrap()));
    }
    cache
}

proptest! {
    /// Ask, cut, ask again ends after at most one round per epoch, with a prefix of the leader's log (KIP-279).
    #[test]
    fn asking_and_cutting_ends_with_a_prefix_of_the_leaders_log(
        leaderships in prop::collection::vec((0..REPLICAS, 0..4_usize, 0..REPLICAS, 0..12_usize), 1..10),
        leader in 0..REPLICAS,
        follower in 0..REPLICAS,
    ) {
        use crate::fetch::{Position, check_position};
        use crate::test_values::log;

        let logs = logs(&leaderships);
        let (leader, mut own) = (&logs[leader], logs[follower].clone());
        // It leads in a new epoch, which begins at its log end (S36).
        let mut leader_epochs = cache_of(leader);
        let leader_end = i64::try_from(leader.len()).unwrap();
        leader_epochs.assign(epoch(100), offset(leader_end));
        let leader_log = log(0, leader_end, &leader_epochs);
        for round in 0.. {
            prop_assert!(round <= leaderships.len(), "at most one round per epoch");
            let epochs = cache_of(&own);
            let end = offset(i64::try_from(own.len()).unwrap());
            match check_position(end, epochs.latest().map(|e| e.epoch), &leader_log) {
                Position::Agrees => break,
                Position::OutOfRange => prop_assert!(false, "no follower's epoch is above its leader's"),
                Position::Diverging(found) => {
                    let cut = cut_point(found, &epochs, end);
                    prop_assert!(cut < end, "every cut shortens the log");
                    own.truncate(usize::try_from(cut.get()).unwrap());
                }
            }
        }
        prop_assert!(leader.starts_with(&own), "{own:?} is no prefix of {leader:?}");
    }
}

//! Which loop fetches a partition: its leader, and a hash that never changes (S16).
//!
//! What must hold: the number depends on the partition and the configured count alone, so it is the same after a restart
//! and on every node. A leader at another address is another loop (S15).

use std::hash::Hasher as _;
use std::num::NonZeroU32;

use highwater_types::{Endpoint, NodeId, TopicIdPartition};
use siphasher::sip::SipHasher24;

/// Changing these moves partitions to other loops, which costs nothing but the promise that they stay.
const HASH_KEYS: (u64, u64) = (0x6869_6768_7761_7465, 0x7220_6665_7463_6873);

/// Names a fetch loop.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LoopKey {
    /// The leader's node.
    pub(crate) leader: NodeId,
    /// Where it is reached.
    pub(crate) endpoint: Endpoint,
    /// The loop's number among those to this leader, from 0.
    pub(crate) fetcher: u32,
}

impl LoopKey {
    /// The loop of a partition among `fetchers` loops to its leader.
    #[must_use]
    pub(crate) fn of(
        partition: TopicIdPartition,
        leader: NodeId,
        endpoint: Endpoint,
        fetchers: NonZeroU32,
    ) -> Self {
        Self { leader, endpoint, fetcher: fetcher_of(partition, fetchers) }
    }
}

fn fetcher_of(partition: TopicIdPartition, fetchers: NonZeroU32) -> u32 {
    let mut hasher = SipHasher24::new_with_keys(HASH_KEYS.0, HASH_KEYS.1);
    hasher.write(partition.topic_id.uuid().as_bytes());
    hasher.write(&partition.partition.get().to_be_bytes());
    u32::try_from(hasher.finish() % u64::from(fetchers.get())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use highwater_types::PartitionIndex;

    use super::*;

    fn partition(index: i32) -> TopicIdPartition {
        let topic = "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c".parse().unwrap();
        TopicIdPartition::new(topic, PartitionIndex::new(index).unwrap())
    }

    fn three() -> NonZeroU32 {
        NonZeroU32::new(3).unwrap()
    }

    #[test]
    fn the_mapping_is_written_in_stone() {
        let mapped: Vec<_> = (0..12).map(|index| fetcher_of(partition(index), three())).collect();
        assert_eq!(mapped, MAPPED, "another hash would move partitions at an upgrade");
    }

    const MAPPED: [u32; 12] = [0, 0, 2, 0, 1, 0, 2, 1, 2, 0, 0, 2];

    #[test]
    fn every_number_below_the_count_is_used_and_no_other() {
        let used: BTreeSet<_> = (0..100).map(|index| fetcher_of(partition(index), three())).collect();
        assert_eq!(used, BTreeSet::from([0, 1, 2]));
        assert_eq!(fetcher_of(partition(7), NonZeroU32::MIN), 0);
    }

    #[test]
    fn another_address_of_a_leader_is_another_loop() {
        let key = |address: &str| {
            LoopKey::of(partition(0), NodeId::new(1).unwrap(), address.parse().unwrap(), three())
        };
        assert_eq!(key("a:9400"), key("a:9400"));
        assert_ne!(key("a:9400"), key("b:9400"));
    }
}

//! What the throttle of this node's fetching lets a request ask for.
//!
//! What must hold: a replica that is catching up is left out of requests while the quota has nothing left, and asks for no
//! more than is left (S66); one in sync asks for what it likes, and that counts (S67, S69). What a request may bring is
//! reserved until it is answered, so that the requests of all loops together keep the rate. A replica of which no answer is
//! known yet is told from one that lags by an answer without records, so that idle partitions do not wait for their turn
//! (S68, KAFKA-15080).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use highwater_protocol::follower::FetchAsk;
use highwater_protocol::quota::Metering;
use highwater_serving::ReplicationThrottle;
use highwater_serving::throttle::Reservation;
use highwater_types::{NodeId, TopicIdPartition};

use super::Followed;

/// The throttle, for the partitions of one loop.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    node: NodeId,
    throttle: Arc<ReplicationThrottle>,
}

/// What a request may bring, as the throttle sees it; given back when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Charges {
    reserved: BTreeMap<TopicIdPartition, Reservation>,
    counted: BTreeSet<TopicIdPartition>,
}

impl Charges {
    /// Whether it may bring something that shares what the throttle has left.
    pub(super) fn is_metered(&self) -> bool {
        !self.reserved.is_empty()
    }
}

impl Gate {
    /// The gate of `node`'s fetching.
    pub(crate) const fn new(node: NodeId, throttle: Arc<ReplicationThrottle>) -> Self {
        Self { node, throttle }
    }

    /// The throttle behind it.
    pub(super) fn throttle(&self) -> &ReplicationThrottle {
        &self.throttle
    }

    /// Whether a partition was left out a moment ago.
    pub(super) fn holds_back(&self, id: TopicIdPartition) -> bool {
        self.throttle.holds_back(self.node, id)
    }

    /// What of `ask` may go out now; `None` = nothing that brings records.
    pub(super) fn pass<P: Followed>(
        &self,
        partition: &P,
        ask: FetchAsk,
        charges: &mut Charges,
    ) -> Option<FetchAsk> {
        if ask.max_bytes == 0 {
            return Some(ask);
        }
        let id = partition.id();
        match partition.metering(&self.throttle) {
            Metering::Free => Some(ask),
            Metering::Counted => {
                charges.counted.insert(id);
                Some(ask)
            }
            Metering::Metered => {
                let reservation = self.throttle.reserve(ask.max_bytes.into());
                let bytes = u32::try_from(reservation.bytes()).unwrap_or(ask.max_bytes);
                if bytes == 0 {
                    return self.hold(id);
                }
                charges.reserved.insert(id, reservation);
                debug_assert!(bytes <= ask.max_bytes, "no more than it asked for");
                Some(FetchAsk { max_bytes: bytes, ..ask })
            }
            Metering::Withheld => self.hold(id),
        }
    }

    fn hold(&self, id: TopicIdPartition) -> Option<FetchAsk> {
        self.held(id);
        None
    }

    /// A partition is left out now.
    pub(super) fn held(&self, id: TopicIdPartition) {
        self.throttle.held(self.node, id);
    }

    /// A request brought so many bytes of a partition.
    pub(super) fn brought(&self, charges: &mut Charges, id: TopicIdPartition, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if let Some(reservation) = charges.reserved.get_mut(&id) {
            reservation.used(bytes);
        } else if charges.counted.contains(&id) {
            self.throttle.count(bytes);
        }
    }
}

//! Fetch below the wire: the stages in the order in which a request passes them.
//!
//! ```text
//!   Session ─▶ LongPoll ─▶ Read
//! ```
//!
//! A throttle of replicas that are catching up belongs between the first two: it has to know the partitions, and must not
//! hold anything while the request is parked. The long poll and the read are shared with follower-agent.

mod respond;
mod session;

use std::sync::Arc;
use std::time::Duration;

use highwater_node::MonotonicClock;
use highwater_serving::fetch::{LongPoll, LongPollLayer, Read, ReadBounds};
use highwater_serving::{FetchPurgatory, PartitionHost};
use tower::ServiceBuilder;

pub(crate) use respond::respond;
use session::{Session, SessionLayer};

/// The longest wait that a request gets, whatever it asks for.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The stages of a Fetch.
pub(crate) type FetchStack = Session<LongPoll<Read>>;

/// Puts the stages together.
pub(crate) fn stack(
    host: Arc<dyn PartitionHost>,
    purgatory: Arc<FetchPurgatory>,
    clock: MonotonicClock,
    bounds: ReadBounds,
) -> FetchStack {
    ServiceBuilder::new()
        // First, because it decides which partitions the request is about.
        .layer(SessionLayer)
        // Finds them, records a follower's progress on arrival, and parks what has nothing to say yet.
        .layer(LongPollLayer::new(host, purgatory, clock, MAX_WAIT))
        // Reads, off the runtime's workers.
        .service(Read::new(clock, bounds))
}

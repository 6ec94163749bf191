//! Fetch below the wire: the stages in the order in which a request passes them.
//!
//! ```text
//!   Session ─▶ Throttle ─▶ LongPoll ─▶ Admit ─▶ Charge ─▶ Read
//! ```
//!
//! Nothing is held in front of the long poll: what a parked request shall not hold stands behind it. The stages but the
//! first are serving's, which both programs share.

mod respond;
mod session;

use std::sync::Arc;
use std::time::Duration;

use highwater_node::MonotonicClock;
use highwater_serving::admission::{Admit, AdmitLayer, Overloaded};
use highwater_serving::fetch::{
    Charge, ChargeLayer, LongPoll, LongPollLayer, Read, ReadBounds, Throttle, ThrottleLayer,
};
use highwater_serving::{Admission, FetchPurgatory, PartitionHost, ReplicationThrottle};
use highwater_types::ReplicationError;
use highwater_wire::status;
use tonic::Status;
use tower::ServiceBuilder;

pub(crate) use respond::respond;
use session::{Session, SessionLayer};

/// The longest wait that a request gets, whatever it asks for.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The stages of a Fetch.
pub(crate) type FetchStack = Session<Throttle<LongPoll<Admit<Charge<Read>>>>>;

/// Why a Fetch is refused as a whole.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It continues a session that is not known.
    Session(ReplicationError),
    /// Too much is in flight.
    Overloaded(Overloaded),
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Session(error) => status::from_error(&error),
            Refused::Overloaded(overloaded) => overloaded.into(),
        }
    }
}

/// What the stages share with the rest of the program.
pub(crate) struct Shared {
    pub(crate) host: Arc<dyn PartitionHost>,
    pub(crate) purgatory: Arc<FetchPurgatory>,
    pub(crate) throttle: Arc<ReplicationThrottle>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) clock: MonotonicClock,
}

/// Puts the stages together.
pub(crate) fn stack(shared: Shared, bounds: ReadBounds) -> FetchStack {
    let Shared { host, purgatory, throttle, admission, clock } = shared;
    ServiceBuilder::new()
        // First, because it decides which partitions the request is about.
        .layer(SessionLayer)
        // Leaves out whom the throttle holds back, and asks anew when it lets them go.
        .layer(ThrottleLayer::new(Arc::clone(&host), Arc::clone(&throttle), clock))
        // Finds them, records a follower's progress on arrival, and parks what has nothing to say yet.
        .layer(LongPollLayer::new(host, purgatory, clock, MAX_WAIT))
        // From here on the answer costs memory.
        .layer(AdmitLayer::new(admission, bounds.answer_bytes))
        // Takes what followers that are catching up get from their quota.
        .layer(ChargeLayer::new(throttle))
        // Reads, off the runtime's workers.
        .service(Read::new(clock, bounds))
}

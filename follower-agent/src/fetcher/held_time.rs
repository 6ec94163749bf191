//! How long this node's throttle keeps partitions of a loop out of its requests.
//!
//! What holds: time counts once, whichever and however many partitions wait; each part of it is told with one request.

use std::time::Duration;

use highwater_types::MonotonicTime;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HeldTime {
    /// The last look, if something was kept out then.
    looked: Option<MonotonicTime>,
    /// What is not told with a request yet.
    untold: Duration,
}

impl HeldTime {
    /// What passed since the last look with something kept out.
    pub(super) fn passed(&mut self, now: MonotonicTime) -> Duration {
        let passed = self.looked.take().map_or(Duration::ZERO, |looked| now.since(looked));
        self.untold += passed;
        passed
    }

    /// Whether something is kept out from now on.
    pub(super) fn look(&mut self, holds_any: bool, now: MonotonicTime) {
        self.looked = holds_any.then_some(now);
    }

    /// What is to be told with the request that goes out.
    pub(super) fn take(&mut self) -> Duration {
        std::mem::take(&mut self.untold)
    }
}

//! The place of each request among all of this program, on which its leaders go (design.md 6.3).

use std::sync::atomic::{AtomicU64, Ordering};

use highwater_protocol::fetch::RequestOrder;

/// Numbers the requests of one start of the program, whichever loop sends them.
#[derive(Debug)]
pub(crate) struct RequestNumbers {
    start: u64,
    next: AtomicU64,
}

impl RequestNumbers {
    /// For this start, which is greater than every one before.
    pub(crate) const fn new(start: u64) -> Self {
        Self { start, next: AtomicU64::new(0) }
    }

    /// The place of a request that is made now.
    pub(crate) fn next(&self) -> RequestOrder {
        RequestOrder { start: self.start, number: self.next.fetch_add(1, Ordering::Relaxed) }
    }
}

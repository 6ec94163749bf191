//! Who waits for an offset of one partition to be reached: by the high watermark (`acks=all`), or by a flush.
//!
//! What must hold: an advance visits only those that it satisfies; a waiter whose future is dropped is gone; a failure
//! lets everybody go. *Register, then look*: who waits looks at the value once more after registering, so that an advance
//! in between is not lost.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use highwater_types::{Offset, ReplicationError};
use parking_lot::Mutex;
use tokio::sync::oneshot;

type Outcome = Result<(), ReplicationError>;

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    by_end: BTreeMap<(Offset, u64), oneshot::Sender<Outcome>>,
}

/// The waiters of one partition.
#[derive(Debug, Default)]
pub(crate) struct OffsetWaiters {
    waiting: Mutex<Waiting>,
}

impl OffsetWaiters {
    /// Waits until `end` is reached or given up.
    pub(crate) fn register(&self, end: Offset) -> OffsetWaiter<'_> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        let id = waiting.next;
        waiting.next += 1;
        waiting.by_end.insert((end, id), sender);
        OffsetWaiter { waiters: self, key: (end, id), receiver }
    }

    /// Everything up to `offset` (exclusive) holds now.
    pub(crate) fn reach(&self, offset: Offset) {
        let reached = {
            let mut waiting = self.waiting.lock();
            let later = waiting.by_end.split_off(&(offset.next(), 0));
            std::mem::replace(&mut waiting.by_end, later)
        };
        for waiter in reached.into_values() {
            // The receiver can be gone: whoever waited timed out or went away.
            let _gone = waiter.send(Ok(()));
        }
    }

    /// Lets everybody go with this error.
    pub(crate) fn give_up(&self, why: &ReplicationError) {
        let all = std::mem::take(&mut self.waiting.lock().by_end);
        for waiter in all.into_values() {
            let _gone = waiter.send(Err(why.clone()));
        }
    }
}

/// A registered waiter; completes when its offset is reached or given up.
#[derive(Debug)]
pub(crate) struct OffsetWaiter<'a> {
    waiters: &'a OffsetWaiters,
    key: (Offset, u64),
    receiver: oneshot::Receiver<Outcome>,
}

impl Future for OffsetWaiter<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        // The sender is dropped without a word by nobody: it is in the map until `reach` or `give_up` takes it.
        Pin::new(&mut self.receiver).poll(cx).map(|outcome| outcome.unwrap_or(Ok(())))
    }
}

impl Drop for OffsetWaiter<'_> {
    fn drop(&mut self) {
        self.waiters.waiting.lock().by_end.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use highwater_types::ErrorCode;

    use super::*;

    fn offset(raw: i64) -> Offset {
        Offset::new(raw).unwrap()
    }

    #[tokio::test]
    async fn an_advance_lets_go_exactly_those_that_it_satisfies() {
        let waiters = OffsetWaiters::default();
        let (at_10, at_20) = (waiters.register(offset(10)), waiters.register(offset(20)));
        waiters.reach(offset(19));
        assert_eq!(at_10.await, Ok(()));
        assert_eq!(waiters.waiting.lock().by_end.len(), 1);
        waiters.reach(offset(20));
        assert_eq!(at_20.await, Ok(()));
    }

    #[tokio::test]
    async fn a_failure_lets_everybody_go_and_a_dropped_waiter_is_gone() {
        let waiters = OffsetWaiters::default();
        drop(waiters.register(offset(1)));
        assert!(waiters.waiting.lock().by_end.is_empty());
        let waits = waiters.register(offset(5));
        let over = ReplicationError::new(ErrorCode::NotLeaderOrFollower, "over");
        waiters.give_up(&over);
        assert_eq!(waits.await, Err(over));
    }
}

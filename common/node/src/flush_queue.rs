//! Flushes of one log, in a queue of their own beside its appends (group commit).
//!
//! What must hold: a request made after an append is answered by a flush that begins after it; requests that gather while one
//! runs become one. The queue is bounded: when it is full, one is waiting that has not begun.

use std::sync::Weak;

use crate::{PushError, SerialQueue};

/// A flush that runs, and one that covers everything appended meanwhile. They are run one by one: were the one that waits
/// taken together with the one that runs, a full queue would not mean that one is still to begin.
const FLUSHES: usize = 2;

/// What can be flushed.
pub trait Flush: Send + Sync + 'static {
    /// Flushes, and tells whoever waits for it. *Blocks.*
    fn run_flush(&self);
}

/// See the module.
#[derive(Debug)]
pub struct FlushQueue(SerialQueue<()>);

impl FlushQueue {
    /// The queue of `owner`, which it does not keep alive. `name` is for people.
    pub fn new<T: Flush>(name: &str, owner: Weak<T>) -> Self {
        Self(SerialQueue::new(format!("flush {name}"), FLUSHES, 1, move |_| {
            if let Some(owner) = owner.upgrade() {
                owner.run_flush();
            }
        }))
    }

    /// Asks for a flush of what is appended by now.
    pub fn request(&self) {
        match self.0.try_push(()) {
            Ok(()) | Err(PushError::Full(()) | PushError::Closed(())) => {}
        }
    }

    /// Whether a flush panicked; the queue is closed then.
    #[must_use]
    pub fn has_panicked(&self) -> bool {
        self.0.has_panicked()
    }

    /// Lets what was asked for run, and accepts nothing more.
    pub async fn close(&self) {
        self.0.close().await;
    }
}

//! What a fetch loop tells about itself, for DescribeFetchers.

use std::sync::atomic::{AtomicU64, Ordering};

use highwater_types::MonotonicTime;
use highwater_wire::{Failure, Reached};
use parking_lot::Mutex;

use super::LoopKey;

/// Counters and the last failure of a loop; written by the loop, read by whoever describes it.
#[derive(Debug, Default)]
pub(crate) struct LoopStatus {
    fetches: AtomicU64,
    bytes: AtomicU64,
    trouble: Mutex<Trouble>,
}

/// Calls that failed in a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// How many; 0 after a success.
    pub(crate) failures: u32,
    /// Why the last one failed; empty after a success.
    pub(crate) last_error: String,
    /// How far the last one came; `None` after a success.
    pub(crate) reached: Option<Reached>,
    /// When the loop calls again, while it waits.
    pub(crate) resumes_at: Option<MonotonicTime>,
}

/// A loop at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoopReport {
    /// Which loop.
    pub(crate) key: LoopKey,
    /// Fetches that it sent since it started.
    pub(crate) fetches: u64,
    /// Bytes of records that it received since it started.
    pub(crate) bytes: u64,
    /// What is wrong now.
    pub(crate) trouble: Trouble,
}

impl Trouble {
    /// When the loop calls again and why it waits, while it does.
    pub(crate) fn waits(&self, now: MonotonicTime) -> Option<(MonotonicTime, &str)> {
        Some((self.resumes_at.filter(|at| *at > now)?, self.last_error.as_str()))
    }

    /// The last call had no answer, and none has had one since.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.reached.is_some_and(|reached| reached != Reached::Program)
    }
}

impl LoopStatus {
    pub(crate) fn sent(&self) {
        self.fetches.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A call succeeded. Answers whether calls had failed before it.
    pub(crate) fn succeeded(&self) -> bool {
        let mut trouble = self.trouble.lock();
        let recovered = trouble.failures > 0;
        if recovered {
            *trouble = Trouble::default();
        }
        recovered
    }

    /// A call failed. Answers whether this is news: the first failure in a row, or another one than the last.
    pub(crate) fn failed(&self, failure: &Failure, resumes_at: MonotonicTime) -> bool {
        let mut trouble = self.trouble.lock();
        let is_news = trouble.failures == 0 || trouble.last_error != failure.message;
        trouble.failures = trouble.failures.saturating_add(1);
        failure.message.clone_into(&mut trouble.last_error);
        trouble.reached = Some(failure.reached);
        trouble.resumes_at = Some(resumes_at);
        is_news
    }

    pub(crate) fn report(&self, key: LoopKey) -> LoopReport {
        LoopReport {
            key,
            fetches: self.fetches.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            trouble: self.trouble.lock().clone(),
        }
    }
}

//! Attempts at partitions that failed: how long to pause before the next one, and whether the reason is worth a log line.
//!
//! What must hold: the pause grows from failure to failure, up to a bound, and is forgotten with the first success, or with
//! the first that lasted; a reason is news once, until another one takes its place.

use std::collections::HashMap;
use std::time::Duration;

use highwater_types::TopicIdPartition;
use tokio::time::Instant;

/// See the module.
#[derive(Debug)]
pub struct Attempts {
    first: Duration,
    max: Duration,
    failed: HashMap<TopicIdPartition, Failed>,
}

#[derive(Debug)]
struct Failed {
    pause: Duration,
    why: String,
    /// When an attempt succeeded since.
    succeeded_at: Option<Instant>,
}

impl Attempts {
    /// Pauses from `first` to `max`, each twice as long as the one before.
    #[must_use]
    pub fn new(first: Duration, max: Duration) -> Self {
        debug_assert!(first <= max, "pauses grow");
        Self { first, max, failed: HashMap::new() }
    }

    /// An attempt failed. Answers how long to pause, and whether this reason is another one than the last.
    pub fn failed(&mut self, id: TopicIdPartition, why: &str) -> (Duration, bool) {
        let has_lasted = |before: &&Failed| before.succeeded_at.is_some_and(|at| at.elapsed() > self.max);
        let before = self.failed.get(&id).filter(|before| !has_lasted(before));
        let pause = before.map_or(self.first, |before| (before.pause * 2).min(self.max));
        let is_news = before.is_none_or(|before| before.why != why);
        self.failed.insert(id, Failed { pause, why: why.to_owned(), succeeded_at: None });
        (pause, is_news)
    }

    /// An attempt succeeded, but may have brought nothing: failures before it count until it has lasted for longer than the
    /// longest pause.
    pub fn succeeded(&mut self, id: TopicIdPartition) {
        if let Some(failed) = self.failed.get_mut(&id) {
            failed.succeeded_at = Some(Instant::now());
        }
    }

    /// An attempt succeeded, or none will be made any more.
    pub fn forget(&mut self, id: TopicIdPartition) {
        self.failed.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use highwater_types::{PartitionIndex, TopicId};

    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_a_reason_is_news_once() {
        let id = TopicIdPartition::new(TopicId::random(), PartitionIndex::new(0).unwrap());
        let mut attempts = Attempts::new(Duration::from_secs(1), Duration::from_secs(3));
        let mut fail = |why| attempts.failed(id, why);
        assert_eq!(fail("full"), (Duration::from_secs(1), true));
        assert_eq!(fail("full"), (Duration::from_secs(2), false));
        assert_eq!(fail("held"), (Duration::from_secs(3), true));
        assert_eq!(fail("full"), (Duration::from_secs(3), true));
        attempts.forget(id);
        assert_eq!(attempts.failed(id, "full"), (Duration::from_secs(1), true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_that_does_not_last_shortens_no_pause() {
        let id = TopicIdPartition::new(TopicId::random(), PartitionIndex::new(0).unwrap());
        let mut attempts = Attempts::new(Duration::from_secs(1), Duration::from_secs(3));
        attempts.succeeded(id);
        assert_eq!(attempts.failed(id, "full"), (Duration::from_secs(1), true));
        for pause in [2, 3, 3] {
            attempts.succeeded(id);
            tokio::time::advance(Duration::from_secs(3)).await;
            assert_eq!(attempts.failed(id, "full"), (Duration::from_secs(pause), false));
        }
        attempts.succeeded(id);
        tokio::time::advance(Duration::from_millis(3_001)).await;
        assert_eq!(attempts.failed(id, "full"), (Duration::from_secs(1), true), "it has lasted");
    }
}

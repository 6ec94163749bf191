//! The end of a partition that others may still read (design.md 6.6: whoever leaves waits, bounded, for answers that still
//! read the log).
//!
//! What must hold: nobody new finds the partition any more, or the wait would never end by itself. A reader is who holds
//! the partition's handle. Deliberately absent: closing the log, and what happens to those who read on.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How often a closing partition looks whether somebody still reads from it.
const READERS_CHECK: Duration = Duration::from_millis(5);

/// Waits until `accepted` work is done and `partition` is the last handle of it; for `patience` in all.
pub async fn wait_for_readers<P>(
    partition: &Arc<P>,
    name: &str,
    accepted: impl Future<Output = ()>,
    patience: Duration,
) {
    let finish = async {
        accepted.await;
        while Arc::strong_count(partition) > 1 {
            tokio::time::sleep(READERS_CHECK).await;
        }
    };
    if tokio::time::timeout(patience, finish).await.is_err() {
        tracing::warn!(partition = name, "closing the log although somebody still uses it");
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wait_ends_with_the_last_reader() {
        let partition = Arc::new(());
        let reader = Arc::clone(&partition);
        let begun = Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop(reader);
        });
        wait_for_readers(&partition, "orders-0", async {}, Duration::from_secs(1)).await;
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_millis(300) && waited <= Duration::from_millis(310), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends_readers_and_work_that_do_not() {
        let partition = Arc::new(());
        let _reader = Arc::clone(&partition);
        let begun = Instant::now();
        wait_for_readers(&partition, "orders-0", async {}, Duration::from_secs(1)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
        wait_for_readers(&partition, "orders-0", std::future::pending(), Duration::from_secs(2)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(3));
    }
}

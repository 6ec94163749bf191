//! Work by the clock.

use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Runs `pass` now and each `interval`, until told to stop. After a pass that took longer the next one begins at once, and
/// the interval counts from there; one that is under way at the stop ends first.
pub async fn every<F: Future<Output = ()>>(
    interval: Duration,
    stop: &CancellationToken,
    mut pass: impl FnMut() -> F,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => pass().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn passes_never_overlap_and_a_stop_lets_the_last_one_end() {
        let (stop, passes) = (CancellationToken::new(), Cell::new(0));
        let began = tokio::time::Instant::now();
        every(Duration::from_secs(1), &stop, || async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            passes.set(passes.get() + 1);
            if passes.get() == 2 {
                stop.cancel();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        })
        .await;
        assert_eq!((passes.get(), began.elapsed()), (2, Duration::from_secs(3 + 3 + 1)));
    }
}

//! Waiting for a condition, with a bound. The only way in which tests wait: a fixed sleep is either too short on a busy
//! machine or too long on every other.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How often a condition is looked at. It bounds how late a test notices, and proves nothing by itself.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Long enough for anything that a loaded machine of two cores does at once; a test that waits this long has failed.
pub const SOON: Duration = Duration::from_secs(20);

/// Looks until `probe` has an answer, and returns it.
///
/// # Panics
/// When there is none within `bound`; the message says for what was waited.
pub async fn until<T>(what: &str, bound: Duration, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + bound;
    loop {
        if let Some(answer) = probe().await {
            return answer;
        }
        assert!(Instant::now() < end, "waited {bound:?} for {what}");
        sleep(LOOK_EVERY).await;
    }
}

/// Looks for as long as `span` and fails when the condition is ever false.
///
/// # Panics
/// When `holds` is false at any look.
pub async fn always(what: &str, span: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        assert!(holds().await, "did not hold: {what}");
        sleep(LOOK_EVERY).await;
    }
}

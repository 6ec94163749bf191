//! Whether a program is ready, by what it knows: health says SERVING while the program holds its session with the
//! coordination store.
//!
//! What must hold: a program that cannot renew serves whom it knows (design.md 6.7), but is named to nobody new: what it
//! knows of the cluster may be old (design.md 6.8), so whoever picks a node by health picks another. Liveness is another
//! question and stays as it is: to restart the program brings no store back. Once the program stops, it is not ready any
//! more.

use highwater_coordination::Membership;
use highwater_node::MonotonicClock;
use highwater_node::grpc::Health;
use tokio_util::sync::CancellationToken;

use crate::describe::SESSION_CHECK;

/// Keeps `health` at what `membership` says until `stop`.
pub async fn follow_session(
    health: Health,
    membership: &Membership,
    clock: MonotonicClock,
    stop: CancellationToken,
) {
    let mut renewals = membership.renewals();
    let mut ready = false;
    loop {
        let holds = membership.holds_its_session(clock.now());
        if holds != ready {
            ready = holds;
            health.set_serving(ready).await;
            if ready {
                tracing::info!("ready: the session with the coordination store is held");
            } else {
                tracing::info!(
                    "not ready: the session with the coordination store is lost; known clients are served on"
                );
            }
        }
        tokio::select! {
            // First: whoever drains has told health already that the program stops.
            biased;
            () = stop.cancelled() => break,
            // The membership lives as long as the program. A renewal that hangs says nothing, hence the timer.
            _ = renewals.changed() => {}
            () = tokio::time::sleep(SESSION_CHECK) => {}
        }
    }
    health.set_serving(false).await;
}

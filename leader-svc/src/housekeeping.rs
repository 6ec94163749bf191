//! What happens by the clock: checkpoints while they move, and retention.
//!
//! What must hold: a pass works on one partition after the other on the blocking pool, so it costs one thread however many
//! partitions there are; a pass that takes longer than its interval delays the next.

use std::sync::Arc;
use std::time::Duration;

use highwater_node::every;
use highwater_serving::Registry;
use highwater_serving::volume::on_disk;
use tokio_util::sync::CancellationToken;

use crate::partition::LedPartition;

/// Runs `work` on every served partition, each `interval`, until told to stop.
pub(crate) async fn each(
    registry: Arc<Registry<LedPartition>>,
    interval: Duration,
    stop: CancellationToken,
    work: fn(&LedPartition),
) {
    every(interval, &stop, || {
        let partitions = registry.online();
        on_disk(move || partitions.iter().for_each(|partition| work(partition)))
    })
    .await;
}

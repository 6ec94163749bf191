//! Produce: every partition of a request at the same time, each with its own outcome.
//!
//! What must hold: the ordered checks of a request's partition (known, identity, led here, epoch) come before its records
//! are looked at; one partition's error or slowness is no other's.

mod batches;

use std::sync::Arc;

use futures::future::join_all;
use highwater_coordination::ClusterView;
use highwater_node::Clocks;
use highwater_node::grpc::Deadline;
use highwater_protocol::fetch::check_epoch;
use highwater_serving::observe::CallSpan;
use highwater_serving::offsets::known_by_both;
use highwater_serving::registry::with_hint;
use highwater_serving::{PartitionHost as _, Registry, fetch::before};
use highwater_types::ReplicationError;
use highwater_wire::produce::{Acks, ProducePartition, ProduceRequest, ProduceResult, Produced};
use tokio::time::Instant;

pub(crate) use batches::CheckedBatches;

use crate::partition::LedPartition;

/// Appends what producers send.
#[derive(Clone, Debug)]
pub(crate) struct Appender {
    host: Arc<Registry<LedPartition>>,
    clocks: Clocks,
}

impl Appender {
    pub(crate) const fn new(host: Arc<Registry<LedPartition>>, clocks: Clocks) -> Self {
        Self { host, clocks }
    }

    /// Appends, and waits for what the request's acks ask for; `call` is the span of the call.
    pub(crate) async fn produce(
        &self,
        request: ProduceRequest,
        deadline: Option<Deadline>,
        call: CallSpan,
    ) -> Vec<ProduceResult> {
        let until = Instant::now() + before(deadline, request.timeout);
        let view = self.host.view();
        join_all(request.partitions.into_iter().map(|partition| {
            let view = &view;
            async move {
                let (topic, index) = (known_by_both(view, &partition.topic), partition.partition);
                let outcome = self.one(view, partition, (request.acks, until), call).await;
                ProduceResult { topic, partition: index, outcome }
            }
        }))
        .await
    }

    async fn one(
        &self,
        view: &ClusterView,
        asked: ProducePartition,
        (acks, until): (Acks, Instant),
        call: CallSpan,
    ) -> Result<Produced, ReplicationError> {
        let (topic, found) = self.host.find(view, &asked.topic, asked.partition);
        // By the view of that moment: the leadership may have moved while the request waited.
        let hinted = |error| {
            with_hint(&self.host.view(), topic.as_ref().map(|topic| topic.id), asked.partition, error)
        };
        let partition = found?;
        check_epoch(asked.current_leader_epoch, partition.replica().epoch()).map_err(hinted)?;
        let max_message_bytes = partition.topic_record().properties.max_message_bytes;
        let batches = batches::check(asked.records, max_message_bytes, self.clocks.wall_now()).await?;
        partition.produce(batches, acks, until, call.0).await.map_err(hinted)
    }
}

//! What the gauges of follower-agent show: how far its partitions are behind, why, and which have failed.

use highwater_proto::v1;
use highwater_serving::observe::follower_attribute;
use highwater_serving::{PartitionHost as _, Registry};
use highwater_telemetry::names::{attribute, metric};
use highwater_telemetry::{KeyValue, Observations};
use highwater_types::MonotonicTime;
use highwater_wire::lag::cause_name;

use crate::Fetchers;
use crate::describe::describe;
use crate::partition::FollowedPartition;

/// What the gauges show: the same rows as DescribeFetchers.
pub(crate) fn observe(
    seen: &mut Observations,
    registry: &Registry<FollowedPartition>,
    fetchers: Option<&Fetchers>,
    now: MonotonicTime,
) {
    let described = describe(registry, fetchers, now);
    let rows = described.fetchers.iter().flat_map(|fetcher| &fetcher.partitions);
    let mut failed = 0;
    for row in rows.chain(&described.unassigned) {
        let about = vec![
            KeyValue::new(attribute::TOPIC, row.topic.clone()),
            KeyValue::new(attribute::PARTITION, row.partition.unwrap_or_default().to_string()),
            follower_attribute(registry.node()),
        ];
        if let Some(records) = row.lag_records {
            seen.count(metric::LAG_RECORDS, records, about.clone());
        }
        failed += u64::from(row.state() == v1::FetchState::Failed);
        if row.cause() != v1::LagCause::None {
            let cause = KeyValue::new(attribute::LAG_CAUSE, cause_name(row.cause()));
            seen.count(metric::LAGGING, 1, [about, vec![cause]].concat());
        }
    }
    seen.count(metric::FAILED, failed, Vec::new());
}

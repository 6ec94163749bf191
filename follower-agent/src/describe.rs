//! DescribeFetchers: every loop with its partitions, and what no loop has.
//!
//! What must hold: every partition that this node follows is in the answer, once. A failed partition stays the loop's, which
//! tries it again, but it is shown among those that no loop fetches.

use std::collections::BTreeSet;
use std::sync::Arc;

use highwater_coordination::ClusterView;
use highwater_proto::v1;
use highwater_protocol::follower::{FailureReason, FollowerPartition, PartitionFetchState};
use highwater_protocol::lag_cause::{LagCause, LagFacts};
use highwater_serving::{HostedReplica as _, Hosting, PartitionHost as _, Registry};
use highwater_types::{MonotonicTime, TopicIdPartition};
use highwater_wire::lag::encode_lag_cause;
use highwater_wire::loss::encode_loss;

use crate::Fetchers;
use crate::fetcher::{LoopReport, Trouble};
use crate::partition::{FollowedPartition, LastWay};

/// The answer at `now`.
pub(crate) fn describe(
    registry: &Registry<FollowedPartition>,
    fetchers: Option<&Fetchers>,
    now: MonotonicTime,
) -> v1::DescribeFetchersResponse {
    let loops = fetchers.map(Fetchers::describe).unwrap_or_default();
    let mut shown = BTreeSet::new();
    let mut unassigned = Vec::new();
    let mut answer = Vec::with_capacity(loops.len());
    for (report, partitions) in loops {
        let mut rows = Vec::with_capacity(partitions.len());
        for partition in partitions {
            shown.insert(partition.replica().id());
            let held = fetchers.is_some_and(|fetchers| fetchers.holds_back(partition.replica().id()));
            let row = row(&partition, now, &report.trouble, held);
            if row.state() == v1::FetchState::Failed { unassigned.push(row) } else { rows.push(row) }
        }
        rows.sort_by(by_name);
        answer.push(fetcher(report, rows));
    }
    let view = registry.view();
    let rest = registry.ids().into_iter().filter(|id| !shown.contains(id));
    unassigned.extend(rest.filter_map(|id| without_loop(registry, &view, id, now)));
    unassigned.sort_by(by_name);
    v1::DescribeFetchersResponse { node_id: Some(registry.node().get()), fetchers: answer, unassigned }
}

fn by_name(a: &v1::FollowedPartition, b: &v1::FollowedPartition) -> std::cmp::Ordering {
    (&a.topic, a.partition).cmp(&(&b.topic, b.partition))
}

fn fetcher(report: LoopReport, partitions: Vec<v1::FollowedPartition>) -> v1::Fetcher {
    v1::Fetcher {
        leader_id: Some(report.key.leader.get()),
        endpoint: report.key.endpoint.to_string(),
        fetcher: Some(report.key.fetcher),
        fetches: Some(report.fetches),
        bytes: Some(report.bytes),
        failures: Some(report.trouble.failures),
        last_error: report.trouble.last_error,
        partitions,
    }
}

/// A partition at `now`; `trouble` is its loop's, `held` says whether the throttle holds it back.
fn row(
    partition: &FollowedPartition,
    now: MonotonicTime,
    trouble: &Trouble,
    held: bool,
) -> v1::FollowedPartition {
    let replica = partition.replica();
    let now_is = replica.state(now);
    let disk_failed = matches!(now_is, PartitionFetchState::Failed { reason: FailureReason::Storage(_), .. });
    let last_epoch = replica.facts().epochs.latest().map(|entry| entry.epoch.get());
    let (state, reason, until) = match (now_is, trouble.waits(now)) {
        (PartitionFetchState::Failed { reason, retry_at }, _) => {
            (v1::FetchState::Failed, reason.to_string(), retry_at)
        }
        (PartitionFetchState::Truncating, _) => (v1::FetchState::Truncating, String::new(), None),
        (PartitionFetchState::Delayed { until, reason }, _) => {
            (v1::FetchState::Delayed, reason.to_string(), Some(until))
        }
        (PartitionFetchState::Fetching, _) if partition.is_paused() => {
            (v1::FetchState::Paused, "a person paused it".to_owned(), None)
        }
        (PartitionFetchState::Fetching, Some((until, why))) => {
            (v1::FetchState::Delayed, why.to_owned(), Some(until))
        }
        (PartitionFetchState::Fetching, None) => (v1::FetchState::Fetching, damage(partition), None),
    };
    let loss = replica.log().unclean_loss().as_ref().map(encode_loss);
    let is_failed = state == v1::FetchState::Failed;
    let hindered = is_failed || state == v1::FetchState::Delayed || trouble.failures > 0;
    let facts = LagFacts {
        paused: state == v1::FetchState::Paused,
        disk_failed,
        unanswered: trouble.is_unanswered() && !is_failed,
        backing_off: hindered,
        truncating: state == v1::FetchState::Truncating,
        ..LagFacts::default()
    };
    let millis = |until: MonotonicTime| u64::try_from(until.since(now).as_millis()).unwrap_or(u64::MAX);
    replica.inspect(|core| v1::FollowedPartition {
        topic: partition.topic().to_string(),
        topic_id: replica.id().topic_id.to_string(),
        partition: Some(replica.id().partition.get()),
        state: state.into(),
        reason,
        retry_in_ms: until.map(millis),
        incarnation: Some(core.incarnation().to_string()),
        leader_id: Some(core.leader().get()),
        leader_epoch: Some(core.leader_epoch().get()),
        last_fetched_epoch: last_epoch,
        fetch_offset: Some(core.fetch_offset().get()),
        acknowledged_offset: Some(core.acknowledged().get()),
        log_start_offset: Some(core.log_start().get()),
        log_end_offset: Some(core.log_end().get()),
        high_watermark: Some(core.high_watermark().get()),
        // What the leader has more by now is not known while nothing is fetched.
        lag_records: core.lag().filter(|_| !hindered),
        cause: encode_lag_cause(cause(core, facts, partition.last_way()).if_throttled(held && !hindered))
            .into(),
        loss,
    })
}

/// What of the partition's log is damaged, as a reason; empty when nothing is.
fn damage(partition: &FollowedPartition) -> String {
    let replica = partition.replica();
    let ranges: Vec<_> = replica.damage().iter().map(|damage| damage.range.to_string()).collect();
    if replica.inspect(FollowerPartition::is_damaged) {
        return format!("offsets {} are damaged; they are read from the leader again", ranges.join(", "));
    }
    if ranges.is_empty() {
        return String::new();
    }
    format!("offsets {} are lost: the leader does not have them either", ranges.join(", "))
}

/// Why it lags: `facts`, and what the replica and its last answer show. While it does not fetch, what the leader has more by
/// now is not known.
fn cause(core: &FollowerPartition, facts: LagFacts, last: Option<LastWay>) -> LagCause {
    LagFacts {
        lag_records: core.lacking().filter(|_| !facts.backing_off && !facts.paused),
        disk_failed: facts.disk_failed || core.is_damaged(),
        awaits_disk: core.fetch_offset() > core.acknowledged(),
        throttled: last.is_some_and(|way| way.throttled),
        delays: last.map(|way| way.delays),
        ..facts
    }
    .cause()
}

/// A partition that no loop has: without a known leader, being opened, or not to be opened.
fn without_loop(
    registry: &Registry<FollowedPartition>,
    view: &Arc<ClusterView>,
    id: TopicIdPartition,
    now: MonotonicTime,
) -> Option<v1::FollowedPartition> {
    let (state, cause, why) = match registry.get(id)? {
        Hosting::Online(partition) => {
            let row = row(&partition, now, &Trouble::default(), false);
            let reason = if row.reason.is_empty() {
                "its leader's address is not known".to_owned()
            } else {
                row.reason
            };
            let cause = v1::LagCause::LeaderUnknown.into();
            return Some(v1::FollowedPartition { reason, cause, lag_records: None, ..row });
        }
        Hosting::Opening(why) => (v1::FetchState::Delayed, v1::LagCause::NotFetching, why),
        Hosting::Failed(why) => (v1::FetchState::Failed, v1::LagCause::BackOff, why),
    };
    let record = view.partition(id);
    Some(v1::FollowedPartition {
        topic: view.topic(id.topic_id).map(|topic| topic.name.to_string()).unwrap_or_default(),
        topic_id: id.topic_id.to_string(),
        partition: Some(id.partition.get()),
        state: state.into(),
        reason: why.message,
        leader_id: record.and_then(|record| record.leader).map(|leader| leader.get()),
        leader_epoch: record.and_then(|record| record.leader_epoch).map(|epoch| epoch.get()),
        cause: cause.into(),
        ..v1::FollowedPartition::default()
    })
}

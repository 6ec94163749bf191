//! The views of replication as plain values, ready to be shown or serialised.

use std::collections::BTreeMap;

use highwater_proto::v1;
use highwater_types::NodeId;
use serde::Serialize;

use crate::ClientError;
pub use crate::leaderless::LeaderlessRow;

/// How far one follower of one partition is, as its leader knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplicaRow {
    /// The topic's name.
    pub topic: String,
    /// The topic's id.
    pub topic_id: String,
    /// The partition.
    pub partition: i32,
    /// The leader's node.
    pub leader: i32,
    /// The leader epoch.
    pub leader_epoch: Option<i32>,
    /// The end of the leader's log (exclusive offset).
    pub leader_end_offset: Option<i64>,
    /// The leader's high watermark (exclusive offset).
    pub leader_high_watermark: Option<i64>,
    /// The follower's node.
    pub replica: i32,
    /// `unknown`, `catching-up`, `in-sync`.
    pub state: String,
    /// Whether it is in the recorded in-sync set.
    pub in_sync: bool,
    /// Where it last read (exclusive offset).
    pub log_end_offset: Option<i64>,
    /// What it has acknowledged (exclusive offset).
    pub acknowledged_offset: Option<i64>,
    /// The high watermark that it last reported (exclusive offset).
    pub high_watermark: Option<i64>,
    /// In records (offsets).
    pub lag_records: Option<u64>,
    /// In bytes.
    pub lag_bytes: Option<u64>,
    /// In milliseconds.
    pub lag_ms: Option<u64>,
    /// In milliseconds.
    pub last_fetch_age_ms: Option<u64>,
    /// Why it lags: a word of deploy/observability.md.
    pub cause: String,
    /// What the leader has on record as lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leader_lost: Vec<LostOffsets>,
}

/// Records that nobody gets from a leader any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LostOffsets {
    /// The first lost offset.
    pub start_offset: i64,
    /// The end of what is lost (exclusive offset).
    pub end_offset: i64,
}

/// How far every follower is, as far as it can be known.
#[derive(Debug, Default)]
pub struct ReplicationView {
    /// The followers of the partitions that are led, by topic, partition and follower.
    pub rows: Vec<ReplicaRow>,
    /// The replicas of the partitions that nobody leads, likewise.
    pub leaderless: Vec<LeaderlessRow>,
    /// The nodes that could not be asked, with why.
    pub unreachable: BTreeMap<NodeId, ClientError>,
    /// Why nobody could say which nodes there are: `leaderless` then holds what the bootstrap agents say of their failures.
    pub cluster_unknown: Option<ClientError>,
}

/// A fetch loop of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FetcherRow {
    /// The agent's node.
    pub node: i32,
    /// The leader's node.
    pub leader: i32,
    /// Where the leader is reached.
    pub endpoint: String,
    /// The loop's number among the loops to this leader.
    pub fetcher: u32,
    /// Fetches sent since it started.
    pub fetches: u64,
    /// Bytes of records received since it started.
    pub bytes: u64,
    /// Calls that failed in a row.
    pub failures: u32,
    /// The last failure; empty when there was none since the last success.
    pub last_error: String,
    /// Its partitions.
    pub partitions: Vec<FollowedRow>,
}

/// A partition that an agent follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FollowedRow {
    /// The topic's name.
    pub topic: String,
    /// The topic's id.
    pub topic_id: String,
    /// The partition.
    pub partition: i32,
    /// `truncating`, `fetching`, `delayed`, `failed`.
    pub state: String,
    /// Why it is delayed or failed; empty otherwise.
    pub reason: String,
    /// In milliseconds; absent when not delayed.
    pub retry_in_ms: Option<u64>,
    /// The replica's incarnation.
    pub incarnation: Option<String>,
    /// The leader's node.
    pub leader: Option<i32>,
    /// The leader epoch under which the replica works.
    pub leader_epoch: Option<i32>,
    /// The leader epoch of the last record.
    pub last_fetched_epoch: Option<i32>,
    /// Where the next fetch reads.
    pub fetch_offset: Option<i64>,
    /// What has been acknowledged (exclusive offset).
    pub acknowledged_offset: Option<i64>,
    /// The first offset in the log.
    pub log_start_offset: Option<i64>,
    /// The end of the log (exclusive offset).
    pub log_end_offset: Option<i64>,
    /// The high watermark (exclusive offset).
    pub high_watermark: Option<i64>,
    /// In records (offsets).
    pub lag_records: Option<u64>,
    /// Why it lags, as far as the follower sees it: the word of [`ReplicaRow::cause`].
    pub cause: String,
}

/// What an agent says about its loops.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fetchers {
    /// The loops.
    pub fetchers: Vec<FetcherRow>,
    /// Followed partitions that no loop has.
    pub unassigned: Vec<FollowedRow>,
}

impl Fetchers {
    /// Every followed partition, with the failure that it or its loop waits after.
    pub(crate) fn told(&self) -> impl Iterator<Item = (&FollowedRow, Option<&str>)> {
        let fetched =
            self.fetchers.iter().flat_map(|of| of.partitions.iter().map(|row| (row, of.last_error.as_str())));
        let others = self.unassigned.iter().map(|row| (row, ""));
        fetched.chain(others).map(|(row, last_error)| {
            (row, [row.reason.as_str(), last_error].into_iter().find(|error| !error.is_empty()))
        })
    }
}

pub(crate) fn replica_rows(answer: v1::DescribeReplicationResponse) -> Vec<ReplicaRow> {
    let leader = answer.node_id.unwrap_or(-1);
    let rows = |led: v1::LedPartition| {
        let followers = led.followers.clone();
        followers.into_iter().map(move |follower| replica_row(leader, &led, follower))
    };
    answer.partitions.into_iter().flat_map(rows).collect()
}

fn replica_row(leader: i32, led: &v1::LedPartition, follower: v1::FollowerProgress) -> ReplicaRow {
    ReplicaRow {
        topic: led.topic.clone(),
        topic_id: led.topic_id.clone(),
        partition: led.partition.unwrap_or(-1),
        leader,
        leader_epoch: led.leader_epoch,
        leader_end_offset: led.log_end_offset,
        leader_high_watermark: led.high_watermark,
        replica: follower.replica_id.unwrap_or(-1),
        state: name(follower.state().as_str_name(), "REPLICA_STATE_"),
        in_sync: follower.in_sync.unwrap_or(false),
        cause: name(follower.cause().as_str_name(), "LAG_CAUSE_"),
        log_end_offset: follower.log_end_offset,
        acknowledged_offset: follower.acknowledged_offset,
        high_watermark: follower.high_watermark,
        lag_records: follower.lag_records,
        lag_bytes: follower.lag_bytes,
        lag_ms: follower.lag_ms,
        last_fetch_age_ms: follower.last_fetch_age_ms,
        leader_lost: led.lost.iter().filter_map(lost_offsets).collect(),
    }
}

fn lost_offsets(lost: &v1::LostRange) -> Option<LostOffsets> {
    Some(LostOffsets { start_offset: lost.start_offset?, end_offset: lost.end_offset? })
}

pub(crate) fn fetchers(answer: v1::DescribeFetchersResponse) -> Fetchers {
    let node = answer.node_id.unwrap_or(-1);
    let row = |fetcher: v1::Fetcher| FetcherRow {
        node,
        leader: fetcher.leader_id.unwrap_or(-1),
        endpoint: fetcher.endpoint,
        fetcher: fetcher.fetcher.unwrap_or(0),
        fetches: fetcher.fetches.unwrap_or(0),
        bytes: fetcher.bytes.unwrap_or(0),
        failures: fetcher.failures.unwrap_or(0),
        last_error: fetcher.last_error,
        partitions: fetcher.partitions.into_iter().map(followed_row).collect(),
    };
    Fetchers {
        fetchers: answer.fetchers.into_iter().map(row).collect(),
        unassigned: answer.unassigned.into_iter().map(followed_row).collect(),
    }
}

fn followed_row(followed: v1::FollowedPartition) -> FollowedRow {
    let cause = name(followed.cause().as_str_name(), "LAG_CAUSE_");
    FollowedRow {
        cause,
        partition: followed.partition.unwrap_or(-1),
        state: name(followed.state().as_str_name(), "FETCH_STATE_"),
        topic: followed.topic,
        topic_id: followed.topic_id,
        reason: followed.reason,
        retry_in_ms: followed.retry_in_ms,
        incarnation: followed.incarnation,
        leader: followed.leader_id,
        leader_epoch: followed.leader_epoch,
        last_fetched_epoch: followed.last_fetched_epoch,
        fetch_offset: followed.fetch_offset,
        acknowledged_offset: followed.acknowledged_offset,
        log_start_offset: followed.log_start_offset,
        log_end_offset: followed.log_end_offset,
        high_watermark: followed.high_watermark,
        lag_records: followed.lag_records,
    }
}

/// `REPLICA_STATE_CATCHING_UP` → `catching-up`.
fn name(on_wire: &str, prefix: &str) -> String {
    on_wire.strip_prefix(prefix).unwrap_or(on_wire).to_ascii_lowercase().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_per_follower_with_readable_states() {
        let follower = |id, state: v1::ReplicaState, cause: v1::LagCause| v1::FollowerProgress {
            replica_id: Some(id),
            state: state.into(),
            cause: cause.into(),
            lag_records: Some(0),
            ..v1::FollowerProgress::default()
        };
        let led = v1::LedPartition {
            topic: "orders".into(),
            partition: Some(0),
            followers: vec![
                follower(2, v1::ReplicaState::InSync, v1::LagCause::None),
                follower(3, v1::ReplicaState::CatchingUp, v1::LagCause::NotFetching),
            ],
            ..v1::LedPartition::default()
        };
        let rows = replica_rows(v1::DescribeReplicationResponse { node_id: Some(1), partitions: vec![led] });
        let shown: Vec<_> =
            rows.iter().map(|r| (r.leader, r.replica, r.state.as_str(), r.cause.as_str())).collect();
        assert_eq!(shown, [(1, 2, "in-sync", "none"), (1, 3, "catching-up", "not-fetching")]);
    }
}

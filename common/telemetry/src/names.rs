//! Every name that is exported: spans, attributes, metrics. Those of OpenTelemetry's conventions for RPC (v1.44) and
//! messaging (development) keep their names; our own are `replication.*`. deploy/observability.md explains each; a test
//! keeps that table complete.

/// Names of spans. A call's span is named after its method.
pub mod span {
    /// From the leader's append until the follower holds the records: its duration is the replication lag. Followed by
    /// the topic.
    pub const REPLICATE: &str = "replicate";
    /// A Fetch was parked.
    pub const PARK: &str = "fetch.park";
    /// A Fetch read from the log.
    pub const READ: &str = "log.read";
    /// The leader appended a Produce.
    pub const APPEND: &str = "log.append";
    /// The in-sync replicas came to hold a Produce.
    pub const HW_ADVANCE: &str = "hw.advance";
    /// The follower appended an answer.
    pub const REPLICA_APPEND: &str = "replica.append";
    /// The follower flushed an answer.
    pub const REPLICA_FLUSH: &str = "replica.flush";
}

/// Names of span events.
pub mod event {
    /// A quota held the answer back.
    pub const THROTTLE: &str = "throttle";
}

/// Names of attributes, of spans and of metrics.
pub mod attribute {
    /// `grpc`.
    pub const RPC_SYSTEM: &str = "rpc.system.name";
    /// Service and method, `highwater.v1.LogService/Fetch`.
    pub const RPC_METHOD: &str = "rpc.method";
    /// The status by name, `OK`. Conventions after v1.44 rename it: this is the only place to change.
    pub const RPC_STATUS: &str = "rpc.response.status_code";
    /// The called host.
    pub const SERVER_ADDRESS: &str = "server.address";
    /// The called port.
    pub const SERVER_PORT: &str = "server.port";
    /// What failed: a status or an error code.
    pub const ERROR_TYPE: &str = "error.type";
    /// `highwater`.
    pub const MESSAGING_SYSTEM: &str = "messaging.system";
    /// `fetch` or `produce`.
    pub const MESSAGING_OPERATION: &str = "messaging.operation.name";
    /// `receive` or `send`.
    pub const MESSAGING_OPERATION_TYPE: &str = "messaging.operation.type";
    /// The topic.
    pub const TOPIC: &str = "messaging.destination.name";
    /// The partition's number, as text.
    pub const PARTITION: &str = "messaging.destination.partition.id";
    /// How many records.
    pub const RECORDS: &str = "messaging.batch.message_count";
    /// The leader's node.
    pub const LEADER_ID: &str = "replication.leader.id";
    /// The leader epoch.
    pub const LEADER_EPOCH: &str = "replication.leader.epoch";
    /// The follower's node.
    pub const FOLLOWER_ID: &str = "replication.follower.id";
    /// Where a follower read.
    pub const FETCH_OFFSET: &str = "replication.fetch.offset";
    /// The offset of the first record.
    pub const BASE_OFFSET: &str = "replication.base.offset";
    /// The offset behind the last record.
    pub const END_OFFSET: &str = "replication.end.offset";
    /// The high watermark.
    pub const HIGH_WATERMARK: &str = "replication.hw";
    /// The leader's log end.
    pub const LOG_END: &str = "replication.leo";
    /// Records that the follower still lacks.
    pub const LAG_RECORDS: &str = "replication.lag.records";
    /// Bytes that the follower lacked when it asked.
    pub const LAG_BYTES: &str = "replication.lag.bytes";
    /// The replication lag in milliseconds.
    pub const LAG_MS: &str = "replication.lag.ms";
    /// Why the follower lags: one word.
    pub const LAG_CAUSE: &str = "replication.lag.cause";
    /// Bytes of records.
    pub const BYTES: &str = "replication.bytes";
    /// How many partitions.
    pub const PARTITIONS: &str = "replication.partitions";
    /// How long a Fetch was parked, in milliseconds.
    pub const WAIT_MS: &str = "replication.wait.ms";
    /// Why a Fetch was answered.
    pub const WAIT_OUTCOME: &str = "replication.wait.outcome";
    /// How long a quota holds back, in milliseconds.
    pub const THROTTLE_MS: &str = "replication.throttle.ms";
    /// Which side throttles: `leader` or `follower`.
    pub const THROTTLE_SIDE: &str = "replication.throttle.side";
    /// What became of a Fetch: `idle`, `productive`, `failed`.
    pub const FETCH_OUTCOME: &str = "replication.fetch.outcome";
    /// Who fetched: `follower` or `consumer`.
    pub const REQUESTER: &str = "replication.requester";
    /// What was dropped: `spans` or `metrics`.
    pub const SIGNAL: &str = "replication.telemetry.signal";
    /// The node of the program; on the resource.
    pub const NODE_ID: &str = "replication.node.id";
}

/// Names of metrics.
pub mod metric {
    /// Histogram, seconds: calls served, idle polls apart.
    pub const RPC_SERVER_DURATION: &str = "rpc.server.call.duration";
    /// Histogram, seconds: fetches that brought something or failed, as the follower waited for them.
    pub const RPC_CLIENT_DURATION: &str = "rpc.client.call.duration";
    /// Counter: fetches by outcome and requester.
    pub const FETCHES: &str = "replication.fetches";
    /// Histogram, seconds: how long fetches were parked.
    pub const FETCH_WAIT: &str = "replication.fetch.wait.duration";
    /// Histogram, seconds: one write to a log.
    pub const APPEND: &str = "replication.append.duration";
    /// Histogram, seconds: one flush of a log.
    pub const FLUSH: &str = "replication.flush.duration";
    /// Histogram, seconds: the replication lag of each answer with records.
    pub const LAG: &str = "replication.lag.duration";
    /// Counter, seconds: how long answers were held back by a quota.
    pub const THROTTLE: &str = "replication.throttle.duration";
    /// Counter: errors by code.
    pub const ERRORS: &str = "replication.errors";
    /// Counter: spans that were dropped, and exports of metrics that failed.
    pub const DROPPED: &str = "replication.telemetry.dropped";
    /// Gauge: records that a follower lacks.
    pub const LAG_RECORDS: &str = "replication.lag.records";
    /// Gauge, bytes: what a follower lacks.
    pub const LAG_BYTES: &str = "replication.lag.bytes";
    /// Gauge, seconds: how long ago a follower had everything.
    pub const LAG_TIME: &str = "replication.lag.time";
    /// Gauge: 1 for each replica that lags, with the cause.
    pub const LAGGING: &str = "replication.lagging";
    /// Gauge: partitions led with fewer replicas in sync than assigned.
    pub const UNDER_REPLICATED: &str = "replication.under_replicated";
    /// Gauge: the size of the in-sync set.
    pub const ISR_SIZE: &str = "replication.isr.size";
    /// Gauge: partitions that failed here.
    pub const FAILED: &str = "replication.failed";
    /// Gauge: fetches parked now.
    pub const PARKED: &str = "replication.fetch.parked";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    const DOCUMENT: &str = include_str!("../../../deploy/observability.md");

    /// The values of the constants above.
    fn names() -> BTreeSet<&'static str> {
        let constants = include_str!("names.rs").lines().filter(|line| line.starts_with("    pub const"));
        constants.filter_map(|line| line.split('"').nth(1)).collect()
    }

    #[test]
    fn every_name_is_documented() {
        assert!(names().len() > 40, "they are found");
        let missing: Vec<_> =
            names().into_iter().filter(|name| !DOCUMENT.contains(&format!("`{name}`"))).collect();
        assert_eq!(missing, Vec::<&str>::new());
    }

    #[test]
    fn every_documented_name_of_ours_exists() {
        let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `"));
        let first_cells = rows.filter_map(|row| row.split('|').nth(1));
        let documented = first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        let ours = documented.filter(|name| name.starts_with("replication.") || name.starts_with("rpc."));
        let unknown: Vec<_> = ours.filter(|name| !names().contains(name)).collect();
        assert_eq!(unknown, Vec::<&str>::new());
    }
}

//! leader-svc's settings: the table, and what several of them must be together. Names are Kafka's where Kafka has the
//! setting. Topic properties are elsewhere: they are the topic's, not the program's.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use highwater_node::config::{
    ByteSize, CommonSettings, CoordinationTarget, IO_THREADS_MAX, RECOVERY_THREADS_MAX,
};
use highwater_types::{ByteRate, ThrottledReplicas};

highwater_node::settings! {
    /// leader-svc's own settings.
    pub struct LeaderSettings {
        /// The address to listen on.
        listen: SocketAddr = "listen", default "0.0.0.0:9400";
        /// How long a program may be silent before it counts as dead, in milliseconds; it renews six times as often.
        session_timeout: Duration = "broker.session.timeout.ms", default "3s", in Duration::from_millis(300)..=Duration::from_secs(600);
        /// How long a follower may trail the leader and still count as caught up, in milliseconds.
        replica_lag_time_max: Duration = "replica.lag.time.max.ms", default "30s", in Duration::from_millis(100)..=Duration::from_secs(86_400);
        /// How often parked followers are told of a new high watermark at most, in milliseconds.
        hw_propagation: Duration = "replica.hw.propagation.ms", default "10ms", in Duration::ZERO..=Duration::from_secs(60);
        /// How often high watermark, log start and recovery point are written while they move, in milliseconds.
        checkpoint_interval: Duration = "replica.high.watermark.checkpoint.interval.ms", default "1s", in Duration::from_millis(10)..=Duration::from_secs(60);
        /// How often old segments are looked for, in milliseconds.
        retention_check_interval: Duration = "log.retention.check.interval.ms", default "5min", in Duration::from_millis(10)..=Duration::from_secs(86_400);
        /// The most bytes of records in one answer to a Fetch, whatever it asks for; a first batch may be larger.
        fetch_max_bytes: ByteSize = "fetch.max.bytes", default "55MiB", in ByteSize(1024)..=ByteSize(1 << 30);
        /// The largest request that is taken, in bytes.
        request_max_bytes: ByteSize = "socket.request.max.bytes", default "100MiB", in ByteSize(1024)..=ByteSize(1 << 30);
        /// How many answers are read from disks at the same time.
        io_threads: NonZeroU32 = "num.io.threads", default "8", in NonZeroU32::MIN..=IO_THREADS_MAX;
        /// How many partitions are opened at the same time.
        recovery_threads: NonZeroU32 = "num.recovery.threads.per.data.dir", default "2", in NonZeroU32::MIN..=RECOVERY_THREADS_MAX;
        /// How many appends may wait at one partition; whoever brings one more waits.
        queued_appends: NonZeroU32 = "queued.max.requests", default "500", in NonZeroU32::MIN..=QUEUED_APPENDS_MAX;
        /// How long a replica waits for each one that may lead before it does, in the order of the list of replicas, before it takes a leadership, in milliseconds.
        leadership_stagger: Duration = "leader.stagger.ms", default "500ms", in Duration::ZERO..=Duration::from_secs(60);
        /// How much this node sends to followers that are catching up, as a number with a unit per second (8MB/s). Absent: as much as they take.
        throttled_rate: Option<ByteRate> = "leader.replication.throttled.rate", optional;
        /// The replicas that this counts: * for all, or TOPIC and TOPIC:PARTITION, separated by commas.
        throttled_replicas: ThrottledReplicas = "leader.replication.throttled.replicas", default "*";
        /// How many bytes of records may be in flight, in requests to append and in answers; what is above is refused for now.
        in_flight_max: ByteSize = "in.flight.max.bytes", default "256MiB", in ByteSize(1 << 20)..=ByteSize(1 << 40);
        /// How many of these are kept for answers to followers.
        in_flight_reserve: ByteSize = "in.flight.replication.reserve.bytes", default "64MiB", in ByteSize(0)..=ByteSize(1 << 40);
        /// How long an answer may wait for its requester to read it, in milliseconds; then the connection is closed.
        in_flight_unread: Duration = "in.flight.unread.max.ms", default "60s", in Duration::from_secs(1)..=Duration::from_secs(3_600);
    }
}

const QUEUED_APPENDS_MAX: NonZeroU32 = NonZeroU32::new(100_000).unwrap();

/// What several settings must be together.
///
/// # Errors
/// What is wrong, with the settings' names.
pub fn check(common: &CommonSettings, own: &LeaderSettings) -> Result<(), String> {
    if own.in_flight_reserve >= own.in_flight_max {
        return Err(format!(
            "in.flight.replication.reserve.bytes ({:?}) must be below in.flight.max.bytes ({:?}): clients need some, too",
            own.in_flight_reserve, own.in_flight_max
        ));
    }
    match common.coordination {
        CoordinationTarget::File(_) | CoordinationTarget::Etcd(_) => Ok(()),
        CoordinationTarget::Leader(_) => Err(
            "setting coordination: leader-svc writes the cluster's records, so it needs a store; file:DIR is allowed"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use highwater_node::config::{Settings as _, example_file, table_faults};

    use super::*;

    #[test]
    fn the_table_is_sound_and_its_example_names_every_setting() {
        let keys = [CommonSettings::KEYS, LeaderSettings::KEYS].concat();
        assert_eq!(table_faults(&keys), Vec::<String>::new());
        let example = include_str!("../leader-svc.example.toml");
        assert_eq!(example, example_file("leader-svc", &keys), "write the example file anew");
    }

    #[test]
    fn leader_svc_cannot_run_on_a_view_of_another_leader() {
        let values = |target: &str| {
            let keys = [CommonSettings::KEYS, LeaderSettings::KEYS].concat();
            let flag = |name, text: &str| (name, text.to_owned());
            let flags = vec![flag("node.id", "1"), flag("data.dir", "/d"), flag("coordination", target)];
            let sources = highwater_node::config::Sources { flags, ..Default::default() };
            let values = highwater_node::config::load(&keys, &sources).unwrap();
            check(
                &CommonSettings::from_values(&values).unwrap(),
                &LeaderSettings::from_values(&values).unwrap(),
            )
        };
        assert_eq!(values("file:/c"), Ok(()));
        assert!(values("leader:a:9400").unwrap_err().contains("coordination"));
    }

    #[test]
    fn every_number_and_time_has_a_range() {
        let keys = [CommonSettings::KEYS, LeaderSettings::KEYS].concat();
        let unbounded: Vec<_> = keys.iter().filter(|key| key.lacks_range()).map(|key| key.name).collect();
        assert_eq!(unbounded, [""; 0]);
    }
}

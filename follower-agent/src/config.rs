//! follower-agent's settings: the table, and what several of them must be together. Names are Kafka's where Kafka has the
//! setting; of Kafka's settings for its fetchers none is missing.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use highwater_node::config::{ByteSize, CommonSettings, IO_THREADS_MAX, RECOVERY_THREADS_MAX};
use highwater_types::{ByteRate, ThrottledReplicas};

highwater_node::settings! {
    /// follower-agent's own settings.
    pub struct AgentSettings {
        /// The address to listen on.
        listen: SocketAddr = "listen", default "0.0.0.0:9401";
        /// How many fetch loops, each with its own connection, there are for each leader.
        num_replica_fetchers: NonZeroU32 = "num.replica.fetchers", default "1", in NonZeroU32::MIN..=FETCHERS_MAX;
        /// How long a leader may hold a fetch that finds nothing new, in milliseconds.
        fetch_wait_max: Duration = "replica.fetch.wait.max.ms", default "500ms", in Duration::from_millis(10)..=Duration::from_secs(60);
        /// How many bytes of records end that wait.
        fetch_min_bytes: ByteSize = "replica.fetch.min.bytes", default "1", in ByteSize(1)..=ByteSize(1 << 30);
        /// How many bytes of records a fetch takes from one partition; a first batch is taken whole even when it is larger.
        fetch_max_bytes: ByteSize = "replica.fetch.max.bytes", default "1MiB", in ByteSize(1)..=ByteSize(1 << 30);
        /// How many bytes of records a fetch takes in all; a first batch is taken whole even when it is larger.
        response_max_bytes: ByteSize = "replica.fetch.response.max.bytes", default "10MiB", in ByteSize(1)..=ByteSize(1 << 30);
        /// How many bytes of records of one partition may wait for their append while the next ones are fetched.
        read_ahead_bytes: ByteSize = "replica.fetch.read.ahead.bytes", default "4MiB", in ByteSize(1)..=ByteSize(1 << 30);
        /// How many bytes of records of all partitions may wait for their append before each partition waits for its own.
        queued_bytes_max: ByteSize = "replica.fetch.queued.max.bytes", default "256MiB", in ByteSize(1)..=ByteSize(1 << 40);
        /// The largest batch that is taken, in bytes, where max.message.bytes of the topic is not larger; only adopted logs can hold larger ones.
        batch_max_bytes: ByteSize = "replica.fetch.batch.max.bytes", default "64MiB", in ByteSize(1024)..=ByteSize(1 << 30);
        /// The first wait after a failure, of a connection or of a partition, in milliseconds; each further failure in a row doubles it, with jitter.
        backoff: Duration = "replica.fetch.backoff.ms", default "50ms", in Duration::from_millis(1)..=Duration::from_secs(60);
        /// The longest such wait, in milliseconds.
        backoff_max: Duration = "replica.fetch.backoff.max.ms", default "5s", in Duration::from_millis(1)..=Duration::from_secs(600);
        /// How often in a row a partition's own failure is retried before it stays failed until a new leader epoch or a person's resume.
        retries_max: NonZeroU32 = "replica.fetch.retries.max", default "100", in NonZeroU32::MIN..=RETRIES_MAX;
        /// How long a follower may trail its leader and still count as caught up, in milliseconds. The leader judges; here it bounds the waits.
        replica_lag_time_max: Duration = "replica.lag.time.max.ms", default "30s", in Duration::from_millis(100)..=Duration::from_secs(86_400);
        /// How long a call to a leader may take, the wait for records included, in milliseconds.
        socket_timeout: Duration = "replica.socket.timeout.ms", default "30s", in Duration::from_millis(100)..=Duration::from_secs(600);
        /// How long a connection may take to be made, in milliseconds.
        connect_timeout: Duration = "socket.connection.setup.timeout.ms", default "2s", in Duration::from_millis(10)..=Duration::from_secs(60);
        /// How many bytes a leader may send ahead on one call: the receive window of an HTTP/2 stream. A connection's is twice as large.
        socket_receive_buffer: ByteSize = "replica.socket.receive.buffer.bytes", default "8MiB", in ByteSize(65_535)..=ByteSize(1 << 30);
        /// After how much silence of a leader its connection is checked by a ping, in milliseconds.
        keepalive_interval: Duration = "replica.socket.keepalive.ms", default "5s", in Duration::from_millis(100)..=Duration::from_secs(60);
        /// How long the answer to such a ping may take before the connection is given up, in milliseconds.
        keepalive_timeout: Duration = "replica.socket.keepalive.timeout.ms", default "3s", in Duration::from_millis(100)..=Duration::from_secs(60);
        /// How often high watermark, log start and recovery point are written while they move, in milliseconds.
        checkpoint_interval: Duration = "replica.high.watermark.checkpoint.interval.ms", default "1s", in Duration::from_millis(10)..=Duration::from_secs(60);
        /// How many partitions are opened at the same time.
        recovery_threads: NonZeroU32 = "num.recovery.threads.per.data.dir", default "2", in NonZeroU32::MIN..=RECOVERY_THREADS_MAX;
        /// How long a program may be silent before it counts as dead, in milliseconds; it renews six times as often.
        session_timeout: Duration = "broker.session.timeout.ms", default "3s", in Duration::from_millis(300)..=Duration::from_secs(600);
        /// The most bytes of records in one answer to a consumer, whatever it asks for; a first batch may be larger.
        consumer_fetch_max_bytes: ByteSize = "fetch.max.bytes", default "55MiB", in ByteSize(1024)..=ByteSize(1 << 30);
        /// How many answers to consumers are read from disks at the same time.
        io_threads: NonZeroU32 = "num.io.threads", default "8", in NonZeroU32::MIN..=IO_THREADS_MAX;
        /// How much this node fetches while it is catching up, as a number with a unit per second (8MB/s). Absent: as much as there is.
        throttled_rate: Option<ByteRate> = "follower.replication.throttled.rate", optional;
        /// The replicas that this counts: * for all, or TOPIC and TOPIC:PARTITION, separated by commas.
        throttled_replicas: ThrottledReplicas = "follower.replication.throttled.replicas", default "*";
        /// How many bytes of records may be in flight, in answers to consumers; what is above is refused for now.
        in_flight_max: ByteSize = "in.flight.max.bytes", default "256MiB", in ByteSize(1 << 20)..=ByteSize(1 << 40);
        /// How long an answer may wait for its requester to read it, in milliseconds; then the connection is closed.
        in_flight_unread: Duration = "in.flight.unread.max.ms", default "60s", in Duration::from_secs(1)..=Duration::from_secs(3_600);
    }
}

const FETCHERS_MAX: NonZeroU32 = NonZeroU32::new(64).unwrap();
const RETRIES_MAX: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();

/// How many times the longest wait of a fetch must fit into the lag bound (S34): a follower that is caught up is only seen
/// to be so when it asks.
const WAITS_PER_LAG_BOUND: u32 = 2;

/// What several settings must be together.
///
/// # Errors
/// What is wrong, with the settings' names.
pub fn check(_: &CommonSettings, own: &AgentSettings) -> Result<(), String> {
    if own.fetch_wait_max.saturating_mul(WAITS_PER_LAG_BOUND) > own.replica_lag_time_max {
        return Err(format!(
            "replica.fetch.wait.max.ms ({:?}) must be at most half of replica.lag.time.max.ms ({:?}): an idle follower \
             would count as late",
            own.fetch_wait_max, own.replica_lag_time_max
        ));
    }
    if own.socket_timeout <= own.fetch_wait_max {
        return Err(format!(
            "replica.socket.timeout.ms ({:?}) must be above replica.fetch.wait.max.ms ({:?}): every idle fetch would \
             time out",
            own.socket_timeout, own.fetch_wait_max
        ));
    }
    if own.backoff_max < own.backoff {
        return Err(format!(
            "replica.fetch.backoff.max.ms ({:?}) must not be below replica.fetch.backoff.ms ({:?})",
            own.backoff_max, own.backoff
        ));
    }
    if own.fetch_min_bytes > own.response_max_bytes {
        return Err(format!(
            "replica.fetch.min.bytes ({:?}) must not be above replica.fetch.response.max.bytes ({:?}): no answer could \
             hold that much",
            own.fetch_min_bytes, own.response_max_bytes
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use highwater_node::config::{Settings as _, Sources, example_file, load, table_faults};

    use super::*;

    fn settings(own: &[(&'static str, &str)]) -> Result<AgentSettings, String> {
        let keys = [CommonSettings::KEYS, AgentSettings::KEYS].concat();
        let required = [("node.id", "1"), ("data.dir", "/d"), ("coordination", "leader:a:9400")];
        let flags = required.iter().chain(own).map(|(name, text)| (*name, (*text).to_owned())).collect();
        let values = load(&keys, &Sources { flags, ..Sources::default() }).map_err(|e| e.to_string())?;
        let (common, own) = (CommonSettings::from_values(&values)?, AgentSettings::from_values(&values)?);
        check(&common, &own).map(|()| own)
    }

    #[test]
    fn the_table_is_sound_and_its_example_names_every_setting() {
        let keys = [CommonSettings::KEYS, AgentSettings::KEYS].concat();
        assert_eq!(table_faults(&keys), Vec::<String>::new());
        let example = include_str!("../follower-agent.example.toml");
        assert_eq!(example, example_file("follower-agent", &keys), "write the example file anew");
    }

    #[test]
    fn the_defaults_are_the_references_where_it_has_the_setting() {
        let own = settings(&[]).unwrap();
        assert_eq!(own.fetch_wait_max, Duration::from_millis(500));
        assert_eq!((own.fetch_min_bytes, own.fetch_max_bytes), (ByteSize(1), ByteSize(1 << 20)));
        assert_eq!((own.response_max_bytes, own.num_replica_fetchers.get()), (ByteSize(10 << 20), 1));
        assert_eq!(own.replica_lag_time_max, Duration::from_secs(30));
    }

    #[test]
    fn a_broken_relation_names_both_settings() {
        let broken = |own: &[(&'static str, &str)], names: [&str; 2]| {
            let error = settings(own).unwrap_err();
            assert!(names.iter().all(|name| error.contains(name)), "{error}");
        };
        let lag = "replica.lag.time.max.ms";
        broken(&[("replica.fetch.wait.max.ms", "20s")], ["replica.fetch.wait.max.ms", lag]);
        broken(&[(lag, "900ms")], ["replica.fetch.wait.max.ms", lag]);
        let timeout = "replica.socket.timeout.ms";
        broken(&[(timeout, "500ms")], [timeout, "replica.fetch.wait.max.ms"]);
        broken(
            &[("replica.fetch.backoff.ms", "6s")],
            ["replica.fetch.backoff.ms", "replica.fetch.backoff.max.ms"],
        );
        let response = "replica.fetch.response.max.bytes";
        broken(
            &[("replica.fetch.min.bytes", "2KiB"), (response, "1KiB")],
            ["replica.fetch.min.bytes", response],
        );
    }

    #[test]
    fn every_number_and_time_has_a_range() {
        let keys = [CommonSettings::KEYS, AgentSettings::KEYS].concat();
        let unbounded: Vec<_> = keys.iter().filter(|key| key.lacks_range()).map(|key| key.name).collect();
        assert_eq!(unbounded, [""; 0]);
    }
}

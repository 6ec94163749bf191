//! The settings that both programs have.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use highwater_telemetry::{LogFormat, OtlpEndpoint, OtlpSettings, Sampling, SamplingRatio, check_filter};
use highwater_types::{Endpoint, NodeId};

use super::values::SettingValue;

crate::settings! {
    /// The settings that both programs have.
    pub struct CommonSettings {
        /// The node's id: a whole number from 0, the same for both programs of a node, used by no other node.
        node_id: NodeId = "node.id", required;
        /// The node's data directory, shared by its two programs.
        data_dir: PathBuf = "data.dir", required;
        /// The address that other nodes and clients are told, HOST:PORT. Absent: the address that was bound, 127.0.0.1 in place of "any".
        advertise: Option<Endpoint> = "advertise", optional;
        /// Where the cluster's records are: file:DIR (all nodes on this machine), etcd:HOST:PORT,… (members of one etcd), or leader:HOST:PORT,… (through the leader-svc of any node).
        coordination: CoordinationTarget = "coordination", required;
        /// How log lines look: text or json.
        log_format: LogFormat = "log.format", default "text";
        /// Which log lines are written: a level, or levels by module, for example warn,highwater_log=debug.
        log_filter: LogFilter = "log.filter", default "info";
        /// Where traces and metrics are sent: the OTLP/gRPC port of a collector, HOST:PORT or http://HOST:PORT. Absent: nowhere.
        otlp_endpoint: Option<OtlpEndpoint> = "otlp.endpoint", optional;
        /// Which share of the traces that begin here is recorded, from 0 to 1. A caller's decision goes before.
        otlp_traces_ratio: SamplingRatio = "otlp.traces.sample.ratio", default "0.01";
        /// From which replication lag on a record's way to a follower is always traced, in milliseconds.
        otlp_traces_lag: Duration = "otlp.traces.lag.ms", default "1s", in Duration::ZERO..=Duration::from_secs(86_400);
        /// How often metrics are sent, in milliseconds.
        otlp_metrics_interval: Duration = "otlp.metrics.interval.ms", default "10s", in Duration::from_millis(100)..=Duration::from_secs(3_600);
        /// How many series a metric may have by partition. Gauges with more are sent without topics and partitions; 0 = always.
        otlp_metrics_series: u32 = "otlp.metrics.series.max", default "20000", in 0..=200_000;
    }
}

/// The most answers that a program may read from disks at the same time: the runtime has no more threads for it.
pub const IO_THREADS_MAX: NonZeroU32 = NonZeroU32::new(512).unwrap();

/// The most logs that a program may open at the same time.
pub const RECOVERY_THREADS_MAX: NonZeroU32 = NonZeroU32::new(256).unwrap();

impl CommonSettings {
    /// Where telemetry goes, and what is recorded.
    #[must_use]
    pub fn otlp(&self) -> OtlpSettings {
        OtlpSettings {
            endpoint: self.otlp_endpoint.clone(),
            sampling: Sampling { ratio: self.otlp_traces_ratio, lag_bound: self.otlp_traces_lag },
            metrics_interval: self.otlp_metrics_interval,
            series_max: self.otlp_metrics_series,
        }
    }
}

/// Which coordination store to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinationTarget {
    /// Databases in a directory of this machine.
    File(PathBuf),
    /// An etcd, at any of these addresses.
    Etcd(Vec<Endpoint>),
    /// Through a leader-svc; any of these addresses.
    Leader(Vec<Endpoint>),
}

const TARGETS: &str = if cfg!(feature = "etcd") {
    "file:DIR, etcd:HOST:PORT[,HOST:PORT] and leader:HOST:PORT[,HOST:PORT] are allowed"
} else {
    "file:DIR and leader:HOST:PORT[,HOST:PORT] are allowed"
};

impl SettingValue for CoordinationTarget {
    fn read(text: &str) -> Result<Self, String> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("file", directory) if !directory.is_empty() => Ok(Self::File(directory.into())),
            ("leader", addresses) if !addresses.is_empty() => read_addresses(addresses).map(Self::Leader),
            ("etcd", addresses) if cfg!(feature = "etcd") && !addresses.is_empty() => {
                read_addresses(addresses).map(Self::Etcd)
            }
            ("etcd", _) if !cfg!(feature = "etcd") => Err(format!(
                "etcd is not built in: this program was built without the cargo feature etcd; {TARGETS}"
            )),
            ("kubernetes", _) => Err(format!("kubernetes is not built in; {TARGETS}")),
            _ => Err(TARGETS.to_owned()),
        }
    }
}

fn read_addresses(list: &str) -> Result<Vec<Endpoint>, String> {
    let address = |one: &str| Endpoint::read(one.strip_prefix("http://").unwrap_or(one));
    list.split(',').map(address).collect()
}

/// A filter of log lines; it was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(pub String);

impl SettingValue for LogFilter {
    fn read(text: &str) -> Result<Self, String> {
        check_filter(text).map(|()| Self(text.to_owned())).map_err(|error| error.to_string())
    }
}

/// The address to register for others, given the one that was bound.
#[must_use]
pub fn advertised_endpoint(advertise: Option<&Endpoint>, bound: SocketAddr) -> Endpoint {
    let reachable = match bound {
        any if any.ip().is_unspecified() => SocketAddr::from(([127, 0, 0, 1], any.port())),
        other => other,
    };
    advertise.cloned().unwrap_or_else(|| reachable.into())
}

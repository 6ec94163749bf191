//! Where telemetry is sent, and as whom.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use highwater_types::{Endpoint, NodeId};
use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};

use crate::names::attribute;
use crate::sampling::Sampling;

/// `service.namespace` of both programs, unless the environment names another.
const NAMESPACE: &str = "highwater";

/// A collector that takes OTLP over gRPC, without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint(Endpoint);

impl OtlpEndpoint {
    pub(crate) fn uri(&self) -> String {
        format!("http://{}", self.0)
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for OtlpEndpoint {
    type Err = String;

    /// With or without a scheme (apollo router#149).
    fn from_str(text: &str) -> Result<Self, String> {
        const ALLOWED: &str = "HOST:PORT and http://HOST:PORT of a collector's OTLP/gRPC port are allowed, for example \
                               collector:4317";
        let text = text.trim();
        if text.starts_with("https://") {
            return Err(format!("TLS to the collector is not built in; {ALLOWED}"));
        }
        let address = text.strip_prefix("http://").unwrap_or(text);
        let address = address.strip_suffix('/').unwrap_or(address);
        let endpoint: Endpoint = address.parse().map_err(|why: String| format!("{ALLOWED} ({why})"))?;
        if address.rsplit_once(':').is_some_and(|(_, port)| port.parse() == Ok(0)) {
            return Err(format!("{ALLOWED} (nobody can reach port 0)"));
        }
        Ok(Self(endpoint))
    }
}

/// What the configuration says.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpSettings {
    /// Where to; `None` = nothing is exported.
    pub endpoint: Option<OtlpEndpoint>,
    /// What is traced.
    pub sampling: Sampling,
    /// How often metrics are sent.
    pub metrics_interval: Duration,
    /// How many series one metric may have by partition: a gauge with more is sent without partitions.
    pub series_max: u32,
}

/// Who tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceIdentity {
    /// `service.name`: the program.
    pub program: &'static str,
    /// `service.version`.
    pub version: &'static str,
    /// The node that it is part of.
    pub node: NodeId,
    /// Where it is reached: `service.instance.id`, unless the environment names another.
    pub address: String,
}

impl ServiceIdentity {
    /// What holds for everything that is sent. What the environment says (`OTEL_RESOURCE_ATTRIBUTES`: the pod's names, for
    /// instance) is added, and goes before.
    pub(crate) fn resource(&self) -> Resource {
        let own = [
            KeyValue::new("service.name", self.program),
            KeyValue::new("service.namespace", NAMESPACE),
            KeyValue::new("service.instance.id", self.address.clone()),
            KeyValue::new("service.version", self.version),
            KeyValue::new(attribute::NODE_ID, i64::from(self.node.get())),
        ];
        Resource::builder_empty()
            .with_attributes(own)
            .with_detector(Box::new(TelemetryResourceDetector))
            .with_detector(Box::new(EnvResourceDetector::new()))
            .build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_needs_no_scheme() {
        for good in ["collector:4317", "http://collector:4317", "http://collector:4317/"] {
            assert_eq!(good.parse::<OtlpEndpoint>().unwrap().uri(), "http://collector:4317", "{good}");
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_what_is_allowed() {
        for bad in ["", "collector", "grpc://collector:4317", "http://collector:4317/v1/traces", "c:x"]
            .into_iter()
            .chain(["foo:0", "http://foo:00/", "foo:4317:1", "-foo:1", ":4317", "::1:4317"])
        {
            let error = bad.parse::<OtlpEndpoint>().unwrap_err();
            assert!(error.contains("HOST:PORT") && error.contains("collector:4317"), "{bad}: {error}");
        }
        assert!("https://collector:4317".parse::<OtlpEndpoint>().unwrap_err().contains("TLS"));
    }
}

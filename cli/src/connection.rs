//! How commands reach a cluster.

use std::time::Duration;

use clap::Args;
use highwater_client::{Client, ClientConfig};
use highwater_types::{Endpoint, units};

use crate::outcome::CommandError;

/// Where the cluster is.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConnectionArgs {
    /// Nodes of the cluster to start from; any of them will do.
    #[arg(
        long,
        env = "HIGHWATER_BOOTSTRAP",
        value_name = "HOST:PORT[,HOST:PORT]",
        value_delimiter = ',',
        default_value = "127.0.0.1:9400"
    )]
    pub(crate) bootstrap: Vec<Endpoint>,
    /// How long a request is tried before it counts as failed, for example 10s.
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub(crate) timeout: Option<Duration>,
}

impl ConnectionArgs {
    /// A client that tries its requests for `timeout`, unless the command line says otherwise.
    pub(crate) fn client(&self, timeout: Duration) -> Result<Client, CommandError> {
        let retry_timeout = self.timeout.unwrap_or(timeout);
        let defaults = ClientConfig::new(self.bootstrap.clone());
        let config = ClientConfig {
            retry_timeout,
            request_timeout: defaults.request_timeout.min(retry_timeout),
            ..defaults
        };
        Client::new(config).map_err(|e| CommandError::cluster("connect", e))
    }
}

/// How long a question or a change is tried: a person waits for it.
pub(crate) const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request of something that runs for long is tried: leaders move.
pub(crate) const STREAM_TIMEOUT: Duration = Duration::from_secs(60);

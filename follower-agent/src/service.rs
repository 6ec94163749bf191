//! The program put together, from its configuration to its end; used by `main` and by tests.
//!
//! What must hold: it starts without any leader in reach, and answers health checks meanwhile (cases.md K); it fetches
//! nothing before it is a member of its cluster and its volume is known to be its own. At a stop it fetches no more, parked
//! calls end at once, appends that were accepted finish, then every log is flushed, marked clean and closed, all within the
//! process's bound.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use highwater_client::transport::{Dialer, TransportOptions};
use highwater_client::{ClientError, LeaderView, LeaderViewConfig};
use highwater_coordination::{
    Coordination, CoordinationError, FileCoordination, FileOptions, Membership, open_etcd, register_endpoint,
};
use highwater_node::config::{CommonSettings, CoordinationTarget, advertised_endpoint};
use highwater_node::grpc::{GrpcServer, Health, Listener, ServeError};
use highwater_node::network::Network;
use highwater_node::{Clocks, MonotonicClock};
use highwater_proto::v1::cluster_service_server::ClusterServiceServer;
use highwater_proto::v1::log_service_server::LogServiceServer;
use highwater_proto::v1::replication_service_server::ReplicationServiceServer;
use highwater_protocol::follower::BackoffConfig;
use highwater_serving::admission::{AdmitLayer, AdmitRequests};
use highwater_serving::describe::ClusterDescriber;
use highwater_serving::fetch::{LongPollLayer, Read, ReadBounds};
use highwater_serving::handover::{HandoverListener, Wanted};
use highwater_serving::joining::{JoinError, Pauses, keep_trying};
use highwater_serving::observe::Observed;
use highwater_serving::readiness::follow_session;
use highwater_serving::throttle::Limit;
use highwater_serving::volume::VolumeError;
use highwater_serving::{
    Admission, DataDir, FetchPurgatory, PartitionHost, Registry, ReplicationThrottle, Surroundings,
    ThrottleKeeper, ThrottleLives, Volume,
};
use highwater_telemetry::names::metric;
use highwater_telemetry::{Exporter, ServiceIdentity, Telemetry};
use highwater_types::{Endpoint, Program, ThrottleSide};
use highwater_wire::status::DETAILS_DESCRIPTOR_SET;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tower::ServiceBuilder;

use crate::config::AgentSettings;
use crate::fetcher::{FetchSettings, Gate, RequestNumbers};
use crate::leader_endpoint::CallOptions;
use crate::partition::{FollowedPartition, PartitionContext, PausedReplicas};
use crate::repair::Repair;
use crate::replica_manager::{CONCURRENT_TELLS, ReplicaManager, Shared};
use crate::server::Api;
use crate::{Fetchers, housekeeping, observe};

/// The longest wait that a consumer's fetch gets, whatever it asks for.
const MAX_CONSUMER_WAIT: Duration = Duration::from_secs(60);

/// Requests of leader-svc for logs that wait for the manager; more wait in their connections.
const WANTED_LOGS: usize = 16;

/// The largest request, in bytes: none that an agent serves carries records.
const MESSAGE_MAX: usize = 4 << 20;

/// Everything that the program is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// What both programs have.
    pub common: CommonSettings,
    /// Its own.
    pub own: AgentSettings,
}

/// Why the program did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The settings contradict each other.
    #[error("{0}")]
    Config(String),
    /// The coordination store cannot be used.
    #[error("join the cluster: {0}")]
    Coordination(#[from] CoordinationError),
    /// The addresses of leaders cannot be used.
    #[error("join the cluster: {0}")]
    Leaders(#[from] ClientError),
    /// The data directory cannot be used.
    #[error("use the data directory: {0}")]
    Volume(#[from] VolumeError),
    /// The server cannot start, or failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// What sends telemetry cannot start.
    #[error("send telemetry: {0}")]
    Telemetry(io::Error),
}

impl JoinError for AgentError {
    fn can_pass(&self) -> bool {
        match self {
            Self::Coordination(store) => store.can_pass(),
            Self::Volume(volume) => volume.can_pass(),
            Self::Config(_) | Self::Leaders(_) | Self::Serve(_) | Self::Telemetry(_) => false,
        }
    }
}

/// The program, ready to serve.
#[derive(Debug)]
pub struct Agent {
    server: GrpcServer,
    listener: Listener,
    parts: Parts,
    exporter: Exporter,
}

/// Makes sure of the data directory, takes the port, and puts the services together. Nothing is served yet, and no leader has
/// to be in reach.
///
/// # Errors
/// [`AgentError`].
pub async fn build(config: Config) -> Result<Agent, AgentError> {
    build_in(Surroundings::default(), config).await
}

/// The same in other surroundings: for simulations.
///
/// # Errors
/// [`AgentError`].
pub async fn build_in(surroundings: Surroundings, config: Config) -> Result<Agent, AgentError> {
    crate::config::check(&config.common, &config.own).map_err(AgentError::Config)?;
    let common = &config.common;
    let directory = DataDir::take(&common.data_dir, common.node_id, Program::FollowerAgent).await?;
    let transport = transport(&config.own, &surroundings);
    let coordination = match &surroundings.coordination {
        Some(store) => Arc::clone(store),
        None => open_store(&config, &transport).await?,
    };
    let listener = surroundings.network().listen(config.own.listen).await?;
    let endpoint = advertised_endpoint(common.advertise.as_ref(), listener.address());
    let who = ServiceIdentity {
        program: "follower-agent",
        version: env!("CARGO_PKG_VERSION"),
        node: common.node_id,
        address: endpoint.to_string(),
    };
    let (telemetry, exporter) = Telemetry::start(&common.otlp(), &who).map_err(AgentError::Telemetry)?;
    let parts = Parts::new(config, directory, coordination, endpoint, transport, telemetry);
    let server = parts.server().await?;
    parts.show_gauges();
    Ok(Agent { server, listener, parts, exporter })
}

async fn open_store(
    config: &Config,
    transport: &TransportOptions,
) -> Result<Arc<dyn Coordination>, AgentError> {
    match &config.common.coordination {
        CoordinationTarget::File(directory) => {
            Ok(Arc::new(FileCoordination::open(directory, FileOptions::default()).await?))
        }
        CoordinationTarget::Etcd(endpoints) => Ok(keep_trying(async || open_etcd(endpoints).await).await?),
        CoordinationTarget::Leader(addresses) => {
            let view = LeaderViewConfig {
                transport: transport.clone(),
                ..LeaderViewConfig::new(addresses.clone(), config.common.node_id)
            };
            Ok(Arc::new(LeaderView::start(view)?))
        }
    }
}

fn transport(own: &AgentSettings, surroundings: &Surroundings) -> TransportOptions {
    let stream_window = own.socket_receive_buffer.as_u32();
    let dialer = |network: &Arc<dyn Network>| {
        let network = Arc::clone(network);
        Dialer::new(move |endpoint| network.connect(endpoint))
    };
    TransportOptions {
        connect_timeout: own.connect_timeout,
        keepalive_interval: own.keepalive_interval,
        keepalive_timeout: own.keepalive_timeout,
        stream_window,
        connection_window: stream_window.saturating_mul(2).min(WINDOW_MAX),
        dialer: surroundings.network.as_ref().map(dialer),
        ..TransportOptions::default()
    }
}

fn throttle(own: &AgentSettings, clock: MonotonicClock) -> ReplicationThrottle {
    let own = own.throttled_rate.map(|rate| Limit { rate, replicas: own.throttled_replicas.clone() });
    ReplicationThrottle::new(ThrottleSide::Follower, own, clock)
}

/// HTTP/2 allows no larger window.
const WINDOW_MAX: u32 = (1 << 31) - 1;

const fn backoff(own: &AgentSettings) -> BackoffConfig {
    BackoffConfig { first: own.backoff, max: own.backoff_max, max_attempts: own.retries_max.get() }
}

/// What the services and the tasks of the program share.
#[derive(Debug)]
struct Parts {
    config: Config,
    directory: DataDir,
    /// Where this program is reached.
    endpoint: Endpoint,
    /// How leaders are reached.
    transport: TransportOptions,
    coordination: Arc<dyn Coordination>,
    clocks: Clocks,
    membership: Arc<Membership>,
    registry: Arc<Registry<FollowedPartition>>,
    purgatory: Arc<FetchPurgatory>,
    telemetry: Telemetry,
    /// Of what this node fetches while it is catching up.
    throttle: Arc<ReplicationThrottle>,
    throttle_lives: Arc<ThrottleLives>,
    /// Of answers to consumers.
    admission: Arc<Admission>,
    /// Set once the node has joined its cluster.
    fetchers: Arc<OnceLock<Arc<Fetchers>>>,
    /// Replicas that a person paused.
    paused: Arc<PausedReplicas>,
    /// Ends parked calls, and all fetching.
    draining: CancellationToken,
    /// Ends what is behind the calls, once they are answered.
    closing: CancellationToken,
}

impl Parts {
    fn new(
        config: Config,
        directory: DataDir,
        coordination: Arc<dyn Coordination>,
        endpoint: Endpoint,
        transport: TransportOptions,
        telemetry: Telemetry,
    ) -> Self {
        let (node, clocks) = (config.common.node_id, Clocks::system());
        let membership = Membership::new(
            Arc::clone(&coordination),
            node,
            Program::FollowerAgent,
            config.own.session_timeout,
        );
        Self {
            registry: Arc::new(Registry::new(node, Program::FollowerAgent, coordination.view())),
            purgatory: Arc::new(FetchPurgatory::new(clocks.monotonic)),
            telemetry,
            throttle: Arc::new(throttle(&config.own, clocks.monotonic)),
            throttle_lives: Arc::default(),
            admission: Arc::new(Admission::new(config.own.in_flight_max.0, 0)),
            membership: Arc::new(membership),
            fetchers: Arc::default(),
            paused: Arc::default(),
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
            config,
            directory,
            endpoint,
            transport,
            coordination,
            clocks,
        }
    }

    /// Has the gauges show what there is whenever metrics are sent.
    fn show_gauges(&self) {
        let Some(meters) = self.telemetry.meters() else { return };
        let (registry, fetchers) = (Arc::clone(&self.registry), Arc::clone(&self.fetchers));
        let (purgatory, clock) = (Arc::clone(&self.purgatory), self.clocks.monotonic);
        meters.observe(move |seen| {
            observe::observe(seen, &registry, fetchers.get().map(|fetchers| &**fetchers), clock.now());
            seen.count(metric::PARKED, purgatory.parked() as u64, Vec::new());
        });
    }

    /// A service whose calls have spans and durations.
    fn observed<S>(&self, service: S) -> Observed<S> {
        Observed::new(service, self.telemetry.clone(), self.clocks.monotonic)
    }

    async fn server(&self) -> Result<GrpcServer, ServeError> {
        let api = self.api();
        let (admission, unread_max) = (Arc::clone(&self.admission), self.config.own.in_flight_unread);
        let log = LogServiceServer::new(api.clone()).max_decoding_message_size(MESSAGE_MAX);
        let log = AdmitRequests::new(log, admission, MESSAGE_MAX, unread_max);
        let server = GrpcServer::new(&[highwater_proto::FILE_DESCRIPTOR_SET, DETAILS_DESCRIPTOR_SET]).await?;
        Ok(server
            .add_service(self.observed(log))
            .await
            .add_service(self.observed(ClusterServiceServer::new(api.clone())))
            .await
            .add_service(self.observed(ReplicationServiceServer::new(api)))
            .await)
    }

    fn api(&self) -> Api {
        let own = &self.config.own;
        let bounds = ReadBounds {
            answer_bytes: own.consumer_fetch_max_bytes.as_u32(),
            concurrent_reads: to_usize(own.io_threads.get()),
        };
        let host: Arc<dyn PartitionHost> = Arc::clone(&self.registry) as _;
        let clock = self.clocks.monotonic;
        Api {
            clocks: self.clocks.clone(),
            data_dir: self.config.common.data_dir.clone(),
            host: Arc::clone(&self.registry),
            fetches: ServiceBuilder::new()
                .layer(LongPollLayer::new(host, Arc::clone(&self.purgatory), clock, MAX_CONSUMER_WAIT))
                .layer(AdmitLayer::new(Arc::clone(&self.admission), bounds.answer_bytes))
                .service(Read::new(clock, bounds)),
            describer: ClusterDescriber::new(
                self.registry.node(),
                Program::FollowerAgent,
                self.coordination.view(),
                Arc::clone(&self.membership),
                clock,
                self.draining.clone(),
                Arc::clone(&self.throttle_lives),
            ),
            fetchers: Arc::clone(&self.fetchers),
            paused: Arc::clone(&self.paused),
            telemetry: self.telemetry.clone(),
        }
    }
}

impl Agent {
    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Serves and follows until `stop`, then ends in order.
    ///
    /// # Errors
    /// [`AgentError::Serve`] when the transport failed, [`AgentError::Volume`] when the data directory is not this node's.
    pub async fn run(self, stop: CancellationToken) -> Result<(), AgentError> {
        let Self { server, listener, parts, exporter } = self;
        tracing::info!(address = %listener.address(), "listening");
        let health = server.health();
        // Either half ends the other: a program that cannot serve, or cannot follow, is of no use.
        let ending = stop.child_token();
        let serving = async {
            let served = server.serve(listener, ending.clone()).await;
            ending.cancel();
            parts.closing.cancel();
            served.map_err(AgentError::from)
        };
        let following = async {
            let followed = parts.follow(&health, ending.clone()).await;
            ending.cancel();
            followed
        };
        let draining = async {
            ending.cancelled().await;
            parts.purgatory.drain();
            parts.draining.cancel();
        };
        let (served, followed, ()) = tokio::join!(serving, following, draining);
        exporter.finish().await;
        tracing::info!("stopped");
        followed.and(served)
    }
}

impl Parts {
    /// Joins the cluster, then follows until told to stop; ends when every log is closed.
    async fn follow(&self, health: &Health, stop: CancellationToken) -> Result<(), AgentError> {
        let volume = tokio::select! {
            joined = self.join() => joined?,
            () = stop.cancelled() => return Ok(()),
        };
        let fetchers = Arc::clone(self.fetchers.get_or_init(|| Arc::new(self.fetchers(&volume))));
        let repair = self.repair(&volume);
        let manager = ReplicaManager::new(Arc::new(self.shared(volume, Arc::clone(&fetchers))));
        tracing::info!(address = %self.endpoint, node = self.config.common.node_id.get(), "serving");
        let checkpoints = housekeeping::run(
            Arc::clone(&self.registry),
            Arc::clone(&fetchers),
            self.config.own.checkpoint_interval,
            self.closing.clone(),
        );
        let throttles = ThrottleKeeper::new(
            self.config.common.node_id,
            Arc::clone(&self.throttle),
            Arc::clone(&self.coordination),
            self.clocks.monotonic,
            Arc::clone(&self.throttle_lives),
        );
        let (sender, wanted) = mpsc::channel(WANTED_LOGS);
        let fetching = async {
            stop.cancelled().await;
            fetchers.shut_down().await;
        };
        tokio::join!(
            manager.run(self.coordination.view(), wanted),
            self.hand_over(sender),
            checkpoints,
            fetching,
            repair.run(stop.clone()),
            follow_session(health.clone(), &self.membership, self.clocks.monotonic, stop.clone()),
            throttles.run(self.closing.clone()),
            self.keep_alive(),
        );
        Ok(())
    }

    /// Lets leader-svc have logs, on request.
    async fn hand_over(&self, wanted: mpsc::Sender<Wanted>) {
        let data_dir = &self.config.common.data_dir;
        match HandoverListener::bind(data_dir) {
            Ok(listener) => listener.run(wanted, self.closing.clone()).await,
            Err(error) => tracing::error!(
                directory = %data_dir.display(),
                %error,
                "could not make the local socket: this node's leader-svc cannot take a leadership over while this program runs"
            ),
        }
    }

    async fn keep_alive(&self) {
        tokio::select! {
            never = self.membership.keep_alive(|| self.clocks.monotonic.now()) => match never {},
            () = self.closing.cancelled() => {}
        }
    }

    /// Takes the volume into use and registers, however long no leader and no store is in reach.
    async fn join(&self) -> Result<Volume, AgentError> {
        let mut pauses = Pauses::default();
        let mut view = self.coordination.view();
        loop {
            let pause = match self.try_join().await {
                Ok(volume) => return Ok(volume),
                Err(failed) if failed.can_pass() => pauses.after_failure(&failed),
                Err(failed) => return Err(failed),
            };
            // News of the cluster end the pause. The store's handle lives as long as the program.
            drop(tokio::time::timeout(pause, view.changed()).await);
        }
    }

    async fn try_join(&self) -> Result<Volume, AgentError> {
        let volume = self.directory.join(&*self.coordination).await?;
        let node = self.config.common.node_id;
        register_endpoint(&*self.coordination, node, Program::FollowerAgent, &self.endpoint).await?;
        self.membership.renew(|| self.clocks.monotonic.now()).await?;
        Ok(volume)
    }

    fn fetchers(&self, volume: &Volume) -> Fetchers {
        let own = &self.config.own;
        let settings = FetchSettings {
            node: self.config.common.node_id,
            cluster: volume.cluster_id.clone(),
            wait_max: own.fetch_wait_max,
            min_bytes: own.fetch_min_bytes.as_u32(),
            response_max_bytes: own.response_max_bytes.as_u32(),
            batch_max_bytes: own.batch_max_bytes.as_u32(),
            backoff: backoff(own),
            gate: Gate::new(self.config.common.node_id, Arc::clone(&self.throttle)),
            telemetry: self.telemetry.clone(),
            numbers: Arc::new(RequestNumbers::new(volume.start)),
        };
        Fetchers::new(settings, own.num_replica_fetchers, self.clocks.monotonic, self.calls())
    }

    fn calls(&self) -> CallOptions {
        CallOptions {
            node: self.config.common.node_id,
            timeout: self.config.own.socket_timeout,
            transport: self.transport.clone(),
        }
    }

    fn repair(&self, volume: &Volume) -> Repair<CallOptions> {
        let own = &self.config.own;
        Repair {
            node: self.config.common.node_id,
            cluster: volume.cluster_id.clone(),
            registry: Arc::clone(&self.registry),
            connector: self.calls(),
            fetch_max_bytes: own.fetch_max_bytes.as_u32(),
            batch_max_bytes: own.batch_max_bytes.as_u32(),
        }
    }

    fn shared(&self, volume: Volume, fetchers: Arc<Fetchers>) -> Shared {
        let own = &self.config.own;
        let context = PartitionContext {
            clocks: self.clocks.clone(),
            purgatory: Arc::clone(&self.purgatory),
            queued_bytes_max: own.queued_bytes_max.0,
            queued_bytes: AtomicU64::new(0),
            node: self.config.common.node_id,
            telemetry: self.telemetry.clone(),
            paused: Arc::clone(&self.paused),
        };
        Shared {
            node: self.config.common.node_id,
            volume,
            coordination: Arc::clone(&self.coordination),
            registry: Arc::clone(&self.registry),
            fetchers,
            context: Arc::new(context),
            fetch_max_bytes: own.fetch_max_bytes.as_u32(),
            read_ahead_bytes: own.read_ahead_bytes.0,
            backoff: backoff(own),
            opening: Semaphore::new(to_usize(own.recovery_threads.get())),
            calls: self.calls(),
            telling: Semaphore::new(CONCURRENT_TELLS),
            stop: self.closing.clone(),
        }
    }
}

fn to_usize(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

//! The program put together, from its configuration to its end; used by `main` and by tests.
//!
//! What must hold: the node is registered, alive and bound to its volume before anything is served; it is SERVING without
//! any follower. At a stop health says NOT_SERVING and leaderships are handed over while calls are still answered; then
//! parked calls end at once, appends that were accepted finish, and every log is flushed, marked clean and closed, all
//! within the process's bound.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

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
use highwater_serving::admission::AdmitRequests;
use highwater_serving::describe::ClusterDescriber;
use highwater_serving::fetch::ReadBounds;
use highwater_serving::joining::{JoinError, keep_trying};
use highwater_serving::observe::Observed;
use highwater_serving::readiness::follow_session;
use highwater_serving::throttle::Limit;
use highwater_serving::volume::VolumeError;
use highwater_serving::{
    Admission, DataDir, FetchPurgatory, PartitionHost as _, Registry, ReplicationThrottle, Surroundings,
    ThrottleKeeper, ThrottleLives, Volume,
};
use highwater_telemetry::{Exporter, ServiceIdentity, Telemetry};
use highwater_types::{Program, ThrottleSide};
use highwater_wire::status::DETAILS_DESCRIPTOR_SET;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{ClusterApi, ReplicationApi};
use crate::config::LeaderSettings;
use crate::partition::{LedPartition, PACE_INTERVAL, PartitionContext, PartitionEvent};
use crate::produce::Appender;
use crate::replica_manager::{BORROWED_LOGS_MAX, ORDERS_MAX, Order, PeerWatch, ReplicaManager, Shared};
use crate::server::LogApi;
use crate::{fetch, housekeeping, observe};

/// How long the server goes on at a stop while leaderships are handed over; they have 1 s.
const HANDING_OVER_MAX: Duration = Duration::from_millis(1_500);

/// Everything that the program is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// What both programs have.
    pub common: CommonSettings,
    /// Its own.
    pub own: LeaderSettings,
}

/// Why the program did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The settings contradict each other.
    #[error("{0}")]
    Config(String),
    /// The coordination store cannot be used.
    #[error("join the cluster: {0}")]
    Coordination(#[from] CoordinationError),
    /// The data directory cannot be used.
    #[error("use the data directory: {0}")]
    Volume(#[from] VolumeError),
    /// The server cannot start.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// What sends telemetry cannot start.
    #[error("send telemetry: {0}")]
    Telemetry(io::Error),
}

impl JoinError for BuildError {
    fn can_pass(&self) -> bool {
        match self {
            Self::Coordination(store) => store.can_pass(),
            Self::Volume(volume) => volume.can_pass(),
            Self::Config(_) | Self::Serve(_) | Self::Telemetry(_) => false,
        }
    }
}

/// The program, ready to serve.
#[derive(Debug)]
pub struct LeaderService {
    server: GrpcServer,
    listener: Listener,
    config: Config,
    parts: Parts,
    manager: ReplicaManager,
    peers: PeerWatch,
    events: mpsc::UnboundedReceiver<PartitionEvent>,
    exporter: Exporter,
}

/// Takes the data directory into use, takes the port, joins the cluster, and puts the services together. Nothing is served
/// yet.
///
/// # Errors
/// [`BuildError`].
pub async fn build(config: Config) -> Result<LeaderService, BuildError> {
    build_in(Surroundings::default(), config).await
}

/// The same in other surroundings: for simulations.
///
/// # Errors
/// [`BuildError`].
pub async fn build_in(surroundings: Surroundings, config: Config) -> Result<LeaderService, BuildError> {
    crate::config::check(&config.common, &config.own).map_err(BuildError::Config)?;
    let node = config.common.node_id;
    let clocks = Clocks::system();
    let directory = DataDir::take(&config.common.data_dir, node, Program::LeaderSvc).await?;
    let network = surroundings.network();
    let coordination = match surroundings.coordination {
        Some(store) => store,
        None => open_store(&config.common.coordination).await?,
    };
    // Before the store hears of the node: who cannot have its port is not to be found there.
    let listener = network.listen(config.own.listen).await?;
    let endpoint = advertised_endpoint(config.common.advertise.as_ref(), listener.address());
    let membership = Arc::new(Membership::new(
        Arc::clone(&coordination),
        node,
        Program::LeaderSvc,
        config.own.session_timeout,
    ));
    let volume = keep_trying(async || -> Result<_, BuildError> {
        let volume = directory.join(&*coordination).await?;
        register_endpoint(&*coordination, node, Program::LeaderSvc, &endpoint).await?;
        membership.renew(|| clocks.monotonic.now()).await?;
        Ok(volume)
    })
    .await?;

    let who = ServiceIdentity {
        program: "leader-svc",
        version: env!("CARGO_PKG_VERSION"),
        node,
        address: endpoint.to_string(),
    };
    let (telemetry, exporter) =
        Telemetry::start(&config.common.otlp(), &who).map_err(BuildError::Telemetry)?;
    let parts = Parts::new(&config, coordination, clocks, volume, membership, telemetry);
    parts.show_gauges();
    let (orders, ordered) = mpsc::channel(ORDERS_MAX);
    let (manager, peers, events) = parts.manager(&config.own, network, ordered);
    let server = parts.server(&config.own, orders).await?;
    Ok(LeaderService { server, listener, config, parts, manager, peers, events, exporter })
}

/// What the services and the tasks of the program share.
#[derive(Debug)]
struct Parts {
    coordination: Arc<dyn Coordination>,
    clocks: Clocks,
    volume: Volume,
    membership: Arc<Membership>,
    registry: Arc<Registry<LedPartition>>,
    purgatory: Arc<FetchPurgatory>,
    /// Of what this node sends to followers that are catching up.
    throttle: Arc<ReplicationThrottle>,
    throttle_lives: Arc<ThrottleLives>,
    /// Of requests to append and of answers.
    admission: Arc<Admission>,
    telemetry: Telemetry,
    /// Gives leaderships up.
    leaving: CancellationToken,
    /// Those that are being given up.
    resigning: TaskTracker,
    /// Ends parked calls, and the server.
    draining: CancellationToken,
    /// Ends what is behind the calls, once they are answered.
    closing: CancellationToken,
}

impl Parts {
    fn new(
        config: &Config,
        coordination: Arc<dyn Coordination>,
        clocks: Clocks,
        volume: Volume,
        membership: Arc<Membership>,
        telemetry: Telemetry,
    ) -> Self {
        let registry =
            Arc::new(Registry::new(config.common.node_id, Program::LeaderSvc, coordination.view()));
        let purgatory = Arc::new(FetchPurgatory::new(clocks.monotonic));
        let own = &config.own;
        let (draining, closing) = (CancellationToken::new(), CancellationToken::new());
        Self {
            throttle: Arc::new(throttle(own, clocks.monotonic)),
            throttle_lives: Arc::default(),
            admission: Arc::new(Admission::new(own.in_flight_max.0, own.in_flight_reserve.0)),
            coordination,
            clocks,
            volume,
            membership,
            registry,
            purgatory,
            telemetry,
            leaving: CancellationToken::new(),
            resigning: TaskTracker::new(),
            draining,
            closing,
        }
    }

    fn manager(
        &self,
        own: &LeaderSettings,
        network: Arc<dyn Network>,
        orders: mpsc::Receiver<Order>,
    ) -> (ReplicaManager, PeerWatch, mpsc::UnboundedReceiver<PartitionEvent>) {
        let (sender, events) = mpsc::unbounded_channel();
        let peers = PeerWatch::new(
            self.registry.node(),
            Arc::clone(&self.membership),
            self.coordination.view(),
            network,
        );
        let context = PartitionContext {
            clocks: self.clocks.clone(),
            purgatory: Arc::clone(&self.purgatory),
            coordination: Arc::clone(&self.coordination),
            membership: Arc::clone(&self.membership),
            events: sender,
            queued_appends: to_usize(own.queued_appends.get()),
            runtime: Handle::current(),
            telemetry: self.telemetry.clone(),
            agents: peers.agents(),
        };
        let shared = Shared {
            node: self.registry.node(),
            volume: self.volume.clone(),
            registry: Arc::clone(&self.registry),
            context: Arc::new(context),
            membership: Arc::clone(&self.membership),
            replica_lag_time_max: own.replica_lag_time_max,
            hw_propagation: own.hw_propagation,
            leadership_stagger: own.leadership_stagger,
            opening: Semaphore::new(to_usize(own.recovery_threads.get())),
            borrowing: Semaphore::new(BORROWED_LOGS_MAX),
            peers: peers.peers(),
            leaving: self.leaving.clone(),
            resigning: self.resigning.clone(),
            stop: self.closing.clone(),
        };
        let manager = ReplicaManager::new(Arc::new(shared), orders);
        (manager, peers, events)
    }

    /// Has the gauges show what there is whenever metrics are sent.
    fn show_gauges(&self) {
        let Some(meters) = self.telemetry.meters() else { return };
        let (registry, purgatory, clock) =
            (Arc::clone(&self.registry), Arc::clone(&self.purgatory), self.clocks.monotonic);
        meters.observe(move |seen| observe::observe(seen, &registry, &purgatory, clock.now()));
    }

    /// A service whose calls have spans and durations.
    fn observed<S>(&self, service: S) -> Observed<S> {
        Observed::new(service, self.telemetry.clone(), self.clocks.monotonic)
    }

    async fn server(
        &self,
        own: &LeaderSettings,
        orders: mpsc::Sender<Order>,
    ) -> Result<GrpcServer, ServeError> {
        let log = LogServiceServer::new(self.log_api(own))
            .max_decoding_message_size(own.request_max_bytes.as_usize());
        let cluster = ClusterServiceServer::new(self.cluster_api(orders));
        let replication = ReplicationServiceServer::new(ReplicationApi {
            host: Arc::clone(&self.registry),
            clocks: self.clocks.clone(),
        });
        let server = GrpcServer::new(&[highwater_proto::FILE_DESCRIPTOR_SET, DETAILS_DESCRIPTOR_SET]).await?;
        let message_max = own.request_max_bytes.as_usize();
        let log = AdmitRequests::new(log, Arc::clone(&self.admission), message_max, own.in_flight_unread);
        Ok(server
            .add_service(self.observed(log))
            .await
            .add_service(self.observed(cluster))
            .await
            .add_service(self.observed(replication))
            .await)
    }

    fn log_api(&self, own: &LeaderSettings) -> LogApi {
        let bounds = ReadBounds {
            answer_bytes: own.fetch_max_bytes.as_u32(),
            concurrent_reads: to_usize(own.io_threads.get()),
        };
        let shared = fetch::Shared {
            host: Arc::clone(&self.registry) as _,
            purgatory: Arc::clone(&self.purgatory),
            throttle: Arc::clone(&self.throttle),
            admission: Arc::clone(&self.admission),
            clock: self.clocks.monotonic,
        };
        LogApi {
            cluster_id: self.volume.cluster_id.clone(),
            clocks: self.clocks.clone(),
            host: Arc::clone(&self.registry),
            fetches: fetch::stack(shared, bounds),
            appender: Appender::new(Arc::clone(&self.registry), self.clocks.clone()),
            telemetry: self.telemetry.clone(),
        }
    }

    fn cluster_api(&self, orders: mpsc::Sender<Order>) -> ClusterApi {
        let describer = ClusterDescriber::new(
            self.registry.node(),
            Program::LeaderSvc,
            self.coordination.view(),
            Arc::clone(&self.membership),
            self.clocks.monotonic,
            self.draining.clone(),
            Arc::clone(&self.throttle_lives),
        );
        ClusterApi {
            volume: self.volume.clone(),
            coordination: Arc::clone(&self.coordination),
            membership: Arc::clone(&self.membership),
            host: Arc::clone(&self.registry),
            describer,
            orders,
        }
    }
}

fn throttle(own: &LeaderSettings, clock: MonotonicClock) -> ReplicationThrottle {
    let own = own.throttled_rate.map(|rate| Limit { rate, replicas: own.throttled_replicas.clone() });
    ReplicationThrottle::new(ThrottleSide::Leader, own, clock)
}

async fn open_store(target: &CoordinationTarget) -> Result<Arc<dyn Coordination>, BuildError> {
    match target {
        CoordinationTarget::File(directory) => {
            Ok(Arc::new(FileCoordination::open(directory, FileOptions::default()).await?))
        }
        CoordinationTarget::Etcd(endpoints) => Ok(keep_trying(async || open_etcd(endpoints).await).await?),
        CoordinationTarget::Leader(_) => {
            Err(BuildError::Config("leader-svc needs a store of its own to write to".to_owned()))
        }
    }
}

impl LeaderService {
    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Where its fetches wait; for what watches the program.
    #[must_use]
    pub const fn purgatory(&self) -> &Arc<FetchPurgatory> {
        &self.parts.purgatory
    }

    /// Serves until `stop`, then ends in order.
    ///
    /// # Errors
    /// [`BuildError::Serve`] when the transport failed.
    pub async fn run(self, stop: CancellationToken) -> Result<(), BuildError> {
        let Self { server, listener, config, parts, manager, peers, events, exporter } = self;
        let mut background = parts.start(&config.own, manager, events);
        background.push(tokio::spawn(peers.run(parts.closing.clone())));
        let drain = parts.drain_on(stop.clone(), server.health());
        tracing::info!(address = %listener.address(), node = config.common.node_id.get(), "serving");
        let ready = parts.follow_session(server.health(), stop);
        let served = server.serve(listener, parts.draining.clone()).await;
        drain.abort();
        ready.abort();
        parts.purgatory.drain();
        parts.closing.cancel();
        for task in background {
            if let Err(failed) = task.await {
                tracing::error!(error = %failed, "a task of the program failed");
            }
        }
        exporter.finish().await;
        tracing::info!("stopped");
        Ok(served?)
    }
}

impl Parts {
    /// Starts what runs beside the calls, until `closing`.
    fn start(
        &self,
        own: &LeaderSettings,
        manager: ReplicaManager,
        events: mpsc::UnboundedReceiver<PartitionEvent>,
    ) -> Vec<JoinHandle<()>> {
        let ticker = |interval: Duration, work: fn(&LedPartition)| {
            tokio::spawn(housekeeping::each(Arc::clone(&self.registry), interval, self.closing.clone(), work))
        };
        let (membership, clock, closing) =
            (Arc::clone(&self.membership), self.clocks.monotonic, self.closing.clone());
        let alive = async move {
            tokio::select! {
                never = membership.keep_alive(|| clock.now()) => match never {},
                () = closing.cancelled() => {}
            }
        };
        let throttles = ThrottleKeeper::new(
            self.registry.node(),
            Arc::clone(&self.throttle),
            Arc::clone(&self.coordination),
            self.clocks.monotonic,
            Arc::clone(&self.throttle_lives),
        );
        vec![
            ticker(own.checkpoint_interval, LedPartition::write_checkpoint),
            ticker(own.retention_check_interval, LedPartition::apply_retention),
            ticker(PACE_INTERVAL, LedPartition::note_paces),
            tokio::spawn(manager.run(events)),
            tokio::spawn(alive),
            tokio::spawn(throttles.run(self.closing.clone())),
        ]
    }

    /// Says by health whether the program is ready, until it is told to stop.
    fn follow_session(&self, health: Health, stop: CancellationToken) -> JoinHandle<()> {
        let (membership, clock) = (Arc::clone(&self.membership), self.clocks.monotonic);
        tokio::spawn(async move { follow_session(health, &membership, clock, stop).await })
    }

    /// When the program is told to stop: hands leaderships over, then lets parked calls go and stops the server.
    fn drain_on(&self, stop: CancellationToken, health: Health) -> JoinHandle<()> {
        let (leaving, resigning) = (self.leaving.clone(), self.resigning.clone());
        let (draining, purgatory) = (self.draining.clone(), Arc::clone(&self.purgatory));
        tokio::spawn(async move {
            stop.cancelled().await;
            health.set_serving(false).await;
            leaving.cancel();
            // Whoever calls meanwhile learns who is to lead. It is bounded in itself; a manager that is gone ends nothing.
            _ = timeout(HANDING_OVER_MAX, resigning.wait()).await;
            purgatory.drain();
            draining.cancel();
        })
    }
}

fn to_usize(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

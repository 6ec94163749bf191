//! A leader seen through a glass: a gRPC server that passes a follower's calls on to the real leader and shows each Fetch,
//! and its answer, to an observer. Let the leader advertise its address.
//!
//! What must hold: a Fetch is shown before the leader gets it, so that nothing that a leader was told is ever missing; the
//! answer, or that there is none, is the leader's own. Deliberately absent: faults, which the proxy makes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use highwater_proto::v1;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_proto::v1::log_service_server::{LogService, LogServiceServer};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// Messages of any size pass.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// What an observer is shown.
#[derive(Debug, Clone, Copy)]
pub enum Seen<'a> {
    /// A Fetch, before the leader has it, and which connection it came over.
    Request(&'a v1::FetchRequest, SocketAddr),
    /// The leader's answer to a Fetch, before the follower has it.
    Answer(&'a v1::FetchRequest, &'a v1::FetchResponse),
}

type Observer = Box<dyn FnMut(Seen<'_>) + Send>;

/// A relay in front of one leader. It stops listening when dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl Relay {
    /// Passes the calls that arrive at `address` on to the leader at `leader`, which need not be there yet.
    pub async fn start(
        address: SocketAddr,
        leader: SocketAddr,
        observer: impl FnMut(Seen<'_>) + Send + 'static,
    ) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{leader}")).expect("an address makes a URL");
        let client = LogServiceClient::new(endpoint.connect_lazy())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let service =
            LogServiceServer::new(Glass { client, observer: Arc::new(Mutex::new(Box::new(observer))) })
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let listener = TcpListener::bind(address).await.expect("the address is free");
        let serving =
            Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let server =
            tokio::spawn(async move { serving.await.expect("the relay serves until it is dropped") });
        Self { address, server }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Glass {
    client: LogServiceClient<Channel>,
    observer: Arc<Mutex<Observer>>,
}

impl Glass {
    fn show(&self, seen: Seen<'_>) {
        (self.observer.lock().unwrap_or_else(PoisonError::into_inner))(seen);
    }
}

#[tonic::async_trait]
impl LogService for Glass {
    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<v1::FetchResponse>, Status> {
        let asked = request.get_ref().clone();
        let from = request.remote_addr().expect("it came over TCP");
        self.show(Seen::Request(&asked, from));
        let answer = self.client.clone().fetch(request).await?;
        self.show(Seen::Answer(&asked, answer.get_ref()));
        Ok(answer)
    }

    async fn offsets_for_leader_epoch(
        &self,
        request: Request<v1::OffsetsForLeaderEpochRequest>,
    ) -> Result<Response<v1::OffsetsForLeaderEpochResponse>, Status> {
        self.client.clone().offsets_for_leader_epoch(request).await
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        self.client.clone().list_offsets(request).await
    }

    async fn produce(
        &self,
        request: Request<v1::ProduceRequest>,
    ) -> Result<Response<v1::ProduceResponse>, Status> {
        self.client.clone().produce(request).await
    }
}

//! The follower's only view of a leader: what it can be asked, and the gRPC client that asks.
//!
//! What must hold: one connection per end point, made when it is first needed, with the name resolved then; after
//! [`LeaderEndPoint::reconnect`] the next call makes a new one (S85, qdrant#832). Every call has a deadline (S78). A message
//! may be as large as what was asked for can be: records, the largest batch, and everything around them (S81). Deliberately
//! absent: retries, and what an answer means.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use highwater_client::transport::{TransportOptions, connect_lazy};
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_protocol::fetch::{FetchRequest, FetchResponse, TopicRef};
use highwater_protocol::follower::LeaderOffsets;
use highwater_types::{
    Endpoint, ErrorCode, LeaderEpoch, NodeId, Offset, Program, TopicIdPartition, TraceContext,
};
use highwater_wire::failure::{classify, is_too_large};
use highwater_wire::fetch::{decode_response, encode_request};
use highwater_wire::limits;
use highwater_wire::offsets::{
    FoundOffset, OffsetQuery, OffsetsRequest, PartitionAnswer, PartitionQuery, decode_list_response,
    encode_list_request,
};
use highwater_wire::{Caller, DecodeError, Failure, FailureKind, Reached, trace};
use parking_lot::Mutex;
use tonic::transport::Channel;
use tonic::{Code, Request};

/// Why a fetch has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchFailure {
    /// The answer is larger than this program takes; the connection is good. For people.
    TooLarge(String),
    /// The call failed.
    Call(Failure),
}

/// What a leader can be asked. The futures can be dropped at any time.
pub trait LeaderEndPoint: fmt::Debug + Send + Sync + 'static {
    /// One Fetch. `largest_batch` is the size, in bytes, of the largest batch that may come; `call` is the span of the call,
    /// where it is traced.
    fn fetch(
        &self,
        request: FetchRequest,
        largest_batch: u32,
        call: Option<TraceContext>,
    ) -> BoxFuture<'static, Result<FetchResponse, FetchFailure>>;

    /// Log start and log end of a partition, asked under a leader epoch (S35, design.md 3). An error is what the leader
    /// answers, or what stands for a call that failed.
    fn range(
        &self,
        partition: TopicIdPartition,
        epoch: LeaderEpoch,
    ) -> BoxFuture<'static, Result<LeaderOffsets, ErrorCode>>;

    /// Gives the connection up: the next call makes a new one.
    fn reconnect(&self);
}

/// How leaders are called.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// The node that asks.
    pub node: NodeId,
    /// `replica.socket.timeout.ms`.
    pub timeout: Duration,
    /// How connections are made.
    pub transport: TransportOptions,
}

/// A leader over gRPC.
#[derive(Debug)]
pub struct GrpcLeader {
    endpoint: Endpoint,
    options: CallOptions,
    channel: Mutex<Option<Channel>>,
}

impl GrpcLeader {
    /// The leader at `endpoint`; nothing is connected yet.
    #[must_use]
    pub const fn new(endpoint: Endpoint, options: CallOptions) -> Self {
        Self { endpoint, options, channel: Mutex::new(None) }
    }

    fn client(&self) -> Result<LogServiceClient<Channel>, Failure> {
        let mut channel = self.channel.lock();
        let connected = match channel.take() {
            Some(connected) => connected,
            None => connect_lazy(&self.endpoint, &self.options.transport)
                .map_err(|error| unusable(Reached::Nothing, error.to_string()))?,
        };
        Ok(LogServiceClient::new(channel.insert(connected).clone()))
    }

    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.set_timeout(self.options.timeout);
        Caller::node(Program::FollowerAgent, self.options.node).encode(request.metadata_mut());
        request
    }
}

impl LeaderEndPoint for GrpcLeader {
    fn fetch(
        &self,
        request: FetchRequest,
        largest_batch: u32,
        call: Option<TraceContext>,
    ) -> BoxFuture<'static, Result<FetchResponse, FetchFailure>> {
        let limit = limits::fetch_response(request.max_bytes, largest_batch, request.partitions.len());
        let client = self.client().map(|client| client.max_decoding_message_size(limit));
        let mut request = self.request(encode_request(request));
        if let Some(call) = call {
            trace::inject(call, request.metadata_mut());
        }
        async move {
            let answer = client.map_err(FetchFailure::Call)?.fetch(request).await;
            match answer {
                Ok(answer) => {
                    decode_response(answer.into_inner()).map_err(|e| FetchFailure::Call(undecodable(&e)))
                }
                Err(status) if is_too_large(&status) => {
                    Err(FetchFailure::TooLarge(classify(&status).message))
                }
                Err(status) => Err(FetchFailure::Call(classify(&status))),
            }
        }
        .boxed()
    }

    fn range(
        &self,
        partition: TopicIdPartition,
        epoch: LeaderEpoch,
    ) -> BoxFuture<'static, Result<LeaderOffsets, ErrorCode>> {
        let asked = |query| PartitionQuery {
            topic: TopicRef::Id(partition.topic_id),
            partition: partition.partition,
            current_leader_epoch: Some(epoch),
            query,
        };
        let partitions = vec![asked(OffsetQuery::Earliest), asked(OffsetQuery::Latest)];
        let request = self
            .request(encode_list_request(OffsetsRequest { replica: Some(self.options.node), partitions }));
        let client = self.client();
        async move {
            let answer = client.map_err(|f| code_of(&f))?.list_offsets(request).await;
            let answer = answer.map_err(|status| code_of(&classify(&status)))?;
            let answers = decode_list_response(answer.into_inner()).map_err(|_| ErrorCode::Internal)?;
            let mut offsets = answers.into_iter().map(found);
            let mut next = || offsets.next().unwrap_or(Err(ErrorCode::Internal));
            Ok(LeaderOffsets { log_start: next()?, log_end: next()? })
        }
        .boxed()
    }

    fn reconnect(&self) {
        let given_up = self.channel.lock().take();
        drop(given_up);
    }
}

fn found(answer: PartitionAnswer<FoundOffset>) -> Result<Offset, ErrorCode> {
    answer.outcome.map_err(|error| error.code)?.offset.ok_or(ErrorCode::Internal)
}

/// As which partition error a failed call counts; one that can pass, unless the leader said otherwise.
fn code_of(failure: &Failure) -> ErrorCode {
    failure.code.unwrap_or(ErrorCode::LeaderNotAvailable)
}

fn undecodable(error: &DecodeError) -> Failure {
    unusable(Reached::Program, format!("the answer is not valid: {error}"))
}

fn unusable(reached: Reached, message: String) -> Failure {
    Failure {
        kind: FailureKind::Terminal,
        retry_after: None,
        status: Code::Internal,
        code: None,
        leader: None,
        reached,
        message,
    }
}

/// What makes end points for the loops.
pub trait Connector: fmt::Debug + Send + Sync + 'static {
    /// The kind of end point.
    type Leader: LeaderEndPoint;

    /// An end point of its own, with a connection of its own, for one loop to the leader at `endpoint`.
    fn connect(&self, endpoint: &Endpoint) -> Arc<Self::Leader>;
}

impl Connector for CallOptions {
    type Leader = GrpcLeader;

    fn connect(&self, endpoint: &Endpoint) -> Arc<GrpcLeader> {
        Arc::new(GrpcLeader::new(endpoint.clone(), self.clone()))
    }
}

#[cfg(test)]
#[path = "leader_endpoint_test.rs"]
mod tests;

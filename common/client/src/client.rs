//! The client: calls with deadlines, to any node or to one, with retries where they can help.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use highwater_types::Endpoint;
use highwater_wire::failure::classify;
use highwater_wire::{Caller, Failure, FailureKind, Reached};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::metadata::Metadata;
use crate::transport::{ChannelPool, TransportOptions};
use crate::{Backoff, ClientError};

/// The most endpoints that a client learns beside its bootstrap list.
const MAX_LEARNT: usize = 256;

/// How a client reaches its cluster.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Nodes to start from; any node of the cluster will do.
    pub bootstrap: Vec<Endpoint>,
    /// Who calls.
    pub caller: Caller,
    /// The deadline of one call.
    pub request_timeout: Duration,
    /// How long one operation may take with all its retries.
    pub retry_timeout: Duration,
    /// How connections are made.
    pub transport: TransportOptions,
}

impl ClientConfig {
    /// The defaults, for a client of the cluster to which these nodes belong.
    #[must_use]
    pub fn new(bootstrap: Vec<Endpoint>) -> Self {
        Self {
            bootstrap,
            caller: Caller::CLIENT,
            request_timeout: Duration::from_secs(30),
            retry_timeout: Duration::from_secs(60),
            transport: TransportOptions::default(),
        }
    }
}

/// How long the first try of a call that every node answers at once may take; each further try may take twice as long.
const FIRST_TRY: Duration = Duration::from_secs(1);

/// Whether a call may be made again when it may have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It may, and every node answers at once: one that is silent is soon left for another.
    Soon,
    /// It may: it reads, or doing it twice is doing it once.
    Always,
    /// Only when it was certainly not carried out.
    IfUndone,
}

/// A client of one cluster. Clones share connections and metadata.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ClientConfig,
    pool: ChannelPool,
    metadata: Metadata,
    /// The first bootstrap node.
    first: Endpoint,
    /// Nodes that were learnt of since.
    learnt: Mutex<BTreeSet<Endpoint>>,
    turn: AtomicUsize,
}

impl Client {
    /// A client; nothing is connected yet.
    ///
    /// # Errors
    /// [`ClientError::Usage`] without a bootstrap node.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let Some(first) = config.bootstrap.first().cloned() else {
            return Err(ClientError::Usage("at least one bootstrap address is needed".to_owned()));
        };
        let pool = ChannelPool::new(config.transport.clone());
        let (metadata, learnt, turn) = (Metadata::default(), Mutex::default(), AtomicUsize::new(0));
        Ok(Self { inner: Arc::new(Inner { config, pool, metadata, first, learnt, turn }) })
    }

    /// How it was configured.
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    pub(crate) fn metadata(&self) -> &Metadata {
        &self.inner.metadata
    }

    pub(crate) fn pool(&self) -> &ChannelPool {
        &self.inner.pool
    }

    /// When an operation that starts now gives up.
    pub(crate) fn give_up(&self) -> Instant {
        Instant::now() + self.inner.config.retry_timeout
    }

    /// One call to one node, without retries.
    ///
    /// # Errors
    /// [`ClientError::Call`], classified.
    pub(crate) async fn call<M, R, F, Fut>(
        &self,
        endpoint: &Endpoint,
        message: M,
        timeout: Duration,
        rpc: F,
    ) -> Result<R, ClientError>
    where
        F: FnOnce(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let channel = self.inner.pool.get(endpoint)?;
        let mut request = Request::new(message);
        request.set_timeout(timeout);
        self.inner.config.caller.encode(request.metadata_mut());
        match rpc(channel, request).await {
            Ok(response) => {
                self.inner.pool.succeeded(endpoint);
                Ok(response.into_inner())
            }
            Err(status) => {
                let failure = classify(&status);
                self.inner.pool.failed(endpoint, &failure);
                Err(ClientError::Call { endpoint: endpoint.clone(), failure })
            }
        }
    }

    /// A call that any node can answer, or tell who can: nodes are tried in turn until one answers, a retry cannot help, or
    /// the time is over.
    pub(crate) async fn call_any<M, R, F, Fut>(
        &self,
        what: &str,
        message: M,
        repeat: Repeat,
        give_up: Instant,
        rpc: F,
    ) -> Result<(Endpoint, R), ClientError>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let mut backoff = Backoff::default();
        let mut named: Option<Endpoint> = None;
        let longest = self.inner.config.request_timeout;
        let mut patience = if repeat == Repeat::Soon { FIRST_TRY.min(longest) } else { longest };
        loop {
            let endpoint = named.take().unwrap_or_else(|| self.next_endpoint());
            let timeout = patience.min(give_up.duration_since(Instant::now()));
            patience = patience.saturating_mul(2).min(longest);
            let error = match self.call(&endpoint, message.clone(), timeout, &rpc).await {
                Ok(answer) => return Ok((endpoint, answer)),
                Err(error) => error,
            };
            let ClientError::Call { failure, .. } = &error else { return Err(error) };
            match failure.kind {
                FailureKind::Terminal => return Err(error),
                _ if repeat == Repeat::IfUndone && failure.reached == Reached::Unknown => {
                    return Err(ClientError::OutcomeUnknown { what: what.to_owned(), last: Box::new(error) });
                }
                FailureKind::Retryable | FailureKind::Deadline | FailureKind::Overloaded => {}
            }
            named = self.named_by(failure, &endpoint);
            let wait = backoff.after_failure(failure.retry_after);
            if Instant::now() + wait >= give_up {
                return Err(ClientError::GaveUp { what: what.to_owned(), last: Box::new(error) });
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Whom the asked node named instead of itself.
    fn named_by(&self, failure: &Failure, asked: &Endpoint) -> Option<Endpoint> {
        failure.leader.as_ref()?.endpoint.clone().filter(|named| named != asked)
    }

    /// Notes that nodes are reached there too.
    pub(crate) fn learn_endpoints(&self, endpoints: impl IntoIterator<Item = Endpoint>) {
        let mut learnt = self.inner.learnt.lock().unwrap_or_else(PoisonError::into_inner);
        *learnt = endpoints.into_iter().take(MAX_LEARNT).collect();
    }

    /// The node whose turn it is, of the bootstrap list and of what was learnt.
    fn next_endpoint(&self) -> Endpoint {
        let learnt = self.inner.learnt.lock().unwrap_or_else(PoisonError::into_inner);
        let known = || self.inner.config.bootstrap.iter().chain(learnt.iter());
        let turn = self.inner.turn.fetch_add(1, Ordering::Relaxed);
        known().nth(turn % known().count().max(1)).unwrap_or(&self.inner.first).clone()
    }

    /// The next node that is not this one, where there is another.
    pub(crate) fn next_endpoint_but(&self, avoided: &Endpoint) -> Endpoint {
        let endpoint = self.next_endpoint();
        if endpoint == *avoided { self.next_endpoint() } else { endpoint }
    }
}

#[cfg(test)]
#[path = "client_test.rs"]
mod tests;

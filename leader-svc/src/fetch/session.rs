//! The session stage. There are no sessions yet: every request is complete in itself and is answered with session id 0,
//! which tells the requester to send a complete one next time, too (S74).

use std::future::{Ready, ready};
use std::task::{Context, Poll};

use futures::future::Either;
use futures::{FutureExt as _, future};
use highwater_serving::admission::Overloaded;
use highwater_serving::fetch::{Fetch, Fetched};
use highwater_types::{ErrorCode, ReplicationError};
use tower::{Layer, Service};

use super::Refused;

/// Puts the session stage in front of another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionLayer;

impl<S> Layer<S> for SessionLayer {
    type Service = Session<S>;

    fn layer(&self, inner: S) -> Session<S> {
        Session { inner }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Session<S> {
    inner: S,
}

type Outcome = Result<Fetched, Refused>;

impl<S> Service<Fetch> for Session<S>
where
    S: Service<Fetch, Response = Fetched, Error = Overloaded>,
{
    type Response = Fetched;
    type Error = Refused;
    type Future = Either<Ready<Outcome>, future::Map<S::Future, fn(Result<Fetched, Overloaded>) -> Outcome>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Refused>> {
        self.inner.poll_ready(cx).map_err(Refused::Overloaded)
    }

    fn call(&mut self, fetch: Fetch) -> Self::Future {
        let request = &fetch.request;
        if request.session_id != 0 || request.session_epoch > 0 {
            return Either::Left(ready(Err(Refused::Session(ReplicationError::new(
                ErrorCode::InvalidRequest,
                format!(
                    "fetch session {} is not known; send a complete request without a session",
                    request.session_id
                ),
            )))));
        }
        let answered: fn(Result<Fetched, Overloaded>) -> Outcome =
            |outcome| outcome.map_err(Refused::Overloaded);
        Either::Right(self.inner.call(fetch).map(answered))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use highwater_protocol::delayed_fetch::FetchCompletion;
    use highwater_protocol::fetch::{FetchRequest, FetchResponse};
    use highwater_types::MonotonicTime;
    use tower::ServiceExt as _;

    use super::*;

    async fn answer(session_id: i32, session_epoch: i32) -> Result<i32, ErrorCode> {
        let inner = tower::service_fn(|fetch: Fetch| async move {
            let received = fetch.received;
            let response = FetchResponse {
                session_id: 0,
                received,
                answered: received,
                throttle: Duration::ZERO,
                throttle_reason: None,
                partitions: Vec::new(),
            };
            let (completion, waited) = (FetchCompletion::NoWait, Duration::ZERO);
            Ok(Fetched {
                response,
                completion,
                parked: waited,
                held: waited,
                reading: received,
                admitted: None,
            })
        });
        let request = FetchRequest {
            cluster: None,
            replica: None,
            repair: false,
            session_id,
            session_epoch,
            max_wait: Duration::ZERO,
            min_bytes: 1,
            max_bytes: 1,
            partitions: Vec::new(),
            forgotten: Vec::new(),
        };
        let fetch = Fetch::new(request, MonotonicTime::ZERO, None);
        let outcome = SessionLayer.layer(inner).oneshot(fetch).await;
        outcome.map(|fetched| fetched.response.session_id).map_err(|refused| match refused {
            Refused::Session(error) => error.code,
            Refused::Overloaded(overloaded) => panic!("{overloaded}"),
        })
    }

    #[tokio::test]
    async fn complete_requests_pass_and_incremental_ones_are_told_that_there_is_no_session() {
        assert_eq!(answer(0, -1).await, Ok(0), "wants no session");
        assert_eq!(answer(0, 0).await, Ok(0), "would like one, gets none");
        assert_eq!(answer(7, 1).await, Err(ErrorCode::InvalidRequest));
        assert_eq!(answer(0, 1).await, Err(ErrorCode::InvalidRequest));
    }
}

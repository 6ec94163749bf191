//! The outermost layer of LogService: admits a Produce by the length that gRPC states in front of the message, before the
//! message is taken, and keeps what an answer holds admitted until its body is sent or given up.
//!
//! What must hold: a message that was admitted comes within [`UPLOAD_MAX`], or is given up; an answer that was admitted is read
//! within `in.flight.unread.max.ms`, or its connection is closed, which alone takes back what HTTP/2 holds for it. Else a few
//! that stall would keep everybody out for as long as their connections live.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use futures::{Stream, StreamExt as _};
use highwater_node::grpc::ConnectionHandle;
use highwater_types::{ErrorCode, ReplicationError};
use highwater_wire::status;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use tokio::task::AbortHandle;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

use super::{Admission, Overloaded, Permit, RETRY_AFTER, Traffic};

/// The call whose requests carry records.
const PRODUCE: &str = "/highwater.v1.LogService/Produce";

/// What stands in front of a message: a flag, and its length in four bytes.
const PREFIX: usize = 5;

/// How long a message may take to come whole once it is admitted: the largest at two megabytes a second.
const UPLOAD_MAX: Duration = Duration::from_secs(30);

/// The status of what was not admitted.
impl From<Overloaded> for Status {
    fn from(overloaded: Overloaded) -> Self {
        status::overloaded(&overloaded.to_string(), RETRY_AFTER)
    }
}

/// LogService behind admission.
#[derive(Clone, Debug)]
pub struct AdmitRequests<S> {
    inner: S,
    admission: Arc<Admission>,
    message_max: usize,
    unread_max: Duration,
}

impl<S> AdmitRequests<S> {
    /// Puts `admission` in front of `inner`, which takes messages of up to `message_max` bytes; an answer may wait for its
    /// requester to read it for `unread_max`.
    pub const fn new(inner: S, admission: Arc<Admission>, message_max: usize, unread_max: Duration) -> Self {
        Self { inner, admission, message_max, unread_max }
    }
}

impl<S: NamedService> NamedService for AdmitRequests<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for AdmitRequests<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (admission, message_max, unread_max) =
            (Arc::clone(&self.admission), self.message_max, self.unread_max);
        // The instance that is ready goes into the future; its clone takes the place.
        let spare = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, spare);
        Box::pin(async move {
            if request.uri().path() != PRODUCE {
                let connection = request.extensions().get::<ConnectionHandle>().cloned();
                let answered = inner.call(request).await;
                return answered.map(|answer| until_sent(answer, connection, unread_max));
            }
            let (head, body) = request.into_parts();
            match admit(&admission, message_max, body).await {
                Ok((permit, body)) => {
                    let answered = inner.call(Request::from_parts(head, body)).await;
                    drop(permit);
                    answered
                }
                Err(refused) => Ok(refused.into_http()),
            }
        })
    }
}

/// Takes as much of the body as says how long the message is, and admits that. One that is too long is refused here, because
/// tonic's own refusal has no details. A body that ends before is somebody else's fault to tell.
async fn admit(
    admission: &Arc<Admission>,
    message_max: usize,
    mut body: Body,
) -> Result<(Option<Permit>, Body), Status> {
    let (mut taken, mut start) = (Vec::new(), Vec::with_capacity(PREFIX));
    while start.len() < PREFIX {
        let Some(frame) = body.frame().await else { break };
        if let Some(data) = frame.as_ref().ok().and_then(|frame| frame.data_ref()) {
            start.extend(data.iter().take(PREFIX - start.len()));
        }
        let failed = frame.is_err();
        taken.push(frame);
        if failed {
            break;
        }
    }
    let permit = match start.as_slice() {
        [_, a, b, c, d] => {
            let length = u32::from_be_bytes([*a, *b, *c, *d]);
            if usize::try_from(length).is_ok_and(|length| length > message_max) {
                let message = format!("the request has {length} bytes; at most {message_max} are taken");
                return Err(status::from_error(&ReplicationError::new(ErrorCode::MessageTooLarge, message)));
            }
            Some(admission.admit(Traffic::Client, length.into())?)
        }
        _ => None,
    };
    let whole = StreamBody::new(stream::iter(taken).chain(in_time(body)));
    Ok((permit, Body::new(whole)))
}

/// What comes of the body within [`UPLOAD_MAX`], and an error behind that. The requester may come back, as from any overload.
fn in_time(body: Body) -> impl Stream<Item = Result<Frame<Bytes>, Status>> {
    let late = Box::pin(tokio::time::sleep(UPLOAD_MAX));
    stream::unfold(Some((BodyStream::new(body), late)), |coming| async move {
        let (mut body, mut late) = coming?;
        tokio::select! {
            biased;
            frame = body.next() => Some((frame?, Some((body, late)))),
            () = &mut late => {
                let message = format!("the request did not come whole within {UPLOAD_MAX:?}; come back later");
                Some((Err(status::overloaded(&message, RETRY_AFTER)), None))
            }
        }
    })
}

/// An answer's bytes until they are sent. HTTP/2 takes all of a message at once and keeps what the peer does not read yet, so
/// what counts is how long the bytes themselves live.
#[derive(Debug)]
struct Sending {
    _permit: Arc<Permit>,
    overdue: Option<AbortHandle>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(overdue) = &self.overdue {
            overdue.abort();
        }
    }
}

struct Held {
    bytes: Bytes,
    _sending: Arc<Sending>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What the answer's handler left to be held goes with the bytes of the body; after `unread_max` the connection goes.
fn until_sent(
    mut response: Response<Body>,
    connection: Option<ConnectionHandle>,
    unread_max: Duration,
) -> Response<Body> {
    let Some(permit) = response.extensions_mut().remove::<Arc<Permit>>() else { return response };
    let overdue =
        connection.map(|connection| tokio::spawn(close_after(unread_max, connection)).abort_handle());
    let sending = Arc::new(Sending { _permit: permit, overdue });
    response.map(|body| {
        let hold = move |bytes| Bytes::from_owner(Held { bytes, _sending: Arc::clone(&sending) });
        Body::new(body.map_frame(move |frame| frame.map_data(&hold)))
    })
}

async fn close_after(unread_max: Duration, connection: ConnectionHandle) {
    tokio::time::sleep(unread_max).await;
    let peer = connection.peer().map(tracing::field::display);
    tracing::info!(peer, "an answer was not read within {unread_max:?}; its connection is closed");
    connection.close();
}

#[cfg(test)]
mod tests {
    use highwater_wire::{FailureKind, failure};
    use http_body_util::Full;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;
    use tower::ServiceExt as _;
    use tower::util::BoxCloneService;

    use super::*;

    fn admission() -> Arc<Admission> {
        Arc::new(Admission::new(100, 30))
    }

    /// A body that comes in these pieces.
    fn pieces(of: &[&[u8]]) -> Body {
        let frame = |piece: &&[u8]| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(piece)));
        let frames: Vec<_> = of.iter().map(frame).collect();
        Body::new(StreamBody::new(stream::iter(frames)))
    }

    fn request(path: &str, body: Body) -> Request<Body> {
        Request::builder().uri(path).body(body).unwrap()
    }

    /// Echoes what it gets, and says how much was in flight meanwhile.
    fn echo(admission: &Arc<Admission>) -> BoxCloneService<Request<Body>, Response<Body>, Infallible> {
        let admission = Arc::clone(admission);
        BoxCloneService::new(tower::service_fn(move |request: Request<Body>| {
            let admission = Arc::clone(&admission);
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let seen = admission.in_flight().to_string();
                let response = Response::builder().header("in-flight", seen);
                Ok(response.body(Body::new(Full::new(body))).unwrap())
            }
        }))
    }

    #[tokio::test]
    async fn a_produce_is_in_flight_by_its_stated_length_until_it_is_answered() {
        let admission = admission();
        let service = AdmitRequests::new(echo(&admission), Arc::clone(&admission), MESSAGE_MAX, UNREAD_MAX);
        for split in [&[&b"\0\0\0\0\x06recor"[..], b"ds"][..], &[b"\0\0", b"", b"\0\0", b"\x06", b"records"]]
        {
            let answer = service.clone().oneshot(request(PRODUCE, pieces(split))).await.unwrap();
            assert_eq!(answer.headers()["in-flight"], "6");
            let whole: Vec<u8> = split.concat();
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), whole, "nothing is lost");
            assert_eq!(admission.in_flight(), 0);
        }
        let short = service.clone().oneshot(request(PRODUCE, pieces(&[b"\0\0"]))).await.unwrap();
        assert_eq!(short.headers()["in-flight"], "0", "the decoder says what is wrong with it");
        let other = service.oneshot(request("/x/Fetch", pieces(&[b"\0\0\0\0\x06"]))).await.unwrap();
        assert_eq!(other.headers()["in-flight"], "0");
    }

    #[tokio::test]
    async fn a_produce_beyond_the_limit_is_refused_with_a_time_to_come_back() {
        let admission = admission();
        let _others = admission.admit(Traffic::Client, 65).unwrap();
        let service = AdmitRequests::new(echo(&admission), Arc::clone(&admission), MESSAGE_MAX, UNREAD_MAX);
        let answer = service.oneshot(request(PRODUCE, pieces(&[b"\0\0\0\0\x06"]))).await.unwrap();
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        let failure = failure::classify(&status);
        assert_eq!((failure.kind, failure.retry_after), (FailureKind::Overloaded, Some(RETRY_AFTER)));
        assert_eq!(admission.shed(), 1);
    }

    #[tokio::test]
    async fn a_message_that_is_too_long_is_refused_with_its_code_before_it_is_taken() {
        let admission = Arc::new(Admission::new(10_000, 30));
        let service = AdmitRequests::new(echo(&admission), Arc::clone(&admission), MESSAGE_MAX, UNREAD_MAX);
        let of_length = |length: u32| {
            let prefix = [&[0][..], &length.to_be_bytes()].concat();
            service.clone().oneshot(request(PRODUCE, pieces(&[&prefix])))
        };
        assert_eq!(of_length(1000).await.unwrap().headers()["in-flight"], "1000");
        let status = Status::from_header_map(of_length(1001).await.unwrap().headers()).unwrap();
        assert_eq!(failure::classify(&status).code, Some(ErrorCode::MessageTooLarge));
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().contains("1001 bytes; at most 1000"), "{status:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_request_is_given_up_and_holds_nothing_any_more() {
        let admission = admission();
        let decoding = Arc::clone(&admission);
        let decode = tower::service_fn(move |request: Request<Body>| {
            let admission = Arc::clone(&decoding);
            async move {
                let failed = request.into_body().collect().await.expect_err("it never comes whole");
                assert_eq!(admission.in_flight(), 60, "as long as it is waited for");
                Ok::<_, Infallible>(failed.into_http())
            }
        });
        let service =
            AdmitRequests::new(BoxCloneService::new(decode), Arc::clone(&admission), MESSAGE_MAX, UNREAD_MAX);
        // A byte now and then is no whole message.
        let trickle = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(7)).await;
            Some((Ok::<_, Status>(Frame::data(Bytes::from_static(b"r"))), ()))
        });
        let start = stream::iter([Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\x3c")))]);
        let body = Body::new(StreamBody::new(start.chain(trickle)));
        let began = Instant::now();
        let answer = service.oneshot(request(PRODUCE, body)).await.unwrap();
        assert_eq!(began.elapsed(), UPLOAD_MAX);
        let failure = failure::classify(&Status::from_header_map(answer.headers()).unwrap());
        assert_eq!((failure.kind, failure.retry_after), (FailureKind::Overloaded, Some(RETRY_AFTER)));
        assert_eq!(admission.in_flight(), 0);
    }

    /// An answer of 60 bytes that are in flight.
    fn answer(admission: &Arc<Admission>, connection: Option<ConnectionHandle>) -> Response<Body> {
        let mut response = Response::new(pieces(&[b"some", b"records"]));
        response.extensions_mut().insert(Arc::new(admission.admit(Traffic::Client, 60).unwrap()));
        until_sent(response, connection, UNREAD_MAX)
    }

    const MESSAGE_MAX: usize = 1000;
    const UNREAD_MAX: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn an_answer_is_in_flight_until_its_bytes_are_sent_or_given_up() {
        let admission = admission();
        for give_up in [false, true] {
            let mut response = answer(&admission, None);
            let some = response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!((&some[..], admission.in_flight()), (&b"some"[..], 60), "not all of it is taken");
            if give_up {
                drop(response);
            } else {
                assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "records");
            }
            assert_eq!(admission.in_flight(), 60, "what HTTP/2 took and could not send is still there");
            drop(some);
            assert_eq!(admission.in_flight(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_leaves_an_answer_unread_is_closed_and_one_that_reads_is_not() {
        let admission = admission();
        for reads in [false, true] {
            let closing = CancellationToken::new();
            let mut response = answer(&admission, Some(ConnectionHandle::new(None, closing.clone())));
            let frame = response.body_mut().frame().await.unwrap().unwrap();
            tokio::time::sleep(UNREAD_MAX - Duration::from_millis(1)).await;
            assert!(!closing.is_cancelled());
            if reads {
                drop((frame, response));
                tokio::time::sleep(UNREAD_MAX).await;
                assert!(!closing.is_cancelled());
            } else {
                let closed = tokio::time::timeout(Duration::from_secs(1), closing.cancelled()).await;
                closed.expect("it has had its time");
                drop((frame, response));
            }
            assert_eq!(admission.in_flight(), 0);
        }
    }
}

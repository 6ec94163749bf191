//! A served shell, as clients see it.

use std::task::{Context, Poll};

use http::Response;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as Answer;
use tonic_health::pb::health_client::HealthClient;

use super::*;
use crate::grpc::Deadline;

/// A service without messages: it parks until its deadline, or answers at once with a huge status.
#[derive(Clone)]
struct Parking;

impl NamedService for Parking {
    const NAME: &'static str = "test.ParkingService";
}

impl Service<Request<Body>> for Parking {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let deadline = request.extensions().get::<Deadline>().copied();
        Box::pin(async move {
            let status = match deadline {
                Some(deadline) => {
                    tokio::time::sleep_until(deadline.instant()).await;
                    tonic::Status::not_found("ended in time")
                }
                None => tonic::Status::invalid_argument("x".repeat(100_000)),
            };
            Ok(status.into_http())
        })
    }
}

struct Served {
    address: SocketAddr,
    stop: CancellationToken,
    health: Health,
    server: JoinHandle<Result<(), ServeError>>,
    channel: Channel,
}

async fn served() -> Served {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let (address, stop) = (listener.address(), CancellationToken::new());
    let server = GrpcServer::new(&[]).await.unwrap().add_service(Parking).await;
    let health = server.health();
    let server = tokio::spawn(server.serve(listener, stop.clone()));
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    Served { address, stop, health, server, channel }
}

async fn check(channel: &Channel, service: &str) -> Result<Answer, Code> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let answer = HealthClient::new(channel.clone()).check(request).await;
    answer.map(|a| a.into_inner().status()).map_err(|status| status.code())
}

async fn call(channel: &Channel, timeout: Option<&str>) -> tonic::Status {
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    if let Some(timeout) = timeout {
        request.metadata_mut().insert("grpc-timeout", timeout.parse().unwrap());
    }
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckRequest>::default();
    let path = http::uri::PathAndQuery::from_static("/test.ParkingService/Park");
    grpc.unary(request, path, codec).await.unwrap_err()
}

#[tokio::test]
async fn port_0_is_a_real_port_and_a_taken_one_is_named() {
    let first = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    assert_ne!(first.address().port(), 0);
    let error = Listener::bind(first.address()).await.unwrap_err().to_string();
    assert!(error.contains(&first.address().to_string()), "{error}");
}

#[tokio::test]
async fn health_is_told_per_service_and_overall() {
    let served = served().await;
    for service in ["", "test.ParkingService"] {
        assert_eq!(check(&served.channel, service).await, Ok(Answer::NotServing), "{service}");
    }
    served.health.set_serving(true).await;
    for service in ["", "test.ParkingService"] {
        assert_eq!(check(&served.channel, service).await, Ok(Answer::Serving), "{service}");
    }
    assert_eq!(check(&served.channel, "test.Other").await, Err(Code::NotFound));
}

#[tokio::test]
async fn a_program_that_waits_lives() {
    let served = served().await;
    assert_eq!(check(&served.channel, LIVENESS).await, Ok(Answer::Serving));
    served.health.set_serving(false).await;
    assert_eq!(check(&served.channel, LIVENESS).await, Ok(Answer::Serving));
    assert_eq!(check(&served.channel, "").await, Ok(Answer::NotServing));
}

#[tokio::test]
async fn a_handler_sees_its_deadline_before_the_transport_enforces_it() {
    let served = served().await;
    let begun = Instant::now();
    let status = call(&served.channel, Some("300m")).await;
    assert_eq!(status.message(), "ended in time", "not CANCELLED by the transport: {status:?}");
    assert!(begun.elapsed() >= Duration::from_millis(240), "and not at once: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_huge_status_reaches_the_caller_shortened() {
    let served = served().await;
    let status = call(&served.channel, None).await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().len() <= 4096, "{}", status.message().len());
    assert_eq!(call(&served.channel, None).await.code(), Code::InvalidArgument, "the channel still works");
}

#[tokio::test]
async fn reflection_answers_in_both_versions() {
    use tonic_reflection::pb::{v1, v1alpha};

    let served = served().await;
    let list = v1::server_reflection_request::MessageRequest::ListServices(String::new());
    let request = v1::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(served.channel.clone());
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let answer = format!("{:?}", answers.message().await.unwrap());
    assert!(answer.contains("grpc.health.v1.Health"), "{answer}");

    let list = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let request = v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(served.channel.clone());
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let answer = format!("{:?}", answers.message().await.unwrap());
    assert!(answer.contains("grpc.health.v1.Health"), "{answer}");
}

#[tokio::test]
async fn bytes_that_are_no_descriptor_set_are_refused() {
    assert!(matches!(GrpcServer::new(&[b"\xff\xff\xff"]).await, Err(ServeError::Descriptors(_))));
}

#[tokio::test]
async fn stopping_does_not_wait_for_a_silent_connection_or_a_parked_call() {
    let served = served().await;
    let silent = TcpStream::connect(served.address).await.unwrap();
    let channel = served.channel.clone();
    let parked = tokio::spawn(async move { call(&channel, Some("1H")).await });
    assert_eq!(check(&served.channel, "").await, Ok(Answer::NotServing));

    let begun = Instant::now();
    served.stop.cancel();
    served.server.await.unwrap().unwrap();
    assert!(begun.elapsed() < STOP_GRACE + Duration::from_secs(1), "{:?}", begun.elapsed());
    parked.abort();
    assert!(TcpStream::connect(served.address).await.is_err(), "nothing new is accepted");
    drop(silent);
}

#[tokio::test]
async fn stopping_an_idle_server_takes_no_time() {
    let served = served().await;
    assert_eq!(check(&served.channel, "").await, Ok(Answer::NotServing));
    let begun = Instant::now();
    served.stop.cancel();
    served.server.await.unwrap().unwrap();
    assert!(begun.elapsed() < STOP_GRACE, "{:?}", begun.elapsed());
}

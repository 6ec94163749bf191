//! The proxy between a client and a server that answers each byte with its own.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::*;
use crate::wait;

/// A server that sends back what it gets, and ends when its peer does.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind(ports::loopback()).await.expect("the port is ours");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
    address
}

async fn proxied() -> (Proxy, TcpStream) {
    let proxy = Proxy::start(echo().await).await;
    let stream = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
    (proxy, stream)
}

async fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
    let (mut from, mut to) = stream.split();
    let mut answer = vec![0; bytes.len()];
    let (sent, received) = tokio::join!(to.write_all(bytes), from.read_exact(&mut answer));
    sent.expect("the connection is open");
    received.expect("the connection is open");
    answer
}

/// Whether a new connection is reset. The kernel accepts it first, so this may show at once or at the first read.
async fn is_reset(address: SocketAddr) -> bool {
    match TcpStream::connect(address).await {
        Ok(mut stream) => stream.read(&mut [0; 8]).await.is_err(),
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[tokio::test]
async fn bytes_pass_unchanged_and_are_counted() {
    let (proxy, mut stream) = proxied().await;
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(exchange(&mut stream, &bytes).await, bytes);
    assert_eq!(proxy.bytes(Direction::ToServer), 1_000_000);
    assert_eq!(proxy.bytes(Direction::ToClient), 1_000_000);
    assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
}

#[tokio::test]
async fn the_end_of_one_side_reaches_the_other() {
    let (proxy, mut stream) = proxied().await;
    exchange(&mut stream, b"x").await;
    stream.shutdown().await.expect("the connection is open");
    assert_eq!(stream.read(&mut [0; 8]).await.expect("an orderly end"), 0);
    wait::until("the end of the connection", wait::SOON, async || (proxy.open() == 0).then_some(())).await;
}

#[tokio::test]
async fn a_frozen_connection_says_nothing_and_a_new_one_flows() {
    let (proxy, mut frozen) = proxied().await;
    exchange(&mut frozen, b"x").await;
    proxy.freeze_open();
    frozen.write_all(b"lost?").await.expect("the kernel still takes it");
    let mut fresh = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
    assert_eq!(exchange(&mut fresh, b"y").await, b"y");
    let mut answer = [0; 5];
    let silence = tokio::time::timeout(Duration::from_millis(100), frozen.read_exact(&mut answer)).await;
    assert!(silence.is_err(), "neither bytes nor an end");
    proxy.thaw();
    frozen.read_exact(&mut answer).await.expect("what was on its way arrives");
    assert_eq!(&answer, b"lost?");
}

#[tokio::test]
async fn a_cut_is_a_reset_on_open_connections_only() {
    let (proxy, mut cut) = proxied().await;
    exchange(&mut cut, b"x").await;
    proxy.cut_open();
    let error = cut.read(&mut [0; 8]).await.expect_err("no orderly end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let mut fresh = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
    assert_eq!(exchange(&mut fresh, b"y").await, b"y");
}

#[tokio::test]
async fn refused_connections_are_reset_until_allowed_again() {
    let (proxy, _stream) = proxied().await;
    proxy.refuse(true);
    assert!(is_reset(proxy.address()).await);
    proxy.refuse(false);
    let mut fresh = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
    assert_eq!(exchange(&mut fresh, b"y").await, b"y");
}

#[tokio::test]
async fn a_source_is_cut_off_on_open_and_new_connections_and_the_others_are_not() {
    // Who announces its address before it connects is source 1.
    let announced: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
    let known = Arc::clone(&announced);
    let who = move |from: SocketAddr| i32::from(lock(&known).contains(&from));
    let proxy = Proxy::start_telling(echo().await, who).await;
    let connect = async |source: i32| {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port is free");
        if source == 1 {
            lock(&announced).push(socket.local_addr().expect("it is bound"));
        }
        socket.connect(proxy.address()).await.expect("the proxy listens")
    };
    let (mut cut_off, mut other) = (connect(1).await, connect(0).await);
    exchange(&mut cut_off, b"x").await;
    proxy.set_passage_of(1, Passage::Silent);
    let mut new = connect(1).await;
    for stream in [&mut cut_off, &mut new] {
        stream.write_all(b"lost?").await.expect("the kernel still takes it");
        let silence = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut [0; 5])).await;
        assert!(silence.is_err(), "neither bytes nor an end");
    }
    assert_eq!(exchange(&mut other, b"y").await, b"y");
    proxy.set_passage_of(1, Passage::Open);
    for stream in [&mut cut_off, &mut new] {
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await.expect("what was on its way arrives");
    }
    proxy.set_passage_of(1, Passage::Refused);
    cut_off.read(&mut [0; 8]).await.expect_err("a reset");
    connect(1).await.read(&mut [0; 8]).await.expect_err("a reset");
    assert_eq!(exchange(&mut other, b"z").await, b"z");
}

#[tokio::test]
async fn a_closed_port_refuses_and_is_opened_again() {
    let (mut proxy, mut stream) = proxied().await;
    exchange(&mut stream, b"x").await;
    proxy.close_port().await;
    let error = TcpStream::connect(proxy.address()).await.expect_err("nobody listens");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(exchange(&mut stream, b"y").await, b"y");
    proxy.open_port().await;
    let mut fresh = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
    assert_eq!(exchange(&mut fresh, b"z").await, b"z");
}

#[tokio::test]
async fn a_new_target_serves_new_connections() {
    let (proxy, _stream) = proxied().await;
    let nobody = ports::loopback();
    proxy.retarget(nobody);
    assert!(is_reset(proxy.address()).await);
    proxy.retarget(echo().await);
    let mut fresh = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
    assert_eq!(exchange(&mut fresh, b"y").await, b"y");
}

#[tokio::test]
async fn a_delay_adds_to_each_direction_and_does_not_slow_the_flow() {
    let (proxy, mut stream) = proxied().await;
    proxy.delay(Duration::from_millis(50));
    let began = Instant::now();
    exchange(&mut stream, b"x").await;
    assert!(began.elapsed() >= Duration::from_millis(100), "{:?}", began.elapsed());
    let began = Instant::now();
    exchange(&mut stream, &vec![7; 8 << 20]).await;
    // One chunk per delay would take 128 × 100 ms.
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_limit_holds_the_flow_back() {
    let (proxy, mut stream) = proxied().await;
    proxy.limit(Some(1_000_000));
    let began = Instant::now();
    exchange(&mut stream, &vec![7; 400_000]).await;
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    proxy.limit(None);
    let began = Instant::now();
    exchange(&mut stream, &vec![7; 400_000]).await;
    assert!(began.elapsed() < Duration::from_millis(300), "{:?}", began.elapsed());
}

#[tokio::test]
async fn one_byte_is_flipped_once_and_only_in_a_large_enough_chunk() {
    let (proxy, mut stream) = proxied().await;
    proxy.flip_once(Direction::ToServer, 100);
    assert_eq!(exchange(&mut stream, &[7; 10]).await, [7; 10]);
    let answer = exchange(&mut stream, &[7; 200]).await;
    assert_eq!(answer.iter().filter(|byte| **byte != 7).count(), 1);
    assert_eq!(exchange(&mut stream, &[7; 200]).await, [7; 200]);
    assert_eq!((proxy.flipped(Direction::ToServer), proxy.flipped(Direction::ToClient)), (1, 0));
}

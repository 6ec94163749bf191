//! A log asked for over a real socket.

use super::*;

fn id() -> TopicIdPartition {
    TopicIdPartition::new(TopicId::random(), PartitionIndex::new(7).unwrap())
}

struct Agent {
    dir: tempfile::TempDir,
    wanted: mpsc::Receiver<Wanted>,
    stop: CancellationToken,
}

fn agent() -> Agent {
    let dir = tempfile::tempdir().unwrap();
    let listener = HandoverListener::bind(dir.path()).unwrap();
    let (sender, wanted) = mpsc::channel(1);
    let stop = CancellationToken::new();
    tokio::spawn(listener.run(sender, stop.clone()));
    Agent { dir, wanted, stop }
}

#[tokio::test]
async fn a_loan_lasts_as_long_as_its_connection() {
    let mut agent = agent();
    let (id, seen, path) = (id(), PartitionEpoch::new(1 << 40), agent.dir.path().to_owned());
    let asking = tokio::spawn(async move { ask_for(&path, id, seen).await });
    let wanted = agent.wanted.recv().await.unwrap();
    assert_eq!((wanted.partition, wanted.seen), (id, seen));
    wanted.answer.send(Answer::Released).unwrap();
    let Asked::Lent(borrowed) = asking.await.unwrap().unwrap() else { panic!("it is lent") };
    assert!(!wanted.over.is_cancelled());
    drop(borrowed);
    wanted.over.cancelled().await;
}

#[tokio::test]
async fn an_agent_that_knows_better_or_stops_lends_nothing() {
    let mut agent = agent();
    for refuse in [false, true] {
        let (id, path) = (id(), agent.dir.path().to_owned());
        let asking = tokio::spawn(async move { ask_for(&path, id, PartitionEpoch::FIRST).await });
        let wanted = agent.wanted.recv().await.unwrap();
        if refuse {
            drop(wanted.answer);
            assert!(matches!(asking.await.unwrap().unwrap(), Asked::NoAgent));
        } else {
            wanted.answer.send(Answer::Overtaken).unwrap();
            assert!(matches!(asking.await.unwrap().unwrap(), Asked::Overtaken));
        }
        wanted.over.cancelled().await;
    }
}

#[tokio::test]
async fn without_an_agent_there_is_nobody_to_ask() {
    let dir = tempfile::tempdir().unwrap();
    let asked = ask_for(dir.path(), id(), PartitionEpoch::FIRST).await;
    assert!(matches!(asked, Ok(Asked::NoAgent)), "none ever ran: {asked:?}");
    drop(UnixListener::bind(dir.path().join(AGENT_SOCKET)).unwrap());
    let asked = ask_for(dir.path(), id(), PartitionEpoch::FIRST).await;
    assert!(matches!(asked, Ok(Asked::NoAgent)), "it died: {asked:?}");
    drop(HandoverListener::bind(dir.path()).unwrap());
    assert!(!dir.path().join(AGENT_SOCKET).exists(), "one that stops takes its socket with it");
}

#[tokio::test]
async fn only_the_owner_can_ask_and_only_a_whole_request_counts() {
    let mut agent = agent();
    let path = agent.dir.path().join(AGENT_SOCKET);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut other_version = encode(id(), PartitionEpoch::FIRST);
    other_version[0] = VERSION + 1;
    let mut no_partition = encode(id(), PartitionEpoch::FIRST);
    no_partition[17] = 0xff;
    for request in [other_version, no_partition, vec![VERSION; 3]] {
        let mut connection = UnixStream::connect(&path).await.unwrap();
        connection.write_all(&request).await.unwrap();
        connection.shutdown().await.unwrap();
        assert_eq!(connection.read(&mut [0]).await.unwrap(), 0, "hung up on: {request:?}");
    }
    assert!(agent.wanted.try_recv().is_err());
    agent.stop.cancel();
    assert!(agent.wanted.recv().await.is_none(), "a stop ends it");
}

#[tokio::test]
async fn a_directory_may_lie_deeper_than_a_socket_address_is_long() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&deep).unwrap();
    let listener = HandoverListener::bind(&deep).unwrap();
    let (sender, mut wanted) = mpsc::channel(1);
    tokio::spawn(listener.run(sender, CancellationToken::new()));
    let asking = tokio::spawn(async move { ask_for(&deep, id(), PartitionEpoch::FIRST).await });
    wanted.recv().await.unwrap().answer.send(Answer::Overtaken).unwrap();
    assert!(matches!(asking.await.unwrap().unwrap(), Asked::Overtaken));
}

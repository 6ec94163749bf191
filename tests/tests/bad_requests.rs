//! What people and broken programs send to the real programs (A6; grpc-rust#1834): each gets an answer with a code, and
//! the program serves on. FX1 to FX6 are the byte fixtures of others (tests/README.md).
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::time::Duration;

use highwater_proto::v1;
use highwater_types::{ErrorCode, Program, TopicProperties};
use highwater_wire::failure::classify;
use serde_json::json;
use system_tests::calls::{Calls, batch, code, shape, to};
use system_tests::cluster::{Cluster, Plan, Server, is_serving};
use system_tests::fake_leader::{Answer, FakeLeader, LedTopic, answer_for, lead};
use system_tests::grpcurl::Grpcurl;
use system_tests::{ports, programs, wait};
use tonic::Code;

const FX1: &str = "0000000000000000000000410000000002ae55096000000000000100000000000003e800000000000003e8ffffffffffffffffffffffffffff000000020e000000010261000e00000201026200";
const FX2: &str = "000000000000222100000031000000000235fe512800000000000affffffffffffffff00000000000003e8ffffffffffffffffffffffffffff00000000";
const FX3: &str = "0000000000000003000000420000000002fff0903e00300000000000000000000003e800000000000003e800000000000000070000ffffffff000000012000000008000000010c00000000000000";
const FX4: &str = "0000000000000000000000410000000502ae55096000000000000100000000000003e800000000000003e8ffffffffffffffffffffffffffff000000020e000000010261000e00000201026200";
const FX5: &str = "0000000000000000000000810000000002c0b9d36600000000000900000000000003e800000000000003e8ffffffffffffffffffffffffffff0000000a0e000000010261000e000002010262000e000004010263000e000006010264000e000008010265000e00000a010266000e00000c010267000e00000e010268000e000010010269000e00001201026a00";
const FX6: &str = "0000000000000000000000410000000002ae55096000000000000100000000000003e800000000000003e8ffffffffffffffffffffffffffff000000020e000000010261000e00000201026300";

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex")).collect()
}

/// The fixture as the leader of epoch 0 stores it at an offset: base offset and epoch lie outside the CRC.
fn stored(hex: &str, base_offset: i64) -> Vec<u8> {
    let mut bytes = unhex(hex);
    bytes[..8].copy_from_slice(&base_offset.to_be_bytes());
    bytes[12..16].copy_from_slice(&0_i32.to_be_bytes());
    bytes
}

async fn pair() -> Cluster {
    let cluster = Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent).start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    leader.create_topic("t", 1, &[1, 2], &[]).await;
    leader.until_in_sync("t", 1).await;
    cluster
}

async fn assert_serves_on(server: &Server) {
    assert!(is_serving(server.address()).await, "{server}");
    assert!(!server.output().contains("panicked"), "{}", server.output());
}

#[tokio::test]
async fn each_byte_fixture_gets_its_value_from_produce_and_reaches_the_follower() {
    let cluster = pair().await;
    let (leader, agent) = (Calls::of(cluster.leader(1)), Calls::of(cluster.agent(2)));
    use v1::ErrorCode as E;
    let expected = [
        ("FX1", FX1, Ok((0, 1))),
        ("FX2, which is empty", FX2, Err(E::InvalidRecord)),
        ("FX3, a commit marker", FX3, Err(E::InvalidRecord)),
        ("FX4, FX1 with an epoch", FX4, Ok((2, 3))),
        ("FX5", FX5, Ok((4, 13))),
        ("FX6, with a wrong CRC", FX6, Err(E::CorruptMessage)),
    ];
    for (name, hex, value) in expected {
        let result = leader.produce(v1::Acks::All, to("t", 0, unhex(hex))).await;
        let got = match code(result.error.as_ref()) {
            None => Ok((result.base_offset.expect("told"), result.last_offset.expect("told"))),
            Some(code) => Err(code),
        };
        assert_eq!(got, value, "{name}: {result:?}");
    }
    agent.until_followed_to("t", 1, 14).await;
    let whole = [stored(FX1, 0), stored(FX1, 2), stored(FX5, 4)].concat();
    for server in [&leader, &agent] {
        let fetched = server.fetch_one("t", 0, 0).await;
        assert_eq!(shape(&fetched.records), [(0, 1, 2, 0), (2, 3, 2, 0), (4, 13, 10, 0)]);
        assert!(fetched.records == whole, "byte for byte");
    }
}

fn answer(partitions: Vec<v1::FetchPartitionResult>) -> v1::FetchResponse {
    v1::FetchResponse {
        session_id: Some(0),
        received_ns: Some(1),
        answered_ns: Some(2),
        throttle_ms: Some(0),
        partitions,
        ..Default::default()
    }
}

#[tokio::test]
async fn each_byte_fixture_gets_its_value_from_replication() {
    let fake = FakeLeader::start(ports::loopback()).await;
    let mut cluster = Plan::new().program(2, Program::FollowerAgent).without_starting();
    let topic = LedTopic {
        name: "t".parse().expect("a name"),
        partitions: 4,
        leader_epoch: 0,
        replicas: vec![1, 2],
        properties: TopicProperties::default(),
    };
    lead(&cluster.coordination_dir(), fake.address(), topic).await;
    fake.on_fetch(|request, _| {
        let mut news = false;
        let partitions = request.partitions.iter().map(|asked| {
            let records = match (asked.partition?, asked.fetch_offset?) {
                (0, 0) => FX1,
                // A hole between batches is left by compaction; so are empty batches.
                (0, 2) => FX3,
                (0, 4) => FX2,
                (1, 0) => FX6,
                (2, 0) => FX4,
                (3, 0) => FX5,
                _ => "",
            };
            let records = if asked.partition_max_bytes == Some(0) { "" } else { records };
            news |= !records.is_empty();
            Some(v1::FetchPartitionResult {
                high_watermark: Some(0),
                log_start_offset: Some(0),
                log_end_offset: Some(10_000),
                records: unhex(records).into(),
                ..answer_for(asked)
            })
        });
        let partitions = partitions.collect::<Option<Vec<_>>>()?;
        news.then(|| Answer::Give(answer(partitions)))
    });
    cluster.start_and_wait((2, Program::FollowerAgent)).await;
    let agent = Calls::of(cluster.agent(2));
    wait::until("the good fixtures to be appended", wait::SOON, async || {
        let followed = agent.followed().await;
        let ends: Vec<_> =
            followed.values().map(|partition| partition.log_end_offset.unwrap_or(-1)).collect();
        (ends == [8748, 0, 0, 10]).then_some(())
    })
    .await;
    // Its back-off is over now and then: what it waits for is then told again by the next refusal.
    wait::until("FX6 to be refused by its CRC", wait::SOON, async || {
        let refused = agent.followed().await.remove(&("t".to_owned(), 1))?;
        let says_why = refused.reason.to_lowercase().contains("crc");
        (refused.state() == v1::FetchState::Delayed && says_why).then_some(())
    })
    .await;
    let log = |partition| {
        let directory = cluster.data_dir(2).join(format!("t-{partition}"));
        std::fs::read(directory.join("00000000000000000000.log")).expect("the log is there")
    };
    assert!(log(0) == [unhex(FX1), unhex(FX3), unhex(FX2)].concat(), "appended as they came");
    assert_eq!(
        (log(1).len(), log(2).len()),
        (0, 0),
        "a wrong CRC, an epoch above the request's: not written"
    );
    assert!(log(3) == unhex(FX5));
    assert_serves_on(cluster.agent(2)).await;
}

fn fetch(topic: &str, offset: i64) -> String {
    json!({ "max_wait_ms": 0, "partitions": [{ "topic": topic, "partition": 0, "fetch_offset": offset }] })
        .to_string()
}

#[tokio::test]
async fn bad_requests_by_hand_get_a_status_or_a_code_from_both_programs() {
    let cluster = pair().await;
    for server in [cluster.leader(1), cluster.agent(2)] {
        let Some(grpcurl) = Grpcurl::at(server.address()) else { return };
        let bodies = [
            ("nowhere", 0, "ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION"),
            ("t", 99, "ERROR_CODE_OFFSET_OUT_OF_RANGE"),
        ];
        for (topic, offset, expected) in bodies {
            let answer = grpcurl.call("LogService/Fetch", &fetch(topic, offset)).await.json();
            let error = &answer["partitions"][0]["error"];
            assert_eq!(error["code"], expected, "{server}: {answer:#}");
            let message = error["message"].as_str().expect("in words");
            assert!(message.contains(&offset.to_string()) || message.contains(topic), "{message}");
        }
        let long = |length: usize| fetch(&"x".repeat(length), 0);
        let none = r#"{"partitions":[]}"#.to_owned();
        let refused = [
            (fetch("t", -1), "fetch_offset"),
            (none, "partitions"),
            (fetch("..", 0), "'..'"),
            (fetch("../../etc", 0), "../../etc"),
            (fetch("", 0), "topic"),
            (long(17_000), "topic"),
            (long(100_000), "topic"),
        ];
        for (request, named) in refused {
            let said = grpcurl.call("LogService/Fetch", &request).await;
            assert_eq!(said.status(), Code::InvalidArgument, "{server}: {}", said.err);
            assert!(said.err.contains(named), "{server}: {named} is named in {}", said.err);
            let message = said.err.lines().find(|line| line.contains("Message:")).expect("a message");
            assert!(message.len() <= 4096, "{server}: {} bytes", message.len());
            assert!(said.took < Duration::from_secs(5), "{server}: it does not hang: {:?}", said.took);
        }
        assert_serves_on(server).await;
    }
}

#[tokio::test]
async fn bad_batches_get_a_code_and_a_request_of_200_mb_a_status() {
    let cluster = pair().await;
    let leader = Calls::of(cluster.leader(1));
    use v1::ErrorCode as E;
    let with_magic = |magic| {
        let mut bytes = batch(1, 10);
        bytes[16] = magic;
        bytes
    };
    let half = batch(1, 10)[..40].to_vec();
    let bad = [
        (with_magic(0), E::Unsupported),
        (with_magic(1), E::Unsupported),
        (unhex(FX6), E::CorruptMessage),
        (half, E::CorruptMessage),
        (batch(1, 2_000_000), E::MessageTooLarge),
    ];
    for (records, expected) in bad {
        let result = leader.produce(v1::Acks::All, to("t", 0, records)).await;
        assert_eq!(code(result.error.as_ref()), Some(expected), "{result:?}");
        assert!(!result.error.expect("just seen").message.is_empty());
    }
    let huge =
        v1::ProduceRequest { partitions: vec![to("t", 0, vec![0; 200_000_000])], ..Default::default() };
    for server in [cluster.leader(1), cluster.agent(2)] {
        let calls = Calls::of(server);
        let status = calls.log.clone().produce(huge.clone()).await.expect_err("it is above every limit");
        assert_eq!(classify(&status).code, Some(ErrorCode::MessageTooLarge), "{server}: {status:?}");
        // The same connection works on.
        assert!(calls.fetch_one("t", 0, 0).await.error.is_none(), "{server}");
        assert_serves_on(server).await;
    }
    assert_eq!(leader.append("t", 0, batch(1, 10)).await, 0, "nothing of all that was appended");
}

#[test]
fn wrong_settings_in_every_layer_of_both_programs_end_the_start_with_what_is_allowed() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let file = place.path().join("settings.toml");
    std::fs::write(&file, "no.such.key = 1\nbroker.session.timeout.ms = \"10 MB/x\"\n").expect("a new file");
    for program in ["leader-svc", "follower-agent"] {
        let base = ["--node-id", "1", "--data-dir", "d", "--coordination", "file:c", "--check-config"];
        let said = |change: &dyn Fn(&mut std::process::Command)| {
            let mut command = programs::command(program);
            command.args(base).current_dir(place.path());
            change(&mut command);
            let output = command.output().expect("it starts");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{program}: {said}");
            assert!(!said.contains("panicked"), "{program}: {said}");
            said
        };
        let in_file = said(&|command| {
            command.arg("--config").arg(&file);
        });
        let in_environment = said(&|command| {
            command.env("HIGHWATER_NO_SUCH_KEY", "1").env("HIGHWATER_BROKER_SESSION_TIMEOUT_MS", "10 MB/x");
        });
        for (layer, said) in [("file", &in_file), ("environment", &in_environment)] {
            for part in
                ["broker.session.timeout.ms", "10 MB/x", "a whole number of milliseconds", "allowed are"]
            {
                assert!(said.contains(part), "{program}, {layer}: {part} is named in: {said}");
            }
        }
        assert!(in_file.contains("no.such.key") && in_environment.contains("HIGHWATER_NO_SUCH_KEY"));
        let flag = said(&|command| {
            command.args(["--broker-session-timeout-ms", "10 MB/x"]);
        });
        assert!(flag.contains("10 MB/x") && flag.contains("milliseconds"), "{program}: {flag}");
        let unknown = said(&|command| {
            command.args(["--no-such-key", "1"]);
        });
        assert!(unknown.contains("--no-such-key"), "{program}: {unknown}");
        for nowhere in ["foo:0", "foo:4317:1", "-foo:1"] {
            let endpoint = said(&|command| {
                command.arg(format!("--otlp-endpoint={nowhere}"));
            });
            for part in ["otlp", nowhere, "collector:4317"] {
                assert!(endpoint.contains(part), "{program}: {part} is named in: {endpoint}");
            }
        }
        let side = if program == "leader-svc" { "leader" } else { "follower" };
        let none = said(&|command| {
            command.arg(format!("--{side}-replication-throttled-replicas="));
        });
        assert!(none.contains("throttled") && none.contains("orders,payments:3"), "{program}: {none}");
        assert!(!place.path().join("d").exists(), "nothing was touched");
    }
}

//! Both programs by hand: grpcurl and an older tool that knows only reflection v1alpha find and call everything, and what
//! is printed says all that a person needs, zeros included (A4, case grpcurl#312).
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use serde_json::{Value, json};
use system_tests::calls::Calls;
use system_tests::cluster::{Cluster, Plan, Server};
use system_tests::grpcurl::Grpcurl;
use system_tests::wait;
use tonic::Code;
use tonic_reflection::pb::v1alpha;
use tonic_reflection::pb::v1alpha::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1alpha::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1alpha::server_reflection_response::MessageResponse;

const SERVICES: [&str; 4] = [
    "grpc.health.v1.Health",
    "highwater.v1.ClusterService",
    "highwater.v1.LogService",
    "highwater.v1.ReplicationService",
];

async fn pair() -> Cluster {
    let cluster = Plan::new().program(1, LEADER).program(2, AGENT).start().await;
    Calls::of(cluster.leader(1)).until_nodes(2).await;
    cluster
}

const LEADER: highwater_types::Program = highwater_types::Program::LeaderSvc;
const AGENT: highwater_types::Program = highwater_types::Program::FollowerAgent;

fn both(cluster: &Cluster) -> [&Server; 2] {
    [cluster.leader(1), cluster.agent(2)]
}

#[tokio::test]
async fn grpcurl_lists_and_describes_both_programs() {
    let cluster = pair().await;
    for server in both(&cluster) {
        let Some(grpcurl) = Grpcurl::at(server.address()) else { return };
        let listed = grpcurl.run(&[], &["list"]).await;
        for service in SERVICES {
            assert!(listed.lines().contains(&service), "{server}: {}", listed.out);
        }
        let method = grpcurl.run(&[], &["describe", "highwater.v1.LogService.Fetch"]).await;
        let signature = "rpc Fetch ( .highwater.v1.FetchRequest ) returns ( .highwater.v1.FetchResponse );";
        assert!(method.lines().contains(&signature), "{server}: {}", method.out);
        for service in SERVICES {
            let described = grpcurl.run(&[], &["describe", service]).await;
            assert_eq!(described.lines()[0], format!("{service} is a service:"), "{server}");
        }
        let request = grpcurl.run(&[], &["describe", "highwater.v1.FetchRequest"]).await;
        assert!(request.out.contains("// How many bytes end the wait. Absent: 1."), "comments come along");
        let health = grpcurl.run(&[], &["grpc.health.v1.Health/Check"]).await;
        assert_eq!(health.json(), json!({ "status": "SERVING" }), "{server}");
    }
}

/// One question in reflection v1alpha, and no other version.
async fn ask_v1alpha(server: &Server, question: MessageRequest) -> MessageResponse {
    let mut client = ServerReflectionClient::new(server.channel());
    let request = v1alpha::ServerReflectionRequest { message_request: Some(question), ..Default::default() };
    let answers = client.server_reflection_info(tokio_stream::once(request)).await;
    let mut answers = answers.expect("v1alpha is offered").into_inner();
    let answer = answers.message().await.expect("an answer").expect("one answer per question");
    answer.message_response.expect("the answer says something")
}

/// What `descriptor` holds is read as prost reads it, so that no generated code of ours takes part.
fn methods(descriptor: &[u8], service: &str) -> Vec<String> {
    let file: prost_types::FileDescriptorProto = prost::Message::decode(descriptor).expect("a descriptor");
    let package = file.package().to_owned();
    let found = file.service.iter().find(|s| format!("{package}.{}", s.name()) == service);
    found.map(|s| s.method.iter().map(|m| m.name().to_owned()).collect()).unwrap_or_default()
}

#[tokio::test]
async fn a_client_that_knows_only_v1alpha_lists_and_describes_both_programs() {
    let cluster = pair().await;
    for server in both(&cluster) {
        let listed = ask_v1alpha(server, MessageRequest::ListServices(String::new())).await;
        let MessageResponse::ListServicesResponse(listed) = listed else { panic!("{server}: {listed:?}") };
        let names: Vec<String> = listed.service.into_iter().map(|service| service.name).collect();
        for service in SERVICES {
            assert!(names.iter().any(|name| name == service), "{server}: {names:?}");
        }
        let symbol = "highwater.v1.LogService.Fetch".to_owned();
        let described = ask_v1alpha(server, MessageRequest::FileContainingSymbol(symbol)).await;
        let MessageResponse::FileDescriptorResponse(files) = described else { panic!("{server}") };
        let found = files.file_descriptor_proto.iter().map(|file| methods(file, "highwater.v1.LogService"));
        let found: Vec<String> = found.flatten().collect();
        assert!(found.iter().any(|method| method == "Fetch"), "{server}: {found:?}");
    }
}

/// Fetch with nothing but topic, partition and offset.
fn fetch(offset: i64) -> String {
    json!({ "partitions": [{ "topic": "t", "partition": 0, "fetch_offset": offset }] }).to_string()
}

/// What must be in an object, field by field; other fields may be there too.
fn assert_has(object: &Value, expected: Value) {
    for (key, value) in expected.as_object().expect("an object of fields") {
        assert_eq!(object.get(key), Some(value), "{key} in {object:#}");
    }
}

#[tokio::test]
async fn records_go_in_and_out_by_hand_and_zeros_are_printed() {
    let cluster = pair().await;
    let Some(leader) = Grpcurl::at(cluster.leader(1).address()) else { return };
    let agent = leader.of(cluster.agent(2).address());
    let created = leader.call("ClusterService/CreateTopic", r#"{"topic":"t","replicas":[1,2]}"#).await.json();
    let calls = Calls::of(cluster.leader(1));
    calls.until_led("t").await;
    calls.until_in_sync("t", 1).await;

    let empty = leader.call("LogService/Fetch", &fetch(0)).await.json();
    let ids = json!({ "topic": "t", "topicId": created["topic"]["topicId"], "partition": 0 });
    assert_has(&empty["partitions"][0], ids.clone());
    let zeros = json!({ "highWatermark": "0", "logStartOffset": "0", "logEndOffset": "0" });
    assert_has(&empty["partitions"][0], zeros);
    assert_eq!(empty["sessionId"], json!(0));

    let record = json!({ "key_text": "k", "value_text": "v", "headers": [{ "key": "h", "value": "aGk=" }] });
    let to = json!({ "topic": "t", "partition": 0, "plain_records": [record] });
    let produced = leader.call("LogService/Produce", &json!({ "partitions": [to] }).to_string()).await.json();
    let first = json!({ "baseOffset": "0", "lastOffset": "0", "leaderEpoch": 0, "logStartOffset": "0" });
    assert_has(&produced["partitions"][0], first);

    Calls::of(cluster.agent(2)).until_followed_to("t", 1, 1).await;
    for server in [&leader, &agent] {
        let read =
            server.call("ReplicationService/ReadRecords", r#"{"topic":"t","partition":0}"#).await.json();
        assert_has(&read, json!({ "nextOffset": "1", "logStartOffset": "0", "highWatermark": "1" }));
        let record = &read["records"][0];
        assert_has(record, json!({ "offset": "0", "leaderEpoch": 0, "key": "aw==", "keyText": "k" }));
        assert_has(record, json!({ "value": "dg==", "valueText": "v" }));
        assert_eq!(record["headers"], json!([{ "key": "h", "value": "aGk=" }]));

        let fetched = server.call("LogService/Fetch", &fetch(0)).await.json();
        assert_has(&fetched["partitions"][0], ids.clone());
        assert_has(&fetched["partitions"][0], json!({ "highWatermark": "1", "logEndOffset": "1" }));
        let bytes = fetched["partitions"][0]["records"].as_str().expect("records, in base64");
        assert!(bytes.starts_with("AAAAAAAAAAA"), "a batch at offset 0: {bytes}");
    }
    states_print_their_zeros(&leader, &agent).await;
}

/// The views of replication, with a follower that lags nothing.
async fn states_print_their_zeros(leader: &Grpcurl, agent: &Grpcurl) {
    // The follower's next fetch tells the leader which high watermark it has.
    let row = wait::until("the follower's row", wait::SOON, async || {
        let rows = leader.call("ReplicationService/DescribeReplication", "{}").await.json();
        let row = rows["partitions"][0].clone();
        (row["followers"][0]["highWatermark"] == "1").then_some(row)
    })
    .await;
    assert_has(
        &row,
        json!({ "partition": 0, "leaderEpoch": 0, "logStartOffset": "0", "highWatermark": "1" }),
    );
    let progress = json!({ "replicaId": 2, "state": "REPLICA_STATE_IN_SYNC", "inSync": true, "cause": "LAG_CAUSE_NONE" });
    assert_has(&row["followers"][0], progress);
    assert_has(&row["followers"][0], json!({ "lagRecords": "0", "lagBytes": "0", "lagMs": "0" }));
    let fetchers = agent.call("ReplicationService/DescribeFetchers", "{}").await.json();
    assert_has(&fetchers["fetchers"][0], json!({ "leaderId": 1, "fetcher": 0, "failures": 0 }));
    let followed = &fetchers["fetchers"][0]["partitions"][0];
    let state = json!({ "partition": 0, "state": "FETCH_STATE_FETCHING", "leaderId": 1, "leaderEpoch": 0 });
    assert_has(followed, state);
    assert_has(followed, json!({ "logStartOffset": "0", "logEndOffset": "1", "lagRecords": "0" }));
}

#[tokio::test]
async fn an_error_is_printed_in_words_with_what_to_mend() {
    let cluster = pair().await;
    for server in both(&cluster) {
        let Some(grpcurl) = Grpcurl::at(server.address()) else { return };
        let said =
            grpcurl.call("LogService/Fetch", r#"{"partitions":[{"topic":"t","fetch_offset":0}]}"#).await;
        assert_eq!(said.status(), Code::InvalidArgument, "{server}: {}", said.err);
        let mut expected = vec!["Message: partitions[0].partition: is missing"];
        // The details are not bytes to be decoded by the reader.
        expected.extend(["\"reason\": \"INVALID_REQUEST\"", "\"field\": \"partitions[0].partition\""]);
        for part in expected {
            assert!(said.err.contains(part), "{server}: {part} is printed in\n{}", said.err);
        }
    }
}

#[tokio::test]
async fn an_agent_says_who_can_do_what_it_cannot() {
    let cluster = pair().await;
    let calls = Calls::of(cluster.leader(1));
    calls.create_topic("t", 1, &[1, 2], &[]).await;
    calls.until_in_sync("t", 1).await;
    let Some(agent) = Grpcurl::at(cluster.agent(2).address()) else { return };
    let leader = cluster.leader(1).address().to_string();
    let to = json!({ "topic": "t", "partition": 0, "plain_records": [{ "value_text": "v" }] });
    let produce = json!({ "partitions": [to] }).to_string();
    for (method, request) in [
        ("LogService/Produce", produce.as_str()),
        ("ClusterService/DeleteTopic", r#"{"topic":{"topic":"t"}}"#),
    ] {
        let said = agent.call(method, request).await;
        assert_eq!(said.status(), Code::FailedPrecondition, "{method}: {}{}", said.out, said.err);
        assert!(said.err.contains(&leader), "{method} names the leader {leader}: {}", said.err);
    }
}

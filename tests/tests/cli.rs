//! The command line tool against real nodes: what it prints, and how it ends.

use std::process::Stdio;
use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_types::Program;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use system_tests::calls::{Calls, batch, to};
use system_tests::cluster::{Cluster, Plan};
use system_tests::tool::{BOUND, Done, command, run, run_with};
use system_tests::{ports, wait};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

async fn one_node() -> Cluster {
    Plan::new().program(1, Program::LeaderSvc).start().await
}

/// A node with the topic `t` of one partition, created with these arguments.
async fn with_topic(args: &[&str]) -> Cluster {
    let cluster = one_node().await;
    let args: Vec<&str> = ["topics", "create", "t"].into_iter().chain(args.iter().copied()).collect();
    run(&cluster, &args).await.code(0);
    cluster
}

async fn produce(cluster: &Cluster, args: &[&str], input: &[u8]) -> Done {
    let args: Vec<&str> = ["produce", "t"].into_iter().chain(args.iter().copied()).collect();
    run_with(&cluster.bootstrap(), &args, input).await
}

#[tokio::test]
async fn topics_are_created_listed_described_and_deleted() {
    let cluster = one_node().await;
    assert_eq!(run(&cluster, &["topics", "list"]).await.code(0).text(), "no topics\n");
    let create = ["topics", "create", "orders", "--partitions", "2", "--property", "retention.ms=7d"];
    let created = run(&cluster, &create).await.code(0);
    assert!(
        created.text().starts_with("created topic orders (") && created.text().contains("with 2 partitions")
    );
    let again = run(&cluster, &create).await.code(1);
    assert!(again.err.starts_with("highwater: cannot create topic orders: "), "{}", again.err);

    let listed = run(&cluster, &["topics", "list", "--output", "json"]).await.code(0).json();
    assert_eq!((&listed[0]["topic"], &listed[0]["partitions"]), (&"orders".into(), &2.into()));
    let describe = ["topics", "describe", "orders", "--output", "json"];
    let described = wait::until("a leader of both partitions", wait::SOON, async || {
        let described = run(&cluster, &describe).await.code(0).json().remove(0);
        let partitions = described["partitions"].as_array().cloned().unwrap_or_default();
        partitions.iter().all(|partition| partition["leader"] == 1).then_some(described)
    })
    .await;
    assert_eq!(described["properties"]["retention.ms"], "604800000");
    assert_eq!(described["topic_id"], listed[0]["topic_id"]);
    assert_eq!(described["partitions"][1]["isr"][0]["node"], 1);

    let deleted = run(&cluster, &["topics", "delete", "orders"]).await.code(0);
    assert!(deleted.text().starts_with("deleted topic orders ("), "{}", deleted.text());
    let missing = run(&cluster, &["topics", "describe", "orders"]).await.code(1);
    assert!(missing.err.contains("orders: UnknownTopicOrPartition"), "{}", missing.err);
}

#[tokio::test]
async fn a_new_topic_that_was_waited_for_takes_records_at_once_and_what_it_lacks_is_told() {
    let mut cluster = Plan::new().node(1).program(2, Program::FollowerAgent).start().await;
    let safe = ["--replicas", "1,2", "--property", "min.insync.replicas=2"];
    run(&cluster, &[&["topics", "create", "t", "--wait", "30s"], &safe[..]].concat()).await.code(0);
    let calls = Calls::of(cluster.leader(1));
    let first = calls.produce(v1::Acks::All, to("t", 0, batch(1, 10))).await;
    assert_eq!(first.error, None);

    let unknown = ["topics", "create", "u", "--replicas", "1,9", "--wait", "300ms"];
    let refused = run(&cluster, &unknown).await.code(1);
    assert!(refused.err.contains("cannot create topic u: node 9 has not registered"), "{}", refused.err);
    cluster.server_mut((2, Program::FollowerAgent)).kill();
    let late =
        run(&cluster, &[&["topics", "create", "v", "--wait", "300ms"], &safe[..]].concat()).await.code(1);
    let told = "topic v is created: 1 of 2 replicas of partition 0 are in sync";
    assert!(late.err.contains(told), "{}", late.err);

    // No longer than it was told to wait, though a question is asked for longer.
    cluster.server_mut((1, Program::LeaderSvc)).kill();
    let began = Instant::now();
    let nobody = run(&cluster, &["topics", "create", "w", "--wait", "300ms"]).await.code(1);
    assert!(nobody.err.contains("cannot create topic w: nobody answered"), "{}", nobody.err);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn lines_come_back_as_they_were_sent() {
    let cluster = with_topic(&[]).await;
    let mut input = b"first\n\n\xff\xfe\x00\r\n".to_vec();
    (0..20_000).for_each(|n| input.extend_from_slice(format!("line {n}\n").as_bytes()));
    input.extend_from_slice(b"no line feed at the end");
    for compression in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let produced = produce(&cluster, &["--compression", compression], &input).await.code(0);
        assert!(produced.text().starts_with("20,004 records "), "{}", produced.text());
    }
    let consumed = run(&cluster, &["consume", "t", "--from", "earliest"]).await.code(0);
    let expected = [&input[..], b"\n"].concat().repeat(5);
    assert!(consumed.out == expected, "{} bytes of {}", consumed.out.len(), expected.len());
    assert_eq!(consumed.err, "");
}

#[tokio::test]
async fn idempotence_is_refused_where_acks_make_it_impossible() {
    let cluster = with_topic(&[]).await;
    for acks in ["0", "1"] {
        let refused = produce(&cluster, &["--idempotence", "--acks", acks], b"never\n").await.code(2);
        assert!(refused.err.contains("--idempotence needs --acks all"), "{}", refused.err);
        produce(&cluster, &["--acks", acks], b"sent\n").await.code(0);
    }
    for allowed in ["--idempotence", "--idempotence=true", "--idempotence=false"] {
        produce(&cluster, &[allowed], b"sent\n").await.code(0);
    }
    let consumed = run(&cluster, &["consume", "t", "--from", "earliest"]).await.code(0);
    assert_eq!(consumed.text(), "sent\n".repeat(5));
}

#[tokio::test]
async fn json_tells_keys_offsets_and_bytes_that_are_no_text() {
    let cluster = with_topic(&[]).await;
    let file = cluster.place().join("input");
    std::fs::write(&file, b"a=>1\n\xff=>\xfe\nno key\n").expect("the place is ours");
    let file = file.to_str().expect("it is text");
    produce(&cluster, &["--file", file, "--key-separator", "=>", "--partition", "0"], b"").await.code(0);
    let from_one = ["consume", "t", "--from", "1", "--max-records", "2", "--output", "json"];
    let records = run(&cluster, &from_one).await.code(0).json();
    assert_eq!(records.len(), 2);
    assert_eq!((&records[0]["offset"], &records[0]["partition"]), (&1.into(), &0.into()));
    assert_eq!((&records[0]["key_base64"], &records[0]["value_base64"]), (&"/w==".into(), &"/g==".into()));
    assert_eq!((&records[1]["key"], &records[1]["value"]), (&Value::Null, &"no key".into()));
}

#[tokio::test]
async fn reading_begins_where_it_is_told_to() {
    let cluster = with_topic(&[]).await;
    produce(&cluster, &[], b"1\n2\n3\n").await.code(0);
    let consume =
        async |from: &str| run(&cluster, &["consume", "t", "--from", from]).await.code(0).text().to_owned();
    assert_eq!(consume("2").await, "3\n");
    assert_eq!(consume("1h").await, "1\n2\n3\n");
    assert_eq!(consume("1970-01-01T00:00:00Z").await, "1\n2\n3\n");
    assert_eq!(consume("2200-01-01").await, "", "no record is that new");
    assert_eq!(consume("latest").await, "");
    assert_eq!(consume("3").await, "", "the end");
    let beyond = run(&cluster, &["consume", "t", "--from", "4"]).await.code(1);
    assert!(beyond.err.contains("OffsetOutOfRange"), "{}", beyond.err);
}

#[tokio::test]
async fn who_follows_sees_new_records_and_whoever_stops_reading_ends_it_quietly() {
    let cluster = with_topic(&[]).await;
    let mut follow =
        command(&cluster.bootstrap(), &["consume", "t", "--follow"]).spawn().expect("the program is there");
    let mut lines = BufReader::new(follow.stdout.take().expect("it is piped")).lines();
    for line in ["one", "two"] {
        produce(&cluster, &[], line.as_bytes()).await.code(0);
        let read = tokio::time::timeout(BOUND, lines.next_line()).await.expect("it comes at once");
        assert_eq!(read.expect("it is text").as_deref(), Some(line));
    }
    drop(lines);
    produce(&cluster, &[], b"three").await.code(0);
    let done =
        tokio::time::timeout(BOUND, follow.wait_with_output()).await.expect("it ends").expect("it is ours");
    assert_eq!((done.status.code(), String::from_utf8_lossy(&done.stderr).as_ref()), (Some(0), ""));
}

#[tokio::test]
async fn a_line_that_is_too_long_is_named_and_the_others_are_sent() {
    let cluster = with_topic(&["--property", "max.message.bytes=2000"]).await;
    let long = "x".repeat(2001);
    // Of this length only the leader can say that it is too long: it counts the batch's header.
    let just_too_long = "y".repeat(2000);
    let input = format!("1\n{long}\n3\n{just_too_long}\n5\n");
    let done = produce(&cluster, &[], input.as_bytes()).await.code(1);
    assert!(done.text().starts_with("3 records "), "{}", done.text());
    let told: Vec<&str> = done.err.lines().collect();
    assert!(told[0].starts_with("highwater: line 2 is not acknowledged: 2,001 bytes, "), "{}", done.err);
    assert!(told[1].starts_with("highwater: line 4 is not acknowledged: "), "{}", done.err);
    assert!(told[1].contains("MessageTooLarge"), "{}", done.err);
    assert_eq!(told.len(), 2, "{}", done.err);
    let consumed = run(&cluster, &["consume", "t"]).await.code(0);
    assert_eq!(consumed.text(), "1\n3\n5\n");
}

#[tokio::test]
async fn what_no_replica_acknowledges_is_named_and_ends_the_sending() {
    let mut cluster =
        Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent).start().await;
    cluster.server_mut((2, Program::FollowerAgent)).kill();
    let create = ["topics", "create", "t", "--replicas", "1,2", "--property", "min.insync.replicas=2"];
    run(&cluster, &create).await.code(0);
    let done = produce(&cluster, &["--timeout", "1s"], b"one\ntwo\n").await.code(1);
    assert!(done.text().starts_with("0 records "), "{}", done.text());
    for line in ["line 1", "line 2"] {
        assert!(done.err.contains(&format!("{line} is not acknowledged: ")), "{}", done.err);
    }
    assert!(done.err.contains("NotEnoughReplicas"), "{}", done.err);
    produce(&cluster, &["--acks", "1"], b"three\n").await.code(0);
    let sent = produce(&cluster, &["--acks", "0"], b"four\n").await.code(0);
    assert!(sent.text().contains("without acknowledgement"), "{}", sent.text());
}

#[tokio::test]
async fn an_interrupted_produce_says_what_was_acknowledged() {
    let cluster = with_topic(&[]).await;
    let mut produce = command(&cluster.bootstrap(), &["produce", "t"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the program is there");
    let mut stdin = produce.stdin.take().expect("it is piped");
    let leader = Calls::of(cluster.leader(1));
    // The second batch goes out when the first is acknowledged.
    for (line, end) in [("one\n", 1), ("two\n", 2)] {
        stdin.write_all(line.as_bytes()).await.expect("it reads");
        wait::until("the record", wait::SOON, async || {
            let rows = leader.rows("t").await;
            rows.first().is_some_and(|row| row.log_end_offset == Some(end)).then_some(())
        })
        .await;
    }
    let id = i32::try_from(produce.id().expect("it runs")).expect("process ids are small");
    kill(Pid::from_raw(id), Signal::SIGINT).expect("it runs");
    let done =
        tokio::time::timeout(BOUND, produce.wait_with_output()).await.expect("it ends").expect("it is ours");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.status.code(), Some(130), "{out}{err}");
    let told = ["1 record (3 B) acknowledged in ", "2 records (6 B) acknowledged in "];
    assert!(told.iter().any(|told| out.starts_with(told)), "{out}{err}");
    assert!(err.ends_with("highwater: ended by SIGINT\n"), "{err}");
}

#[tokio::test]
async fn a_watched_lag_is_text_in_a_pipe_too() {
    let cluster = with_topic(&[]).await;
    // Until it is led, the partition has a row of its own.
    wait::until("the partition to be led", wait::SOON, async || {
        let lag = run(&cluster, &["lag"]).await.code(0);
        (lag.text().trim() == "no followers").then_some(())
    })
    .await;
    let mut watch = command(&cluster.bootstrap(), &["lag", "--watch", "--interval", "50ms"])
        .spawn()
        .expect("the program is there");
    let mut lines = BufReader::new(watch.stdout.take().expect("it is piped")).lines();
    for _ in 0..2 {
        let mut next = async || {
            let line = tokio::time::timeout(BOUND, lines.next_line()).await.expect("it goes on");
            line.expect("it is text").expect("it goes on")
        };
        let at = next().await;
        assert!(at.ends_with('Z') && at.contains('T'), "the time of the look: {at}");
        assert_eq!(next().await, "no followers");
    }
}

#[tokio::test]
async fn lag_has_a_row_per_follower_and_names_a_node_that_cannot_be_asked() {
    let mut cluster = Plan::new().node(1).node(2).start().await;
    run(&cluster, &["topics", "create", "t", "--partitions", "2", "--replicas", "1,2"]).await.code(0);
    let lag = ["lag", "t", "--output", "json"];
    wait::until("both followers in sync", wait::SOON, async || {
        let rows = run(&cluster, &lag).await.code(0).json();
        let in_sync = |row: &&Value| row["state"] == "in-sync" && row["lag_records"] == 0;
        (rows.iter().filter(in_sync).count() == 2).then_some(())
    })
    .await;
    let table = run(&cluster, &["lag"]).await.code(0);
    let lines: Vec<&str> = table.text().lines().collect();
    assert!(lines[0].starts_with("TOPIC  PARTITION  LEADER  REPLICA  STATE"), "{}", table.text());
    assert_eq!(lines.len(), 3, "{}", table.text());
    let unknown = run(&cluster, &["lag", "t", "nosuch"]).await.code(1);
    assert!(unknown.err.contains("nosuch") && !unknown.text().contains("unreachable"), "{}", unknown.err);

    let mut watch =
        command(&cluster.bootstrap(), &["lag", "--watch", "--interval", "50ms", "--output", "json"])
            .spawn()
            .expect("the program is there");
    let mut lines = BufReader::new(watch.stdout.take().expect("it is piped")).lines();
    // Else node 1 would take over what node 2 leads: it is in sync until its agent is dead.
    cluster.server_mut((1, Program::FollowerAgent)).kill();
    wait::until("node 1 to leave the in-sync set", wait::SOON, async || {
        let rows = run(&cluster, &lag).await.json();
        rows.iter().any(|row| row["replica"] == 1 && row["in_sync"] == false).then_some(())
    })
    .await;
    cluster.server_mut((2, Program::LeaderSvc)).kill();
    cluster.start_and_wait((1, Program::FollowerAgent)).await;
    let unreachable = async {
        loop {
            let line = lines.next_line().await.expect("it is text").expect("it goes on");
            let line: Value = serde_json::from_str(&line).expect("each line is JSON");
            if line["type"] == "unreachable" {
                return line;
            }
        }
    };
    let line = tokio::time::timeout(BOUND, unreachable).await.expect("it is told");
    assert_eq!(line["node"], 2);

    let incomplete = run(&cluster, &["lag"]).await.code(1);
    assert!(incomplete.text().contains("node 2 cannot be asked: "), "{}", incomplete.text());
    let dead = wait::until("node 2 to be known as dead", wait::SOON, async || {
        let rows = run(&cluster, &lag).await.json();
        rows.into_iter().find(|row| row["type"] == "leaderless" && row["leader_state"] == "dead")
    })
    .await;
    assert_eq!((&dead["leader"], &dead["replica"]), (&2.into(), &1.into()));
    // Another node may be asked this time, which sees the session end at another moment.
    wait::until("node 2 to be told as not live where it leads", wait::SOON, async || {
        let described = run(&cluster, &["topics", "describe", "t", "--output", "json"]).await.code(0).json();
        let partitions = described[0]["partitions"].as_array().expect("it has partitions");
        // Node 2's agent lives on.
        let silent =
            |leader: &Value| if leader == 2 { serde_json::json!([2]) } else { serde_json::json!([]) };
        let led_by_2 = partitions.iter().any(|partition| partition["leader"] == 2);
        assert!(led_by_2, "{partitions:?}");
        partitions.iter().all(|partition| partition["not_live"] == silent(&partition["leader"])).then_some(())
    })
    .await;
}

#[tokio::test]
async fn wrong_use_ends_with_2_and_says_what_is_allowed() {
    let cluster = one_node().await;
    run(&cluster, &["topics", "create", "t", "--partitions", "2"]).await.code(0);
    let cases: &[(&[&str], &str)] = &[
        (&["topics", "create", ".."], "not '.' or '..'"),
        (&["topics", "create", "x", "--property", "retention.ms=10 parsecs"], "retention.ms"),
        (&["topics", "create", "x", "--property", "colour=red"], "known are durability"),
        (&["topics", "create", "x", "--partitions", "0"], "partitions"),
        (&["topics", "create", "x", "--replicas", "1", "--replication-factor", "1"], "cannot be used with"),
        (&["consume", "t", "--from", "newest"], "earliest"),
        (&["consume", "t", "--from", "7"], "--partition"),
        (&["consume", "t", "--partition", "2"], "2 partitions"),
        (&["produce", "t", "--partition", "2"], "2 partitions"),
        (&["produce", "t", "--acks", "2"], "possible values"),
        (&["lag", "--bootstrap", "nowhere"], "HOST:PORT"),
        (&["frobnicate"], "unrecognized"),
    ];
    for (args, told) in cases {
        let done = run(&cluster, args).await.code(2);
        assert!(done.err.contains(told), "{args:?}: {}", done.err);
        assert_eq!(done.text(), "", "{args:?}");
    }
}

#[tokio::test]
async fn a_cluster_that_is_not_there_is_told_with_the_address_and_what_to_do() {
    let address = ports::loopback().to_string();
    for args in [&["topics", "list"][..], &["lag"], &["consume", "t"], &["produce", "t"]] {
        let args: Vec<&str> = args.iter().copied().chain(["--timeout", "300ms"]).collect();
        let done = run_with(&address, &args, b"").await.code(1);
        assert!(done.err.contains(&address) && done.err.contains("hint: "), "{}", done.err);
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named() {
    let cluster = with_topic(&[]).await;
    let missing = produce(&cluster, &["--file", "no-such-file"], b"").await.code(1);
    assert!(missing.err.contains("cannot read no-such-file"), "{}", missing.err);
    let directory = produce(&cluster, &["--file", "."], b"").await.code(1);
    assert!(directory.err.contains("cannot read .: "), "{}", directory.err);
}

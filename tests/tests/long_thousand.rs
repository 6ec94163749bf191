//! A thousand partitions that catch up at once after a restart of both programs (redpanda#5958): bounded, and without a
//! storm of timeouts.

use std::time::Duration;

use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch, to};
use system_tests::cluster::{Plan, ServerId};
use system_tests::wait;

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);
const PARTITIONS: i32 = 1000;
/// A thousand leaderships, one by one, and a thousand logs, on a busy machine.
const WITHIN: Duration = Duration::from_secs(120);

async fn until_followed_to(agent: &Calls, end: i64) {
    wait::until(&format!("{PARTITIONS} partitions at {end}"), WITHIN, async || {
        let followed = agent.followed().await;
        let there = followed.values().filter(|row| row.log_end_offset == Some(end)).count();
        (there == PARTITIONS as usize).then_some(())
    })
    .await;
}

async fn append_to_all(leader: &Calls) {
    let partitions = (0..PARTITIONS).map(|partition| to("t", partition, batch(1, 1000))).collect();
    let request = v1::ProduceRequest { acks: v1::Acks::Leader.into(), partitions, ..Default::default() };
    let answer = leader.log.clone().produce(request).await.expect("Produce is answered").into_inner();
    let errors: Vec<_> = answer.partitions.iter().filter_map(|result| result.error.as_ref()).collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_partitions_catch_up_at_once_after_a_restart() {
    let plan = Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent);
    let mut cluster = plan.start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    let request = v1::CreateTopicRequest {
        topic: "t".to_owned(),
        partitions: Some(PARTITIONS),
        replicas: vec![1, 2],
        ..Default::default()
    };
    leader.cluster.clone().create_topic(request).await.expect("the topic can be created");
    wait::until("a thousand leaderships", WITHIN, async || {
        (leader.rows("t").await.len() == PARTITIONS as usize).then_some(())
    })
    .await;
    append_to_all(&leader).await;
    until_followed_to(&Calls::of(cluster.agent(2)), 1).await;

    cluster.server_mut(AGENT).kill();
    append_to_all(&leader).await;
    cluster.server_mut(LEADER).kill();
    cluster.start(LEADER);
    cluster.start_and_wait(AGENT).await;
    let agent = Calls::of(cluster.agent(2));
    until_followed_to(&agent, 2).await;
    let fetchers = agent.fetchers().await.fetchers;
    assert!(fetchers.iter().all(|fetcher| fetcher.failures == Some(0)), "{fetchers:#?}");
    let output = cluster.agent(2).output();
    let late: Vec<_> = output.lines().filter(|line| line.contains("DeadlineExceeded")).collect();
    assert!(late.is_empty(), "no storm of timeouts: {late:#?}");
}

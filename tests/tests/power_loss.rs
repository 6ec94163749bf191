//! Power loss of a whole node, with the real program on a real file system: what was acknowledged under
//! `durability=fsync` stays, whatever becomes of the rest.

use std::sync::Arc;

use highwater_proto::v1;
use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_types::Program;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::history::History;
use system_tests::power_loss::Unflushed;
use system_tests::tier::rounds;
use system_tests::traffic::Traffic;
use system_tests::wait;

const LEADER: ServerId = (1, Program::LeaderSvc);
const PRODUCERS: usize = 4;

/// Creates a topic of one partition with small segments, so that rolls happen too, and waits until it is led.
async fn create_topic(cluster: &Cluster, name: &str) {
    let property = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let request = v1::CreateTopicRequest {
        topic: name.to_owned(),
        replicas: vec![1],
        properties: [property("durability", "fsync"), property("segment.bytes", "4096")].into(),
        ..Default::default()
    };
    ClusterServiceClient::new(cluster.leader(1).channel())
        .create_topic(request)
        .await
        .expect("the topic is new");
}

/// Produces until a number of records was acknowledged in this round, and takes the power away in the middle of it.
async fn one_round(
    cluster: &mut Cluster,
    history: &Arc<History>,
    round: u32,
    unflushed: Unflushed,
    acknowledged: usize,
) {
    let enough = history.acknowledged() + acknowledged;
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let mut traffic = Traffic::new(cluster.leader(1).channel(), "t", 0);
            let history = Arc::clone(history);
            tokio::spawn(async move {
                // The first attempts may come before the leadership; only the first acknowledgement starts the run.
                for attempt in 0.. {
                    if traffic
                        .produce_until_refused(&history, &format!("r{round}-p{producer}-a{attempt}"))
                        .await
                        > 0
                    {
                        return;
                    }
                }
            })
        })
        .collect();
    let what = format!("{acknowledged} acknowledgements in round {round}");
    wait::until(&what, wait::SOON, async || (history.acknowledged() >= enough).then_some(())).await;
    cluster.lose_power(1, unflushed);
    for producer in producers {
        producer.abort();
        // Aborted or ended; what it was told is in the history.
        let _ = producer.await;
    }
    cluster.start_and_wait(LEADER).await;
}

async fn losses(torn: bool) {
    let mut dice = StdRng::seed_from_u64(u64::from(torn));
    let mut cluster = Plan::new().program(1, Program::LeaderSvc).with_power_loss(1).start().await;
    create_topic(&cluster, "t").await;
    let history = Arc::new(History::default());
    for round in 0..rounds(10, 100) {
        let unflushed = if torn { Unflushed::Torn(dice.random()) } else { Unflushed::Lost };
        one_round(&mut cluster, &history, round, unflushed, dice.random_range(1..200)).await;
        let mut traffic = Traffic::new(cluster.leader(1).channel(), "t", 0);
        wait::until("the next leadership", wait::SOON, async || {
            let value = format!("r{round}-probe-{}", rand::random::<u64>());
            matches!(traffic.produce(&history, &value).await, system_tests::history::Outcome::Acknowledged(_))
                .then_some(())
        })
        .await;
        traffic.read_all(&history).await;
        history.assert_holds();
    }
}

#[tokio::test]
async fn acknowledged_records_outlive_the_loss_of_everything_unflushed() {
    losses(false).await;
}

#[tokio::test]
async fn acknowledged_records_outlive_a_loss_that_tears_what_was_unflushed() {
    losses(true).await;
}

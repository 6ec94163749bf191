//! Three nodes with both programs and a topic with one partition, for tests of leaderships that move.

use highwater_proto::v1;

use crate::calls::Calls;
use crate::cluster::{Cluster, Plan};
use crate::wait;

/// The nodes, each with both programs; all have a replica.
pub const NODES: [i32; 3] = [1, 2, 3];
/// The topic; it has one partition.
pub const TOPIC: &str = "orders";

/// Three nodes that know that all of them live, so that the first one leads what is created.
pub async fn three_nodes() -> Cluster {
    three_nodes_by(|plan| plan).await
}

/// The same with other settings.
pub async fn three_nodes_by(settings: impl FnOnce(Plan) -> Plan) -> Cluster {
    let cluster = settings(Plan::new().node(1).node(2).node(3)).start().await;
    for node in NODES {
        let calls = Calls::of(cluster.leader(node));
        wait::until(&format!("node {node} to see the others"), wait::SOON, async || {
            let request = v1::DescribeClusterRequest::default();
            let answer = calls.cluster.clone().describe_cluster(request).await.ok()?.into_inner();
            let live = [answer.live_leader_svcs, answer.live_follower_agents];
            live.iter().all(|nodes| nodes.len() == NODES.len()).then_some(())
        })
        .await;
    }
    cluster
}

/// The same, with a topic of one partition that all of them are in sync on.
pub async fn three_nodes_with_topic(durability: &str) -> Cluster {
    let cluster = three_nodes().await;
    create_topic(&cluster, durability).await;
    cluster
}

/// Creates the topic of one partition, and waits until all are in sync on it.
pub async fn create_topic(cluster: &Cluster, durability: &str) {
    let calls = Calls::of(cluster.leader(1));
    let properties = [("durability", durability), ("min.insync.replicas", "2")];
    calls.create_topic(TOPIC, 1, &NODES, &properties).await;
    until_all_in_sync(cluster).await;
}

/// The partition, as a server knows it.
pub async fn partition(server: &Calls) -> Option<v1::Partition> {
    server.topic(TOPIC).await?.partitions.into_iter().next()
}

/// Who leads, as those of `nodes` know whose leader-svc answers.
pub async fn leader_by(cluster: &Cluster, nodes: &[i32]) -> Option<i32> {
    for node in nodes {
        let found = partition(&Calls::of(cluster.leader(*node))).await;
        if let Some(leader) = found.and_then(|found| found.leader_id) {
            return Some(leader);
        }
    }
    None
}

/// Waits until somebody leads, and says who.
pub async fn leader(cluster: &Cluster) -> i32 {
    wait::until("a leader", wait::SOON, async || leader_by(cluster, &NODES).await).await
}

/// Waits until every other replica has what the leader has; who leads may change meanwhile.
pub async fn until_all_have_everything(cluster: &Cluster) {
    wait::until("all three to have everything", wait::SOON, async || {
        let calls = Calls::of(cluster.leader(leader_by(cluster, &NODES).await?));
        calls.are_in_sync(TOPIC, NODES.len() - 1).await.then_some(())
    })
    .await;
}

/// Waits until all three are in the in-sync set.
pub async fn until_all_in_sync(cluster: &Cluster) {
    wait::until("all three in sync", wait::SOON, async || {
        let found = partition(&Calls::of(cluster.leader(leader_by(cluster, &NODES).await?))).await?;
        (found.isr.len() == NODES.len() && found.leader_id.is_some()).then_some(())
    })
    .await;
}

/// Waits until another node than `old` leads, and says which.
pub async fn until_other_leader(cluster: &Cluster, old: i32) -> i32 {
    let others: Vec<i32> = NODES.into_iter().filter(|node| *node != old).collect();
    wait::until("another leader", wait::SOON, async || {
        leader_by(cluster, &others).await.filter(|leader| *leader != old)
    })
    .await
}

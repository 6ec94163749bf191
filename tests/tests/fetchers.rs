//! How the partitions of several leaders are shared out among fetch loops (A9), by what DescribeFetchers says and by the
//! connections that are open.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::collections::{BTreeMap, BTreeSet};

use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::proxy::Proxy;
use system_tests::wait;

const LEADERS: [i32; 2] = [1, 2];
const AGENT: ServerId = (3, Program::FollowerAgent);
/// The other leader-svc keeps a connection, to see when this one dies.
const PEERS: usize = 1;
const LOOPS_PER_LEADER: usize = 3;
const PARTITIONS: i32 = 24;

/// Which loop, as (leader, number), has a partition.
type Mapping = BTreeMap<i32, (i32, u32)>;

/// The mapping, once every partition is fetched.
async fn mapping(agent: &Calls) -> Mapping {
    wait::until("all partitions to be in loops", wait::SOON, async || {
        let described = agent.fetchers().await;
        let mut mapping = Mapping::new();
        for fetcher in &described.fetchers {
            let (leader, number) = (fetcher.leader_id?, fetcher.fetcher?);
            for partition in &fetcher.partitions {
                assert_eq!(partition.leader_id, Some(leader), "a loop has partitions of its leader only");
                if partition.state() != v1::FetchState::Fetching {
                    return None;
                }
                let twice = mapping.insert(partition.partition?, (leader, number));
                assert_eq!(twice, None, "a partition is in one loop");
            }
        }
        let order: Vec<_> = described.fetchers.iter().map(|f| (f.leader_id, f.fetcher)).collect();
        assert!(order.is_sorted(), "listed by leader and number: {order:?}");
        (mapping.len() == usize::try_from(PARTITIONS).ok()?).then_some(mapping)
    })
    .await
}

async fn assert_shared_out(
    cluster: &Cluster,
    proxies: &[Proxy; 2],
    recorded: &BTreeMap<i32, i32>,
) -> Mapping {
    let mapping = mapping(&Calls::of(cluster.server(AGENT))).await;
    for (partition, (leader, _)) in &mapping {
        assert_eq!(recorded.get(partition), Some(leader), "partition {partition} is fetched from its leader");
    }
    for (leader, proxy) in LEADERS.iter().zip(proxies) {
        let loops: BTreeSet<u32> =
            mapping.values().filter(|(of, _)| of == leader).map(|(_, number)| *number).collect();
        assert!((2..=LOOPS_PER_LEADER).contains(&loops.len()), "leader {leader} has the loops {loops:?}");
        // A connection per loop and no other of the agent's; one that a stopped agent left takes a moment to end.
        wait::until("a connection per loop", wait::SOON, async || {
            (proxy.open() == loops.len() + PEERS).then_some(())
        })
        .await;
    }
    mapping
}

#[tokio::test]
async fn partitions_of_two_leaders_share_at_most_six_loops_and_keep_them_over_a_restart() {
    let plan = Plan::new()
        .program(1, Program::LeaderSvc)
        .program(2, Program::LeaderSvc)
        .program(3, Program::FollowerAgent)
        .set(Program::FollowerAgent, "num.replica.fetchers", LOOPS_PER_LEADER);
    let targets = LEADERS.map(|node| plan.address((node, Program::LeaderSvc)));
    let proxies = [Proxy::start(targets[0]).await, Proxy::start(targets[1]).await];
    let mut cluster = plan
        .advertise((1, Program::LeaderSvc), proxies[0].address())
        .advertise((2, Program::LeaderSvc), proxies[1].address())
        .start()
        .await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(3).await;
    let topic = calls.create_topic("t", PARTITIONS, &[1, 2, 3], &[]).await;
    let led = topic.partitions.iter().map(|p| (p.partition.expect("told"), p.leader_id.expect("led")));
    let recorded: BTreeMap<i32, i32> = led.collect();
    let leaders: BTreeSet<i32> = recorded.values().copied().collect();
    assert_eq!(leaders, LEADERS.into(), "both lead");

    let before = assert_shared_out(&cluster, &proxies, &recorded).await;
    cluster.server_mut(AGENT).kill();
    wait::until("the end of the connections", wait::SOON, async || {
        proxies.iter().all(|proxy| proxy.open() == PEERS).then_some(())
    })
    .await;
    cluster.start_and_wait(AGENT).await;
    assert_eq!(assert_shared_out(&cluster, &proxies, &recorded).await, before, "the same mapping");

    // Every loop works: what is appended arrives in all partitions.
    for (partition, leader) in &recorded {
        Calls::of(cluster.leader(*leader)).append("t", *partition, batch(1, 100)).await;
    }
    let agent = Calls::of(cluster.server(AGENT));
    wait::until("a record in every partition", wait::SOON, async || {
        let followed = agent.followed().await;
        followed.values().all(|partition| partition.log_end_offset == Some(1)).then_some(())
    })
    .await;
}

//! The leader view against in-process leader-svcs.

use highwater_types::{Incarnation, TopicProperties};

use super::*;
use crate::fake::{FakeNode, led};

const NODE: i32 = 7;

fn topic(name: &str) -> TopicRecord {
    TopicRecord {
        id: TopicId::random(),
        name: name.parse().unwrap(),
        partitions: 2,
        properties: TopicProperties { min_insync_replicas: 2, ..TopicProperties::default() },
        deleted: false,
    }
}

fn view_of(nodes: &[&FakeNode]) -> LeaderView {
    let addresses = nodes.iter().map(|node| node.endpoint.clone()).collect();
    LeaderView::start(LeaderViewConfig::new(addresses, NodeId::new(NODE).unwrap())).unwrap()
}

/// Makes the node refuse DescribeCluster, as one that cannot renew does, and ends what is parked there.
fn isolate(node: &FakeNode) {
    node.state().on_cluster = Some(Box::new(|_| Some(Err(tonic::Status::unavailable("cannot renew")))));
    node.publish();
}

async fn until(view: &LeaderView, what: impl Fn(&ClusterView) -> bool) -> Arc<ClusterView> {
    let mut changes = view.view();
    let seen = tokio::time::timeout(Duration::from_secs(20), changes.wait_for(|view| what(view))).await;
    Arc::clone(&seen.expect("the view was to change").unwrap())
}

#[tokio::test]
async fn the_view_equals_its_source_and_follows_it() {
    let node = FakeNode::start(1).await;
    let orders = topic("orders");
    node.state().nodes.insert(1, NodeRecord { version: 1, ..NodeRecord::new(NodeId::new(1).unwrap()) });
    node.put_topic(&orders, &led(&orders, 0, 1), &node.endpoint);
    let view = view_of(&[&node]);
    let seen = until(&view, |view| view.topic(orders.id).is_some()).await;
    assert_eq!(seen.cluster_id(), Some(&node.cluster));
    assert_eq!(**seen.topic(orders.id).unwrap(), orders);
    let partitions: Vec<_> = seen.partitions_of(orders.id).map(|p| PartitionRecord::clone(p)).collect();
    assert_eq!(partitions, led(&orders, 0, 1));
    assert_eq!(seen.node(NodeId::new(1).unwrap()).map(|node| node.version), Some(1));

    node.put_topic(&orders, &led(&orders, 5, 2), &node.endpoint);
    let seen = until(&view, |view| view.partitions_of(orders.id).all(|p| p.partition_epoch.get() == 2)).await;
    assert_eq!(seen.partitions_of(orders.id).count(), 2);

    let gone = TopicRecord { deleted: true, ..orders.clone() };
    node.put_topic(&gone, &[], &node.endpoint);
    until(&view, |view| view.topic(orders.id).is_some_and(|topic| topic.deleted)).await;
}

#[tokio::test]
async fn a_node_that_lags_behind_changes_nothing_after_the_one_ahead_is_gone() {
    let ahead = FakeNode::start(1).await;
    let behind = FakeNode::of_cluster(2, ahead.cluster.clone()).await;
    let (orders, extra) = (topic("orders"), topic("extra"));
    ahead.put_topic(&orders, &led(&orders, 6, 9), &ahead.endpoint);
    behind.put_topic(&orders, &led(&orders, 5, 8), &behind.endpoint);
    behind.put_topic(&extra, &led(&extra, 0, 1), &behind.endpoint);
    let view = view_of(&[&ahead, &behind]);
    until(&view, |view| view.topic(orders.id).is_some()).await;
    isolate(&ahead);
    let seen = until(&view, |view| view.topic(extra.id).is_some()).await;
    assert!(seen.partitions_of(orders.id).all(|p| p.partition_epoch.get() == 9), "the highest version stays");
}

#[tokio::test]
async fn a_node_that_cannot_renew_is_left_for_the_next() {
    let isolated = FakeNode::start(1).await;
    let well = FakeNode::of_cluster(2, isolated.cluster.clone()).await;
    let orders = topic("orders");
    well.put_topic(&orders, &led(&orders, 0, 1), &well.endpoint);
    isolate(&isolated);
    let view = view_of(&[&isolated, &well]);
    until(&view, |view| view.topic(orders.id).is_some()).await;
    assert!(isolated.calls("describe_cluster") >= 1);
}

#[tokio::test]
async fn a_node_of_another_cluster_adds_nothing() {
    let (own, foreign) = (FakeNode::start(1).await, FakeNode::start(2).await);
    let view = view_of(&[&own, &foreign]);
    until(&view, |view| view.cluster_id().is_some()).await;
    let id = view.ensure_cluster_id(ClusterId::random()).await.unwrap();
    assert_eq!(id, own.cluster);
    let strange = topic("strange");
    foreign.put_topic(&strange, &led(&strange, 0, 1), &foreign.endpoint);
    isolate(&own);
    let refused = view.refresh().await;
    assert!(matches!(refused, Err(CoordinationError::Unavailable(_))), "{refused:?}");
    assert!(foreign.calls("describe_cluster") >= 1);
    assert!(view.view().borrow().topic(strange.id).is_none());
}

#[tokio::test]
async fn an_agent_writes_its_own_record_by_compare_and_swap() {
    let node = FakeNode::start(1).await;
    let view = view_of(&[&node]);
    let own = NodeRecord { disk_next: Incarnation::new(5), ..NodeRecord::new(NodeId::new(NODE).unwrap()) };
    let written = view.swap_node(own.clone(), 0).await.unwrap();
    let first = NodeRecord { version: 1, ..own.clone() };
    assert_eq!(written, CasOutcome::Committed(first.clone()));
    let id = NodeId::new(NODE).unwrap();
    assert_eq!(view.view().borrow().node(id).map(|node| NodeRecord::clone(node)), Some(first.clone()));
    assert_eq!(view.swap_node(own, 0).await, Ok(CasOutcome::Conflict(first)));
    let other = view.swap_node(NodeRecord::new(NodeId::new(8).unwrap()), 0).await;
    assert_eq!(other, Err(CoordinationError::ReadOnly));
}

#[tokio::test]
async fn a_renewal_raises_the_counter_and_reads_every_programs() {
    let node = FakeNode::start(1).await;
    let view = view_of(&[&node]);
    let id = NodeId::new(NODE).unwrap();
    let first = view.renew_liveness(id, Program::FollowerAgent).await.unwrap();
    let second = view.renew_liveness(id, Program::FollowerAgent).await.unwrap();
    let of_agent = |liveness: &Liveness| liveness[&(id, Program::FollowerAgent)];
    assert!(of_agent(&second) > of_agent(&first));
    let leader = view.renew_liveness(id, Program::LeaderSvc).await;
    assert_eq!(leader, Err(CoordinationError::ReadOnly));
}

#[tokio::test]
async fn an_unreachable_store_is_unavailable_and_topics_are_read_only() {
    let config = LeaderViewConfig::new(vec!["127.0.0.1:1".parse().unwrap()], NodeId::new(NODE).unwrap());
    let view = LeaderView::start(config).unwrap();
    let refused = view.refresh().await;
    assert!(matches!(refused, Err(CoordinationError::Unavailable(_))), "{refused:?}");
    let renewed = view.renew_liveness(NodeId::new(NODE).unwrap(), Program::FollowerAgent).await;
    assert!(matches!(renewed, Err(CoordinationError::Unavailable(_))), "nothing was written: {renewed:?}");
    assert_eq!(view.create_topic(topic("a"), Vec::new()).await, Err(CoordinationError::ReadOnly));
}

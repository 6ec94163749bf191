//! DescribeCluster, DescribeTopics and ListReassignments: what the coordination store records, as this program knows it.
//!
//! What must hold: DescribeCluster is a long poll on the version of the view, and ends before its caller's deadline; it
//! fails while this node cannot renew its own liveness, because what it knows may then be old and whoever asks had better
//! ask another node (design.md 6.8).

use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::{ClusterView, Membership};
use highwater_node::MonotonicClock;
use highwater_node::grpc::Deadline;
use highwater_proto::v1;
use highwater_protocol::fetch::TopicRef;
use highwater_types::{
    Endpoint, ErrorCode, NodeId, NodeRecord, PartitionRecord, Program, ReplicationError, TopicId, TopicRecord,
};
use highwater_wire::cluster::{cluster_head, encode_node, encode_topic};
use highwater_wire::error::encode_error;
use highwater_wire::reassign::{AddedReplica, Reassignment, encode_reassignment};
use highwater_wire::throttle::with_left;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fetch::before;
use crate::registry::resolve_topic;
use crate::throttle::ThrottleLives;

/// The longest wait that a DescribeCluster gets, whatever it asks for.
pub const MAX_DESCRIBE_WAIT: Duration = Duration::from_secs(30);

/// How often a waiting answer looks whether this program still holds its session.
pub(crate) const SESSION_CHECK: Duration = Duration::from_millis(500);

/// Answers questions about the cluster from the view.
#[derive(Clone, Debug)]
pub struct ClusterDescriber {
    node: NodeId,
    program: Program,
    view: watch::Receiver<Arc<ClusterView>>,
    membership: Arc<Membership>,
    clock: MonotonicClock,
    draining: CancellationToken,
    lives: Arc<ThrottleLives>,
}

impl ClusterDescriber {
    /// A describer for `program` on `node`. `membership` says whether the program renews its liveness; `draining` ends every
    /// wait, `lives` says how long throttles still live.
    #[must_use]
    pub const fn new(
        node: NodeId,
        program: Program,
        view: watch::Receiver<Arc<ClusterView>>,
        membership: Arc<Membership>,
        clock: MonotonicClock,
        draining: CancellationToken,
        lives: Arc<ThrottleLives>,
    ) -> Self {
        Self { node, program, view, membership, clock, draining, lives }
    }

    /// The recorded state; waits up to `max_wait` while it is still `known`.
    ///
    /// # Errors
    /// `CoordinationUnavailable` while this program does not hold its session.
    pub async fn describe_cluster(
        &self,
        known: Option<u64>,
        max_wait: Duration,
        deadline: Option<Deadline>,
    ) -> Result<v1::DescribeClusterResponse, ReplicationError> {
        let until = Instant::now() + before(deadline, max_wait.min(MAX_DESCRIBE_WAIT));
        let mut view = self.view.clone();
        loop {
            if !self.membership.holds_its_session(self.clock.now()) {
                return Err(ReplicationError::new(
                    ErrorCode::CoordinationUnavailable,
                    format!(
                        "node {} cannot renew its session with the coordination store, so what it knows may be old: ask another \
                         node; where each says so, the store is out of reach, or lost what it held: the node's log says which",
                        self.node
                    ),
                ));
            }
            let now = Arc::clone(&view.borrow_and_update());
            if known != Some(now.version()) {
                return Ok(self.encode(&now));
            }
            if Instant::now() >= until {
                return Ok(self.unchanged(&now));
            }
            tokio::select! {
                // The sender lives as long as the program; a closed one would end the wait with the state as it is.
                changed = view.changed() => if changed.is_err() { return Ok(self.unchanged(&now)) },
                () = self.draining.cancelled() => return Ok(self.unchanged(&now)),
                () = tokio::time::sleep_until(until.min(Instant::now() + SESSION_CHECK)) => {}
            }
        }
    }

    /// The topics asked for, in their order; all live ones by name when none is named.
    #[must_use]
    pub fn describe_topics(&self, asked: &[TopicRef]) -> v1::DescribeTopicsResponse {
        let view = Arc::clone(&self.view.borrow());
        let topics = if asked.is_empty() {
            view.live_topics().map(|topic| found(&view, topic)).collect()
        } else {
            asked.iter().map(|topic| describe_one(&view, topic)).collect()
        };
        v1::DescribeTopicsResponse {
            cluster_id: view.cluster_id().map(ToString::to_string).unwrap_or_default(),
            topics,
        }
    }

    /// One topic as the view has it.
    #[must_use]
    pub fn topic(&self, topic: &TopicRecord) -> v1::Topic {
        encode_live_topic(&self.view.borrow(), topic)
    }

    /// A node's record, with how long its throttles still live.
    #[must_use]
    pub fn node(&self, record: &NodeRecord) -> v1::Node {
        let now = self.clock.now();
        let left = |side| self.lives.left(record.node, side, record.throttles.of(side)?, now);
        with_left(encode_node(record), left)
    }

    /// The partitions of these topics (of all, when none is named) that are being moved, by name and number. `progress` adds
    /// what this program knows beside the records.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition` and the like for a topic that is not known.
    pub fn reassignments(
        &self,
        asked: &[TopicRef],
        progress: impl Fn(&PartitionRecord, &mut [AddedReplica]),
    ) -> Result<v1::ListReassignmentsResponse, ReplicationError> {
        let view = Arc::clone(&self.view.borrow());
        let topics = asked.iter().map(|topic| resolve_topic(&view, topic).map(|record| record.id));
        let topics: Vec<TopicId> = topics.collect::<Result<_, _>>()?;
        let mut moving: Vec<Reassignment> = view
            .partitions()
            .filter(|(topic, record)| {
                record.is_being_moved() && (topics.is_empty() || topics.contains(&topic.id))
            })
            .map(|(topic, record)| reassignment(topic, record, &progress))
            .collect();
        moving.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        Ok(v1::ListReassignmentsResponse {
            node_id: Some(self.node.get()),
            reassignments: moving.iter().map(encode_reassignment).collect(),
        })
    }

    fn unchanged(&self, view: &ClusterView) -> v1::DescribeClusterResponse {
        cluster_head(view.cluster_id(), view.version(), self.node, self.program)
    }

    fn encode(&self, view: &ClusterView) -> v1::DescribeClusterResponse {
        let mut topics: Vec<&Arc<TopicRecord>> = view.topics().collect();
        topics.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        v1::DescribeClusterResponse {
            unchanged: false,
            nodes: view.nodes().map(|node| self.node(node)).collect(),
            live_leader_svcs: self.live(view, Program::LeaderSvc),
            live_follower_agents: self.live(view, Program::FollowerAgent),
            topics: topics.into_iter().map(|topic| encode_live_topic(view, topic)).collect(),
            ..self.unchanged(view)
        }
    }

    /// The nodes whose `program` lives as far as is known.
    fn live(&self, view: &ClusterView, program: Program) -> Vec<i32> {
        let alive = |node: &NodeId| self.membership.may_live(view, *node, program);
        view.nodes().map(|record| record.node).filter(alive).map(NodeId::get).collect()
    }
}

fn reassignment(
    topic: &TopicRecord,
    record: &PartitionRecord,
    progress: impl Fn(&PartitionRecord, &mut [AddedReplica]),
) -> Reassignment {
    let recorded = |node: &NodeId| AddedReplica::recorded(record, *node);
    let mut adding: Vec<_> = record.adding.iter().map(recorded).collect();
    progress(record, &mut adding);
    Reassignment {
        topic: topic.name.clone(),
        topic_id: topic.id,
        partition: record.partition,
        leader: record.leader,
        target: record.target_replicas(),
        adding,
        removing: record.removing.clone(),
    }
}

fn encode_live_topic(view: &ClusterView, topic: &TopicRecord) -> v1::Topic {
    let endpoint_of =
        |node| -> Option<Endpoint> { view.node(node).and_then(|n| n.endpoint(Program::LeaderSvc).cloned()) };
    encode_topic(
        topic,
        view.partitions_of(topic.id).map(|record| -> &PartitionRecord { record }),
        endpoint_of,
    )
}

fn found(view: &ClusterView, topic: &TopicRecord) -> v1::TopicDescription {
    v1::TopicDescription { error: None, topic: Some(encode_live_topic(view, topic)) }
}

fn describe_one(view: &ClusterView, asked: &TopicRef) -> v1::TopicDescription {
    match resolve_topic(view, asked) {
        Ok(topic) => found(view, topic),
        Err(error) => v1::TopicDescription {
            error: Some(encode_error(&error)),
            topic: Some(v1::Topic {
                topic: asked.name().map(ToString::to_string).unwrap_or_default(),
                topic_id: asked.id().map(|id| id.to_string()).unwrap_or_default(),
                ..v1::Topic::default()
            }),
        },
    }
}

#[cfg(test)]
#[path = "describe_test.rs"]
mod tests;

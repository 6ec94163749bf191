//! The records of the coordination store (design.md 6): small, versioned, changed only by compare-and-swap.
//!
//! Fields are only ever added, with a default, so that programs of two versions can share a store.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{
    Incarnation, LeaderEpoch, NodeId, NodeThrottles, Offset, PartitionEpoch, PartitionIndex, TopicId,
    TopicIdPartition, TopicName,
};

mod loss;
mod properties;

pub use loss::UncleanLoss;
pub use properties::{Durability, TopicProperties};

/// A replica in the in-sync set: only this incarnation of it is electable and counts (design.md 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IsrMember {
    /// The replica's node.
    pub node: NodeId,
    /// The incarnation that acknowledged.
    pub incarnation: Incarnation,
}

/// Who leads a partition, in which epoch, and who is in sync (design.md 6.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionRecord {
    /// The topic.
    pub topic_id: TopicId,
    /// The partition within it.
    pub partition: PartitionIndex,
    /// The assigned replicas, the preferred leader first.
    pub replicas: Vec<NodeId>,
    /// The in-sync set; empty until the first leadership (design.md 6.9).
    pub isr: Vec<IsrMember>,
    /// The leader; absent before the first leadership and after a resignation.
    pub leader: Option<NodeId>,
    /// The newest leadership; absent until the first one.
    pub leader_epoch: Option<LeaderEpoch>,
    /// The version of this record.
    pub partition_epoch: PartitionEpoch,
    /// The lowest epoch and the start offset that a first leader must respect: set by adoption, where the directory has a
    /// history (design.md 6.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<AdoptedHistory>,
    /// Replicas that a reassignment adds; they are among `replicas` (design.md 6.12).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adding: Vec<NodeId>,
    /// Replicas that a reassignment removes once the added ones are in sync; they are among `replicas` until then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removing: Vec<NodeId>,
    /// Who gave the leadership up, and for whom; absent while there is a leader (design.md 6.11).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resigned: Option<Resignation>,
    /// Members of the in-sync set whose nodes found, since the newest leadership began, that they hold other replicas now: a
    /// replaced incarnation never comes back, so none of these can lead (design.md 6.3, 6.13).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withdrawn: Vec<IsrMember>,
    /// The newest unclean election; it stays (design.md 6.5, 6.13).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unclean: Option<UncleanElection>,
}

/// A leadership that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resignation {
    /// Who led; it stands again only when nobody else does.
    pub node: NodeId,
    /// Who is to lead next and need not wait; absent when anybody in sync may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<NodeId>,
}

/// An election of a replica that may lack acknowledged records (design.md 6.13).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncleanElection {
    /// The leadership that began so. Cuts below a high watermark of an earlier epoch are legal from here on.
    pub epoch: LeaderEpoch,
    /// Where it began: what other replicas hold from here on is lost, unless the elected one held it too.
    pub log_end: Offset,
    /// The in-sync set that was passed over; what only its members hold is lost.
    pub passed_over: Vec<IsrMember>,
}

/// What the importer of an adopted directory found in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedHistory {
    /// The node that imported the directory; only it may take the first leadership.
    pub importer: NodeId,
    /// The highest leader epoch in the directory, if any; the first leadership is the next one.
    pub highest_epoch: Option<LeaderEpoch>,
    /// The directory's log end offset.
    pub log_end: Offset,
}

impl PartitionRecord {
    /// The record of a partition that nobody has led yet.
    #[must_use]
    pub const fn new(id: TopicIdPartition, replicas: Vec<NodeId>) -> Self {
        Self {
            topic_id: id.topic_id,
            partition: id.partition,
            replicas,
            isr: Vec::new(),
            leader: None,
            leader_epoch: None,
            partition_epoch: PartitionEpoch::FIRST,
            adopted: None,
            adding: Vec::new(),
            removing: Vec::new(),
            resigned: None,
            withdrawn: Vec::new(),
            unclean: None,
        }
    }

    /// The partition's key.
    #[must_use]
    pub const fn id(&self) -> TopicIdPartition {
        TopicIdPartition::new(self.topic_id, self.partition)
    }

    /// Whether nobody has ever led it: nothing has been acknowledged (design.md 6.9). A resigned one is not new.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.leader_epoch.is_none()
    }

    /// Whether `node` is assigned.
    #[must_use]
    pub fn has_replica(&self, node: NodeId) -> bool {
        self.replicas.contains(&node)
    }

    /// How many in-sync replicas `acks=all` needs: `max(1, min(min.insync.replicas, replicas that are not being added))`
    /// (S58, design.md 6.12).
    #[must_use]
    pub fn effective_min_isr(&self, min_insync_replicas: u32) -> usize {
        let wanted = usize::try_from(min_insync_replicas).unwrap_or(usize::MAX);
        wanted.min(self.replicas.len().saturating_sub(self.adding.len())).max(1)
    }

    /// Whether a reassignment is under way.
    #[must_use]
    pub const fn is_being_moved(&self) -> bool {
        !self.adding.is_empty() || !self.removing.is_empty()
    }

    /// The replicas when the reassignment that is under way, if any, is done.
    #[must_use]
    pub fn target_replicas(&self) -> Vec<NodeId> {
        self.replicas.iter().copied().filter(|node| !self.removing.contains(node)).collect()
    }

    /// The leadership since which a cut below a high watermark that was told before is legal (design.md 6.5).
    #[must_use]
    pub fn highest_unclean_epoch(&self) -> Option<LeaderEpoch> {
        self.unclean.as_ref().map(|unclean| unclean.epoch)
    }

    /// The in-sync entry of `node`.
    #[must_use]
    pub fn isr_member(&self, node: NodeId) -> Option<IsrMember> {
        self.isr.iter().find(|m| m.node == node).copied()
    }

    /// Whether `node` said that it is no more what the in-sync set names.
    #[must_use]
    pub fn has_withdrawn(&self, node: NodeId) -> bool {
        self.isr_member(node).is_some_and(|member| self.withdrawn.contains(&member))
    }

    /// Whether this incarnation of `node` may stand for election: it is the one in the in-sync set.
    #[must_use]
    pub fn is_electable(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.isr_member(node).is_some_and(|m| m.incarnation == incarnation)
    }
}

/// A topic. Written last at creation, so that it commits it; at deletion it becomes a tombstone that stays (design.md 6.9).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicRecord {
    /// The identity.
    pub id: TopicId,
    /// The name; free again once `deleted`.
    pub name: TopicName,
    /// How many partitions it has.
    pub partitions: i32,
    /// Its properties.
    pub properties: TopicProperties,
    /// Whether this is a tombstone: replicas of this id are to be deleted.
    #[serde(default)]
    pub deleted: bool,
}

/// A program of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// The one that leads.
    LeaderSvc,
    /// The one that follows.
    FollowerAgent,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaderSvc => "leader-svc",
            Self::FollowerAgent => "follower-agent",
        })
    }
}

/// Where a node's programs are reached, which disk it runs on (design.md 6.3), and what its replication is throttled to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node.
    pub node: NodeId,
    /// Where its leader-svc is reached; absent when it never registered.
    pub leader_svc: Option<Endpoint>,
    /// Where its follower-agent is reached; absent when it never registered.
    pub follower_agent: Option<Endpoint>,
    /// The disk identity that the node last ran with.
    #[serde(default)]
    pub disk_current: Option<Incarnation>,
    /// The disk identity that a start of the node is writing to its disk.
    #[serde(default)]
    pub disk_next: Option<Incarnation>,
    /// The throttles of its replication that were set at run time.
    #[serde(default, skip_serializing_if = "NodeThrottles::is_empty")]
    pub throttles: NodeThrottles,
    /// The version of this record.
    #[serde(default)]
    pub version: u64,
}

impl NodeRecord {
    /// A node that has not registered anything.
    #[must_use]
    pub const fn new(node: NodeId) -> Self {
        Self {
            node,
            leader_svc: None,
            follower_agent: None,
            disk_current: None,
            disk_next: None,
            throttles: NodeThrottles::NONE,
            version: 0,
        }
    }

    /// Where `program` of this node is reached.
    #[must_use]
    pub const fn endpoint(&self, program: Program) -> Option<&Endpoint> {
        match program {
            Program::LeaderSvc => self.leader_svc.as_ref(),
            Program::FollowerAgent => self.follower_agent.as_ref(),
        }
    }
}

/// A program's sign of life: a counter that it raises. An observer counts it as expired when the counter stood still for
/// the session timeout on the observer's own monotonic clock (design.md 6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivenessRecord {
    /// The node.
    pub node: NodeId,
    /// The program.
    pub program: Program,
    /// Raised by each renewal.
    pub counter: u64,
}

/// `host:port`; the host is a name, an IPv4 address, or an IPv6 address in brackets.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint(String);

impl Endpoint {
    /// The text, `host:port`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let legal =
            |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'[' | b']' | b'%');
        text.rsplit_once(':')
            .filter(|(host, port)| host.len() <= 255 && is_host(host) && port.parse::<u16>().is_ok())
            .filter(|_| text.bytes().all(legal))
            .map(|_| Self(text.to_owned()))
            .ok_or_else(|| {
                let start: String = text.chars().take(64).collect();
                format!("address '{start}': HOST:PORT is allowed, for example 10.0.0.7:9400")
            })
    }
}

/// A name, an IPv4 address, or an IPv6 address in brackets.
fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        // With a zone, as the operating system prints it.
        return address.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    }
    let is_label = |label: &str| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-');
    let name = host.strip_suffix('.').unwrap_or(host);
    name.split('.').all(is_label) && !name.contains([':', '[', ']', '%'])
}

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self(address.to_string())
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.0
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

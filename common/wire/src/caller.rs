//! Who calls: role and node id in the metadata, so that layers which see no body know them too (design.md 3).
//!
//! What holds: metadata and body never contradict each other past decoding. This is identity for limits, routing and
//! diagnosis, not authentication.

use std::fmt;
use std::str::FromStr;

use highwater_types::{NodeId, Program};
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::field::{DecodeError, Decoded, parse};

/// Metadata key of the role.
pub const ROLE_KEY: &str = "highwater-role";
/// Metadata key of the node id.
pub const NODE_ID_KEY: &str = "highwater-node-id";

/// What kind of program calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A producer, a consumer, or a tool.
    Client,
    /// A program of a node.
    Node(Program),
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client => f.write_str("client"),
            Self::Node(program) => program.fmt(f),
        }
    }
}

impl FromStr for Role {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "client" => Ok(Self::Client),
            "leader-svc" => Ok(Self::Node(Program::LeaderSvc)),
            "follower-agent" => Ok(Self::Node(Program::FollowerAgent)),
            _ => Err("client, leader-svc and follower-agent are allowed"),
        }
    }
}

/// Who calls, as far as the call says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The role; absent when the call names none, as by hand.
    pub role: Option<Role>,
    /// The node; absent for clients.
    pub node: Option<NodeId>,
}

impl Caller {
    /// A producer, a consumer, or a tool.
    pub const CLIENT: Self = Self { role: Some(Role::Client), node: None };

    /// A program of a node.
    #[must_use]
    pub const fn node(program: Program, node: NodeId) -> Self {
        Self { role: Some(Role::Node(program)), node: Some(node) }
    }

    /// Reads the metadata of a call.
    ///
    /// # Errors
    /// A value is not valid, or a client names a node.
    pub fn decode(metadata: &MetadataMap) -> Decoded<Self> {
        let caller = Self { role: value(metadata, ROLE_KEY)?, node: value(metadata, NODE_ID_KEY)? };
        if caller.role == Some(Role::Client) && caller.node.is_some() {
            return Err(DecodeError::invalid(NODE_ID_KEY, "a client has no node id"));
        }
        Ok(caller)
    }

    /// Writes itself into the metadata of a call.
    pub fn encode(&self, metadata: &mut MetadataMap) {
        if let Some(role) = self.role {
            let text = match role {
                Role::Client => "client",
                Role::Node(Program::LeaderSvc) => "leader-svc",
                Role::Node(Program::FollowerAgent) => "follower-agent",
            };
            metadata.insert(ROLE_KEY, MetadataValue::from_static(text));
        }
        if let Some(node) = self.node {
            metadata.insert(NODE_ID_KEY, MetadataValue::from(node.get()));
        }
    }

    /// Compares with the replica id in a body. A node's program may read without following, so a missing replica id never
    /// contradicts.
    ///
    /// # Errors
    /// The body names another node, or the caller is a client.
    pub fn check_replica(&self, replica: Option<NodeId>) -> Decoded<()> {
        let Some(replica) = replica else { return Ok(()) };
        let contradiction = match (self.role, self.node) {
            (Some(Role::Client), _) => Some("the metadata says that the caller is a client".to_owned()),
            (_, Some(node)) if node != replica => {
                Some(format!("{replica} is not the caller's node {node} in the metadata"))
            }
            _ => None,
        };
        contradiction.map_or(Ok(()), |problem| Err(DecodeError::invalid("replica_id", problem)))
    }

    /// Who repairs is no client, and does not follow by the same request.
    ///
    /// # Errors
    /// Which of the two it is.
    pub fn check_repair(&self, repair: bool, replica: Option<NodeId>) -> Decoded<()> {
        let contradiction = match (self.role, replica) {
            (Some(Role::Client), _) => {
                "the metadata says that the caller is a client: only replicas repair damage"
            }
            (_, Some(_)) => "is set beside replica_id: a fetch repairs or follows",
            _ => return Ok(()),
        };
        if repair { Err(DecodeError::invalid("repair", contradiction)) } else { Ok(()) }
    }
}

fn value<T>(metadata: &MetadataMap, key: &str) -> Decoded<Option<T>>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    let Some(raw) = metadata.get(key) else { return Ok(None) };
    let text = raw.to_str().map_err(|_| DecodeError::invalid(key, "is not ASCII text"))?;
    parse(key, text).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: i32) -> NodeId {
        NodeId::new(id).unwrap()
    }

    #[test]
    fn a_caller_survives_the_metadata() {
        for caller in [
            Caller::default(),
            Caller::CLIENT,
            Caller::node(Program::LeaderSvc, node(0)),
            Caller::node(Program::FollowerAgent, node(7)),
        ] {
            let mut metadata = MetadataMap::new();
            caller.encode(&mut metadata);
            assert_eq!(Caller::decode(&metadata), Ok(caller));
            assert_eq!(metadata.get(ROLE_KEY).is_some(), caller.role.is_some());
        }
    }

    #[test]
    fn a_body_that_contradicts_the_metadata_is_refused() {
        let agent = Caller::node(Program::FollowerAgent, node(2));
        assert!(agent.check_replica(Some(node(2))).is_ok());
        assert!(agent.check_replica(None).is_ok(), "repair reads without a replica id");
        assert_eq!(agent.check_replica(Some(node(3))).unwrap_err().path(), "replica_id");
        assert!(Caller::CLIENT.check_replica(Some(node(2))).is_err());
        assert_eq!(Caller::CLIENT.check_repair(true, None).unwrap_err().path(), "repair");
        assert_eq!(agent.check_repair(true, Some(node(2))).unwrap_err().path(), "repair");
        assert!(agent.check_repair(true, None).is_ok());
        assert!(Caller::default().check_replica(Some(node(2))).is_ok(), "by hand there is no metadata");
    }

    #[test]
    fn metadata_that_is_not_valid_is_named() {
        let mut metadata = MetadataMap::new();
        metadata.insert(NODE_ID_KEY, MetadataValue::from_static("-3"));
        assert_eq!(Caller::decode(&metadata).unwrap_err().path(), NODE_ID_KEY);
        metadata.insert(NODE_ID_KEY, MetadataValue::from_static("3"));
        metadata.insert(ROLE_KEY, MetadataValue::from_static("client"));
        assert_eq!(Caller::decode(&metadata).unwrap_err().path(), NODE_ID_KEY);
        metadata.insert(ROLE_KEY, MetadataValue::from_static("admiral"));
        assert_eq!(Caller::decode(&metadata).unwrap_err().path(), ROLE_KEY);
    }
}

//! Throttles of replication on the wire.
//!
//! What holds: a rate in a request is text and needs its unit, so that 8 cannot be meant for 8MB/s, by hand either; a
//! recorded one is a number of bytes per second.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use highwater_proto::v1;
use highwater_types::{ByteRate, NodeId, Throttle, ThrottleSide, ThrottledReplicas};

use crate::cluster::decode_nodes;
use crate::field::{DecodeError, Decoded, enumeration, required};

/// The shortest life of a throttle: shorter than what every program needs to see it, it would hold back nothing.
pub const SHORTEST_TTL: Duration = Duration::from_secs(1);

/// The longest life of a throttle.
pub const LONGEST_TTL: Duration = Duration::from_secs(366 * 86_400);

/// Throttles to be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetThrottle {
    /// On which nodes; empty = on every registered one.
    pub nodes: Vec<NodeId>,
    /// What they send; absent = that side stays as it is.
    pub leader: Option<ByteRate>,
    /// What they fetch; absent = that side stays as it is.
    pub follower: Option<ByteRate>,
    /// What counts.
    pub replicas: ThrottledReplicas,
    /// How long it lives; absent = until it is cleared.
    pub ttl: Option<Duration>,
}

impl SetThrottle {
    /// What becomes of a node's throttles; `id` is the new ones'.
    pub fn apply(&self, throttles: &mut highwater_types::NodeThrottles, id: u64) {
        for (side, rate) in [(ThrottleSide::Leader, self.leader), (ThrottleSide::Follower, self.follower)] {
            if let Some(rate) = rate {
                *throttles.of_mut(side) = Some(Throttle {
                    id,
                    rate,
                    replicas: self.replicas.clone(),
                    ttl_ms: self.ttl.map(millis),
                });
            }
        }
    }
}

/// Throttles to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClearThrottle {
    /// Of which nodes; empty = of every registered one.
    pub nodes: Vec<NodeId>,
    /// Which sides; not empty.
    pub sides: BTreeSet<ThrottleSide>,
}

/// A recorded throttle on the wire.
#[must_use]
pub fn encode_throttle(throttle: &Throttle) -> v1::ReplicationThrottle {
    v1::ReplicationThrottle {
        id: format!("{:016x}", throttle.id),
        bytes_per_second: Some(throttle.rate.bytes_per_second()),
        replicas: throttle.replicas.entries(),
        ttl_ms: throttle.ttl_ms,
        left_ms: None,
    }
}

/// How long throttles still live, by node and side; those that live until they are cleared are left out.
pub type ThrottleLeft = BTreeMap<(NodeId, ThrottleSide), Duration>;

/// Adds how long its throttles still live to the message of a node's record.
#[must_use]
pub fn with_left(mut message: v1::Node, left: impl Fn(ThrottleSide) -> Option<Duration>) -> v1::Node {
    for side in ThrottleSide::BOTH {
        let throttle = match side {
            ThrottleSide::Leader => &mut message.leader_throttle,
            ThrottleSide::Follower => &mut message.follower_throttle,
        };
        if let Some(throttle) = throttle {
            throttle.left_ms = left(side).map(millis);
        }
    }
    message
}

/// How long the throttles of these nodes still live, as the peer reckons. What has no valid node id is left out:
/// [`decode_node`](crate::cluster::decode_node) refuses it.
#[must_use]
pub fn decode_left(nodes: &[v1::Node]) -> ThrottleLeft {
    let of_node = |message: &v1::Node| {
        let node = message.node_id.and_then(NodeId::new);
        let left = |throttle: Option<&v1::ReplicationThrottle>| throttle.and_then(|t| t.left_ms);
        let sides = [
            (ThrottleSide::Leader, left(message.leader_throttle.as_ref())),
            (ThrottleSide::Follower, left(message.follower_throttle.as_ref())),
        ];
        sides.into_iter().filter_map(move |(side, left)| Some(((node?, side), Duration::from_millis(left?))))
    };
    nodes.iter().flat_map(of_node).collect()
}

/// Reads a recorded throttle.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_throttle(message: &v1::ReplicationThrottle) -> Decoded<Throttle> {
    let rate = required("bytes_per_second", message.bytes_per_second)?;
    Ok(Throttle {
        id: u64::from_str_radix(&message.id, 16)
            .map_err(|_| DecodeError::invalid("id", "16 hexadecimal digits are needed"))?,
        rate: ByteRate::try_from(rate)
            .map_err(|problem| DecodeError::invalid("bytes_per_second", problem))?,
        replicas: decode_replicas(&message.replicas)?,
        ttl_ms: message.ttl_ms,
    })
}

/// Reads a SetReplicationThrottle.
///
/// # Errors
/// The field that is not valid: a rate without a unit above all; no rate at all.
pub fn decode_set(message: &v1::SetReplicationThrottleRequest) -> Decoded<SetThrottle> {
    let set = SetThrottle {
        nodes: decode_nodes("node_ids", &message.node_ids)?,
        leader: decode_rate("leader_rate", &message.leader_rate)?,
        follower: decode_rate("follower_rate", &message.follower_rate)?,
        replicas: decode_replicas(&message.replicas)?,
        ttl: message.ttl_ms.map(decode_ttl).transpose()?,
    };
    if set.leader.is_none() && set.follower.is_none() {
        return Err(DecodeError::invalid("leader_rate", "leader_rate, follower_rate or both are needed"));
    }
    Ok(set)
}

/// The SetReplicationThrottle on the wire.
#[must_use]
pub fn encode_set(set: &SetThrottle) -> v1::SetReplicationThrottleRequest {
    let rate = |rate: Option<ByteRate>| rate.map(|rate| rate.to_string()).unwrap_or_default();
    v1::SetReplicationThrottleRequest {
        node_ids: set.nodes.iter().map(|node| node.get()).collect(),
        leader_rate: rate(set.leader),
        follower_rate: rate(set.follower),
        replicas: set.replicas.entries(),
        ttl_ms: set.ttl.map(millis),
    }
}

/// Reads a ClearReplicationThrottle.
///
/// # Errors
/// The field that is not valid.
pub fn decode_clear(message: &v1::ClearReplicationThrottleRequest) -> Decoded<ClearThrottle> {
    let allowed = "THROTTLE_SIDE_LEADER, THROTTLE_SIDE_FOLLOWER";
    let side = |raw: &i32| match enumeration("sides", *raw, allowed)? {
        v1::ThrottleSide::Leader => Ok(ThrottleSide::Leader),
        v1::ThrottleSide::Follower => Ok(ThrottleSide::Follower),
        v1::ThrottleSide::Unspecified => Err(DecodeError::invalid("sides", format!("{allowed} are allowed"))),
    };
    let mut sides = message.sides.iter().map(side).collect::<Decoded<BTreeSet<_>>>()?;
    if sides.is_empty() {
        sides = BTreeSet::from([ThrottleSide::Leader, ThrottleSide::Follower]);
    }
    Ok(ClearThrottle { nodes: decode_nodes("node_ids", &message.node_ids)?, sides })
}

/// The ClearReplicationThrottle on the wire.
#[must_use]
pub fn encode_clear(clear: &ClearThrottle) -> v1::ClearReplicationThrottleRequest {
    let side = |side: &ThrottleSide| match side {
        ThrottleSide::Leader => v1::ThrottleSide::Leader.into(),
        ThrottleSide::Follower => v1::ThrottleSide::Follower.into(),
    };
    v1::ClearReplicationThrottleRequest {
        node_ids: clear.nodes.iter().map(|node| node.get()).collect(),
        sides: clear.sides.iter().map(side).collect(),
    }
}

fn decode_rate(field: &str, text: &str) -> Decoded<Option<ByteRate>> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|problem: String| DecodeError::invalid(field, problem))
}

fn decode_replicas(entries: &[String]) -> Decoded<ThrottledReplicas> {
    ThrottledReplicas::from_entries(entries.iter().map(String::as_str))
        .map_err(|problem| DecodeError::invalid("replicas", problem))
}

fn decode_ttl(raw: u64) -> Decoded<Duration> {
    let ttl = Duration::from_millis(raw);
    if (SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
        return Ok(ttl);
    }
    let allowed = format!("{raw}: {} to {} is allowed", millis(SHORTEST_TTL), millis(LONGEST_TTL));
    Err(DecodeError::invalid("ttl_ms", allowed))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use highwater_types::{NodeRecord, NodeThrottles};

    use crate::cluster::{decode_node, encode_node};

    use super::*;

    fn set() -> SetThrottle {
        SetThrottle {
            nodes: vec![NodeId::new(1).unwrap(), NodeId::new(7).unwrap()],
            leader: Some("8MB/s".parse().unwrap()),
            follower: None,
            replicas: "orders,payments:2".parse().unwrap(),
            ttl: Some(Duration::from_secs(60)),
        }
    }

    #[test]
    fn requests_survive_the_wire() {
        assert_eq!(decode_set(&encode_set(&set())), Ok(set()));
        let all = SetThrottle { replicas: ThrottledReplicas::All, ttl: None, nodes: Vec::new(), ..set() };
        assert_eq!(decode_set(&encode_set(&all)), Ok(all));
        let clear = ClearThrottle { nodes: Vec::new(), sides: BTreeSet::from([ThrottleSide::Follower]) };
        assert_eq!(decode_clear(&encode_clear(&clear)), Ok(clear));
        let both = decode_clear(&v1::ClearReplicationThrottleRequest::default()).unwrap();
        assert_eq!(both.sides.len(), 2, "no side named means both");
    }

    #[test]
    fn what_is_left_of_a_throttles_life_survives_the_wire() {
        let mut record = NodeRecord::new(NodeId::new(3).unwrap());
        set().apply(&mut record.throttles, 1);
        let message = with_left(encode_node(&record), |_| Some(Duration::from_millis(1_500)));
        assert_eq!(decode_node(&message), Ok(record.clone()), "it is not part of the record");
        let left = decode_left(&[message, encode_node(&NodeRecord::new(NodeId::new(4).unwrap()))]);
        assert_eq!(
            left,
            BTreeMap::from([((record.node, ThrottleSide::Leader), Duration::from_millis(1_500))])
        );
    }

    #[test]
    fn a_rate_without_its_unit_is_refused_with_the_field() {
        for rate in ["8", "8 B/s", "8MB", "fast"] {
            let message =
                v1::SetReplicationThrottleRequest { leader_rate: rate.into(), ..Default::default() };
            let error = decode_set(&message).unwrap_err();
            assert!(error.path() == "leader_rate" && error.problem().contains("8MB/s"), "{error}");
        }
        let message = v1::SetReplicationThrottleRequest { follower_rate: "7".into(), ..Default::default() };
        assert_eq!(decode_set(&message).unwrap_err().path(), "follower_rate");
    }

    #[test]
    fn what_is_not_valid_is_named() {
        let refused = |change: fn(&mut v1::SetReplicationThrottleRequest)| {
            let mut message = encode_set(&set());
            change(&mut message);
            decode_set(&message).unwrap_err().path().to_owned()
        };
        assert_eq!(refused(|m| m.leader_rate.clear()), "leader_rate", "one rate is needed");
        assert_eq!(refused(|m| m.replicas = vec!["a b".into()]), "replicas");
        assert_eq!(refused(|m| m.ttl_ms = Some(0)), "ttl_ms");
        assert_eq!(refused(|m| m.ttl_ms = Some(u64::MAX)), "ttl_ms");
        assert_eq!(refused(|m| m.node_ids = vec![-1]), "node_ids");
        let bad = v1::ClearReplicationThrottleRequest { sides: vec![9], ..Default::default() };
        assert_eq!(decode_clear(&bad).unwrap_err().path(), "sides");
    }

    #[test]
    fn a_side_without_a_rate_stays_as_it_is() {
        let mut throttles = NodeThrottles::NONE;
        SetThrottle { leader: None, follower: set().leader, ..set() }.apply(&mut throttles, 1);
        set().apply(&mut throttles, 2);
        let ids = |throttles: &NodeThrottles| {
            (throttles.leader.as_ref().map(|t| t.id), throttles.follower.as_ref().map(|t| t.id))
        };
        assert_eq!(ids(&throttles), (Some(2), Some(1)));
        assert_eq!(throttles.leader.unwrap().ttl_ms, Some(60_000));
    }
}

//! Replicas that a person pauses and resumes, on the wire.

use highwater_proto::v1;

use crate::field::{Decoded, encode_topic_ref};
use crate::reassign::{PartitionRef, decode_ref};

/// Reads a PauseReplica.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_pause(message: &v1::PauseReplicaRequest) -> Decoded<PartitionRef> {
    decode_ref(&message.topic, &message.topic_id, message.partition)
}

/// The PauseReplica on the wire.
#[must_use]
pub fn encode_pause(replica: &PartitionRef) -> v1::PauseReplicaRequest {
    let (topic, topic_id) = encode_topic_ref(&replica.topic);
    v1::PauseReplicaRequest { topic, topic_id, partition: Some(replica.partition.get()) }
}

/// Reads a ResumeReplica.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_resume(message: &v1::ResumeReplicaRequest) -> Decoded<PartitionRef> {
    decode_ref(&message.topic, &message.topic_id, message.partition)
}

/// The ResumeReplica on the wire.
#[must_use]
pub fn encode_resume(replica: &PartitionRef) -> v1::ResumeReplicaRequest {
    let (topic, topic_id) = encode_topic_ref(&replica.topic);
    v1::ResumeReplicaRequest { topic, topic_id, partition: Some(replica.partition.get()) }
}

#[cfg(test)]
mod tests {
    use highwater_protocol::fetch::TopicRef;
    use highwater_types::PartitionIndex;

    use super::*;

    #[test]
    fn requests_survive_the_wire_and_one_without_a_partition_is_refused() {
        let replica = PartitionRef {
            topic: TopicRef::Name("t".parse().unwrap()),
            partition: PartitionIndex::new(3).unwrap(),
        };
        assert_eq!(decode_pause(&encode_pause(&replica)), Ok(replica.clone()));
        assert_eq!(decode_resume(&encode_resume(&replica)), Ok(replica.clone()));
        let without = v1::PauseReplicaRequest { partition: None, ..encode_pause(&replica) };
        assert_eq!(decode_pause(&without).unwrap_err().path(), "partition");
    }
}

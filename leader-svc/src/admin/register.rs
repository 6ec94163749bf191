//! RegisterAgent: the records of an agent that reaches no store itself are written on its behalf (design.md 6.3).

use highwater_coordination::CasOutcome;
use highwater_proto::v1;
use highwater_serving::PartitionHost as _;
use highwater_types::{LivenessRecord, Program, ReplicationError};
use highwater_wire::admin::RegisterAgent;
use highwater_wire::cluster::{encode_liveness, encode_node};

use super::{ClusterApi, refused};

impl ClusterApi {
    /// Nothing is tried again here: the agent is told, and knows best what its record must be now.
    pub(super) async fn register(
        &self,
        agent: RegisterAgent,
    ) -> Result<v1::RegisterAgentResponse, ReplicationError> {
        let mut answer = v1::RegisterAgentResponse {
            cluster_id: self.volume.cluster_id.to_string(),
            written: None,
            node: None,
            liveness: Vec::new(),
        };
        if let Some(record) = agent.record {
            let expected = record.version;
            let outcome = self.coordination.swap_node(record, expected).await.map_err(|e| refused(&e))?;
            answer.written = Some(matches!(outcome, CasOutcome::Committed(_)));
            answer.node = Some(encode_node(&outcome.into_current()));
        } else {
            answer.node = self.host.view().node(agent.node).map(|record| encode_node(record));
        }
        if agent.counter.is_some() {
            let renewal = self.coordination.renew_liveness(agent.node, Program::FollowerAgent);
            let liveness = renewal.await.map_err(|e| refused(&e))?;
            answer.liveness = liveness
                .into_iter()
                .map(|((node, program), counter)| encode_liveness(&LivenessRecord { node, program, counter }))
                .collect();
        }
        Ok(answer)
    }
}

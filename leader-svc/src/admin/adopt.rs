//! AdoptTopic.

use std::sync::Arc;

use highwater_types::{ErrorCode, ReplicationError, TopicRecord};
use highwater_wire::admin::AdoptTopic;

use super::ClusterApi;

impl ClusterApi {
    pub(super) async fn adopt(&self, adopt: AdoptTopic) -> Result<Arc<TopicRecord>, ReplicationError> {
        Err(ReplicationError::new(
            ErrorCode::Unsupported,
            format!("adopting {} is not built in yet", adopt.directory),
        ))
    }
}

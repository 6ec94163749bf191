//! A store with somebody between it and its user, for tests: who looks at changes, delays them, or loses their answers.
//!
//! What must hold: what the one in between does not take part in goes through as it is.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use highwater_types::{
    ClusterId, NodeId, NodeRecord, PartitionEpoch, PartitionRecord, Program, TopicId, TopicRecord,
};
use tokio::sync::watch;

use crate::{CasOutcome, ClusterView, Coordination, CoordinationError, Liveness};

/// Takes part in changes of records.
#[async_trait]
pub trait Interposer: Send + Sync + fmt::Debug {
    /// In place of a change of a partition's record.
    ///
    /// # Errors
    /// As [`Coordination::swap_partition`], or whatever the test is about.
    async fn swap_partition(
        &self,
        store: &dyn Coordination,
        new: PartitionRecord,
        expected: PartitionEpoch,
    ) -> Result<CasOutcome<PartitionRecord>, CoordinationError> {
        store.swap_partition(new, expected).await
    }

    /// In place of a change of a node's record.
    ///
    /// # Errors
    /// As [`Coordination::swap_node`], or whatever the test is about.
    async fn swap_node(
        &self,
        store: &dyn Coordination,
        new: NodeRecord,
        expected: u64,
    ) -> Result<CasOutcome<NodeRecord>, CoordinationError> {
        store.swap_node(new, expected).await
    }
}

/// See the module.
#[derive(Debug)]
pub struct Interposed<S, I> {
    /// The store itself.
    pub store: S,
    /// Who is in between.
    pub between: I,
}

#[async_trait]
impl<S: Coordination, I: Interposer> Coordination for Interposed<S, I> {
    fn view(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.store.view()
    }

    async fn ensure_cluster_id(&self, proposed: ClusterId) -> Result<ClusterId, CoordinationError> {
        self.store.ensure_cluster_id(proposed).await
    }

    async fn create_topic(
        &self,
        topic: TopicRecord,
        partitions: Vec<PartitionRecord>,
    ) -> Result<CasOutcome<TopicRecord>, CoordinationError> {
        self.store.create_topic(topic, partitions).await
    }

    async fn delete_topic(&self, id: TopicId) -> Result<TopicRecord, CoordinationError> {
        self.store.delete_topic(id).await
    }

    async fn swap_partition(
        &self,
        new: PartitionRecord,
        expected: PartitionEpoch,
    ) -> Result<CasOutcome<PartitionRecord>, CoordinationError> {
        self.between.swap_partition(&self.store, new, expected).await
    }

    async fn swap_node(
        &self,
        new: NodeRecord,
        expected: u64,
    ) -> Result<CasOutcome<NodeRecord>, CoordinationError> {
        self.between.swap_node(&self.store, new, expected).await
    }

    async fn renew_liveness(&self, node: NodeId, program: Program) -> Result<Liveness, CoordinationError> {
        self.store.renew_liveness(node, program).await
    }

    async fn refresh(&self) -> Result<Arc<ClusterView>, CoordinationError> {
        self.store.refresh().await
    }
}

//! A coordination store in memory, for programs that run under a virtual clock: the `file` store works on threads and an
//! etcd on sockets, and neither waits for that clock.
//!
//! What must hold: the contract of [`Coordination`] (its conformance suite runs on this store too); a call takes time of the
//! caller's clock only. A handle is one program's: the store can be out of its reach, or lose its answers. Deliberately
//! absent: anything that lasts longer than the simulation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater_coordination::{
    CasOutcome, ClusterView, Coordination, CoordinationError, Liveness, ViewChanges, ViewPublisher,
    check_change, check_creation,
};
use highwater_types::{
    ClusterId, NodeId, NodeRecord, PartitionEpoch, PartitionRecord, Program, TopicId, TopicIdPartition,
    TopicRecord,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// The way to the store, and the way back.
const ONE_WAY: Duration = Duration::from_millis(1);

/// How long a handle waits for an answer; as the `etcd` store does.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// How the store is reached by one program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reach {
    /// As it should be.
    #[default]
    Good,
    /// No call gets there.
    Away,
    /// Calls get there, and their answers do not come back.
    AnswersLost,
}

/// The store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    tables: Arc<Mutex<Tables>>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Tables {
    cluster_id: Option<ClusterId>,
    topics: BTreeMap<TopicId, TopicRecord>,
    partitions: BTreeMap<TopicIdPartition, PartitionRecord>,
    nodes: BTreeMap<NodeId, NodeRecord>,
    counters: Liveness,
    /// Rises with every change of a record.
    version: u64,
    reach: BTreeMap<String, Reach>,
}

type Answer<T> = Result<T, CoordinationError>;

impl Store {
    /// A handle for the program that runs on `host`.
    pub(crate) fn open(&self, host: &str) -> Arc<dyn Coordination> {
        let view = Arc::new(ViewPublisher::default());
        let following = follow(self.clone(), host.to_owned(), Arc::clone(&view));
        let _following = AbortOnDropHandle::new(tokio::spawn(following));
        Arc::new(Handle { store: self.clone(), host: host.to_owned(), view, _following })
    }

    /// From now on the program on `host` reaches the store like this.
    pub(crate) fn set_reach(&self, host: &str, reach: Reach) {
        self.tables.lock().reach.insert(host.to_owned(), reach);
        // Who follows looks again.
        self.changes.send_modify(|_| {});
    }

    /// The records of all partitions as they stand.
    pub(crate) fn partitions(&self) -> Vec<PartitionRecord> {
        self.tables.lock().partitions.values().cloned().collect()
    }

    /// How many programs have registered.
    pub(crate) fn registered(&self) -> usize {
        let programs = [Program::LeaderSvc, Program::FollowerAgent];
        let of =
            |node: &NodeRecord| programs.iter().filter(|program| node.endpoint(**program).is_some()).count();
        self.tables.lock().nodes.values().map(of).sum()
    }

    fn reach(&self, host: &str) -> Reach {
        self.tables.lock().reach.get(host).copied().unwrap_or_default()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Tables) -> Answer<T>) -> Answer<T> {
        let mut tables = self.tables.lock();
        let answer = change(&mut tables);
        let version = tables.version;
        drop(tables);
        self.changes.send_if_modified(|known| std::mem::replace(known, version) != version);
        answer
    }

    fn everything(&self) -> ViewChanges {
        let tables = self.tables.lock();
        ViewChanges {
            version: tables.version,
            cluster_id: tables.cluster_id.clone(),
            topics: tables.topics.values().cloned().collect(),
            partitions: tables.partitions.values().cloned().collect(),
            nodes: tables.nodes.values().cloned().collect(),
        }
    }
}

/// Shows a handle what changes, while the store is in its reach.
async fn follow(store: Store, host: String, view: Arc<ViewPublisher>) {
    let mut changes = store.changes.subscribe();
    loop {
        changes.borrow_and_update();
        sleep(ONE_WAY).await;
        if store.reach(&host) == Reach::Good {
            view.merge(store.everything());
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// One program's handle.
#[derive(Debug)]
struct Handle {
    store: Store,
    host: String,
    view: Arc<ViewPublisher>,
    _following: AbortOnDropHandle<()>,
}

impl Handle {
    async fn call<T>(&self, change: impl FnOnce(&mut Tables) -> Answer<T> + Send) -> Answer<T> {
        sleep(ONE_WAY).await;
        match self.store.reach(&self.host) {
            Reach::Good => {
                let answer = self.store.change(change);
                sleep(ONE_WAY).await;
                self.view.merge(self.store.everything());
                answer
            }
            Reach::Away => {
                sleep(CALL_TIMEOUT).await;
                Err(CoordinationError::Unavailable("out of reach".to_owned()))
            }
            Reach::AnswersLost => {
                _ = self.store.change(change);
                sleep(CALL_TIMEOUT).await;
                Err(CoordinationError::Unknown("no answer".to_owned()))
            }
        }
    }
}

#[async_trait]
impl Coordination for Handle {
    fn view(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.view.subscribe()
    }

    async fn ensure_cluster_id(&self, proposed: ClusterId) -> Answer<ClusterId> {
        self.call(|tables| {
            if tables.cluster_id.is_none() {
                tables.cluster_id = Some(proposed.clone());
                tables.version += 1;
            }
            Ok(tables.cluster_id.clone().unwrap_or(proposed))
        })
        .await
    }

    async fn create_topic(
        &self,
        topic: TopicRecord,
        partitions: Vec<PartitionRecord>,
    ) -> Answer<CasOutcome<TopicRecord>> {
        check_creation(&topic, &partitions).map_err(CoordinationError::Invalid)?;
        self.call(|tables| {
            let named = tables.topics.values().find(|other| !other.deleted && other.name == topic.name);
            if let Some(other) = tables.topics.get(&topic.id).or(named) {
                return Ok(CasOutcome::Conflict(other.clone()));
            }
            tables.partitions.extend(partitions.into_iter().map(|record| (record.id(), record)));
            tables.topics.insert(topic.id, topic.clone());
            tables.version += 1;
            Ok(CasOutcome::Committed(topic))
        })
        .await
    }

    async fn delete_topic(&self, id: TopicId) -> Answer<TopicRecord> {
        self.call(|tables| {
            let topic = tables.topics.get_mut(&id);
            let topic = topic.ok_or_else(|| CoordinationError::NotFound(format!("topic {id}")))?;
            if !topic.deleted {
                topic.deleted = true;
                tables.partitions.retain(|partition, _| partition.topic_id != id);
                tables.version += 1;
            }
            Ok(topic.clone())
        })
        .await
    }

    async fn swap_partition(
        &self,
        new: PartitionRecord,
        expected: PartitionEpoch,
    ) -> Answer<CasOutcome<PartitionRecord>> {
        self.call(|tables| {
            let id = new.id();
            let current = tables.partitions.get_mut(&id);
            let current = current.ok_or_else(|| CoordinationError::NotFound(format!("partition {id}")))?;
            if current.partition_epoch != expected {
                return Ok(CasOutcome::Conflict(current.clone()));
            }
            check_change(current, &new).map_err(CoordinationError::Invalid)?;
            *current = PartitionRecord { partition_epoch: expected.next(), ..new };
            tables.version += 1;
            Ok(CasOutcome::Committed(current.clone()))
        })
        .await
    }

    async fn swap_node(&self, new: NodeRecord, expected: u64) -> Answer<CasOutcome<NodeRecord>> {
        self.call(|tables| {
            let current = tables.nodes.get(&new.node).cloned();
            let current = current.unwrap_or_else(|| NodeRecord::new(new.node));
            if current.version != expected {
                return Ok(CasOutcome::Conflict(current));
            }
            let written = NodeRecord { version: expected + 1, ..new };
            tables.nodes.insert(written.node, written.clone());
            tables.version += 1;
            Ok(CasOutcome::Committed(written))
        })
        .await
    }

    async fn renew_liveness(&self, node: NodeId, program: Program) -> Answer<Liveness> {
        self.call(|tables| {
            *tables.counters.entry((node, program)).or_default() += 1;
            Ok(tables.counters.clone())
        })
        .await
    }

    async fn refresh(&self) -> Answer<Arc<ClusterView>> {
        self.call(|_| Ok(())).await?;
        Ok(self.view.subscribe().borrow().clone())
    }
}

/// The contract, on this store as on every other.
mod conformance {
    use highwater_coordination::conformance::FreshStore;
    use highwater_coordination::coordination_conformance;

    use super::*;

    struct InMemory(Store);

    #[async_trait]
    impl FreshStore for InMemory {
        async fn handle(&self) -> Arc<dyn Coordination> {
            let handle = self.0.open("a program");
            handle.refresh().await.unwrap();
            handle
        }
    }

    coordination_conformance!(InMemory(Store::default()));
}

//! The `etcd` store: records as keys under a prefix of an etcd, which may have any number of members. Cargo feature
//! `etcd`.
//!
//! - A record changes in a transaction that compares the key's revision of its last change with the one that was read
//!   together with the record: a compare-and-swap. One more read per change, which costs etcd no flush.
//! - A topic's partitions are written first, in pieces that etcd takes, each on condition that there is no topic record
//!   yet; the topic record is written last, on condition that the last partition is there and the name is free. A deletion
//!   writes the tombstone and frees the name; after that the partitions go, in pieces. What is left of either when a program
//!   dies in between is shown to nobody and cannot be changed.
//! - Liveness is a counter (design.md 6.7), not a lease: the version of a key, which each write raises. The counters are
//!   outside of what is watched.
//! - The view is fed by a watch ([`follow`]); own writes are in it before their caller is answered.
//! - Every transaction compares the cluster's id with the one in the view, every answer's revision with those before, and
//!   every renewal the own counter. So an etcd that came back empty or as an older copy, or that is another one, is an
//!   outage: it is neither written to nor believed, and nothing that it lacks is deleted anywhere.
//!
//! Every write adds a revision to etcd's history, renewals too, so etcd has to be told to compact it.

mod connection;
mod follow;
mod keys;
mod records;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use highwater_types::{
    ClusterId, Endpoint, NodeId, NodeRecord, PartitionEpoch, PartitionRecord, Program, TopicId, TopicRecord,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::connection::{Answer, Connection, Effect};
use self::keys::Keys;
use crate::{CasOutcome, ClusterView, Coordination, CoordinationError, Liveness, ViewChanges, ViewPublisher};

/// How many records are read at once: with the largest of them far below what gRPC takes in one message.
const PAGE: i64 = 500;

/// How long one end point has for one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// How the `etcd` store is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdOptions {
    /// What every key begins with. It names the layout of the keys too.
    pub prefix: String,
    /// How long one end point has for one call. Well below the session timeout, so that a renewal fits in after one of
    /// them was found dead.
    pub call_timeout: Duration,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self { prefix: "highwater/v1".to_owned(), call_timeout: CALL_TIMEOUT }
    }
}

/// A handle on the `etcd` store. Dropping it ends its watch.
#[derive(Debug)]
pub struct EtcdCoordination {
    store: Arc<Store>,
    following: JoinHandle<()>,
}

impl EtcdCoordination {
    /// Reads the store, and watches it from then on. `endpoints` are those of one etcd, plain HTTP; one is used at a time,
    /// and the next when it fails.
    ///
    /// # Errors
    /// [`CoordinationError::Unavailable`] when no end point answers; [`CoordinationError::Unreadable`] when there is a
    /// record that cannot be read.
    pub async fn open(endpoints: &[Endpoint], options: EtcdOptions) -> Result<Self, CoordinationError> {
        let store = Arc::new(Store {
            connection: Connection::new(endpoints, options.call_timeout),
            keys: Keys::new(&options.prefix),
            view: ViewPublisher::default(),
            complete: AtomicI64::new(0),
            counters: std::sync::Mutex::default(),
        });
        store.catch_up().await?;
        let following = tokio::spawn(follow::keep_up(Arc::clone(&store)));
        Ok(Self { store, following })
    }
}

impl Drop for EtcdCoordination {
    fn drop(&mut self) {
        self.following.abort();
    }
}

#[async_trait]
impl Coordination for EtcdCoordination {
    fn view(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.store.view.subscribe()
    }

    async fn ensure_cluster_id(&self, proposed: ClusterId) -> Result<ClusterId, CoordinationError> {
        self.store.ensure_cluster_id(proposed).await
    }

    async fn create_topic(
        &self,
        topic: TopicRecord,
        partitions: Vec<PartitionRecord>,
    ) -> Result<CasOutcome<TopicRecord>, CoordinationError> {
        self.store.create_topic(topic, &partitions).await
    }

    async fn delete_topic(&self, id: TopicId) -> Result<TopicRecord, CoordinationError> {
        self.store.delete_topic(id).await
    }

    async fn swap_partition(
        &self,
        new: PartitionRecord,
        expected: PartitionEpoch,
    ) -> Result<CasOutcome<PartitionRecord>, CoordinationError> {
        self.store.swap_partition(new, expected).await
    }

    async fn swap_node(
        &self,
        new: NodeRecord,
        expected: u64,
    ) -> Result<CasOutcome<NodeRecord>, CoordinationError> {
        self.store.swap_node(new, expected).await
    }

    async fn renew_liveness(&self, node: NodeId, program: Program) -> Result<Liveness, CoordinationError> {
        self.store.renew_liveness(node, program).await
    }

    async fn refresh(&self) -> Result<Arc<ClusterView>, CoordinationError> {
        self.store.catch_up().await?;
        Ok(self.store.view.current())
    }
}

/// What a handle and its watch share.
#[derive(Debug)]
struct Store {
    connection: Connection,
    keys: Keys,
    view: ViewPublisher,
    /// Every change up to this revision is in the view.
    complete: AtomicI64,
    /// The counters as last read.
    counters: std::sync::Mutex<Liveness>,
}

/// A transaction of ours: what must hold, what is done then, and what is read otherwise.
#[derive(Debug, Default)]
struct Step {
    when: Vec<Compare>,
    then: Vec<TxnOp>,
    otherwise: Vec<TxnOp>,
}

impl Store {
    /// Makes a step in the store that this handle knows.
    ///
    /// # Errors
    /// [`CoordinationError::Unavailable`] when it is not that store; as [`Connection::call`].
    async fn make(&self, step: Step, effect: Effect) -> Result<Answer, CoordinationError> {
        let Step { mut when, then, mut otherwise } = step;
        let known = self.view.current().cluster_id().cloned();
        let key = self.keys.cluster_id();
        if let Some(id) = &known {
            when.push(Compare::value(key.clone(), CompareOp::Equal, id.as_str()));
            otherwise.push(TxnOp::get(key, None));
        }
        let transaction = Txn::new().when(when).and_then(then).or_else(otherwise);
        let mut answer = self.connection.call(&transaction, effect).await?;
        if let (false, Some(known)) = (answer.held, known) {
            let stands = answer.operations.pop().map(entries).unwrap_or_default();
            let stands = stands.first().map(|entry| String::from_utf8_lossy(entry.value()).into_owned());
            if stands.as_deref() != Some(known.as_str()) {
                return Err(CoordinationError::Unavailable(format!(
                    "etcd holds {} and this program works in cluster {known}: it came back empty, or it is another one. \
                     Restore what it had: a program that is restarted works with it only where its node is known there",
                    stands.map_or_else(|| "no cluster".to_owned(), |other| format!("cluster {other}")),
                )));
            }
        }
        Ok(answer)
    }

    /// Reads keys at one moment.
    async fn read(&self, operations: Vec<TxnOp>) -> Result<Answer, CoordinationError> {
        self.make(Step { then: operations, ..Step::default() }, Effect::Reads).await
    }

    /// Reads one key.
    async fn read_one(&self, key: String) -> Result<Option<KeyValue>, CoordinationError> {
        let answer = self.read(vec![TxnOp::get(key, None)]).await?;
        Ok(first_entry(answer))
    }

    /// Reads what changed after what the view holds completely, page by page but as of one revision, which is returned.
    async fn catch_up(&self) -> Result<i64, CoordinationError> {
        let since = self.complete.load(Ordering::SeqCst);
        let mut from = self.keys.records().into_bytes();
        let end = end_of_prefix(&from);
        let (mut revision, mut changes) = (0, ViewChanges::default());
        loop {
            let mut range =
                GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(revision);
            if since > 0 {
                range = range.with_min_mod_revision(since + 1);
            }
            let answer = self.read(vec![TxnOp::get(from, Some(range))]).await?;
            if revision == 0 {
                revision = answer.revision;
            }
            let Some(TxnOpResponse::Get(page)) = answer.operations.into_iter().next() else { break };
            for entry in page.kvs() {
                self.keys.collect(entry, &mut changes)?;
            }
            match page.kvs().last() {
                Some(last) if page.more() => from = [last.key(), &[0]].concat(),
                _ => break,
            }
        }
        self.show(changes, revision);
        self.complete_up_to(revision);
        Ok(revision)
    }

    /// Shows records that stood at `revision`.
    fn show(&self, changes: ViewChanges, revision: i64) {
        let version = u64::try_from(revision).unwrap_or_default();
        self.view.merge(ViewChanges { version, ..changes });
    }

    /// Everything up to `revision` is in the view.
    fn complete_up_to(&self, revision: i64) {
        self.complete.fetch_max(revision, Ordering::SeqCst);
    }

    /// Raises a counter and reads all of them, in one transaction; it has to be at least where this handle left it.
    async fn renew_liveness(&self, node: NodeId, program: Program) -> Result<Liveness, CoordinationError> {
        let own = self.keys.heartbeat(node, program);
        let last = self.counters().get(&(node, program)).copied().unwrap_or_default();
        let not_lower = i64::try_from(last).unwrap_or(i64::MAX).saturating_sub(1);
        let all = GetOptions::new().with_prefix();
        let step = Step {
            when: vec![Compare::version(own.clone(), CompareOp::Greater, not_lower)],
            then: vec![TxnOp::put(own, "", None), TxnOp::get(self.keys.heartbeats(), Some(all))],
            otherwise: Vec::new(),
        };
        let answer = self.make(step, Effect::Writes).await?;
        if !answer.held {
            return Err(CoordinationError::Unavailable(format!(
                "etcd lost renewals of {program} of node {node}: it came back empty or as an older copy. Restore what it \
             had: a program that is restarted works with it only where its node is known there"
            )));
        }
        let entries = answer.operations.into_iter().next_back().map(entries).unwrap_or_default();
        let counters = self.keys.counters(&entries);
        if counters.get(&(node, program)) <= Some(&last) {
            return Err(CoordinationError::Unreadable(
                "etcd answered a renewal with an old counter".to_owned(),
            ));
        }
        self.counters().clone_from(&counters);
        Ok(counters)
    }

    fn counters(&self) -> std::sync::MutexGuard<'_, Liveness> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keys that one operation of a transaction found.
fn entries(operation: TxnOpResponse) -> Vec<KeyValue> {
    match operation {
        TxnOpResponse::Get(mut found) => found.take_kvs(),
        TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => Vec::new(),
    }
}

/// The first key that the first operation found.
fn first_entry(answer: Answer) -> Option<KeyValue> {
    answer.operations.into_iter().next().and_then(|operation| entries(operation).into_iter().next())
}

/// The first key behind all that begin with `prefix`, which ends with a slash.
fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

//! What every coordination store must do, whatever it is made of: one function per fact, run on each implementation by
//! [`coordination_conformance!`](crate::coordination_conformance).
//!
//! Each function gets a fresh, empty store and opens as many handles on it as it needs; two handles stand for two
//! processes. Deliberately absent: what only one store has (files, leases, custom resources).

#![allow(
    clippy::missing_panics_doc,
    reason = "a function that panics when the fact does not hold is what is asked for"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater_types::{
    ClusterId, Endpoint, Incarnation, IsrMember, LeaderEpoch, NodeId, NodeRecord, Offset, PartitionEpoch,
    PartitionIndex, PartitionRecord, Program, TopicId, TopicIdPartition, TopicProperties, TopicRecord,
};
use tokio::sync::watch;

use crate::{
    Candidate, CasOutcome, ClusterView, Coordination, CoordinationError, first_leadership, register_endpoint,
    renewed_leadership,
};

/// A fresh store. The files or servers behind it live as long as this value.
#[async_trait]
pub trait FreshStore: Send + Sync {
    /// Another handle on the store, as another process would open it.
    async fn handle(&self) -> Arc<dyn Coordination>;
}

/// Makes a test of each fact, on the store that the expression makes.
#[macro_export]
macro_rules! coordination_conformance {
    ($fresh_store:expr) => {
        $crate::coordination_conformance!(@each $fresh_store;
            the_first_proposed_cluster_id_stands,
            of_two_racing_swaps_exactly_one_commits,
            a_swap_against_an_old_version_changes_nothing,
            a_proposal_that_is_repeated_after_it_was_committed_conflicts_with_itself,
            an_illegal_record_is_refused,
            what_was_written_is_in_the_writers_view_at_once,
            another_handle_sees_every_final_state,
            a_view_never_goes_back_while_two_handles_write,
            nothing_is_published_when_nothing_changed,
            a_topic_is_created_with_all_its_partitions,
            of_two_topics_of_one_name_exactly_one_is_created,
            a_deleted_name_is_free_and_its_tombstone_stays,
            a_node_record_changes_by_compare_and_swap,
            heartbeats_rise_across_handles_and_wake_no_view,
            a_write_whose_caller_is_gone_is_made_whole_or_not_at_all,
            a_later_handle_sees_everything,
        );
    };
    (@each $fresh_store:expr; $($fact:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $fact() {
                $crate::conformance::$fact(&$fresh_store).await;
            }
        )*
    };
}

/// How long a change may take from one handle to another before a test fails.
const SOON: Duration = Duration::from_secs(20);

const NODES: [i32; 3] = [1, 2, 3];

fn node(raw: i32) -> NodeId {
    NodeId::new(raw).expect("the tests use ids that are not negative")
}

fn incarnation(raw: i32) -> Incarnation {
    Incarnation::new(u64::from(raw.unsigned_abs()) + 100).expect("not zero")
}

fn candidate(raw: i32) -> Candidate {
    Candidate { node: node(raw), incarnation: incarnation(raw), highest_epoch: None, log_end: Offset::ZERO }
}

fn topic(name: &str, partitions: i32) -> (TopicRecord, Vec<PartitionRecord>) {
    let record = TopicRecord {
        id: TopicId::random(),
        name: name.parse().expect("a topic name"),
        partitions,
        properties: TopicProperties::default(),
        deleted: false,
    };
    let partition = |number| {
        let index = PartitionIndex::new(number).expect("not negative");
        PartitionRecord::new(TopicIdPartition::new(record.id, index), NODES.map(node).to_vec())
    };
    let partitions = (0..partitions).map(partition).collect();
    (record, partitions)
}

async fn created(store: &dyn Coordination, name: &str, partitions: i32) -> Vec<PartitionRecord> {
    let (record, partitions) = topic(name, partitions);
    let outcome = store.create_topic(record.clone(), partitions.clone()).await;
    assert_eq!(outcome, Ok(CasOutcome::Committed(record)));
    partitions
}

async fn one_partition(store: &dyn Coordination) -> PartitionRecord {
    created(store, "orders", 1).await.remove(0)
}

async fn swapped(store: &dyn Coordination, new: PartitionRecord, from: &PartitionRecord) -> PartitionRecord {
    match store.swap_partition(new, from.partition_epoch).await {
        Ok(CasOutcome::Committed(record)) => record,
        other => panic!("the swap was not made: {other:?}"),
    }
}

async fn until(
    view: &mut watch::Receiver<Arc<ClusterView>>,
    condition: impl FnMut(&Arc<ClusterView>) -> bool,
) -> Arc<ClusterView> {
    let seen = tokio::time::timeout(SOON, view.wait_for(condition)).await;
    Arc::clone(&seen.expect("the change is seen in time").expect("the store lives"))
}

/// A cluster has one id, whoever asks first (design.md 1).
pub async fn the_first_proposed_cluster_id_stands(store: &dyn FreshStore) {
    let (a, b) = (store.handle().await, store.handle().await);
    let (first, second) = (ClusterId::random(), ClusterId::random());
    assert_eq!(a.ensure_cluster_id(first.clone()).await, Ok(first.clone()));
    assert_eq!(b.ensure_cluster_id(second.clone()).await, Ok(first.clone()));
    assert_eq!(a.ensure_cluster_id(second).await, Ok(first.clone()));
    until(&mut b.view(), |view| view.cluster_id() == Some(&first)).await;
}

/// The heart of every election and of every change of the in-sync set (design.md 6.2).
pub async fn of_two_racing_swaps_exactly_one_commits(store: &dyn FreshStore) {
    const ROUNDS: usize = 25;
    let (a, b) = (store.handle().await, store.handle().await);
    let mut current = one_partition(&*a).await;
    let mut wins = BTreeMap::new();
    for round in 0..ROUNDS {
        let proposal = |raw: i32| {
            let mut record = PartitionRecord {
                leader: Some(node(raw)),
                leader_epoch: Some(current.leader_epoch.map_or(LeaderEpoch::FIRST, LeaderEpoch::next)),
                ..current.clone()
            };
            record.isr =
                [1, 2].map(|raw| IsrMember { node: node(raw), incarnation: incarnation(raw) }).to_vec();
            record
        };
        let version = current.partition_epoch;
        let (one, two) =
            tokio::join!(a.swap_partition(proposal(1), version), b.swap_partition(proposal(2), version));
        current = match (one.expect("the store is there"), two.expect("the store is there")) {
            (CasOutcome::Committed(won), CasOutcome::Conflict(stood))
            | (CasOutcome::Conflict(stood), CasOutcome::Committed(won)) => {
                assert_eq!(won, stood, "round {round}: the loser is shown what the winner wrote");
                won
            }
            other => panic!("round {round}: not one winner and one loser: {other:?}"),
        };
        assert_eq!(current.partition_epoch, version.next(), "round {round}");
        *wins.entry(current.leader).or_insert(0_usize) += 1;
    }
    assert_eq!(wins.values().sum::<usize>(), ROUNDS);
}

/// A compare-and-swap compares.
pub async fn a_swap_against_an_old_version_changes_nothing(store: &dyn FreshStore) {
    let (a, b) = (store.handle().await, store.handle().await);
    let new = one_partition(&*a).await;
    let led = swapped(&*a, first_leadership(&new, &candidate(1)).expect("eligible"), &new).await;
    let late = first_leadership(&new, &candidate(2)).expect("eligible by the record it knows");
    assert_eq!(
        b.swap_partition(late.clone(), new.partition_epoch).await,
        Ok(CasOutcome::Conflict(led.clone()))
    );
    assert_eq!(
        b.swap_partition(late, PartitionEpoch::new(77)).await,
        Ok(CasOutcome::Conflict(led.clone())),
        "a version that never was"
    );
    let view = a.refresh().await.expect("the store is there");
    assert_eq!(view.partition(led.id()).map(|r| PartitionRecord::clone(r)), Some(led));
}

/// How an unknown outcome is resolved: propose again against the same version (design.md 6.4).
pub async fn a_proposal_that_is_repeated_after_it_was_committed_conflicts_with_itself(
    store: &dyn FreshStore,
) {
    let a = store.handle().await;
    let new = one_partition(&*a).await;
    let proposal = first_leadership(&new, &candidate(1)).expect("eligible");
    let led = swapped(&*a, proposal.clone(), &new).await;
    let again = a.swap_partition(proposal.clone(), new.partition_epoch).await;
    assert_eq!(again, Ok(CasOutcome::Conflict(led)));
    assert_eq!(again.map(CasOutcome::into_current), Ok(proposal), "the election proposes the version too");
}

/// The last defence against a caller's fault.
pub async fn an_illegal_record_is_refused(store: &dyn FreshStore) {
    let a = store.handle().await;
    let new = one_partition(&*a).await;
    let mut illegal = first_leadership(&new, &candidate(1)).expect("eligible");
    illegal.isr = vec![IsrMember { node: node(2), incarnation: incarnation(2) }];
    let refused = a.swap_partition(illegal, new.partition_epoch).await;
    assert!(matches!(refused, Err(CoordinationError::Invalid(_))), "{refused:?}");

    let (record, mut partitions) = topic("gaps", 3);
    partitions.remove(1);
    let refused = a.create_topic(record, partitions).await;
    assert!(matches!(refused, Err(CoordinationError::Invalid(_))), "{refused:?}");
    let view = a.refresh().await.expect("the store is there");
    assert_eq!(view.live_topics().count(), 1);
}

/// A service decides on its view right after it wrote.
pub async fn what_was_written_is_in_the_writers_view_at_once(store: &dyn FreshStore) {
    let a = store.handle().await;
    let view = a.view();
    let new = one_partition(&*a).await;
    let shown = |id| view.borrow().partition(id).map(|r| r.partition_epoch);
    assert_eq!(shown(new.id()), Some(PartitionEpoch::FIRST));
    let led = swapped(&*a, first_leadership(&new, &candidate(1)).expect("eligible"), &new).await;
    assert_eq!(shown(new.id()), Some(led.partition_epoch));
    let record = a.swap_node(NodeRecord::new(node(1)), 0).await.expect("the store is there");
    assert_eq!(view.borrow().node(node(1)).map(|r| r.version), record.committed().map(|r| r.version));
}

/// Watchers may miss states in between, never the last one.
pub async fn another_handle_sees_every_final_state(store: &dyn FreshStore) {
    let (a, b) = (store.handle().await, store.handle().await);
    let mut view = b.view();
    let partitions = created(&*a, "orders", 3).await;
    for new in &partitions {
        let mut current = swapped(&*a, first_leadership(new, &candidate(1)).expect("eligible"), new).await;
        for _ in 0..5 {
            let next = renewed_leadership(&current, &candidate(1)).expect("eligible");
            current = swapped(&*a, next, &current).await;
        }
        let seen = until(&mut view, |view| {
            view.partition(new.id()).is_some_and(|r| r.partition_epoch == current.partition_epoch)
        })
        .await;
        assert_eq!(seen.partition(new.id()).map(|r| PartitionRecord::clone(r)), Some(current));
    }
    let node_record = register_endpoint(&*a, node(2), Program::LeaderSvc, &endpoint("10.0.0.2:9400"))
        .await
        .expect("the store is there");
    let seen = until(&mut view, |view| view.node(node(2)).is_some()).await;
    assert_eq!(seen.node(node(2)).map(|r| NodeRecord::clone(r)), Some(node_record));
}

fn endpoint(text: &str) -> Endpoint {
    text.parse().expect("an address")
}

/// A reader of any handle never sees a lower version than it saw before, and both handles end in the same state.
pub async fn a_view_never_goes_back_while_two_handles_write(store: &dyn FreshStore) {
    const SWAPS: usize = 30;
    let (a, b) = (store.handle().await, store.handle().await);
    let new = one_partition(&*a).await;
    let led = swapped(&*a, first_leadership(&new, &candidate(1)).expect("eligible"), &new).await;
    let id = led.id();

    let writer = |handle: Arc<dyn Coordination>, mut current: PartitionRecord| async move {
        let mut committed = 0;
        while committed < SWAPS {
            let next = renewed_leadership(&current, &candidate(1)).expect("eligible");
            match handle.swap_partition(next, current.partition_epoch).await {
                Ok(outcome) => {
                    committed += usize::from(matches!(outcome, CasOutcome::Committed(_)));
                    current = outcome.into_current();
                }
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    };
    let last = PartitionEpoch::new(led.partition_epoch.get() + 2 * SWAPS as u64);
    let reader = |mut view: watch::Receiver<Arc<ClusterView>>| async move {
        let mut highest = (0, PartitionEpoch::FIRST);
        loop {
            let now = {
                let view = view.borrow_and_update();
                (view.version(), view.partition(id).map_or(PartitionEpoch::FIRST, |r| r.partition_epoch))
            };
            assert!(now.0 >= highest.0 && now.1 >= highest.1, "{now:?} after {highest:?}");
            highest = now;
            if now.1 == last {
                break;
            }
            tokio::time::timeout(SOON, view.changed()).await.expect("in time").expect("the store lives");
        }
    };
    tokio::join!(
        writer(Arc::clone(&a), led.clone()),
        writer(Arc::clone(&b), led.clone()),
        reader(a.view()),
        reader(b.view()),
    );
}

/// Idle clusters wake nobody.
pub async fn nothing_is_published_when_nothing_changed(store: &dyn FreshStore) {
    let (a, b) = (store.handle().await, store.handle().await);
    let new = one_partition(&*a).await;
    until(&mut b.view(), |view| view.partition(new.id()).is_some()).await;
    let (mut seen_by_a, mut seen_by_b) = (a.view(), b.view());
    seen_by_a.mark_unchanged();
    seen_by_b.mark_unchanged();
    let before = b.refresh().await.expect("the store is there");
    let lost = a.swap_partition(new.clone(), PartitionEpoch::new(9)).await;
    assert_eq!(lost, Ok(CasOutcome::Conflict(new)));
    let after = b.refresh().await.expect("the store is there");
    a.refresh().await.expect("the store is there");
    assert_eq!(before.version(), after.version());
    assert!(seen_by_a.has_changed().is_ok_and(|changed| !changed));
    assert!(seen_by_b.has_changed().is_ok_and(|changed| !changed));
}

/// The topic record commits the creation (design.md 6.9).
pub async fn a_topic_is_created_with_all_its_partitions(store: &dyn FreshStore) {
    let (a, b) = (store.handle().await, store.handle().await);
    let partitions = created(&*a, "orders", 12).await;
    let name = "orders".parse().expect("a topic name");
    let view = until(&mut b.view(), |view| view.topic_named(&name).is_some()).await;
    let id = view.topic_named(&name).map(|t| t.id).expect("just seen");
    let seen: Vec<PartitionRecord> = view.partitions_of(id).map(|r| PartitionRecord::clone(r)).collect();
    assert_eq!(seen, partitions);
    assert_eq!(view.partitions().count(), 12);
}

/// Names are unique among live topics, also in a race; an id is never used twice.
pub async fn of_two_topics_of_one_name_exactly_one_is_created(store: &dyn FreshStore) {
    let (a, b) = (store.handle().await, store.handle().await);
    let ((one, of_one), (two, of_two)) = (topic("orders", 2), topic("orders", 3));
    let outcomes = tokio::join!(
        a.create_topic(one.clone(), of_one.clone()),
        b.create_topic(two.clone(), of_two.clone())
    );
    let winner = match outcomes {
        (Ok(CasOutcome::Committed(won)), Ok(CasOutcome::Conflict(stood)))
        | (Ok(CasOutcome::Conflict(stood)), Ok(CasOutcome::Committed(won))) => {
            assert_eq!(won, stood);
            won
        }
        other => panic!("not one winner and one loser: {other:?}"),
    };
    let (loser, loser_id) = if winner.id == one.id { (&b, two.id) } else { (&a, one.id) };
    let view = loser.refresh().await.expect("the store is there");
    assert_eq!(view.live_topics().map(|t| t.id).collect::<Vec<_>>(), [winner.id]);
    assert_eq!(view.partitions_of(loser_id).count(), 0, "nothing of the loser is shown");

    let repeated = if winner.id == one.id { of_one } else { of_two };
    assert_eq!(
        a.create_topic(winner.clone(), repeated).await,
        Ok(CasOutcome::Conflict(winner)),
        "its own id tells a caller whose outcome was unknown"
    );
}

/// A re-created name is another topic, and replicas of the old one can always learn that it is gone (design.md 6.9).
pub async fn a_deleted_name_is_free_and_its_tombstone_stays(store: &dyn FreshStore) {
    let (a, b) = (store.handle().await, store.handle().await);
    let old = one_partition(&*a).await;
    until(&mut b.view(), |view| view.partition(old.id()).is_some()).await;

    let tombstone = b.delete_topic(old.topic_id).await.expect("the store is there");
    assert!(tombstone.deleted);
    assert_eq!(a.delete_topic(old.topic_id).await, Ok(tombstone.clone()), "again changes nothing");
    let swap = a.swap_partition(old.clone(), old.partition_epoch).await;
    assert!(matches!(swap, Err(CoordinationError::NotFound(_))), "{swap:?}");
    let unknown = a.delete_topic(TopicId::random()).await;
    assert!(matches!(unknown, Err(CoordinationError::NotFound(_))), "{unknown:?}");

    let new = one_partition(&*b).await;
    assert_ne!(new.topic_id, old.topic_id);
    for view in [a.refresh().await, store.handle().await.refresh().await] {
        let view = view.expect("the store is there");
        assert_eq!(view.topic(old.topic_id).map(|t| t.deleted), Some(true));
        assert_eq!(view.partition(old.id()), None);
        assert_eq!(view.topic_named(&tombstone.name).map(|t| t.id), Some(new.topic_id));
        assert_eq!(view.partitions().map(|(_, r)| r.id()).collect::<Vec<_>>(), [new.id()]);
    }
}

/// Addresses and disk identities (design.md 6.3) are versioned like everything else.
pub async fn a_node_record_changes_by_compare_and_swap(store: &dyn FreshStore) {
    let (a, b) = (store.handle().await, store.handle().await);
    let absent = NodeRecord::new(node(1));
    assert_eq!(
        a.swap_node(absent.clone(), 3).await,
        Ok(CasOutcome::Conflict(absent.clone())),
        "version 0 says that there is none"
    );
    let (one, two) = tokio::join!(a.swap_node(absent.clone(), 0), b.swap_node(absent.clone(), 0));
    let (one, two) = (one.expect("the store is there"), two.expect("the store is there"));
    let committed = [&one, &two].into_iter().filter(|o| matches!(o, CasOutcome::Committed(_))).count();
    assert_eq!(committed, 1, "{one:?} {two:?}");
    assert_eq!(one.into_current().version, 1);

    let address = endpoint("[::1]:9400");
    let (x, y) = tokio::join!(
        register_endpoint(&*a, node(1), Program::LeaderSvc, &address),
        register_endpoint(&*b, node(1), Program::FollowerAgent, &address)
    );
    x.expect("the store is there");
    y.expect("the store is there");
    let view = a.refresh().await.expect("the store is there");
    let record = view.node(node(1)).expect("just written");
    assert_eq!(
        (record.leader_svc.as_ref(), record.follower_agent.as_ref()),
        (Some(&address), Some(&address))
    );
    assert_eq!(record.version, 3, "neither change was lost");
}

/// Renewals of all programs count in one place (design.md 6.7).
pub async fn heartbeats_rise_across_handles_and_wake_no_view(store: &dyn FreshStore) {
    let (a, b) = (store.handle().await, store.handle().await);
    let mut view = a.view();
    view.mark_unchanged();
    let leader = (node(1), Program::LeaderSvc);
    let agent = (node(1), Program::FollowerAgent);
    let first = a.renew_liveness(leader.0, leader.1).await.expect("the store is there");
    assert!(first.contains_key(&leader) && !first.contains_key(&agent), "{first:?}");
    let second = b.renew_liveness(agent.0, agent.1).await.expect("the store is there");
    assert_eq!(second.get(&leader), first.get(&leader), "the other's counter is seen, and unchanged");
    let third = b.renew_liveness(leader.0, leader.1).await.expect("the store is there");
    assert!(third.get(&leader) > first.get(&leader), "a restarted program goes on from its counter");
    assert_eq!(third.get(&agent), second.get(&agent));
    assert!(view.has_changed().is_ok_and(|changed| !changed));
}

/// A process that dies in the middle of a write leaves the old record or the new one, and nobody is stuck.
pub async fn a_write_whose_caller_is_gone_is_made_whole_or_not_at_all(store: &dyn FreshStore) {
    let survivor = store.handle().await;
    let new = one_partition(&*survivor).await;
    let mut current =
        swapped(&*survivor, first_leadership(&new, &candidate(1)).expect("eligible"), &new).await;
    for round in 0..10 {
        let lost = store.handle().await;
        let proposal = renewed_leadership(&current, &candidate(1)).expect("eligible");
        let swap = lost.swap_partition(proposal.clone(), current.partition_epoch);
        // The future is polled once and dropped, with the handle: the request is on its way, nobody waits.
        let answered = tokio::time::timeout(Duration::ZERO, swap).await;
        drop(lost);
        let next =
            renewed_leadership(&current, &Candidate { highest_epoch: Some(epoch(round)), ..candidate(1) })
                .expect("eligible");
        let outcome = survivor.swap_partition(next, current.partition_epoch).await;
        current = match outcome.expect("nobody is stuck") {
            CasOutcome::Committed(record) => {
                assert!(answered.is_err(), "round {round}: an answered write was lost");
                record
            }
            CasOutcome::Conflict(record) => {
                assert_eq!(record, proposal, "round {round}: the lost write, whole");
                record
            }
        };
    }
}

fn epoch(round: i32) -> LeaderEpoch {
    LeaderEpoch::new(1_000 * (round + 1)).expect("not negative")
}

/// What was committed is there for a program that starts later.
pub async fn a_later_handle_sees_everything(store: &dyn FreshStore) {
    let a = store.handle().await;
    let id = a.ensure_cluster_id(ClusterId::random()).await.expect("the store is there");
    let new = one_partition(&*a).await;
    let led = swapped(&*a, first_leadership(&new, &candidate(1)).expect("eligible"), &new).await;
    register_endpoint(&*a, node(1), Program::LeaderSvc, &endpoint("n1:9400"))
        .await
        .expect("the store is there");
    let before = a.refresh().await.expect("the store is there");
    drop(a);
    let b = store.handle().await;
    let after = b.refresh().await.expect("the store is there");
    assert_eq!(after.cluster_id(), Some(&id));
    assert_eq!(after.partition(led.id()).map(|r| PartitionRecord::clone(r)), Some(led));
    assert!(after.topics().eq(before.topics()) && after.nodes().eq(before.nodes()));
}

//! The `etcd` store against a real etcd: the conformance suite, and what only this store has: members that die, freeze, are
//! compacted or come back empty, and answers that come late or never.

#![cfg(feature = "etcd")]
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "figures for people; a panic fails the test")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use etcd_client::Client;
use highwater_coordination::conformance::FreshStore;
use highwater_coordination::{
    Candidate, CasOutcome, Coordination, CoordinationError, EtcdCoordination, EtcdOptions, first_leadership,
    renewed_leadership,
};
use highwater_types::{
    ClusterId, Endpoint, Incarnation, NodeId, Offset, PartitionEpoch, PartitionIndex, PartitionRecord,
    Program, TopicId, TopicIdPartition, TopicProperties, TopicRecord,
};
use system_tests::etcd::Etcd;
use system_tests::proxy::{Direction, Proxy};
use system_tests::wait;

/// How long one call may take in all: each of three members has a second for it, and the machine may be busy.
const CALL_WITHIN: Duration = Duration::from_secs(20);

/// One etcd, for one test.
struct OneMember(Etcd);

#[async_trait]
impl FreshStore for OneMember {
    async fn handle(&self) -> Arc<dyn Coordination> {
        Arc::new(open(&self.0.endpoints()).await)
    }
}

/// An etcd of so many members; ends the test when the part was left out.
macro_rules! started {
    ($members:expr) => {
        match Etcd::start($members).await {
            Some(etcd) => etcd,
            None => return,
        }
    };
}

highwater_coordination::coordination_conformance!(OneMember(started!(1)));

async fn open(endpoints: &[Endpoint]) -> EtcdCoordination {
    EtcdCoordination::open(endpoints, EtcdOptions::default()).await.expect("etcd is there")
}

fn node() -> NodeId {
    NodeId::new(1).unwrap()
}

fn candidate() -> Candidate {
    Candidate {
        node: node(),
        incarnation: Incarnation::new(7).unwrap(),
        highest_epoch: None,
        log_end: Offset::ZERO,
    }
}

fn topic(name: &str, partitions: i32) -> (TopicRecord, Vec<PartitionRecord>) {
    let record = TopicRecord {
        id: TopicId::random(),
        name: name.parse().unwrap(),
        partitions,
        properties: TopicProperties::default(),
        deleted: false,
    };
    let ids = (0..partitions).map(|n| TopicIdPartition::new(record.id, PartitionIndex::new(n).unwrap()));
    let partitions = ids.map(|id| PartitionRecord::new(id, vec![node()])).collect();
    (record, partitions)
}

/// A topic of one partition that node 1 leads.
async fn led(store: &EtcdCoordination, name: &str) -> PartitionRecord {
    let (record, mut partitions) = topic(name, 1);
    store.create_topic(record, partitions.clone()).await.unwrap().committed().unwrap();
    let new = partitions.remove(0);
    swapped(store, first_leadership(&new, &candidate()).unwrap(), &new).await
}

async fn swapped(store: &EtcdCoordination, new: PartitionRecord, from: &PartitionRecord) -> PartitionRecord {
    store.swap_partition(new, from.partition_epoch).await.unwrap().committed().unwrap()
}

async fn led_anew(store: &EtcdCoordination, current: &PartitionRecord) -> PartitionRecord {
    swapped(store, renewed_leadership(current, &candidate()).unwrap(), current).await
}

/// Waits until a handle's view shows a record, or a newer one.
async fn seen(store: &EtcdCoordination, record: &PartitionRecord) {
    let shown = |view: &highwater_coordination::ClusterView| {
        view.partition(record.id()).is_some_and(|shown| shown.partition_epoch >= record.partition_epoch)
    };
    let mut view = store.view();
    let seen = tokio::time::timeout(wait::SOON, view.wait_for(|view| shown(view)));
    seen.await.expect("the change is seen in time").expect("the store lives");
}

fn shown(store: &EtcdCoordination, record: &PartitionRecord) -> Option<PartitionEpoch> {
    store.view().borrow().partition(record.id()).map(|record| record.partition_epoch)
}

async fn renew(store: &EtcdCoordination) -> Result<(), CoordinationError> {
    store.renew_liveness(node(), Program::LeaderSvc).await.map(drop)
}

async fn compact(etcd: &Etcd) {
    let mut client = Client::connect([etcd.address(0).to_string()], None).await.unwrap();
    let revision = client.get("none", None).await.unwrap().header().unwrap().revision();
    client.compact(revision, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_broke_misses_nothing_though_etcd_was_compacted_meanwhile() {
    let etcd = started!(1);
    let proxy = Proxy::start(etcd.address(0)).await;
    let (writer, reader) = (open(&etcd.endpoints()).await, open(&[proxy.address().into()]).await);
    let (kept, deleted) = (led(&writer, "kept").await, led(&writer, "deleted").await);
    seen(&reader, &kept).await;
    seen(&reader, &deleted).await;

    proxy.refuse(true);
    proxy.cut_open();
    let mut current = kept.clone();
    for _ in 0..50 {
        current = led_anew(&writer, &current).await;
    }
    writer.delete_topic(deleted.topic_id).await.unwrap();
    let later = led(&writer, "later").await;
    compact(&etcd).await;
    assert_eq!(shown(&reader, &kept), Some(kept.partition_epoch), "it is cut off");
    let error = reader.refresh().await.unwrap_err();
    assert!(matches!(error, CoordinationError::Unavailable(_)), "{error}");

    proxy.refuse(false);
    seen(&reader, &current).await;
    seen(&reader, &later).await;
    let gone = |store: &EtcdCoordination| {
        let view = store.view();
        let view = view.borrow();
        view.topic(deleted.topic_id).is_some_and(|topic| topic.deleted)
            && view.partition(deleted.id()).is_none()
    };
    wait::until("the tombstone", wait::SOON, async || gone(&reader).then_some(())).await;
    // The watch goes on from there.
    let next = led_anew(&writer, &current).await;
    seen(&reader, &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_of_a_watch_is_replaced() {
    let etcd = started!(1);
    let proxy = Proxy::start(etcd.address(0)).await;
    let (writer, reader) = (open(&etcd.endpoints()).await, open(&[proxy.address().into()]).await);
    let current = led(&writer, "orders").await;
    seen(&reader, &current).await;
    proxy.freeze_open();
    let next = led_anew(&writer, &current).await;
    seen(&reader, &next).await;
    assert!(proxy.accepted() >= 2, "over a connection of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_etcd_that_comes_back_has_everything_and_calls_and_watches_go_on() {
    let mut etcd = started!(1);
    let (a, b) = (open(&etcd.endpoints()).await, open(&etcd.endpoints()).await);
    a.ensure_cluster_id(ClusterId::random()).await.unwrap();
    let mut current = led(&a, "orders").await;
    for _ in 0..3 {
        renew(&a).await.unwrap();
        etcd.process_mut(0).kill();
        // The first call finds out that the connection broke, and may have been made for all that it knows.
        let _ = renew(&a).await;
        let refused = a
            .swap_partition(renewed_leadership(&current, &candidate()).unwrap(), current.partition_epoch)
            .await
            .unwrap_err();
        assert!(matches!(refused, CoordinationError::Unavailable(_)), "nobody was there to do it: {refused}");
        etcd.start_again(0).await;
        current = led_anew(&a, &current).await;
        seen(&b, &current).await;
        renew(&b).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swap_that_a_frozen_etcd_does_not_answer_is_unknown_until_a_newer_record_is_seen() {
    const ROUNDS_MAX: u32 = 20;
    const UNKNOWN_WANTED: u32 = 3;
    let mut etcd = started!(1);
    let proxy = Proxy::start(etcd.address(0)).await;
    let (a, b) = (open(&[proxy.address().into()]).await, open(&etcd.endpoints()).await);
    let mut current = led(&b, "orders").await;
    seen(&a, &current).await;
    // So that there is time to freeze etcd between its answer to the read and the arrival of the write.
    proxy.delay(Duration::from_millis(100));
    let mut unknown = 0;
    for round in 0..ROUNDS_MAX {
        let proposal = renewed_leadership(&current, &candidate()).unwrap();
        let (begun, answered) = (Instant::now(), proxy.bytes(Direction::ToClient));
        let swap = a.swap_partition(proposal.clone(), current.partition_epoch);
        let freeze = async {
            let read = async || (proxy.bytes(Direction::ToClient) > answered).then_some(());
            wait::until("the record to be read", wait::SOON, read).await;
            etcd.process_mut(0).freeze();
        };
        let (outcome, ()) = tokio::join!(swap, freeze);
        assert!(begun.elapsed() < CALL_WITHIN, "round {round}");
        if let Err(error) = outcome {
            assert!(error.is_retryable(), "round {round}: {error}");
            assert_eq!(shown(&a, &current), Some(current.partition_epoch), "not taken for made");
            unknown += u32::from(error.may_have_committed());
        }
        etcd.process_mut(0).thaw();
        // How a leader goes on: it proposes the same again, until it sees a newer record.
        let stands = wait::until("a newer record", wait::SOON, async || {
            a.swap_partition(proposal.clone(), current.partition_epoch).await.ok()
        });
        current = stands.await.into_current();
        assert_eq!(current, proposal, "round {round}: made once, by whichever of the two");
        seen(&b, &current).await;
        if unknown == UNKNOWN_WANTED {
            return;
        }
    }
    panic!("only {unknown} of {ROUNDS_MAX} swaps were unknown");
}

async fn until_has_id(store: &EtcdCoordination, id: &ClusterId, what: &str) {
    let mut view = store.view();
    let seen = tokio::time::timeout(wait::SOON, view.wait_for(|view| view.cluster_id() == Some(id))).await;
    assert!(seen.is_ok_and(|seen| seen.is_ok()), "waited for {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_answered_late_is_unknown_and_shows_in_the_view_as_a_newer_record() {
    let etcd = started!(1);
    let proxy = Proxy::start(etcd.address(0)).await;
    let a = open(&[proxy.address().into()]).await;
    let id = ClusterId::random();
    // Beyond what one call may take; both directions are delayed.
    proxy.delay(Duration::from_secs(3));
    let error = a.ensure_cluster_id(id.clone()).await.unwrap_err();
    assert!(error.may_have_committed(), "{error}");
    // The call was given up, which etcd must not hear of together with the write: it would drop it.
    until_has_id(&open(&etcd.endpoints()).await, &id, "the write to be made").await;
    proxy.delay(Duration::ZERO);
    until_has_id(&a, &id, "the write to be seen").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_watches_go_on_with_one_of_three_members_dead_or_frozen() {
    let mut etcd = started!(3);
    let (a, b) = (open(&etcd.endpoints()).await, open(&etcd.endpoints()).await);
    let mut current = led(&a, "orders").await;
    for member in 0..3 {
        if member == 1 {
            etcd.process_mut(member).freeze();
        } else {
            etcd.process_mut(member).kill();
        }
        let begun = Instant::now();
        current = wait::until("a swap", CALL_WITHIN, async || {
            let proposal = renewed_leadership(&current, &candidate()).unwrap();
            let outcome = a.swap_partition(proposal.clone(), current.partition_epoch).await;
            outcome.ok().map(CasOutcome::into_current).filter(|stands| *stands == proposal)
        })
        .await;
        let swapped_after = begun.elapsed();
        wait::until("a renewal", CALL_WITHIN, async || renew(&b).await.ok()).await;
        seen(&b, &current).await;
        println!("member {member}: swap after {swapped_after:?}, seen after {:?}", begun.elapsed());
        if member == 1 {
            etcd.process_mut(member).thaw();
        } else {
            etcd.start_again(member).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_came_back_empty_is_not_written_to_and_takes_nothing_from_the_view() {
    let mut etcd = started!(1);
    let a = open(&etcd.endpoints()).await;
    let id = a.ensure_cluster_id(ClusterId::random()).await.unwrap();
    let current = led(&a, "orders").await;
    renew(&a).await.unwrap();
    etcd.process_mut(0).kill();
    etcd.start_empty(0).await;

    let refused = async || {
        let next = renewed_leadership(&current, &candidate()).unwrap();
        let swap = a.swap_partition(next, current.partition_epoch).await.map(drop);
        let creation = topic("other", 1);
        let creation = a.create_topic(creation.0, creation.1).await.map(drop);
        let deletion = a.delete_topic(current.topic_id).await.map(drop);
        for outcome in [swap, creation, deletion, renew(&a).await, a.refresh().await.map(drop)] {
            let error = outcome.unwrap_err();
            assert!(matches!(error, CoordinationError::Unavailable(_)), "{error}");
            assert!(error.to_string().contains("came back empty"), "{error}");
        }
        assert_eq!(shown(&a, &current), Some(current.partition_epoch));
        assert!(a.view().borrow().topic(current.topic_id).is_some_and(|topic| !topic.deleted));
    };
    wait::until("it to be reached", wait::SOON, async || {
        renew(&a).await.unwrap_err().to_string().contains("came back empty").then_some(())
    })
    .await;
    refused().await;
    // A program that was restarted founds the cluster that its data directory names: still not the store that was lost.
    let restarted = open(&etcd.endpoints()).await;
    assert!(restarted.view().borrow().topics().next().is_none(), "nothing was written to it");
    assert_eq!(restarted.ensure_cluster_id(id.clone()).await, Ok(id));
    refused().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_at_the_same_address_is_not_taken_for_the_own_one() {
    let mut etcd = started!(1);
    let a = open(&etcd.endpoints()).await;
    let own = a.ensure_cluster_id(ClusterId::random()).await.unwrap();
    etcd.process_mut(0).kill();
    etcd.start_empty(0).await;
    let other = open(&etcd.endpoints()).await;
    let foreign = other.ensure_cluster_id(ClusterId::random()).await.unwrap();
    // Long enough for its revision to be far above what the first one has seen.
    for _ in 0..50 {
        other.renew_liveness(NodeId::new(2).unwrap(), Program::LeaderSvc).await.unwrap();
    }
    let text = wait::until("it to be found out", wait::SOON, async || {
        Some(renew(&a).await.unwrap_err().to_string()).filter(|text| text.contains("cluster"))
    })
    .await;
    assert!(text.contains(own.as_str()) && text.contains(foreign.as_str()), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_partitions_are_created_read_in_pages_and_followed() {
    const PARTITIONS: i32 = 10_000;
    let etcd = started!(1);
    let (a, watching) = (open(&etcd.endpoints()).await, open(&etcd.endpoints()).await);
    let (record, partitions) = topic("many", PARTITIONS);
    let begun = Instant::now();
    a.create_topic(record.clone(), partitions.clone()).await.unwrap().committed().unwrap();
    let created = begun.elapsed();
    seen(&watching, partitions.last().unwrap()).await;
    let followed = begun.elapsed();
    let begun = Instant::now();
    let late = open(&etcd.endpoints()).await;
    println!("created in {created:?}, seen by a watch after {followed:?}, read in {:?}", begun.elapsed());
    for store in [&watching, &late] {
        let view = store.view();
        let view = view.borrow();
        assert!(
            view.partitions_of(record.id).map(|record| PartitionRecord::clone(record)).eq(partitions.clone())
        );
    }
    a.delete_topic(record.id).await.unwrap();
    let gone = |view: &Arc<highwater_coordination::ClusterView>| view.partitions().next().is_none();
    let mut view = watching.view();
    drop(tokio::time::timeout(wait::SOON, view.wait_for(gone)).await.expect("in time").unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_record_is_named_and_stops_only_what_reads_it() {
    let etcd = started!(1);
    let (a, b) = (open(&etcd.endpoints()).await, open(&etcd.endpoints()).await);
    let (broken, good) = (led(&a, "broken").await, led(&a, "good").await);
    let key = format!("highwater/v1/records/partitions/{}/0", broken.topic_id);
    let mut vandal = Client::connect([etcd.address(0).to_string()], None).await.unwrap();
    vandal.put(key.clone(), "{}", None).await.unwrap();
    let next = renewed_leadership(&broken, &candidate()).unwrap();
    let error = a.swap_partition(next, broken.partition_epoch).await.unwrap_err();
    assert!(matches!(&error, CoordinationError::Unreadable(text) if text.contains(&key)), "{error}");
    let next = led_anew(&a, &good).await;
    seen(&b, &next).await;
}

#[tokio::test]
async fn without_an_etcd_opening_fails_in_bounded_time_and_names_the_address() {
    let nobody = system_tests::ports::loopback();
    let begun = Instant::now();
    let error = EtcdCoordination::open(&[nobody.into()], EtcdOptions::default()).await.unwrap_err();
    assert!(matches!(error, CoordinationError::Unavailable(_)), "{error}");
    assert!(error.to_string().contains(&nobody.to_string()), "{error}");
    assert!(begun.elapsed() < CALL_WITHIN);
}

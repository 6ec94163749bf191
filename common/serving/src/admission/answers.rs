//! The stage that admits an answer's bytes, after the wait and before the read.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::Either;
use highwater_protocol::delayed_fetch::Probe;
use tower::{Layer, Service};

use super::{Admission, Overloaded, Traffic};
use crate::fetch::{Fetched, Planned};

/// Puts admission in front of the read.
#[derive(Clone, Debug)]
pub struct AdmitLayer {
    admission: Arc<Admission>,
    answer_bytes: u32,
}

impl AdmitLayer {
    /// Admits to `admission`; the read answers at most `answer_bytes`, but for a first batch.
    #[must_use]
    pub const fn new(admission: Arc<Admission>, answer_bytes: u32) -> Self {
        Self { admission, answer_bytes }
    }
}

impl<S> Layer<S> for AdmitLayer {
    type Service = Admit<S>;

    fn layer(&self, inner: S) -> Admit<S> {
        Admit { admission: Arc::clone(&self.admission), answer_bytes: self.answer_bytes, inner }
    }
}

/// See [`AdmitLayer`].
#[derive(Clone, Debug)]
pub struct Admit<S> {
    admission: Arc<Admission>,
    answer_bytes: u32,
    inner: S,
}

type Outcome = Result<Fetched, Overloaded>;
type Answer = Pin<Box<dyn Future<Output = Outcome> + Send>>;

impl<S> Service<Planned> for Admit<S>
where
    S: Service<Planned, Response = Fetched, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Fetched;
    type Error = Overloaded;
    type Future = Either<std::future::Ready<Outcome>, Answer>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Overloaded>> {
        self.inner.poll_ready(cx).map_err(|never| match never {})
    }

    fn call(&mut self, planned: Planned) -> Self::Future {
        let wanted = bytes_of(&planned, self.answer_bytes);
        let replica = planned.fetch.request.replica;
        let traffic = replica.map_or(Traffic::Client, |_| Traffic::Replication);
        let permit = match (wanted > 0).then(|| self.admission.admit(traffic, wanted)).transpose() {
            Ok(permit) => permit,
            Err(overloaded) => return Either::Left(ready(Err(overloaded))),
        };
        let reading = self.inner.call(planned);
        Either::Right(Box::pin(async move {
            let Ok(mut fetched) = reading.await;
            fetched.admitted = permit.map(|mut permit| {
                permit.resize(fetched.bytes());
                Arc::new(permit)
            });
            Ok(fetched)
        }))
    }
}

/// About how many bytes the read will bring.
fn bytes_of(planned: &Planned, answer_bytes: u32) -> u64 {
    let fetch = &planned.fetch;
    let requester = fetch.request.requester();
    let available = |(slot, (asked, found)): (usize, (&_, &crate::fetch::PlannedPartition))| {
        let asked: &highwater_protocol::fetch::FetchPartition = asked;
        let (replica, plan) = found.plan.as_ref().ok()?;
        if !plan.has_records() || fetch.is_withheld(slot) {
            return None;
        }
        let Probe::Readable(facts) = replica.probe(requester, asked) else { return None };
        Some(facts.available_bytes.min(asked.max_bytes.into()))
    };
    let partitions = fetch.request.partitions.iter().zip(&planned.partitions).enumerate();
    let bytes: u64 = partitions.filter_map(available).sum();
    bytes.min(fetch.request.max_bytes.min(answer_bytes).into())
}

#[cfg(test)]
mod tests {
    use highwater_node::MonotonicClock;
    use highwater_types::NodeId;
    use tower::{ServiceBuilder, ServiceExt as _};

    use super::*;
    use crate::FetchPurgatory;
    use crate::fetch::{Fetch, LongPollLayer, Read, ReadBounds};
    use crate::test_replica::{TestHost, TestReplica, asks, fetch};

    struct Bench {
        clock: MonotonicClock,
        purgatory: Arc<FetchPurgatory>,
        replica: Arc<TestReplica>,
        admission: Arc<Admission>,
    }

    impl Bench {
        fn new(batches: &[usize]) -> Self {
            let clock = MonotonicClock::starting_now();
            let replica = TestReplica::new("t", 0);
            batches.iter().for_each(|size| replica.append(*size));
            let purgatory = Arc::new(FetchPurgatory::new(clock));
            Self { clock, purgatory, replica, admission: Arc::new(Admission::new(1_000, 300)) }
        }

        async fn answer(&self, mut asked: Fetch) -> Outcome {
            asked.received = self.clock.now();
            let host = Arc::new(TestHost { replicas: vec![Arc::clone(&self.replica)] });
            let bounds = ReadBounds { answer_bytes: 10_000, concurrent_reads: 4 };
            let max_wait = std::time::Duration::from_secs(60);
            ServiceBuilder::new()
                .layer(LongPollLayer::new(host, Arc::clone(&self.purgatory), self.clock, max_wait))
                .layer(AdmitLayer::new(Arc::clone(&self.admission), bounds.answer_bytes))
                .service(Read::new(self.clock, bounds))
                .oneshot(asked)
                .await
        }
    }

    fn by_follower(mut asked: Fetch) -> Fetch {
        asked.request.replica = NodeId::new(2);
        asked
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_in_flight_until_it_is_let_go_and_no_longer() {
        let bench = Bench::new(&[400]);
        let one = bench.answer(fetch(0, vec![asks("t", 0, 0)])).await.unwrap();
        assert_eq!((one.bytes(), bench.admission.in_flight()), (400, 400));
        let refused = bench.answer(fetch(0, vec![asks("t", 0, 0)])).await.unwrap_err();
        assert_eq!(refused, Overloaded { in_flight: 400, wanted: 400 }, "700 are for clients");
        let follower = bench.answer(by_follower(fetch(0, vec![asks("t", 0, 0)]))).await;
        assert!(follower.is_ok(), "replication has its own reserve");
        drop((one, follower));
        assert_eq!(bench.admission.in_flight(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_admitted_is_what_there_is_to_read_and_not_what_was_asked_for() {
        let bench = Bench::new(&[10]);
        let answers: Vec<_> =
            futures::future::join_all((0..70).map(|_| bench.answer(fetch(0, vec![asks("t", 0, 0)])))).await;
        assert!(answers.iter().all(Result::is_ok), "a mebibyte each was allowed");
        assert_eq!(bench.admission.in_flight(), 700);
    }

    #[tokio::test(start_paused = true)]
    async fn a_parked_fetch_holds_nothing_and_neither_does_an_empty_answer() {
        let bench = Arc::new(Bench::new(&[]));
        let parked: Vec<_> = (0..100)
            .map(|_| {
                let bench = Arc::clone(&bench);
                tokio::spawn(async move { bench.answer(fetch(500, vec![asks("t", 0, 0)])).await })
            })
            .collect();
        while bench.purgatory.parked() < 100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(bench.admission.in_flight(), 0);
        for answer in parked {
            assert!(answer.await.unwrap().unwrap().admitted.is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_batch_larger_than_everything_is_answered() {
        let bench = Bench::new(&[50_000]);
        let one = bench.answer(fetch(0, vec![asks("t", 0, 0)])).await.unwrap();
        assert_eq!((one.bytes(), bench.admission.in_flight()), (50_000, 50_000));
    }
}

//! Single calls of one leader-svc, each from a host of its own.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use highwater_proto::v1;
use tokio::time::sleep;
use tonic::Request;

use super::cluster::Cluster;
use super::load::{TOPIC, fetch_request, log_service};

/// How long one call may take, and what is between two.
const ANSWER_MAX: Duration = Duration::from_millis(500);
const PACE: Duration = Duration::from_millis(50);

/// Writes to a partition at the leader-svc on `host`, with `acks=1`, for ever; when it was last acknowledged.
pub(crate) fn start(cluster: &mut Cluster, host: &str, partition: i32) -> Rc<Cell<Duration>> {
    let last = Rc::new(Cell::new(Duration::ZERO));
    let (noted, host) = (Rc::clone(&last), host.to_owned());
    cluster.on_host("writer", |network| async move {
        let mut log = log_service(&network, &host);
        loop {
            let record = v1::PlainRecord {
                value: Some(v1::plain_record::Value::ValueText("a record".to_owned())),
                ..Default::default()
            };
            let to = v1::ProducePartition {
                topic: TOPIC.to_owned(),
                partition: Some(partition),
                plain_records: vec![record],
                ..Default::default()
            };
            let mut request = Request::new(v1::ProduceRequest {
                acks: v1::Acks::Leader.into(),
                partitions: vec![to],
                ..Default::default()
            });
            request.set_timeout(ANSWER_MAX);
            if let Ok(answer) = log.produce(request).await
                && answer.into_inner().partitions.iter().all(|result| result.error.is_none())
            {
                noted.set(turmoil::sim_elapsed().unwrap());
            }
            sleep(PACE).await;
        }
    });
    last
}

/// Waits at the leader-svc on `host` for a first record, `max_wait` at most; when it was answered.
pub(crate) fn park(
    cluster: &mut Cluster,
    host: &str,
    partition: i32,
    max_wait: Duration,
) -> Rc<Cell<Duration>> {
    let answered = Rc::new(Cell::new(Duration::ZERO));
    let (noted, host) = (Rc::clone(&answered), host.to_owned());
    cluster.on_host("consumer", |network| async move {
        let mut log = log_service(&network, &host);
        log.fetch(fetch_request(partition, 0, max_wait)).await.unwrap();
        noted.set(turmoil::sim_elapsed().unwrap());
    });
    answered
}

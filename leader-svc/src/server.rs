//! LogService: the outer end of the request path.
//!
//! In request order: transport (windows, header limits, deadline into the extensions, bounded status texts: the shared
//! shell) → decode limit → identity → decode → the stages of `fetch`, or `produce` → encode. Deliberately absent: shedding
//! load, which belongs in front of the decode limit.

use std::sync::Arc;

use highwater_node::Clocks;
use highwater_proto::v1;
use highwater_proto::v1::log_service_server::LogService;
use highwater_serving::Registry;
use highwater_serving::calls::{self, Answer, caller_of, check_cluster, deadline_of};
use highwater_serving::fetch::Fetch;
use highwater_serving::observe::{CallSpan, FetchAsked, FetchObserver};
use highwater_telemetry::Telemetry;
use highwater_types::ClusterId;
use highwater_wire::produce;
use tonic::{Request, Response};
use tower::ServiceExt as _;

use crate::fetch::{FetchStack, respond};
use crate::observe::produced;
use crate::partition::LedPartition;
use crate::produce::Appender;

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct LogApi {
    pub(crate) cluster_id: ClusterId,
    pub(crate) clocks: Clocks,
    pub(crate) host: Arc<Registry<LedPartition>>,
    pub(crate) fetches: FetchStack,
    pub(crate) appender: Appender,
    pub(crate) telemetry: Telemetry,
}

#[tonic::async_trait]
impl LogService for LogApi {
    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Answer<v1::FetchResponse> {
        let received = self.clocks.monotonic.now();
        let (caller, deadline, call) = (caller_of(&request)?, deadline_of(&request), CallSpan::of(&request));
        let request = highwater_wire::fetch::decode_request(&caller, request.into_inner())?;
        check_cluster(request.cluster.as_ref(), &self.cluster_id)?;
        let asked = FetchAsked::by(&request);
        let fetch = Fetch::new(request, received, deadline);
        let mut fetched = self.fetches.clone().oneshot(fetch).await?;
        let admitted = fetched.admitted.take();
        let observer = FetchObserver::new(&self.telemetry, self.clocks.monotonic);
        let notes = observer.answered(call, asked, &fetched);
        let mut response = Response::new(respond(fetched));
        if let Some(notes) = notes {
            response.extensions_mut().insert(notes);
        }
        if let Some(permit) = admitted {
            response.extensions_mut().insert(permit);
        }
        Ok(response)
    }

    async fn produce(&self, request: Request<v1::ProduceRequest>) -> Answer<v1::ProduceResponse> {
        let (deadline, call) = (deadline_of(&request), CallSpan::of(&request));
        let request = produce::decode_request(request.into_inner())?;
        check_cluster(request.cluster.as_ref(), &self.cluster_id)?;
        let results = self.appender.produce(request, deadline, call).await;
        let notes = produced(&self.telemetry, call, &results);
        let mut response = Response::new(produce::encode_response(results, None));
        if let Some(notes) = notes {
            response.extensions_mut().insert(notes);
        }
        Ok(response)
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Answer<v1::ListOffsetsResponse> {
        calls::list_offsets(Arc::clone(&self.host) as _, request).await
    }

    async fn offsets_for_leader_epoch(
        &self,
        request: Request<v1::OffsetsForLeaderEpochRequest>,
    ) -> Answer<v1::OffsetsForLeaderEpochResponse> {
        calls::offsets_for_leader_epoch(&*self.host, request)
    }
}

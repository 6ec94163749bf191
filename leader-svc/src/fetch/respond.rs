//! From an answered Fetch to its message.

use highwater_proto::v1;
use highwater_serving::fetch::Fetched;
use highwater_wire::fetch::encode_response;

/// Encodes the answer. Why it was given when it was, and how long the request was parked, are known here for whoever
/// watches: the idle path is told apart from the others.
pub(crate) fn respond(fetched: Fetched) -> v1::FetchResponse {
    tracing::trace!(
        wait.outcome = fetched.completion.name(),
        wait.ms = fetched.parked.as_millis(),
        partitions = fetched.response.partitions.len(),
        "fetch answered"
    );
    encode_response(fetched.response)
}

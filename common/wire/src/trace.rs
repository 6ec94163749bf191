//! The trace that a call belongs to, in its metadata: W3C `traceparent`.
//!
//! What holds: what is malformed, or there twice, is no context: the called program begins a trace of its own, and the
//! call is served all the same.

use highwater_types::TraceContext;
use http::HeaderMap;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

/// Metadata key of the context.
pub const TRACEPARENT_KEY: &str = "traceparent";

/// Names the span that the call belongs to.
pub fn inject(context: TraceContext, metadata: &mut MetadataMap) {
    if let Ok(value) = context.to_string().parse::<MetadataValue<Ascii>>() {
        metadata.insert(TRACEPARENT_KEY, value);
    }
}

/// The span that the call belongs to, by its headers.
#[must_use]
pub fn extract(headers: &HeaderMap) -> Option<TraceContext> {
    let mut values = headers.get_all(TRACEPARENT_KEY).iter();
    let only = values.next().filter(|_| values.next().is_none())?;
    only.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_passes_through_metadata() {
        let context = TraceContext::new(5, 6, true).unwrap();
        let mut metadata = MetadataMap::new();
        assert_eq!(extract(metadata.as_ref()), None);
        inject(context, &mut metadata);
        assert_eq!(extract(metadata.as_ref()), Some(context));
        inject(context.with_span(7).unwrap(), &mut metadata);
        assert_eq!(extract(metadata.as_ref()).map(TraceContext::span_id), Some(7), "the later one stands");
    }

    #[test]
    fn a_malformed_or_doubled_header_is_no_context() {
        let mut metadata = MetadataMap::new();
        metadata.insert(TRACEPARENT_KEY, "00-xyz-1-01".parse().unwrap());
        assert_eq!(extract(metadata.as_ref()), None);
        let good = TraceContext::new(5, 6, true).unwrap().to_string();
        metadata.insert(TRACEPARENT_KEY, good.parse().unwrap());
        metadata.append(TRACEPARENT_KEY, good.parse().unwrap());
        assert_eq!(extract(metadata.as_ref()), None);
    }
}

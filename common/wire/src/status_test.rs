//! Statuses: what stands in them, and that no text makes them too large for headers.

use highwater_types::{LeaderEpoch, LeaderHint, NodeId};

use super::*;
use crate::field::decode_topic_ref;

fn header_bytes(status: &Status) -> usize {
    let mut headers = http::HeaderMap::new();
    status.add_header(&mut headers).unwrap();
    // Name, value, and the 32 bytes that HTTP/2 counts for each.
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

#[test]
fn a_status_about_a_huge_topic_name_fits_into_headers() {
    for huge in ["x".repeat(100_000), "x".repeat(17_000), "\u{1F600}".repeat(100_000), "\0".repeat(100_000)] {
        let status = Status::from(decode_topic_ref(&huge, "").unwrap_err().within("partitions", usize::MAX));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().len() <= 4096);
        assert!(header_bytes(&status) <= HEADER_LIMIT, "{}", header_bytes(&status));
    }
}

#[test]
fn the_largest_possible_status_fits_into_headers() {
    let worst = "\u{1F600}".repeat(100_000);
    let endpoint = format!("{}:9400", "h".repeat(255)).parse().unwrap();
    let hint = LeaderHint { leader: NodeId::new(7), epoch: LeaderEpoch::FIRST, endpoint: Some(endpoint) };
    let error = ReplicationError::new(ErrorCode::NotLeaderOrFollower, &worst).with_leader(Some(hint));
    let decode = DecodeError::invalid(&worst, &worst);
    for status in [from_error(&error), Status::from(decode), internal(&worst)] {
        assert!(header_bytes(&status) <= HEADER_LIMIT, "{}", header_bytes(&status));
    }
}

#[test]
fn a_wrong_field_is_named_in_bad_request() {
    let status = Status::from(DecodeError::invalid("fetch_offset", "-1 is negative").within("partitions", 3));
    let bad = status.get_details_bad_request().unwrap();
    assert_eq!(bad.field_violations[0].field, "partitions[3].fetch_offset");
    let info = status.get_details_error_info().unwrap();
    assert_eq!((info.reason.as_str(), info.domain.as_str()), ("INVALID_REQUEST", ERROR_DOMAIN));
}

#[test]
fn every_reason_stands_for_its_code_and_is_a_legal_reason() {
    for code in ErrorCode::ALL {
        let reason = reason_of(*code);
        assert_eq!(code_of(reason), Some(*code));
        assert!(
            reason.len() <= 63 && reason.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'),
            "{reason}"
        );
    }
    assert_eq!(code_of("UNSPECIFIED"), None);
    assert_eq!(code_of(REASON_OVERLOADED), None);
}

//! A bound on what a status carries in headers, for every service at once.
//!
//! A status travels in HTTP/2 headers, and a peer that allows 16 KiB of them (hyper's default) sees a larger one as a
//! protocol error, or hangs (grpc-rust#1834). Whoever builds a status should keep it short; this is the last defence.

use http::{HeaderValue, Response};

/// The longest text of a status on the wire, in bytes.
pub const STATUS_TEXT_MAX_BYTES: usize = 4096;

/// The longest details of a status on the wire, in bytes (base64). Longer ones are left out: half a message is none.
const DETAILS_MAX_BYTES: usize = 8192;

const ELLIPSIS: &str = "...";

/// Cuts the text and drops the details of a status where they are too long.
pub(super) fn bound<B>(mut response: Response<B>) -> Response<B> {
    let headers = response.headers_mut();
    if let Some(text) = headers.get("grpc-message")
        && text.len() > STATUS_TEXT_MAX_BYTES
    {
        let cut = cut(text.as_bytes());
        if let Ok(value) = HeaderValue::from_bytes(&cut) {
            headers.insert("grpc-message", value);
        }
    }
    if headers.get("grpc-status-details-bin").is_some_and(|details| details.len() > DETAILS_MAX_BYTES) {
        headers.remove("grpc-status-details-bin");
    }
    response
}

/// The start of a percent-encoded text, not ending within an escape.
fn cut(text: &[u8]) -> Vec<u8> {
    let mut kept: Vec<u8> = text.iter().copied().take(STATUS_TEXT_MAX_BYTES - ELLIPSIS.len()).collect();
    let last_two = kept.len().saturating_sub(2);
    if let Some(escape) = kept.iter().skip(last_two).position(|byte| *byte == b'%') {
        kept.truncate(last_two + escape);
    }
    kept.extend_from_slice(ELLIPSIS.as_bytes());
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounded(message: &str) -> String {
        let response = Response::builder()
            .header("grpc-message", message)
            .header("grpc-status-details-bin", "A".repeat(message.len()))
            .body(())
            .unwrap();
        let bounded = bound(response);
        let short = message.len() <= DETAILS_MAX_BYTES;
        assert_eq!(bounded.headers().contains_key("grpc-status-details-bin"), short);
        bounded.headers()["grpc-message"].to_str().unwrap().to_owned()
    }

    #[test]
    fn a_long_text_is_cut_and_a_short_one_is_left_alone() {
        assert_eq!(bounded("topic not found"), "topic not found");
        let cut = bounded(&"x".repeat(100_000));
        assert!(cut.len() == STATUS_TEXT_MAX_BYTES && cut.ends_with("x..."));
    }

    #[test]
    fn an_escape_is_never_cut_in_two() {
        for shift in 0..3 {
            let cut = bounded(&format!("{}{}", "x".repeat(shift), "%C3%A4".repeat(2_000)));
            let text = cut.strip_suffix("...").unwrap();
            assert_eq!((text.len() - shift) % 3, 0, "shift {shift}");
            assert!(cut.len() <= STATUS_TEXT_MAX_BYTES);
        }
    }
}

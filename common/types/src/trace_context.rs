//! Which trace a call or a record belongs to: the W3C `traceparent`.
//!
//! What holds: neither id is all zeros, so a value can always be a parent. What does not parse is no context: its reader
//! begins a trace of its own. Deliberately absent: `tracestate`, which nobody here reads, and randomness: ids come in.

use std::fmt;
use std::str::FromStr;

/// The version that is written, and the only one whose length is fixed.
const VERSION: &str = "00";

/// No `traceparent` has this version.
const INVALID_VERSION: &str = "ff";

/// The flag that says that the trace is recorded.
const SAMPLED: u8 = 1;

/// A place in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    sampled: bool,
}

impl TraceContext {
    /// The context of span `span_id` of trace `trace_id`; `None` when one of them is 0.
    #[must_use]
    pub const fn new(trace_id: u128, span_id: u64, sampled: bool) -> Option<Self> {
        if trace_id == 0 || span_id == 0 {
            return None;
        }
        Some(Self { trace_id, span_id, sampled })
    }

    /// The trace.
    #[must_use]
    pub const fn trace_id(self) -> u128 {
        self.trace_id
    }

    /// The span within it.
    #[must_use]
    pub const fn span_id(self) -> u64 {
        self.span_id
    }

    /// Whether the trace is recorded.
    #[must_use]
    pub const fn is_sampled(self) -> bool {
        self.sampled
    }

    /// The context of another span of the same trace; `None` when `span_id` is 0.
    #[must_use]
    pub const fn with_span(self, span_id: u64) -> Option<Self> {
        Self::new(self.trace_id, span_id, self.sampled)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = if self.sampled { SAMPLED } else { 0 };
        write!(f, "{VERSION}-{:032x}-{:016x}-{flags:02x}", self.trace_id, self.span_id)
    }
}

/// A text is no `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a W3C traceparent")]
pub struct InvalidTraceparent;

impl FromStr for TraceContext {
    type Err = InvalidTraceparent;

    /// A later version may have more fields behind the four that are known.
    fn from_str(text: &str) -> Result<Self, InvalidTraceparent> {
        let mut fields = text.split('-');
        let mut field = |digits: usize| {
            let field = fields.next().filter(|field| field.len() == digits).ok_or(InvalidTraceparent)?;
            let is_hex = field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            is_hex.then_some(field).ok_or(InvalidTraceparent)
        };
        let (version, trace_id, span_id, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        if version == INVALID_VERSION || (version == VERSION && fields.next().is_some()) {
            return Err(InvalidTraceparent);
        }
        let number = |hex: &str| u128::from_str_radix(hex, 16).map_err(|_| InvalidTraceparent);
        let span_id = u64::try_from(number(span_id)?).map_err(|_| InvalidTraceparent)?;
        let is_sampled = number(flags)? & u128::from(SAMPLED) != 0;
        Self::new(number(trace_id)?, span_id, is_sampled).ok_or(InvalidTraceparent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written_alike() {
        let context: TraceContext = GOOD.parse().unwrap();
        assert_eq!(context.trace_id(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(context.span_id(), 0x00f0_67aa_0ba9_02b7);
        assert!(context.is_sampled());
        assert_eq!(context.to_string(), GOOD);
        let child = context.with_span(7).unwrap();
        assert_eq!((child.trace_id(), child.span_id()), (context.trace_id(), 7));
    }

    #[test]
    fn flags_that_are_not_known_change_nothing() {
        let sampled = |flags: &str| GOOD.replace("-01", flags).parse::<TraceContext>().unwrap().is_sampled();
        assert!(sampled("-03") && !sampled("-02") && !sampled("-00"));
    }

    #[test]
    fn a_later_version_may_have_more_fields() {
        let later = format!("{}-more", GOOD.replacen("00", "01", 1));
        assert_eq!(later.parse::<TraceContext>().unwrap().to_string(), GOOD);
        assert!(format!("{GOOD}-more").parse::<TraceContext>().is_err(), "this version has not");
    }

    #[test]
    fn what_is_malformed_is_no_context() {
        let zeros = "0".repeat(32);
        for bad in [
            "",
            "00",
            &GOOD[..54],
            &GOOD.to_ascii_uppercase(),
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &zeros),
            &GOOD.replace("00f067aa0ba902b7", &zeros[..16]),
            &GOOD.replace("00f067aa0ba902b7", "+0f067aa0ba902b7"),
            &GOOD.replace("00f067aa0ba902b7", "00f067aa0ba902bg"),
            &GOOD.replace('-', "_"),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902bü-01",
        ] {
            assert!(bad.parse::<TraceContext>().is_err(), "{bad}");
        }
        assert_eq!(TraceContext::new(0, 1, true), None);
        assert_eq!(TraceContext::new(1, 0, true), None);
    }
}

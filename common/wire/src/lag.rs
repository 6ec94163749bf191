//! The cause of a lag on the wire.

use highwater_proto::v1;
use highwater_protocol::lag_cause::LagCause;

/// The cause on the wire.
#[must_use]
pub const fn encode_lag_cause(cause: LagCause) -> v1::LagCause {
    match cause {
        LagCause::None => v1::LagCause::None,
        LagCause::LeaderUnknown => v1::LagCause::LeaderUnknown,
        LagCause::Paused => v1::LagCause::Paused,
        LagCause::BackOff => v1::LagCause::BackOff,
        LagCause::Truncating => v1::LagCause::Truncating,
        LagCause::NotFetching => v1::LagCause::NotFetching,
        LagCause::Throttled => v1::LagCause::Throttled,
        LagCause::LeaderSlow => v1::LagCause::LeaderSlow,
        LagCause::Network => v1::LagCause::Network,
        LagCause::FollowerDisk => v1::LagCause::FollowerDisk,
        LagCause::CatchingUp => v1::LagCause::CatchingUp,
    }
}

/// The word for a cause of the wire: as [`LagCause::name`].
#[must_use]
pub fn cause_name(cause: v1::LagCause) -> String {
    let name = cause.as_str_name();
    name.strip_prefix("LAG_CAUSE_").unwrap_or(name).to_lowercase().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_on_the_wire_is_that_of_spans_and_metrics() {
        for cause in LagCause::ALL {
            assert_eq!(cause_name(encode_lag_cause(cause)), cause.name());
        }
    }
}

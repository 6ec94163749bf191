//! What a replica lost by an unclean election, on the wire.

use highwater_proto::v1;
use highwater_types::UncleanLoss;

use crate::field::{Decoded, epoch, offset};

/// The loss on the wire.
#[must_use]
pub const fn encode_loss(loss: &UncleanLoss) -> v1::UncleanLoss {
    v1::UncleanLoss {
        leader_epoch: Some(loss.election.get()),
        from_offset: Some(loss.from.get()),
        committed_offset: Some(loss.committed.get()),
        end_offset: Some(loss.end.get()),
    }
}

/// Reads a loss.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_loss(message: &v1::UncleanLoss) -> Decoded<UncleanLoss> {
    Ok(UncleanLoss {
        election: epoch("loss.leader_epoch", message.leader_epoch)?,
        from: offset("loss.from_offset", message.from_offset)?,
        committed: offset("loss.committed_offset", message.committed_offset)?,
        end: offset("loss.end_offset", message.end_offset)?,
    })
}

#[cfg(test)]
mod tests {
    use highwater_types::{LeaderEpoch, Offset};

    use super::*;

    #[test]
    fn a_loss_comes_back_as_it_was_sent_and_one_without_an_end_is_refused() {
        let offset = |raw| Offset::new(raw).unwrap();
        let loss = UncleanLoss {
            election: LeaderEpoch::new(4).unwrap(),
            from: offset(10),
            committed: offset(12),
            end: offset(15),
        };
        assert_eq!(decode_loss(&encode_loss(&loss)).unwrap(), loss);
        let endless = v1::UncleanLoss { end_offset: None, ..encode_loss(&loss) };
        assert_eq!(decode_loss(&endless).unwrap_err().path(), "loss.end_offset");
    }
}

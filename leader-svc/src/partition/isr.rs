//! Changes of the in-sync set: one proposal of the core, written by compare-and-swap, and its outcome reported back.
//!
//! What must hold: a proposal is made against exactly the version that the core saw; whatever is not known to have been
//! decided is reported as unknown, and the core proposes it again against the same version (design.md 6.4). One at a
//! time is the core's rule (S54).

use std::sync::Arc;

use highwater_coordination::{CasOutcome, CoordinationError};
use highwater_protocol::leader::{IsrOutcome, IsrProposal};
use highwater_types::{PartitionEpoch, PartitionRecord};

use super::handle::LedPartition;

impl LedPartition {
    pub(super) async fn propose_isr(self: Arc<Self>, proposal: IsrProposal) {
        let (known, expected) = (self.record(), proposal.expected);
        if known.partition_epoch != proposal.expected {
            // A newer record is on its way to the core, or there already; it decides.
            self.report(expected, &IsrOutcome::Conflict, Some(&known));
            return;
        }
        let proposed = PartitionRecord { isr: proposal.isr, ..PartitionRecord::clone(&known) };
        match self.context.coordination.swap_partition(proposed, proposal.expected).await {
            Ok(CasOutcome::Committed(record)) => {
                self.report(expected, &IsrOutcome::Committed, Some(&Arc::new(record)));
            }
            Ok(CasOutcome::Conflict(record)) => {
                self.report(expected, &IsrOutcome::Conflict, Some(&Arc::new(record)));
            }
            Err(error) => {
                if error.is_retryable() {
                    tracing::debug!(partition = %self.id_name(), %error, "a change of the in-sync set is pending");
                } else if !matches!(error, CoordinationError::NotFound(_)) {
                    tracing::error!(partition = %self.id_name(), %error, "could not change the in-sync set");
                }
                self.report(expected, &IsrOutcome::Unknown, None);
            }
        }
    }

    fn report(&self, expected: PartitionEpoch, outcome: &IsrOutcome, record: Option<&Arc<PartitionRecord>>) {
        self.replica.on_isr_outcome(expected, outcome, self.context.clocks.monotonic.now());
        match record {
            Some(record) => self.on_record(record),
            None => self.execute_effects(),
        }
    }
}

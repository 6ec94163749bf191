//! Lending a log to the node's leader-svc, which wants to stand with it (design.md 6.6; the dialogue is `serving::handover`).
//!
//! What must hold: a log is free before its loan is answered, and left alone until the loan is over.

use std::time::Duration;

use highwater_coordination::ClusterView;
use highwater_serving::handover::{Answer, Wanted};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Done, ReplicaManager};

/// How long a log that leader-svc waits for may wait for answers that still read it: leader-svc gives up after 1 s.
pub(super) const LEND_PATIENCE: Duration = Duration::from_millis(400);

/// A log that leader-svc has, or waits for.
#[derive(Debug)]
pub(super) struct Loan {
    /// Until the log is closed.
    answer: Option<oneshot::Sender<Answer>>,
    pub(super) over: CancellationToken,
}

impl ReplicaManager {
    /// leader-svc wants a log, to stand with it.
    pub(super) fn lend(&mut self, view: &ClusterView, wanted: Wanted) {
        let Wanted { partition: id, seen, answer, over } = wanted;
        if view.partition(id).is_some_and(|record| record.partition_epoch > seen) {
            // Who asked may be gone; so it is below.
            let _gone = answer.send(Answer::Overtaken);
            return;
        }
        let (ended, stop) = (over.clone(), self.shared.stop.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = stop.cancelled() => {}
            }
            Done::LoanOver(id)
        });
        // Whoever asked before has given up: leader-svc stands once at a time.
        self.lent.insert(id, Loan { answer: Some(answer), over });
    }

    /// Tells who waits for a log that it is closed now.
    pub(super) fn answer_loans(&mut self) {
        for (id, loan) in &mut self.lent {
            if !self.slots.contains_key(id)
                && let Some(answer) = loan.answer.take()
            {
                let _gone = answer.send(Answer::Released);
            }
        }
    }
}

//! The batches of an answer by their headers, as the core wants them.
//!
//! The CRC is not looked at here: the append checks it, once, before anything is written (design.md 2).

use highwater_protocol::fetch::Fetched;
use highwater_protocol::follower::{AnswerFacts, BatchSpan};
use highwater_records::batches;
use highwater_types::ReplicationError;

/// What the core needs to know of a partition's answer.
pub(crate) fn answer_facts(answer: Result<&Fetched, &ReplicationError>) -> AnswerFacts {
    let fetched = match answer {
        Err(error) => return AnswerFacts::Error(error.code),
        Ok(Fetched { diverging: Some(at), .. }) => return AnswerFacts::Diverging(*at),
        Ok(fetched) => fetched,
    };
    let mut spans = Vec::new();
    let mut bad = None;
    for batch in batches(&fetched.records) {
        match batch {
            Ok(batch) => spans.push(BatchSpan {
                base: batch.base_offset(),
                next: batch.next_offset(),
                epoch: batch.leader_epoch(),
                bytes: batch.size(),
            }),
            Err(error) => bad = Some(error.to_string()),
        }
    }
    AnswerFacts::Records { snapshot: fetched.snapshot, batches: spans, bad }
}

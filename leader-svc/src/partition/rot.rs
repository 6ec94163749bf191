//! Damage in the log of a partition that this node leads: who hears of it, and how it goes on record (design.md 2, 6.3).
//!
//! What must hold: no record is damaged for this node while another one may hold it: it goes on record once the leadership was
//! handed over, or while nobody else is in sync.

use std::sync::Arc;

use highwater_serving::volume::on_disk;

use super::{LedPartition, PartitionEvent};

impl LedPartition {
    /// The manager decides who leads on.
    pub(super) fn tell_of_damage(&self) {
        if let Some(this) = self.this.upgrade() {
            let _stopping = self.context.events.send(PartitionEvent::Damaged(this));
        }
    }

    /// Reads the log whole; what is damaged in it and was not known is as if readers had met it. Answers whether there is nothing
    /// of the kind; not, where that is not known, or where the leadership ended meanwhile.
    pub(crate) async fn is_whole(self: &Arc<Self>) -> bool {
        let mut is_whole = true;
        for segment in self.replica().log().segment_bases() {
            if self.replica().is_over() {
                return false;
            }
            let this = Arc::clone(self);
            match on_disk(move || this.replica().log().has_rot(segment)).await {
                Ok(false) => {}
                Ok(true) => {
                    tracing::error!(partition = %self.id_name(), %segment, "there is damage in this segment of the log");
                    self.damage.on_met(segment);
                    is_whole = false;
                }
                Err(error) => {
                    tracing::error!(partition = %self.id_name(), %segment, %error, "could not read a segment of the log");
                    is_whole = false;
                }
            }
        }
        if !self.damage.segments().is_empty() {
            self.tell_of_damage();
        }
        is_whole
    }

    /// After it was handed over: damage that readers met goes on record, so that the node's agent repairs it.
    pub(crate) async fn note_rot(self: &Arc<Self>) {
        for segment in self.damage.segments() {
            let this = Arc::clone(self);
            if let Err(error) = on_disk(move || this.replica().note_rot(segment)).await {
                tracing::warn!(partition = %self.id_name(), %error, "could not put damage on record");
            }
        }
    }

    /// While it leads alone: nobody else can lead, so the damage that readers met goes on record, and readers and replicas that
    /// join get past it.
    pub(crate) async fn note_rot_alone(self: Arc<Self>) {
        for segment in self.damage.segments() {
            let this = Arc::clone(&self);
            match on_disk(move || this.replica().note_rot_alone(segment)).await {
                Ok(true) => self.damage.on_known(segment),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(partition = %self.id_name(), %error, "could not put damage on record");
                }
            }
        }
    }
}

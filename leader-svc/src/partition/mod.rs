//! A partition that this node leads: the replica, its queues, and who waits for it.
//!
//! | file | holds |
//! |---|---|
//! | `handle.rs` | [`LedPartition`]: what others may do with it, and the execution of the core's effects |
//! | `append_queue.rs` | appends in order, merged into one write; flushes beside them |
//! | `commit.rs` | Produce: from checked batches to an acknowledgement |
//! | `isr.rs` | changes of the in-sync set, by compare-and-swap |
//! | `offset_waiters.rs` | who waits for an offset |
//! | `pace.rs` | how fast replicas that are added catch up |
//! | `rot.rs` | damage in the log: who hears of it, and how it goes on record |

mod append_queue;
mod commit;
mod handle;
mod isr;
mod offset_waiters;
mod pace;
mod rot;

pub(crate) use handle::{LedPartition, PartitionContext, PartitionEvent};
pub(crate) use pace::PACE_INTERVAL;

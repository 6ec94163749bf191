//! What both programs share as processes: configuration, clocks, signals and draining, work that blocks, the network, and
//! the shell of a gRPC server with deadlines, health and reflection.
//!
//! What must hold: nothing here knows partitions, logs or the product's own protocol; descriptor bytes and service names
//! come in as arguments. Every wait has a bound.

mod clock;
pub mod config;
mod every;
mod flush_queue;
pub mod grpc;
pub mod network;
mod process;
mod serial_queue;

pub use clock::{Clocks, MonotonicClock, WallClock};
pub use every::every;
pub use flush_queue::{Flush, FlushQueue};
pub use process::{DRAIN_BOUND, run};
pub use serial_queue::{PushError, SerialQueue};

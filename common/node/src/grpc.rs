//! The shell of a gRPC server: listening, transport settings, health, reflection, deadlines, and stopping.
//!
//! What must hold: a handler learns its deadline before the transport enforces it; the text of a status always fits into
//! its header; stopping takes bounded time, whatever the peers do. Deliberately absent: any service of the product.

mod connection;
mod deadline;
mod server;
mod status_text;

pub use connection::ConnectionHandle;
pub use deadline::{DEADLINE_MARGIN, Deadline};
pub use server::{
    Accepted, CONNECTION_WINDOW_BYTES, GrpcServer, Health, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, LIVENESS,
    Listener, STOP_GRACE, STREAM_WINDOW_BYTES, ServeError,
};
pub use status_text::STATUS_TEXT_MAX_BYTES;

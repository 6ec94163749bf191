//! Admission: how many bytes of records a program has in flight, in requests to append and in answers, whoever they are for.
//!
//! What must hold: the bound is the program's, not a connection's; what cannot be admitted is refused at once with a time
//! after which to come back (grpc-rust#2189), it does not queue; a part is kept for replication, so that clients cannot starve
//! it; nothing is admitted for a fetch that is parked, only for one that is about to be read. One request is always admitted,
//! however large, where nothing of its kind is in flight: else it never would be.
//!
//! | module | holds |
//! |---|---|
//! | `answers` | the stage between the long poll and the read |
//! | `requests` | the outermost layer: admits a Produce by its length, and keeps an answer admitted until it is sent |

mod answers;
mod requests;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use answers::{Admit, AdmitLayer};
pub use requests::AdmitRequests;

/// What a refused requester is asked to wait at least: several answers' worth of time.
pub const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Who bytes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// A follower.
    Replication,
    /// A producer, a consumer, a tool.
    Client,
}

/// Why something was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{in_flight} bytes are in flight, and {wanted} more are above the limit; come back later")]
pub struct Overloaded {
    /// How many bytes were in flight.
    pub in_flight: u64,
    /// How many more were wanted.
    pub wanted: u64,
}

/// The bytes in flight.
#[derive(Debug)]
pub struct Admission {
    most: u64,
    reserve: u64,
    in_flight: Mutex<InFlight>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct InFlight {
    replication: u64,
    client: u64,
    /// How many requests were refused since the start.
    shed: u64,
}

impl InFlight {
    const fn of(&mut self, traffic: Traffic) -> &mut u64 {
        match traffic {
            Traffic::Replication => &mut self.replication,
            Traffic::Client => &mut self.client,
        }
    }
}

impl Admission {
    /// At most `most` bytes, of which `reserve` are for replication only.
    #[must_use]
    pub fn new(most: u64, reserve: u64) -> Self {
        debug_assert!(reserve < most, "the settings leave something for clients");
        Self { most, reserve, in_flight: Mutex::default() }
    }

    /// Admits so many bytes.
    ///
    /// # Errors
    /// [`Overloaded`]: nothing was admitted.
    pub fn admit(self: &Arc<Self>, traffic: Traffic, bytes: u64) -> Result<Permit, Overloaded> {
        let mut now = self.in_flight.lock();
        let all = now.replication.saturating_add(now.client).saturating_add(bytes);
        let fits = match traffic {
            Traffic::Replication => all <= self.most,
            Traffic::Client => {
                let clients = now.client.saturating_add(bytes);
                all <= self.most && clients <= self.most.saturating_sub(self.reserve)
            }
        };
        let own = now.of(traffic);
        if !fits && *own > 0 {
            now.shed += 1;
            return Err(Overloaded { in_flight: now.replication + now.client, wanted: bytes });
        }
        *own = own.saturating_add(bytes);
        Ok(Permit { admission: Arc::clone(self), traffic, bytes })
    }

    /// How many bytes are in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let now = self.in_flight.lock();
        now.replication + now.client
    }

    /// How many requests were refused since the start.
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.in_flight.lock().shed
    }
}

/// Bytes that are in flight until this is dropped.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    traffic: Traffic,
    bytes: u64,
}

impl Permit {
    /// It turned out to be so many: fewer, or more, because a first batch is whole.
    pub fn resize(&mut self, bytes: u64) {
        let mut now = self.admission.in_flight.lock();
        let own = now.of(self.traffic);
        debug_assert!(*own >= self.bytes, "what was admitted is in flight");
        *own = own.saturating_sub(self.bytes).saturating_add(bytes);
        self.bytes = bytes;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::Traffic::{Client, Replication};
    use super::*;

    fn admission() -> Arc<Admission> {
        Arc::new(Admission::new(100, 30))
    }

    #[test]
    fn clients_share_what_is_not_kept_for_replication() {
        let all = admission();
        let first = all.admit(Client, 40).unwrap();
        let _second = all.admit(Client, 30).unwrap();
        assert_eq!(all.admit(Client, 1).unwrap_err(), Overloaded { in_flight: 70, wanted: 1 });
        let _follower = all.admit(Replication, 30).unwrap();
        assert!(all.admit(Replication, 1).is_err(), "all is in flight");
        drop(first);
        assert_eq!((all.in_flight(), all.shed()), (60, 2));
        assert!(all.admit(Client, 40).is_ok());
    }

    #[test]
    fn replication_may_use_everything_and_clients_come_back_when_it_is_done() {
        let all = admission();
        let follower = all.admit(Replication, 100).unwrap();
        let _one = all.admit(Client, 10).expect("one request is always admitted");
        assert!(all.admit(Client, 1).is_err());
        drop(follower);
        assert!(all.admit(Client, 1).is_ok());
    }

    #[test]
    fn a_request_larger_than_everything_is_admitted_alone() {
        let all = admission();
        let large = all.admit(Client, 1_000).unwrap();
        assert!(all.admit(Client, 1).is_err());
        assert!(all.admit(Replication, 10).is_ok(), "nothing of replication is in flight");
        drop(large);
        assert_eq!(all.in_flight(), 0);
    }

    #[test]
    fn a_permit_follows_what_was_read() {
        let all = admission();
        let mut permit = all.admit(Client, 50).unwrap();
        permit.resize(10);
        assert_eq!(all.in_flight(), 10);
        permit.resize(300);
        assert_eq!(all.in_flight(), 300, "a first batch is whole");
        drop(permit);
        assert_eq!(all.in_flight(), 0);
    }
}

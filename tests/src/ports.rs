//! Addresses for servers under test: a port stays a test's own over any number of restarts of the server behind it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};

use nix::fcntl::{Flock, FlockArg};

/// Below the range from which Linux takes ports for outgoing connections, so that none of those is in the way.
const RANGE: std::ops::Range<u16> = 20_000..30_000;

/// The locks on the ports that this process was given; freed by the kernel when it ends.
static TAKEN: Mutex<Vec<Flock<File>>> = Mutex::new(Vec::new());

/// A loopback address that no other test of this machine gets as long as this process lives.
///
/// # Panics
/// When no port is left.
#[must_use]
pub fn loopback() -> SocketAddr {
    let locks = std::env::temp_dir().join("highwater-test-ports");
    fs::create_dir_all(&locks).expect("the temporary directory is writable");
    let start = rand::random_range(RANGE);
    for port in (start..RANGE.end).chain(RANGE.start..start) {
        let file = File::create(locks.join(port.to_string())).expect("the temporary directory is writable");
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
            return address;
        }
    }
    panic!("no free port from {} to {}", RANGE.start, RANGE.end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let given: std::collections::BTreeSet<SocketAddr> = (0..50).map(|_| loopback()).collect();
        assert_eq!(given.len(), 50);
    }
}

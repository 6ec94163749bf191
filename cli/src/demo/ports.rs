//! Free ports on loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Below the range from which Linux takes ports for outgoing connections, so that none of those is in the way later.
const RANGE: std::ops::Range<u16> = 20_000..30_000;

/// So many different addresses that nobody listens on, or `None` when there are not so many.
pub(super) fn free(count: usize) -> Option<Vec<SocketAddr>> {
    // Two demos that start together begin at different places.
    let start = u16::try_from(std::process::id() % 10_000).map_or(RANGE.start, |n| RANGE.start + n);
    let all = (start..RANGE.end).chain(RANGE.start..start);
    let addresses = all.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let free: Vec<SocketAddr> =
        addresses.filter(|address| TcpListener::bind(address).is_ok()).take(count).collect();
    Some(free).filter(|free| free.len() == count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_passed_over() {
        let first = free(1).unwrap()[0];
        let _taken = TcpListener::bind(first).unwrap();
        let next = free(6).unwrap();
        assert!(!next.contains(&first));
        let distinct: std::collections::BTreeSet<_> = next.iter().collect();
        assert_eq!(distinct.len(), 6);
    }
}

//! Free ports on loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Below the range from which Linux takes ports for outgoing connections, so that none of those is in the way later.
const RANGE: std::ops::Range<u16> = 20_000..30_000;

/// How far from each other processes of consecutive ids begin: no less than the ports of the largest demo.
const APART: u16 = 20;

/// So many different addresses that nobody listens on, or `None` when there are not so many.
pub(super) fn free(count: usize) -> Option<Vec<SocketAddr>> {
    let start = first(std::process::id());
    let all = (start..RANGE.end).chain(RANGE.start..start);
    let addresses = all.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let free: Vec<SocketAddr> =
        addresses.filter(|address| TcpListener::bind(address).is_ok()).take(count).collect();
    Some(free).filter(|free| free.len() == count)
}

/// Where a process begins to look. Its ports stay free until its programs listen, so two demos that start together must not
/// find the same ones.
fn first(process: u32) -> u16 {
    let places = (RANGE.end - RANGE.start) / APART;
    let place = u16::try_from(process % u32::from(places)).unwrap_or(0);
    RANGE.start + place * APART
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demos_that_start_together_begin_further_apart_than_the_largest_needs_ports() {
        let largest = 2 * 9;
        for process in 26_444..26_544 {
            for other in process + 1..process + 100 {
                assert!(first(process).abs_diff(first(other)) >= largest, "{process} and {other}");
            }
            assert!(RANGE.contains(&(first(process) + largest - 1)));
        }
    }

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

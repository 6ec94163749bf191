//! What the kernel's tables tell of processes: whose a connection is, and who holds a lock. Asked from outside, so that the
//! programs need not help and may be stopped.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The number of the IPv4 socket with this local address, as long as it is there.
#[must_use]
pub fn socket_at(address: SocketAddr) -> Option<u64> {
    let SocketAddr::V4(address) = address else { return None };
    let wanted = as_in_table(address);
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    // A line: its number, local address, remote address, state, …; the tenth field is the socket's number.
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut found = lines.filter(|fields| fields.get(1).is_some_and(|local| *local == wanted));
    found.find_map(|fields| fields.get(9)?.parse().ok().filter(|socket| *socket != 0))
}

/// The kernel prints the address as a number of the machine's byte order.
fn as_in_table(address: SocketAddrV4) -> String {
    format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
}

/// Whether a process has the socket of this number open.
#[must_use]
pub fn has_socket(process: u32, socket: u64) -> bool {
    let wanted = PathBuf::from(format!("socket:[{socket}]"));
    let mut files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    files.any(|file| fs::read_link(file.path()).is_ok_and(|to| to == wanted))
}

/// Whether a process has a lock for writing on a file of this directory.
#[must_use]
pub fn has_write_lock(process: u32, directory: &Path) -> bool {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let inodes: BTreeSet<u64> = files.filter_map(|file| Some(file.metadata().ok()?.ino())).collect();
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    // A line: its number, kind, how strict, READ or WRITE, process, device and inode, from, to.
    locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).any(|fields| {
        let inode = fields.get(5).and_then(|file| file.rsplit(':').next()?.parse().ok());
        fields.get(3) == Some(&"WRITE")
            && fields.get(4).is_some_and(|owner| *owner == process.to_string())
            && inode.is_some_and(|inode: u64| inodes.contains(&inode))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{Flock, FlockArg};
    use std::fs::File;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_known_by_the_process_that_made_it() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let _stream = TcpStream::connect(address).expect("it listens");
        let (_accepted, from) = listener.accept().expect("it connects");
        let socket = socket_at(from).expect("the connection is open");
        assert!(has_socket(std::process::id(), socket));
        assert!(!has_socket(std::process::id(), u64::MAX));
    }

    #[test]
    fn a_lock_is_known_by_the_process_that_holds_it() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let file = File::create(place.path().join("file")).expect("it is writable");
        let ours = || has_write_lock(std::process::id(), place.path());
        assert!(!ours());
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).expect("nobody else knows the file");
        assert!(ours());
        drop(lock);
        assert!(!ours());
    }
}

//! How a change by another process is noticed: the kernel tells of every write to the write-ahead log of `records.db`.
//!
//! A program that is idle thereby does next to nothing. Two things follow from what the kernel tells: the sign comes
//! *before* the change can be read, because a commit first writes its pages, flushes them, and only then shows them in
//! shared memory; so after a sign the store is looked at several times, with growing pauses. And signs may be lost or not
//! be had at all, so it is looked at slowly without any.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::inotify;
use rustix::io::Errno;

use super::queue::Queue;
use super::records::RecordsRequest;

/// The pause after the first look at a sign; each further one is twice as long. A commit takes about as long as a flush.
const PAUSE_MIN: Duration = Duration::from_millis(2);

/// How often is looked where the kernel tells nothing.
const PAUSE_UNTOLD: Duration = Duration::from_millis(20);

/// Room for some events; each is a few bytes, and more are read with the next turn.
const EVENTS_BYTES: usize = 1024;

/// How long to wait until the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pauses {
    next: Duration,
    max: Duration,
}

impl Pauses {
    /// `max` is the pause while nothing happens; a shorter one where the kernel does not tell of changes.
    pub(super) fn new(max: Duration, told: bool) -> Self {
        let max = if told { max } else { max.min(PAUSE_UNTOLD) };
        Self { next: max, max }
    }

    pub(super) const fn next(&self) -> Duration {
        self.next
    }

    /// Nothing happened in the last pause.
    pub(super) fn lengthen(&mut self) {
        self.next = self.next.saturating_mul(2).min(self.max);
    }

    /// There was a sign that something changes.
    pub(super) fn shorten(&mut self) {
        self.next = PAUSE_MIN.min(self.max);
    }
}

/// The kernel's events for the write-ahead log. Dropping it ends the thread that reads them.
#[derive(Debug)]
pub(super) struct Signs {
    events: Arc<OwnedFd>,
    watch: i32,
}

impl Signs {
    /// Asks the kernel to tell of writes to the file at `path`, from now on.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let events = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        let watch = inotify::add_watch(&events, path, inotify::WatchFlags::MODIFY)?;
        Ok(Self { events: Arc::new(events), watch })
    }

    /// Passes signs on to the thread that owns `records.db`, on a thread of its own, which sleeps in between.
    pub(super) fn pass_on(&self, records: Arc<Queue<RecordsRequest>>) -> io::Result<()> {
        let events = Arc::clone(&self.events);
        let body = move || {
            while told(&events).is_ok_and(|watching| watching) {
                records.offer(RecordsRequest::Changed);
            }
        };
        thread::Builder::new().name("signs".to_owned()).spawn(body).map(drop)
    }
}

impl Drop for Signs {
    fn drop(&mut self) {
        // The thread is told of this as of the last event. A file that is gone has no watch to remove.
        let _ = inotify::remove_watch(&*self.events, self.watch);
    }
}

/// Waits until the kernel tells something, and answers whether it will tell more. Many writes are one sign.
fn told(events: &OwnedFd) -> io::Result<bool> {
    let mut room = [MaybeUninit::uninit(); EVENTS_BYTES];
    let mut events = inotify::Reader::new(events, &mut room);
    loop {
        let ended = match events.next() {
            Ok(event) => event.events().contains(inotify::ReadFlags::IGNORED),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if ended || events.is_buffer_empty() {
            return Ok(!ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_a_sign_and_stay_short_where_there_are_none() {
        let mut pauses = Pauses::new(Duration::from_millis(9), true);
        assert_eq!(pauses.next(), Duration::from_millis(9));
        pauses.shorten();
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push(pauses.next().as_millis());
            pauses.lengthen();
        }
        assert_eq!(seen, [2, 4, 8, 9, 9]);
        assert_eq!(Pauses::new(Duration::from_secs(1), false).next(), PAUSE_UNTOLD);
    }
}

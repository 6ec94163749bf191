//! Read buffers that are used again: the serving path reads into them and hands them out as [`Bytes`].
//!
//! What must hold: the pool keeps at most `idle_bytes_max` bytes of unused buffers; a buffer goes back exactly once, when
//! its last `Bytes` is dropped. A buffer is zeroed when it is allocated and never again: it may hold bytes of an earlier
//! read, which nobody sees, because only what was filled is handed out.
//!
//! Deliberately absent: a bound on buffers in use. Admission and the limits of a read bound those.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Capacities are powers of two from this one; in bytes.
const SMALLEST: usize = 4 << 10;
const CLASSES: usize = 12;
/// The largest capacity that is kept, 8 MiB; larger buffers are freed after use.
const LARGEST: usize = SMALLEST << (CLASSES - 1);
/// A buffer of which at most one in so many bytes is filled is not handed out but copied: small records that are held
/// for long must not hold large buffers.
const COPY_RATIO: usize = 8;

/// A pool of read buffers. Clones share it.
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

struct Shared {
    idle_bytes_max: usize,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    bytes: usize,
    by_class: [Vec<Vec<u8>>; CLASSES],
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").field("idle_bytes", &self.idle_bytes()).finish_non_exhaustive()
    }
}

impl BufferPool {
    /// An empty pool that keeps at most `idle_bytes_max` bytes of unused buffers.
    #[must_use]
    pub fn new(idle_bytes_max: usize) -> Self {
        Self { shared: Arc::new(Shared { idle_bytes_max, idle: Mutex::default() }) }
    }

    /// A buffer of `len` bytes, whose content is left over from anything.
    #[must_use]
    pub fn take(&self, len: usize) -> ReadBuffer {
        let bytes = self.shared.idle.lock().take(len);
        let bytes = bytes.unwrap_or_else(|| vec![0; class_of(len).map_or(len, capacity_of)]);
        debug_assert!(bytes.len() >= len, "a class holds what is asked of it");
        ReadBuffer { bytes, len, shared: Arc::clone(&self.shared) }
    }

    /// How many bytes of unused buffers it keeps.
    #[must_use]
    pub fn idle_bytes(&self) -> usize {
        self.shared.idle.lock().bytes
    }
}

impl Idle {
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let bytes = self.by_class.get_mut(class_of(len)?)?.pop()?;
        self.bytes -= bytes.len();
        Some(bytes)
    }

    fn put(&mut self, bytes: Vec<u8>, idle_bytes_max: usize) {
        let Some(class) = class_of(bytes.len()).filter(|class| capacity_of(*class) == bytes.len()) else {
            return;
        };
        if self.bytes.saturating_add(bytes.len()) > idle_bytes_max {
            return;
        }
        if let Some(buffers) = self.by_class.get_mut(class) {
            self.bytes += bytes.len();
            buffers.push(bytes);
        }
        debug_assert!(self.bytes <= idle_bytes_max, "the pool is bounded");
    }
}

/// The class of the smallest capacity that holds `len` bytes; `None` above [`LARGEST`].
fn class_of(len: usize) -> Option<usize> {
    (0..CLASSES).find(|class| len <= capacity_of(*class))
}

const fn capacity_of(class: usize) -> usize {
    SMALLEST << class
}

const _: () = assert!(LARGEST == 8 << 20, "as documented");

/// A buffer to read into. Goes back to its pool when it, or the [`Bytes`] made of it, is dropped.
pub struct ReadBuffer {
    bytes: Vec<u8>,
    len: usize,
    shared: Arc<Shared>,
}

impl fmt::Debug for ReadBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}

impl ReadBuffer {
    /// The first `filled` bytes, without a copy unless they are few. A `filled` above the length counts as the length.
    #[must_use]
    pub fn freeze(mut self, filled: usize) -> Bytes {
        self.len = filled.min(self.len);
        if self.len <= self.bytes.len() / COPY_RATIO {
            return Bytes::copy_from_slice(self.as_ref());
        }
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for ReadBuffer {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl AsMut<[u8]> for ReadBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.len).unwrap_or_default()
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.shared.idle.lock().put(bytes, self.shared.idle_bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_its_last_bytes_are_dropped() {
        let pool = BufferPool::new(1 << 20);
        let mut buffer = pool.take(5000);
        assert_eq!(buffer.as_mut().len(), 5000);
        buffer.as_mut().fill(7);
        let address = buffer.as_ref().as_ptr();
        let bytes = buffer.freeze(4000);
        assert_eq!(bytes, [7; 4000][..]);
        assert_eq!(bytes.as_ptr(), address, "nothing was copied");
        let part = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(pool.idle_bytes(), 0, "a part is still held");
        drop(part);
        assert_eq!(pool.idle_bytes(), 8192);
        assert_eq!(pool.take(8000).as_ref().as_ptr(), address, "the same memory again");
    }

    #[test]
    fn only_what_was_filled_is_handed_out() {
        let pool = BufferPool::new(1 << 20);
        let mut secret = pool.take(4096);
        secret.as_mut().fill(b's');
        drop(secret);
        let mut buffer = pool.take(4096);
        buffer.as_mut()[..1000].fill(b'x');
        assert!(buffer.freeze(1000).iter().all(|b| *b == b'x'));
        assert_eq!(pool.take(100).freeze(usize::MAX).len(), 100);
    }

    #[test]
    fn few_bytes_do_not_hold_a_large_buffer() {
        let pool = BufferPool::new(1 << 20);
        let few = pool.take(65_536).freeze(8192);
        assert_eq!((few.len(), pool.idle_bytes()), (8192, 65_536));
        let many = pool.take(65_536).freeze(8193);
        assert_eq!((many.len(), pool.idle_bytes()), (8193, 0));
    }

    #[test]
    fn unused_buffers_are_bounded_and_odd_sizes_are_freed() {
        let pool = BufferPool::new(10_000);
        let buffers: Vec<_> = (0..5).map(|_| pool.take(4096)).collect();
        drop(buffers);
        assert_eq!(pool.idle_bytes(), 8192);
        drop(pool.take(LARGEST + 1));
        assert_eq!(pool.idle_bytes(), 8192);
        assert_eq!(BufferPool::new(0).take(0).freeze(0).len(), 0);
    }

    #[test]
    fn buffers_come_back_from_other_threads() {
        let pool = BufferPool::new(1 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..1000 {
                        let mut buffer = pool.take(4096);
                        buffer.as_mut().fill(thread);
                        assert!(buffer.freeze(4096).iter().all(|b| *b == thread));
                    }
                });
            }
        });
        assert!((4096..=4 * 4096).contains(&pool.idle_bytes()));
    }
}

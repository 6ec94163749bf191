//! Snappy as Kafka uses it: the framing of snappy-java (xerial), or one raw block without any framing, which some clients
//! write and Kafka's reader accepts.
//!
//! The framing: 8 bytes of magic, a version and a compatible version (4 bytes each, big-endian), then chunks of a 4-byte
//! big-endian length and a raw snappy block. Deliberately absent: the framing format of Google's snappy, which is another.

use std::io::{self, Read};

const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const VERSIONS: [u8; 8] = [0, 0, 0, 1, 0, 0, 0, 1];
/// How much goes into one chunk: what snappy-java writes.
const CHUNK_BYTES: usize = 32 << 10;
/// A raw block cannot expand more than this: its densest element is 3 bytes for 64. Bounds what a block's own claim of its
/// length may make us allocate.
const EXPANSION_MAX: usize = 22;

/// Compresses into the framing of snappy-java.
pub(super) fn compress(records: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = snap::raw::Encoder::new();
    let mut out = Vec::new();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSIONS);
    for chunk in records.chunks(CHUNK_BYTES) {
        let block = encoder.compress_vec(chunk)?;
        let length = i32::try_from(block.len()).map_err(io::Error::other)?;
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&block);
    }
    Ok(out)
}

/// Decompresses either form, chunk by chunk.
pub(super) struct Decoder<'a> {
    rest: &'a [u8],
    framed: bool,
    chunk: Vec<u8>,
    consumed: usize,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(stored: &'a [u8]) -> Self {
        Self { rest: stored, framed: stored.starts_with(&MAGIC), chunk: Vec::new(), consumed: 0 }
    }

    /// Decompresses the next block into `chunk`; false at the end.
    fn next_chunk(&mut self) -> io::Result<bool> {
        if self.rest.is_empty() {
            return Ok(false);
        }
        let block = if self.framed { self.next_framed_block()? } else { std::mem::take(&mut self.rest) };
        let claimed = snap::raw::decompress_len(block)?;
        if claimed > block.len().saturating_mul(EXPANSION_MAX) {
            return Err(io::Error::other("a block claims to be longer than it can be"));
        }
        self.chunk.clear();
        self.chunk.resize(claimed, 0);
        let length = snap::raw::Decoder::new().decompress(block, &mut self.chunk)?;
        self.chunk.truncate(length);
        self.consumed = 0;
        Ok(true)
    }

    fn next_framed_block(&mut self) -> io::Result<&'a [u8]> {
        // snappy-java's streams may be concatenated: a header can stand between two chunks.
        while let Some(after) = self.rest.strip_prefix(&MAGIC) {
            self.rest = after.get(VERSIONS.len()..).ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        if self.rest.is_empty() {
            // An empty block, so that the caller sees the end.
            return Ok(&[0]);
        }
        let (length, after) = self.rest.split_first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
        let length = usize::try_from(i32::from_be_bytes(*length)).map_err(io::Error::other)?;
        let (block, after) = after.split_at_checked(length).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.rest = after;
        Ok(block)
    }
}

impl Read for Decoder<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // Each step consumes at least a chunk's length field, so empty chunks cannot keep it here.
        while self.consumed >= self.chunk.len() {
            if !self.next_chunk()? {
                return Ok(0);
            }
        }
        let mut available = self.chunk.get(self.consumed..).unwrap_or_default();
        let count = available.read(into)?;
        self.consumed = self.consumed.saturating_add(count);
        Ok(count)
    }
}

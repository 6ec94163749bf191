//! The codecs of record batches, both ways, as Kafka's clients write and read them.
//!
//! What holds: reading is a stream, so memory stays at a codec's window however much comes out; the caller bounds how much
//! that may be. gzip is RFC 1952; snappy is the framing of snappy-java (or one raw block); lz4 is the frame format with
//! independent blocks of 64 KiB, which Kafka's reader insists on; zstd is RFC 8878.

mod snappy;

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::str::FromStr;

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};

/// How large the records of one batch may be when decompressed. A batch larger than that is taken for a bomb: it is refused,
/// and is not decoded for people.
pub const MAX_DECOMPRESSED_BYTES: u64 = 256 << 20;

/// The largest window that a zstd frame may ask for, as a power of two: 128 MiB, the most that zstd's own levels use. It
/// is memory that the decoder may touch.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// zstd's own default, and Kafka's.
const ZSTD_LEVEL: i32 = 3;
/// How much is decompressed at a time.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// How the records of a batch are compressed. The numbers are the ones in a batch's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Compression {
    /// Not at all.
    #[default]
    None = 0,
    /// gzip.
    Gzip = 1,
    /// Snappy, in the framing of snappy-java.
    Snappy = 2,
    /// LZ4 frames.
    Lz4 = 3,
    /// Zstandard.
    Zstd = 4,
}

impl Compression {
    /// Every codec.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// Takes the number of a batch's attributes; `None` when no codec has it.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        match id {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The number in a batch's attributes.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// The name, as Kafka prints it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Compresses `records`.
    pub(crate) fn compress(self, records: &[u8]) -> io::Result<Cow<'_, [u8]>> {
        let packed = match self {
            Self::None => return Ok(Cow::Borrowed(records)),
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(records)?;
                encoder.finish()?
            }
            Self::Snappy => snappy::compress(records)?,
            Self::Lz4 => {
                let info = FrameInfo::new().block_mode(BlockMode::Independent).block_size(BlockSize::Max64KB);
                let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
                encoder.write_all(records)?;
                encoder.finish()?
            }
            Self::Zstd => zstd::stream::encode_all(records, ZSTD_LEVEL)?,
        };
        Ok(Cow::Owned(packed))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|codec| codec.name() == text)
            .ok_or_else(|| format!("compression '{text}': none, gzip, snappy, lz4 and zstd are allowed"))
    }
}

/// The records of a batch as a stream of decompressed bytes.
pub(crate) enum Payload<'a> {
    /// Not compressed: read where they are.
    Plain(&'a [u8]),
    /// Decompressed piece by piece.
    Packed(BufReader<Box<dyn Read + 'a>>),
}

impl<'a> Payload<'a> {
    /// Opens the stored records of a batch.
    pub(crate) fn open(compression: Compression, stored: &'a [u8]) -> io::Result<Self> {
        let decoder: Box<dyn Read + 'a> = match compression {
            Compression::None => return Ok(Self::Plain(stored)),
            Compression::Gzip => Box::new(MultiGzDecoder::new(stored)),
            Compression::Snappy => Box::new(snappy::Decoder::new(stored)),
            Compression::Lz4 => Box::new(FrameDecoder::new(stored)),
            Compression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(stored)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Box::new(decoder)
            }
        };
        Ok(Self::Packed(BufReader::with_capacity(READ_BUFFER_BYTES, decoder)))
    }
}

impl Read for Payload<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(rest) => rest.read(into),
            Self::Packed(reader) => reader.read(into),
        }
    }
}

impl BufRead for Payload<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self {
            Self::Plain(rest) => Ok(rest),
            Self::Packed(reader) => reader.fill_buf(),
        }
    }

    fn consume(&mut self, count: usize) {
        match self {
            Self::Plain(rest) => *rest = rest.get(count..).unwrap_or_default(),
            Self::Packed(reader) => reader.consume(count),
        }
    }
}

#[cfg(test)]
#[path = "compression_test.rs"]
mod tests;

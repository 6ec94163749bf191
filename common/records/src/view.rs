//! A batch within a byte slice: nothing is copied.

use std::ops::Deref;

use crate::BatchError;
use crate::header::{BatchHeader, CRC_COVERS_FROM, HEADER_BYTES};

/// One whole batch within a byte slice. The header's fields are its methods (it derefs to [`BatchHeader`]).
///
/// That the batch is whole and possible is all that holds; [`crate::validate()`] checks the rest.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    header: BatchHeader,
    bytes: &'a [u8],
}

impl<'a> BatchView<'a> {
    /// The batch at the start of `bytes`; what follows it is not looked at.
    ///
    /// # Errors
    /// As [`BatchHeader::parse`], and [`BatchError::Partial`] when the bytes end within the batch.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BatchError> {
        let header = BatchHeader::parse(bytes)?;
        match bytes.get(..header.size()) {
            Some(bytes) => Ok(Self { header, bytes }),
            None => Err(BatchError::Partial { need: header.size(), have: bytes.len() }),
        }
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The whole batch.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The records as they are stored, perhaps compressed.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(HEADER_BYTES..).unwrap_or_default()
    }

    /// The CRC32C of the bytes that the header's CRC covers.
    #[must_use]
    pub fn compute_crc(&self) -> u32 {
        crc32c::crc32c(self.bytes.get(CRC_COVERS_FROM..).unwrap_or_default())
    }

    /// Whether the bytes are those that the CRC was made of.
    #[must_use]
    pub fn crc_ok(&self) -> bool {
        self.compute_crc() == self.header.crc()
    }
}

impl Deref for BatchView<'_> {
    type Target = BatchHeader;

    fn deref(&self) -> &BatchHeader {
        &self.header
    }
}

//! Zigzag variable-length integers, as records use them: writing. Reading is in `record`, over a stream.

use bytes::{BufMut, BytesMut};

/// The longest encoding of 64 bits.
pub(crate) const MAX_BYTES: u32 = 10;

/// Maps small numbers of either sign to small unsigned ones.
const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// The inverse of [`zigzag`].
pub(crate) const fn unzigzag(raw: u64) -> i64 {
    (raw >> 1).cast_signed() ^ -((raw & 1).cast_signed())
}

/// Appends `value`.
pub(crate) fn put(out: &mut BytesMut, value: i64) {
    let mut raw = zigzag(value);
    loop {
        let [low, ..] = (raw & 0x7f).to_le_bytes();
        raw >>= 7;
        if raw == 0 {
            out.put_u8(low);
            return;
        }
        out.put_u8(low | 0x80);
    }
}

/// How many bytes [`put`] appends.
pub(crate) const fn size(value: i64) -> usize {
    let bits = 64 - (zigzag(value) | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_what_is_written() {
        for value in [0, 1, -1, 63, 64, -64, -65, 8191, 8192, i64::from(i32::MAX), i64::MAX, i64::MIN] {
            let mut out = BytesMut::new();
            put(&mut out, value);
            assert_eq!(out.len(), size(value), "{value}");
            assert_eq!(unzigzag(zigzag(value)), value);
        }
        assert_eq!(size(i64::MIN), MAX_BYTES as usize);
    }
}

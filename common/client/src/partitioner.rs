//! Which partition a key belongs to: Kafka's default, so that both kinds of producers agree.

use highwater_types::PartitionIndex;

/// The partition of `key` among `partitions`: murmur2, its sign bit cleared, modulo the count. `None` without partitions.
#[must_use]
pub fn partition_for_key(key: &[u8], partitions: i32) -> Option<PartitionIndex> {
    let count = u32::try_from(partitions).ok().filter(|count| *count > 0)?;
    let positive = murmur2(key) & 0x7fff_ffff;
    PartitionIndex::new(i32::try_from(positive % count).ok()?)
}

/// MurmurHash2, 32 bits, with the seed that Kafka's clients use.
fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    // Kafka's lengths are 32-bit; a key is never longer.
    let mut hash = SEED ^ u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let Ok(word) = <[u8; 4]>::try_from(chunk) else { continue };
        let mut k = u32::from_le_bytes(word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that Kafka's own test of its hash lists (`UtilsTest.testMurmur2`).
    #[test]
    fn the_hash_is_kafkas() {
        let cases: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
        ];
        for (key, hash) in cases {
            assert_eq!(murmur2(key).cast_signed(), hash, "{}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn a_key_always_has_the_same_partition_and_no_partitions_have_none() {
        assert_eq!(partition_for_key(b"foobar", 6), partition_for_key(b"foobar", 6));
        assert_eq!(partition_for_key(b"foobar", 0), None);
        for key in 0_u32..1000 {
            assert!((0..7).contains(&partition_for_key(&key.to_be_bytes(), 7).unwrap().get()));
        }
    }
}

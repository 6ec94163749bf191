//! Seeded randomness for jitter: a small generator whose whole state is one number, so that a seed repeats a run.
//!
//! Not for secrets and not for ids: those are made by the program and passed in.

/// A generator of uniformly spread numbers (splitmix64).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Randomness(u64);

impl Randomness {
    /// The generator of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `bound`, both inclusive.
    pub const fn up_to(&mut self, bound: u64) -> u64 {
        match bound.checked_add(1) {
            Some(span) => self.next_u64() % span,
            None => self.next_u64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_sequence_within_the_bound() {
        let (mut a, mut b, mut c) = (Randomness::new(7), Randomness::new(7), Randomness::new(8));
        let first: Vec<_> = (0..100).map(|_| a.up_to(9)).collect();
        assert_eq!(first, (0..100).map(|_| b.up_to(9)).collect::<Vec<_>>());
        assert_ne!(first, (0..100).map(|_| c.up_to(9)).collect::<Vec<_>>());
        assert!((0..=9).all(|n| first.contains(&n)), "every value of the range occurs");
        assert_eq!(a.up_to(0), 0);
    }
}

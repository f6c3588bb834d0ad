//! Seeded random numbers: a seed produces the same tests on every machine and in every version.

/// A stream of pseudorandom numbers determined by a seed.
///
/// # Source
/// SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
#[derive(Debug, Clone)]
pub struct Seeded {
    state: u64,
}

impl Seeded {
    /// Returns the stream of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number.
    pub const fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `0..limit`. The tiny bias towards small numbers is irrelevant for tests.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "no number is below 0");
        self.number() % limit
    }
}

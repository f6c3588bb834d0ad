//! Random numbers that a seed repeats: the same seed gives the same tests for ever, on every machine.

/// A stream of numbers that looks random and is decided by its seed.
///
/// # Source
/// SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
#[derive(Debug, Clone)]
pub struct Seeded {
    state: u64,
}

impl Seeded {
    /// Begins the stream of that seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number.
    pub const fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 up to and without `limit`. The tiny preference for small ones does not matter to a test.
    ///
    /// # Panics
    /// If `limit` is 0: there is no such number.
    pub const fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "no number is below 0");
        self.number() % limit
    }
}

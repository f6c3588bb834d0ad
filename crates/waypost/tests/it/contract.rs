//! The contract of a store, kept by the stores of this crate.

use waypost_testing::memory::MemoryFixture;
use waypost_testing::{store_contract, store_differential};

store_contract!(memory, MemoryFixture::fresh());
store_differential!(memory_like_the_model, MemoryFixture::fresh());

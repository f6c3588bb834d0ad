//! The contract of a store as tests: a test per clause of [`Store`]'s `# Contract`, with the clause's name.
//!
//! The author of a store implements [`StoreFixture`]; a single macro call then creates all tests:
//!
//! ```
//! use waypost_testing::memory::MemoryFixture;
//!
//! waypost_testing::store_contract!(memory, MemoryFixture::fresh());
//! waypost_testing::store_differential!(memory_like_the_model, MemoryFixture::fresh());
//! # fn main() {}
//! ```
//!
//! [`MemoryFixture`](crate::memory::MemoryFixture) is the shortest fixture. The second argument is an
//! expression that returns a fixture over an empty store. The macro evaluates it in an async block, once per
//! clause. A failing clause prints the expected and the actual result.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use waypost::store::Store;
use waypost::{RunId, ScopePath};

#[expect(clippy::unwrap_used, reason = "these are tests, although other crates instantiate them")]
mod append;
#[expect(clippy::unwrap_used, reason = "these are tests, although other crates instantiate them")]
mod create;
#[expect(clippy::unwrap_used, reason = "these are tests, although other crates instantiate them")]
mod keep;
#[expect(clippy::unwrap_used, reason = "these are tests, although other crates instantiate them")]
mod lease;
#[expect(clippy::unwrap_used, reason = "these are tests, although other crates instantiate them")]
mod read;
#[expect(clippy::unwrap_used, reason = "these are tests, although other crates instantiate them")]
mod scan;
#[expect(clippy::unwrap_used, reason = "these are tests, although other crates instantiate them")]
mod support;

pub use append::*;
pub use create::*;
pub use keep::*;
pub use lease::*;
pub use read::*;
pub use scan::*;

/// A store under test, with access from outside.
#[async_trait]
pub trait StoreFixture: Send {
    /// Returns the store, open for writing.
    fn store(&self) -> Arc<dyn Store>;

    /// Simulates a crash of the process and opens the store again, as the next process does.
    ///
    /// The store is not closed before. The test has dropped its leases and stores, so kernel locks are free.
    /// Leases of another kind must end here.
    async fn reopen(&mut self);

    /// Flips at least one bit of the stored bytes at `place` while the run has no lease. A store with a cache
    /// must be opened again, so that the cache does not hide the damage.
    async fn damage(&mut self, run: &RunId, place: &DamageTarget);

    /// Returns the quarantined items of a run, as stored bytes.
    async fn quarantined(&mut self, run: &RunId) -> Vec<Vec<u8>>;

    /// Returns the folder that contains the whole store, if any.
    fn folder(&self) -> Option<PathBuf>;
}

/// A place to damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DamageTarget {
    /// The frozen record of the run.
    Run,
    /// The header of a record that was alone in its batch.
    Header(ScopePath, u64),
    /// The body of a record that was alone in its batch.
    Body(ScopePath, u64),
}

/// Passes the names of all clauses to another macro, after the caller's own `{...}`.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_clause {
    ({ $($callback:tt)+ } { $($own:tt)* }) => {
        $($callback)+ ! {
            { $($own)* }
            create_is_all_or_nothing
            create_refuses_an_existing_run
            acknowledged_is_durable
            append_is_all_or_nothing
            append_continues_the_chain
            append_is_answered_once
            append_needs_the_lease
            acquire_excludes
            acquire_raises_the_token
            release_frees
            renew_tells_of_stop_requests
            heads_are_the_newest_of_open_scopes
            heads_pass_over_damage
            run_returns_exact_bytes
            load_returns_exact_bytes
            load_names_the_older_sound_one
            scan_filters_and_pages
            runs_come_newest_first
            runs_tell_the_truth
            remarks_make_no_run_younger
            signal_is_unique
            quarantine_keeps_the_bytes
            trim_drops_states_never_headers
            trim_spares_what_a_resume_needs
            delete_removes_everything
            reading_needs_no_lease
            blobs_are_fenced_and_appended
            closed_refuses
        }
    };
}

/// Creates a test module for the store of a [`StoreFixture`], with a test per clause of the contract.
///
/// The first argument names the module. The second is an expression that returns a fixture over an empty
/// store; it may `.await`.
#[macro_export]
macro_rules! store_contract {
    ($name:ident, $fixture:expr) => {
        #[cfg(test)]
        mod $name {
            #[allow(
                unused_imports,
                clippy::allow_attributes,
                reason = "the fixture may come from around the macro"
            )]
            use super::*;
            $crate::for_each_clause! { { $crate::contract_tests } { $fixture } }
        }
    };
}

/// Creates the tests of [`store_contract`].
#[doc(hidden)]
#[macro_export]
macro_rules! contract_tests {
    ({ $fixture:expr } $($clause:ident)*) => {
        $(
            #[test]
            fn $clause() {
                $crate::contract::block_on(async { $crate::contract::$clause($fixture).await });
            }
        )*
    };
}

/// Runs a test on a new runtime.
///
/// # Panics
/// If the system cannot create a runtime.
#[doc(hidden)]
pub fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a test can have a runtime").block_on(test);
}

#[cfg(test)]
mod tests {
    macro_rules! names {
        ({} $($clause:ident)*) => { &[$(stringify!($clause)),*] };
    }

    const CLAUSES: &[&str] = for_each_clause!({ names } {});

    #[test]
    fn every_clause_of_the_trait_has_a_test_of_its_name() {
        let text = include_str!("../../../waypost/src/store/mod.rs");
        let contract =
            text.split("/// # Contract").nth(1).and_then(|rest| rest.split("#[async_trait]").next());
        let named = |line: &'static str| line.trim().strip_prefix("/// - `")?.split('`').next();

        let stated: Vec<_> = contract.unwrap().lines().filter_map(named).collect();

        assert_eq!(stated, CLAUSES);
    }
}

//! The contract of a store, as tests: one for each clause of [`Store`]'s `# Contract`, under the clause's name.
//!
//! Whoever writes a store says once how to set it up, by a [`StoreFixture`], and gets every clause from one line:
//!
//! ```
//! use waypost_testing::memory::MemoryFixture;
//!
//! waypost_testing::store_contract!(memory, MemoryFixture::fresh());
//! waypost_testing::store_differential!(memory_like_the_model, MemoryFixture::fresh());
//! # fn main() {}
//! ```
//!
//! [`MemoryFixture`](crate::memory::MemoryFixture) is the shortest example of a fixture.
//! The second argument is an expression that makes a fixture over a fresh, empty store; it is evaluated in an async
//! block, once for each clause. A clause that fails says what was expected and what came.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use waypost::store::Store;
use waypost::{BranchPath, RunId};

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

/// A store set up for a test, and what a test does to it from outside.
#[async_trait]
pub trait StoreFixture: Send {
    /// Returns the store, open for writing.
    fn store(&self) -> Arc<dyn Store>;

    /// Lets the process that uses the store crash, and opens the store anew as the next process does.
    ///
    /// The store is not closed before. The test has dropped all leases and stores that it had, so that kernel locks are
    /// free; where leases are kept otherwise, they end here.
    async fn reopen(&mut self);

    /// Flips at least one bit of what the store keeps for this place. Nobody holds the run's lease. If the store keeps
    /// things in memory, it must not hide the damage: open it anew.
    async fn damage(&mut self, run: &RunId, place: &Place);

    /// Returns what lies in quarantine for a run, one item for each thing moved there; the bytes as they are kept.
    async fn quarantined(&mut self, run: &RunId) -> Vec<Vec<u8>>;

    /// Returns the folder in which the store keeps everything, if it does.
    fn folder(&self) -> Option<PathBuf>;
}

/// Where a test damages a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The frozen record of the run.
    Run,
    /// The header of this record. It was the only record of its batch.
    Header(BranchPath, u64),
    /// The body of this record. It was the only record of its batch.
    Body(BranchPath, u64),
}

/// Gives the names of all clauses to another macro, behind `{…}` of its own.
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
            heads_are_the_newest_of_open_branches
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

/// Makes a module of tests, one for each clause of the contract, for the store of a [`StoreFixture`].
///
/// The first argument names the module, the second is an expression that makes a fixture over a fresh, empty store; it
/// may `.await`.
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

/// Makes the tests of [`store_contract`].
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

/// Runs a test on a runtime of its own.
///
/// # Panics
/// If the system gives none.
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
        let text = include_str!("../../waypost/src/store.rs");
        let contract =
            text.split("/// # Contract").nth(1).and_then(|rest| rest.split("#[async_trait]").next());
        let named = |line: &'static str| line.trim().strip_prefix("/// - `")?.split('`').next();

        let stated: Vec<_> = contract.unwrap().lines().filter_map(named).collect();

        assert_eq!(stated, CLAUSES);
    }
}

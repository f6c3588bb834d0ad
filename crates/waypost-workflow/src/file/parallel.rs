//! Limits of concurrent steps from outside the workflow file.

use std::num::NonZeroUsize;

use super::work::Work;
use super::workflow::Body;

/// Largest limit of concurrent steps; each may be a process.
pub const PARALLEL_MAX: u64 = 1_000;
/// Concurrent agents by default. An agent waits for a remote service with limits of its own, so the number of
/// processors says nothing.
const AGENTS: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// Limit of concurrent steps, by its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parallel {
    /// Number of processors: the limit of a list without a limit in the file. A list with agents has a fixed
    /// limit.
    Processors(NonZeroUsize),
    /// Configured limit of a list without a limit in the file.
    Configured(NonZeroUsize),
    /// Limit of the command for the whole run, in place of the limit in the file.
    Run(NonZeroUsize),
}

impl Parallel {
    /// Returns the limit of a list without a limit in the file.
    pub(crate) fn of(self, body: &Body) -> NonZeroUsize {
        match self {
            Self::Processors(_) if body.all().any(|step| matches!(step.work, Work::Agent(_))) => AGENTS,
            Self::Processors(count) | Self::Configured(count) | Self::Run(count) => count,
        }
    }

    /// Returns the limit of the command for the whole run.
    #[must_use]
    pub fn of_run(self) -> Option<NonZeroUsize> {
        match self {
            Self::Run(count) => Some(count),
            Self::Processors(_) | Self::Configured(_) => None,
        }
    }
}

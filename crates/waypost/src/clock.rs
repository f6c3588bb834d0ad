//! Time as an argument.
//!
//! The library asks a [`Clock`] and never the system, so that a test can set the time. Times in records are for
//! people; order is `seq`, never the clock.

use std::fmt::Debug;

use jiff::Timestamp;

/// Tells the time of day.
pub trait Clock: Debug + Send + Sync {
    /// Returns the time of day in UTC, with nanoseconds where the system has them.
    fn now(&self) -> Timestamp;
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place where the system is asked for the time"
    )]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

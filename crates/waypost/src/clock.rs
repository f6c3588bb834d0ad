//! Time as an argument.
//!
//! The library reads a [`Clock`] and never the system time, so that a test can set the time. Times in records
//! are for display; the order is `seq`, never the clock.

use std::fmt::Debug;

use jiff::Timestamp;

/// A source of the current time.
pub trait Clock: Debug + Send + Sync {
    /// Returns the current time in UTC, with nanoseconds if the system has them.
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

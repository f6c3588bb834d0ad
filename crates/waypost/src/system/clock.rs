//! Time as an argument.
//!
//! The library reads a [`Clock`] and never the system time, so that a test can set the time. Times in records
//! are for display; the order is `seq`, never the clock.

use std::fmt::Debug;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

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

/// The time of a session: setting the system clock back makes no wait longer.
#[derive(Debug)]
pub(crate) struct SteadyClock {
    clock: Arc<dyn Clock>,
    began: (Instant, Timestamp),
}

impl SteadyClock {
    /// Begins now, by `clock`.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let began = (Instant::now(), clock.now());
        Self { clock, began }
    }

    /// Returns the clock without the correction.
    pub(crate) fn inner(&self) -> &dyn Clock {
        self.clock.as_ref()
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Timestamp {
        let (began, at) = self.began;
        let monotonic = at.checked_add(began.elapsed()).unwrap_or(at);
        self.clock.now().max(monotonic)
    }
}

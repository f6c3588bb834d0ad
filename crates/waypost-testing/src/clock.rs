//! A clock that tests set.

use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use waypost::Clock;

/// A clock for tests. The time changes only by [`pass`](Self::pass) and [`set`](Self::set), in either
/// direction.
#[derive(Debug)]
pub struct TestClock(Mutex<Timestamp>);

impl TestClock {
    /// Returns a clock that shows `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(Mutex::new(now))
    }

    /// Advances the clock by `time`.
    ///
    /// # Panics
    /// If the result is outside the range of [`Timestamp`].
    pub fn pass(&self, time: Duration) {
        let mut now = self.0.lock().expect("no holder of this lock panics");
        *now = now.checked_add(time).expect("a test stays within the range of time");
    }

    /// Sets the clock to `now`, forwards or backwards.
    pub fn set(&self, now: Timestamp) {
        *self.0.lock().expect("no holder of this lock panics") = now;
    }
}

impl Default for TestClock {
    fn default() -> Self {
        Self::at(crate::records::time(0))
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().expect("no holder of this lock panics")
    }
}

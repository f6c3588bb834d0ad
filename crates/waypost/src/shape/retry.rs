//! When a failed step is tried again by itself.

use std::time::Duration;

/// How often and when a failed step is tried again by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// Tries after the first.
    pub max: u32,
    /// Pause before the first of them.
    pub delay: Duration,
    /// How the pause grows.
    pub growth: Growth,
    /// Longest pause.
    pub delay_max: Duration,
    /// Shorten each pause by a random part of up to a half, so that many runs do not try at the same moment.
    pub jitter: bool,
}

/// How the pause between tries grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// It stays.
    Fixed,
    /// By itself each time.
    Linear,
    /// To twice itself each time.
    Exponential,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max: 0,
            delay: Duration::ZERO,
            growth: Growth::Fixed,
            delay_max: Duration::from_secs(300),
            jitter: false,
        }
    }
}

impl Retry {
    /// Tries up to `max` times more, after one second and then twice as long each time, up to five minutes, each pause
    /// shortened at random by up to a half.
    pub fn exponential(max: u32) -> Self {
        let delay = Duration::from_secs(1);
        Self { max, delay, growth: Growth::Exponential, jitter: true, ..Self::default() }
    }

    /// Tries up to `max` times more, each time after the same pause.
    pub fn fixed(max: u32, delay: Duration) -> Self {
        Self { max, delay, ..Self::default() }
    }

    /// Begins with another pause.
    #[must_use]
    pub fn starting_at(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Lets no pause be longer.
    #[must_use]
    pub fn up_to(self, delay_max: Duration) -> Self {
        Self { delay_max, ..self }
    }

    /// Lets pauses be exactly as long as they are said to be.
    #[must_use]
    pub fn without_jitter(self) -> Self {
        Self { jitter: false, ..self }
    }

    /// Returns the pause after the `failures`-th failure (from 1), or `None` if the budget is used up.
    ///
    /// `random` is between 0 and 1.
    pub fn pause(&self, failures: u32, random: f64) -> Option<Duration> {
        if failures > self.max {
            return None;
        }
        let earlier = failures.saturating_sub(1).min(1_000);
        let factor = match self.growth {
            Growth::Fixed => 1.0,
            Growth::Linear => f64::from(earlier + 1),
            Growth::Exponential => 2_f64.powi(earlier as i32),
        };
        let grown = self.delay.as_secs_f64() * factor;
        let capped = grown.min(self.delay_max.as_secs_f64());
        let pause = if self.jitter { capped * (1.0 - random.clamp(0.0, 1.0) / 2.0) } else { capped };
        Some(Duration::try_from_secs_f64(pause).unwrap_or(self.delay_max))
    }
}

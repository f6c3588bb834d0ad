//! Automatic retries of failed steps.

use std::time::Duration;

/// How often and when a failed step is retried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// Attempts after the first.
    pub max: u32,
    /// Pause before the first retry.
    pub delay: Duration,
    /// How the pause grows.
    pub growth: Growth,
    /// Longest pause.
    pub delay_max: Duration,
    /// Shortens each pause by a random part of up to a half, to spread retries of many runs.
    pub jitter: bool,
}

/// The growth of the pause between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// Constant.
    Fixed,
    /// By the first pause each time.
    Linear,
    /// Doubled each time.
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
    /// Creates a policy of up to `max` retries: a pause of one second, doubled each time, at most five
    /// minutes, with jitter.
    pub fn exponential(max: u32) -> Self {
        let delay = Duration::from_secs(1);
        Self { max, delay, growth: Growth::Exponential, jitter: true, ..Self::default() }
    }

    /// Creates a policy of up to `max` retries with a constant pause.
    pub fn fixed(max: u32, delay: Duration) -> Self {
        Self { max, delay, ..Self::default() }
    }

    /// Sets the first pause.
    #[must_use]
    pub fn starting_at(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Returns the pause after the `failures`-th failure (from 1), or `None` if all retries are used.
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

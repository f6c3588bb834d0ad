//! Asking a session to stop, from outside.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

/// How urgently a session is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopLevel {
    /// Start nothing more, end what runs with grace, checkpoint.
    Graceful,
    /// End what runs at once, checkpoint.
    Kill,
}

/// A request to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// How urgently.
    pub level: StopLevel,
    /// Who asks: `SIGINT`, or a person.
    pub by: String,
}

/// Through which a session is asked to stop; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct StopHandle {
    asked: Arc<Asked>,
}

/// Small, since every branch in memory has one of its own.
#[derive(Debug, Default)]
struct Asked {
    /// Who asked first; set before `level` is.
    by: OnceLock<String>,
    /// 0 as long as nobody asked, else one more than the level.
    level: AtomicU8,
    changed: Notify,
}

impl StopHandle {
    /// Asks for a stop. A more urgent request replaces a less urgent one; who asked first is remembered.
    pub fn stop(&self, level: StopLevel, by: &str) {
        self.asked.by.get_or_init(|| by.to_owned());
        let level = level as u8 + 1;
        if self.asked.level.fetch_max(level, Ordering::AcqRel) < level {
            self.asked.changed.notify_waiters();
        }
    }

    /// Says whether a stop was asked for.
    pub fn is_asked(&self) -> bool {
        self.level().is_some()
    }

    /// Returns the request, if there is one.
    pub fn asked(&self) -> Option<Stop> {
        let level = self.level()?;
        let by = self.asked.by.get().expect("it is set before the level is");
        Some(Stop { level, by: by.clone() })
    }

    fn level(&self) -> Option<StopLevel> {
        match self.asked.level.load(Ordering::Acquire) {
            0 => None,
            level if level == StopLevel::Graceful as u8 + 1 => Some(StopLevel::Graceful),
            _ => Some(StopLevel::Kill),
        }
    }

    /// Resolves when a stop is asked for.
    pub async fn stopped(&self) -> Stop {
        self.at_least(StopLevel::Graceful).await
    }

    /// Resolves when a stop without grace is asked for.
    pub async fn killed(&self) {
        self.at_least(StopLevel::Kill).await;
    }

    async fn at_least(&self, level: StopLevel) -> Stop {
        loop {
            // Made before the look: it sees every change from now on.
            let changed = self.asked.changed.notified();
            if let Some(stop) = self.asked().filter(|stop| stop.level >= level) {
                return stop;
            }
            changed.await;
        }
    }
}

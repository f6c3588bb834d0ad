//! Asking a session to stop, from outside.

use std::sync::Arc;

use tokio::sync::watch;

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
#[derive(Debug, Clone)]
pub struct StopHandle {
    sender: Arc<watch::Sender<Option<Stop>>>,
}

impl Default for StopHandle {
    fn default() -> Self {
        Self { sender: Arc::new(watch::Sender::new(None)) }
    }
}

impl StopHandle {
    /// Asks for a stop. A more urgent request replaces a less urgent one; who asked first is remembered.
    pub fn stop(&self, level: StopLevel, by: &str) {
        self.sender.send_if_modified(|current| match current {
            Some(stop) if stop.level >= level => false,
            Some(stop) => {
                stop.level = level;
                true
            }
            None => {
                *current = Some(Stop { level, by: by.to_owned() });
                true
            }
        });
    }

    /// Returns the request, if there is one.
    pub fn asked(&self) -> Option<Stop> {
        self.sender.borrow().clone()
    }

    /// Resolves when a stop is asked for.
    pub async fn stopped(&self) -> Stop {
        let mut receiver = self.sender.subscribe();
        let stop =
            receiver.wait_for(Option::is_some).await.expect("the handle itself keeps the sender alive");
        stop.clone().expect("waited for a request")
    }

    /// Resolves when a stop without grace is asked for.
    pub async fn killed(&self) {
        let mut receiver = self.sender.subscribe();
        let urgent = |stop: &Option<Stop>| stop.as_ref().is_some_and(|stop| stop.level == StopLevel::Kill);
        receiver.wait_for(urgent).await.expect("the handle itself keeps the sender alive");
    }
}

//! Requests to a session: a stop from another thread or process, and the signals of a run, which the session reads when it
//! renews the lease.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::store::{Renewal, Signal, SignalKind, StoreError};

use super::manual::mark;
use super::scope::MAIN;
use super::session::Session;
use super::{Program, RunError};

impl<P: Program> Session<'_, P> {
    /// Keeps the lease, and takes in requests to stop and answers.
    pub(super) async fn renew(&mut self) -> Result<(), RunError> {
        let lease = self.lease().clone();
        let answers = match self.engine.store.renew(&[&lease]).await {
            Ok(answers) => answers,
            Err(error) if error.retry() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for answer in answers {
            match answer {
                Renewal::Held(signals) => {
                    for signal in signals {
                        self.hear_signal(signal);
                    }
                }
                Renewal::Lost => {
                    let token = lease.token();
                    return Err(
                        StoreError::Fenced { run: lease.run().clone(), token, newest: token + 1 }.into()
                    );
                }
            }
        }
        if self.lines.iter().any(|(_, line)| line.asks()) {
            self.deliver_all().await?;
        }
        Ok(())
    }

    fn hear_signal(&mut self, signal: Signal) {
        if self.consumed.contains(&signal.id) {
            return;
        }
        match signal.kind {
            SignalKind::Stop => {
                let by = if signal.sender.is_empty() { "waypost stop" } else { &signal.sender };
                self.options.stop.stop(StopLevel::Graceful, by);
                self.consumed.push(signal.id);
            }
            SignalKind::Checkpoint { label } if self.marks.iter().all(|(id, _)| *id != signal.id) => {
                self.marks.push((signal.id, label));
            }
            _ => {}
        }
    }

    /// Writes the checkpoints that were asked for with what is written now.
    pub(super) fn take_marks(&mut self) {
        for (id, label) in std::mem::take(&mut self.marks) {
            self.main_mut().drafts.push(mark(label.as_deref(), &id));
            self.mark_dirty(MAIN);
            self.consumed.push(id);
        }
    }
}

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
    asked: Arc<ResumeQuery>,
}

/// Small, since every branch in memory has one of its own.
#[derive(Debug, Default)]
struct ResumeQuery {
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

//! Signals to a run under way: the lease is renewed, and what was asked of the run meanwhile is taken in.

use crate::store::{Renewal, Signal, SignalKind, StoreError};

use super::by_hand::mark;
use super::line::MAIN;
use super::session::Session;
use super::{Program, RunError, StopLevel};

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

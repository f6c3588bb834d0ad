//! Progress of a run: a live region on a terminal, a line per event elsewhere, JSON on request.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use tokio::sync::Notify;
use waypost::engine::{Observer, StopLevel, Waiting};
use waypost::events;
use waypost::record::{Phase, Position, Record, Wait, WaitKind};
use waypost::store;
use waypost::{RunId, ScopePath, StepId};
use waypost_workflow::file::{Work, Workflow};
use waypost_workflow::program::WorkflowProgram;

use super::Output;
use super::screen::{Message, ProgressOf, Screen, Unheard};
use super::step_log::{ReadTo, StepLog};
use crate::view::step_names::StepNames;

/// Shows the progress of a run.
///
/// stderr is written by the thread of a [`Screen`]: a slow reader of stderr delays no step. Objects of JSON
/// are the answer, and are written at once.
#[derive(Debug)]
pub(crate) struct Progress {
    output: Output,
    of: ProgressOf,
    /// The line before the first event: a run that is refused has no event.
    heading: Mutex<Option<String>>,
    /// Why the lines on stdout stopped, after a failed write.
    unheard: Unheard,
    /// The store with the logs of steps.
    store: Arc<OnceLock<Weak<dyn store::Store>>>,
    /// The screen, once opened; never in quiet mode or for JSON.
    screen: OnceLock<SyncSender<Message>>,
    /// Wakes the task that asks, after a question of the run.
    question: Notify,
    names: Mutex<StepNames>,
    /// The logs of services that the next session may restart, at their ends before the session.
    services: Mutex<BTreeMap<String, StepLog>>,
}

impl Progress {
    /// Selects the display mode.
    pub(crate) fn new(output: &Output, of: ProgressOf) -> Self {
        let mut output = output.clone();
        if of == ProgressOf::WatchedRun {
            output.live &= output.terminal;
            output.logs = !output.live;
            output.actions = false;
        }
        let (heading, unheard, store) = (Mutex::default(), Arc::default(), Arc::default());
        let (screen, question, names) = (OnceLock::new(), Notify::new(), Mutex::default());
        Self { output, of, heading, unheard, store, screen, question, names, services: Mutex::default() }
    }

    /// Sets the line to print before the first event.
    pub(crate) fn head(&self, text: String) {
        *self.heading.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    /// Shows the names of steps beside their ids.
    pub(crate) fn name_steps(&self, workflow: &Workflow) {
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = StepNames::of(workflow);
    }

    /// Sets the store for the logs of steps.
    ///
    /// The reference is weak: a strong reference would keep the store open after the last work.
    pub(crate) fn read_logs_of(&self, store: &Arc<dyn store::Store>) {
        // All runs of a session are in one store.
        let _ = self.store.set(Arc::downgrade(store));
    }

    /// Prints the lines of services that the next session restarts, from the present ends of their logs. A
    /// later call would miss the first lines.
    pub(crate) async fn follow_services(&self, store: &dyn store::Store, run: &RunId, workflow: &Workflow) {
        if self.output.json || self.output.quiet || !self.output.prints_lines() {
            return;
        }
        for step in workflow.steps().iter().filter(|step| matches!(step.work, Work::Service(_))) {
            let Ok(id) = StepId::new(&step.id) else { continue };
            let mut log = StepLog::new(run, &ScopePath::main(), &id, &WorkflowProgram::restarted_at());
            // An unreadable log is printed from its start.
            let _ = log.read(store, ReadTo::End, drop).await;
            log.finish();
            if log.is_begun() {
                self.services.lock().unwrap_or_else(PoisonError::into_inner).insert(step.id.clone(), log);
            }
        }
    }

    /// Shows progress from now on, until [`Progress::close`].
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn open(&self) -> io::Result<()> {
        if self.output.json || self.output.quiet {
            return Ok(());
        }
        if self.screen.get().is_none() {
            let screen =
                Screen::new(&self.output, self.of, Arc::clone(&self.store), Arc::clone(&self.unheard));
            let _ = self.screen.set(screen.start()?);
        }
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let services = std::mem::take(&mut *self.services.lock().unwrap_or_else(PoisonError::into_inner));
        self.send(Message::Open { names, services });
        Ok(())
    }

    /// Reports the requested stop, and the effect of the next signal.
    pub(crate) fn stopping(&self, level: StopLevel, by: &str) {
        let text = match level {
            StopLevel::Graceful => format!("{by}: ending the running steps; Ctrl-C kills them"),
            StopLevel::Kill => format!("{by}: killing the running steps; Ctrl-C exits without waiting"),
        };
        match self.screen.get() {
            // The next signal must be heard, even without a reader of stderr.
            Some(screen) => drop(screen.try_send(Message::Stopping(level, text))),
            None if !self.output.json => self.output.note(&text),
            None => {}
        }
    }

    /// Prints the rest, and removes the live region.
    pub(crate) fn close(&self) {
        self.send_and_wait(Message::Close);
    }

    /// Returns why the answer was not fully written, except for a gone reader.
    pub(crate) fn unheard(&self) -> Option<io::Error> {
        self.take_unheard().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }

    /// Returns why the answer was not fully written.
    pub(crate) fn take_unheard(&self) -> Option<io::Error> {
        self.unheard.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns whether the progress is a live region.
    pub(crate) fn is_live(&self) -> bool {
        self.output.live
    }

    /// Shows a record of a watched run. On a terminal, the past is not shown.
    pub(crate) fn watched(&self, record: Record, progress: store::Progress, is_past: bool) {
        self.send(Message::Committed { records: vec![record], progress, is_past });
    }

    /// Shows the open waits of a run without work.
    pub(crate) fn waits(&self, waiting: &[Waiting], progress: store::Progress) {
        self.send(Message::Waits(waiting.to_vec(), progress));
    }

    /// Says that a question of the run may be open.
    pub(crate) fn question_is_open(&self) {
        self.question.notify_one();
    }

    /// Waits until a question may be open.
    pub(crate) async fn asked(&self) {
        self.question.notified().await;
    }

    /// Shows a question below everything else, and nothing more until [`Progress::asked_all`].
    pub(crate) fn ask(&self, prompt: String) {
        self.send(Message::Question(prompt));
    }

    /// Shows the progress again; `ends_line`: the cursor is still on the line of the question.
    pub(crate) fn asked_all(&self, ends_line: bool) {
        self.send_and_wait(|done| Message::Answered { ends_line, done });
    }

    /// Shows a line of its own.
    pub(crate) fn note(&self, text: String) {
        self.send(Message::Note(text));
    }

    /// Shows an error that ends nothing.
    pub(crate) fn note_error(&self, text: &str) {
        self.note(format!("{} {}", self.output.paint_err.red("error:"), super::shown_lines(text)));
    }

    fn send(&self, message: Message) {
        if let Some(screen) = self.screen.get() {
            // Without a screen, there is nothing to show.
            let _ = screen.send(message);
        }
    }

    fn send_and_wait(&self, message: impl FnOnce(Sender<()>) -> Message) {
        let (done, printed) = mpsc::channel();
        self.send(message(done));
        // An error means that there is no screen.
        let _ = printed.recv();
    }

    fn print_json(&self, records: &[Record]) {
        let mut unheard = self.unheard.lock().unwrap_or_else(PoisonError::into_inner);
        for event in records.iter().flat_map(events::of) {
            if unheard.is_none() {
                // A gone reader does not end the run.
                *unheard = self.output.line(&event).err();
            }
        }
    }
}

impl Observer for Progress {
    fn committed(&self, records: &[Record], _: &Position, progress: store::Progress) {
        let heading = self.heading.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.output.json {
            return self.print_json(records);
        }
        // The first commit of a session: a question of an earlier session may be open.
        let is_first = heading.is_some();
        if let Some(heading) = heading {
            self.send(Message::Note(heading));
        }
        let asks = |wait: &Wait| wait.on == WaitKind::Answer;
        let asks = |record: &Record| matches!(&record.header().phase, Phase::Waiting(waits) if waits.iter().any(asks));
        if is_first || records.iter().any(asks) {
            self.question_is_open();
        }
        self.send(Message::Committed { records: records.to_vec(), progress, is_past: false });
    }

    fn warned(&self, text: &str) {
        match self.screen.get() {
            Some(screen) => drop(screen.send(Message::Warning(text.to_owned()))),
            None => self.output.warn(text),
        }
    }
}

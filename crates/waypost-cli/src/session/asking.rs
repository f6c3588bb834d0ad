//! Questions of a run to the person at the terminal of its session.
//!
//! The answer is recorded as by `waypost answer`; the session, or its next resume, continues with the answer.
//! After the end of input or a stop request, the question stays open.

use std::io::{self, BufRead as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use waypost::RunId;
use waypost::engine::{Engine, RunError, StopHandle, Waiting};
use waypost_workflow::file::Workflow;

use crate::error::Error;
use crate::output::progress::Progress;
use crate::output::{shown, shown_lines};
use crate::run::questions::{questions, refuse_secret, taken};
use crate::view::WaitView;
use crate::view::step_names::called;

/// The poll interval for answers from elsewhere.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The task that asks the questions of a run.
#[derive(Debug)]
pub(crate) struct Asking(JoinHandle<()>);

impl Asking {
    /// Asks the questions of a run from now on.
    pub(crate) fn begin(engine: &Engine, run: &RunId, workflow: &Workflow, session: SessionEnds) -> Self {
        let SessionEnds { progress, stop } = session;
        let (engine, run, workflow) = (engine.clone(), run.clone(), workflow.clone());
        let mut asker = Asker { engine, run, workflow, progress, stop, lines: None };
        Self(tokio::spawn(async move { asker.ask_all().await }))
    }

    /// Returns whether a question of the run will be asked, or is asked now.
    pub(crate) fn is_under_way(&self) -> bool {
        !self.0.is_finished()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The screen of a session, and its stop requests.
#[derive(Debug)]
pub(crate) struct SessionEnds {
    pub(crate) progress: Arc<Progress>,
    pub(crate) stop: StopHandle,
}

struct Asker {
    engine: Engine,
    run: RunId,
    workflow: Workflow,
    progress: Arc<Progress>,
    stop: StopHandle,
    /// The lines of standard input, read from the first question on.
    lines: Option<UnboundedReceiver<String>>,
}

/// How a question ended.
enum QuestionEnd {
    Answered,
    /// The typed answer is not valid.
    Refused(Box<Error>),
    /// The input has ended, or the session stops.
    Unanswered,
}

impl Asker {
    async fn ask_all(&mut self) {
        loop {
            self.progress.asked().await;
            // A store that cannot be read is reported by the session itself.
            while let Ok((open, _)) = questions(&self.engine, &self.run).await
                && let Some(question) = open.first()
            {
                match self.ask(question).await {
                    QuestionEnd::Answered => {}
                    QuestionEnd::Refused(error) => self.progress.note_error(&error.to_string()),
                    QuestionEnd::Unanswered => return,
                }
            }
        }
    }

    /// Asks until the question has an answer, from here or from elsewhere.
    async fn ask(&mut self, question: &Waiting) -> QuestionEnd {
        let name = called(Some(&self.workflow), &question.scope, question.step.as_str());
        let view = WaitView::of(&question.scope, &question.step, &question.wait, Some(&self.workflow));
        let asked = question.wait.question.as_ref().and_then(|text| text.as_str()).unwrap_or_default();
        let wanted = view.wanted.map_or_else(|| "JSON or text".to_owned(), |wanted| wanted.describe());
        let prompt = format!("Step {name} asks: {}\nAnswer {}: ", shown_lines(asked), shown(&wanted));
        self.progress.ask(prompt);
        let line = tokio::select! {
            line = next_line(&mut self.lines) => line,
            _ = self.stop.stopped() => {
                self.progress.asked_all(true);
                return QuestionEnd::Unanswered;
            }
            () = answered_elsewhere(&self.engine, &self.run, &question.wait.id) => {
                self.progress.asked_all(true);
                return QuestionEnd::Answered;
            }
        };
        // The return key has ended the line on the screen.
        self.progress.asked_all(line.is_none());
        let Some(line) = line else { return QuestionEnd::Unanswered };
        if line.is_empty() {
            return QuestionEnd::Answered;
        }
        match self.answer(question, &line).await {
            Ok(()) | Err(Error::Run(RunError::Answered { .. } | RunError::NoSuchWait { .. })) => {
                QuestionEnd::Answered
            }
            Err(error) => QuestionEnd::Refused(Box::new(error)),
        }
    }

    async fn answer(&self, question: &Waiting, line: &str) -> Result<(), Error> {
        let store = self.engine.store();
        refuse_secret(store.as_ref(), &self.run, line).await?;
        let value = taken(store.as_ref(), &self.run, question, line).await?;
        Ok(self.engine.answer(self.run.as_str(), &question.wait.id, value).await?)
    }
}

/// Resolves when the question has an answer, or is no question any more.
async fn answered_elsewhere(engine: &Engine, run: &RunId, wait: &str) {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        if let Ok((open, _)) = questions(engine, run).await
            && open.iter().all(|question| question.wait.id != wait)
        {
            return;
        }
    }
}

/// Returns the next line of standard input; `None` at its end.
async fn next_line(lines: &mut Option<UnboundedReceiver<String>>) -> Option<String> {
    let lines = match lines {
        Some(lines) => lines,
        None => lines.insert(read_lines().ok()?),
    };
    lines.recv().await
}

/// Reads lines in a thread of its own: a read of a terminal cannot be cancelled.
fn read_lines() -> io::Result<UnboundedReceiver<String>> {
    let (sender, receiver) = unbounded_channel();
    std::thread::Builder::new().name("answers".to_owned()).spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.send(line.trim().to_owned()).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

//! Steps without a process: a question to a person, a pause, a wait for a signal.
//!
//! A waiting step releases the parallel slot. When the awaited event has arrived, in this session or a later
//! one, the step starts from the beginning. Memos of the run keep the received answers.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use waypost::engine::{Attempt, MemoError, Performed, StepReport};
use waypost::events::SIGNAL_KEY;
use waypost::record::{Ending, Failure, FailureKind, Note, WaitKind};

use crate::expr::{ExprError, Scope, StepView, Template};
use crate::file::{AnswerKind, Step, Work};
use crate::mask::Mask;

use super::failure;
use super::state::StepOutput;

/// Longest pause that is slept within the session; a longer pause becomes a wait.
const PAUSE_IN_SESSION_MAX: Duration = Duration::from_secs(1);

/// Waiting step with all expressions evaluated.
#[derive(Debug)]
pub(super) struct Waiting {
    on: On,
    report: Option<(Template, Scope)>,
}

#[derive(Debug)]
enum On {
    Answer { question: String, answer: AnswerKind },
    Time(Duration),
    Signal(String),
}

/// Result of a wait.
enum Came {
    Value(Option<(&'static str, Value)>),
    Refused(String),
}

impl Waiting {
    /// Makes the wait of a step; `None` if the step runs a command or opens scopes.
    pub(super) fn render(step: &Step, scope: &Scope, mask: &Mask) -> Result<Option<Self>, ExprError> {
        let env = step.resolve_env(scope)?;
        let scope = scope.for_step(&step.id, &env);
        let on = match &step.work {
            Work::Run(_)
            | Work::Agent(_)
            | Work::Service(_)
            | Work::Foreach(_)
            | Work::Group(_)
            | Work::Workflow(_) => {
                return Ok(None);
            }
            Work::Approve(approval) => {
                let question = mask.mask_str(approval.question.render(&scope)?.trim()).into_owned();
                On::Answer { question, answer: approval.answer.clone() }
            }
            Work::Sleep(time) => On::Time(*time),
            Work::Wait(name) => On::Signal(name.render(&scope)?.trim().to_owned()),
        };
        Ok(Some(Self { on, report: step.report.clone().map(|report| (report, scope)) }))
    }

    pub(super) async fn run(self, attempt: &Attempt, mask: &Mask) -> Performed<StepOutput> {
        let came = tokio::select! {
            came = self.came(attempt) => came,
            _ = attempt.stopped() => return Performed::Stopped { in_progress: true },
        };
        match came {
            Ok(Came::Value(value)) => {
                let outputs: Map<String, Value> =
                    value.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                let mut report = StepReport::default();
                report.notes.extend(self.report(attempt, &outputs, mask));
                let ending = Ending { outputs: outputs.clone().into_iter().collect(), ..Ending::default() };
                Performed::Completed {
                    output: StepOutput { outputs, ..StepOutput::default() },
                    ending,
                    report,
                }
            }
            Ok(Came::Refused(answer)) => {
                let text = format!("not approved: the answer is `{answer}`");
                let failure = Failure::new(FailureKind::Error, vec![text]);
                Performed::Failed { failure, report: StepReport::default() }
            }
            Err(error) => Performed::Failed {
                failure: failure(FailureKind::Error, error),
                report: StepReport::default(),
            },
        }
    }

    async fn came(&self, attempt: &Attempt) -> Result<Came, MemoError> {
        match &self.on {
            On::Answer { question, answer } => answered(attempt, question, answer).await,
            On::Time(time) => slept(attempt, *time).await.map(|()| Came::Value(None)),
            On::Signal(name) => {
                let wait = attempt.make_wait(SIGNAL_KEY, WaitKind::Signal(name.clone()), None);
                match attempt.answered(&wait.id).await? {
                    Some(value) => Ok(Came::Value(Some(("value", value)))),
                    None => match attempt.suspend(vec![wait]).await {},
                }
            }
        }
    }

    fn report(&self, attempt: &Attempt, outputs: &Map<String, Value>, mask: &Mask) -> Option<Note> {
        let (report, scope) = self.report.as_ref()?;
        let mut scope = scope.clone();
        let status = "completed".to_owned();
        let view =
            StepView { status, exit_code: None, stdout: None, outputs: Some(outputs.clone()), items: None };
        scope.insert_step(attempt.step.as_str(), &view);
        Some(match report.render(&scope) {
            Ok(text) => Note::Report(mask.mask_str(&text).into_owned()),
            Err(error) => Note::Warning(
                mask.mask_str(&format!("cannot render the step's `report`: {error}")).into_owned(),
            ),
        })
    }
}

/// Asks until a valid answer arrives. A rejection fails the step once; the next attempt asks again.
async fn answered(attempt: &Attempt, question: &str, answer: &AnswerKind) -> Result<Came, MemoError> {
    for asked in 1u32.. {
        let key = if asked == 1 { "answer".to_owned() } else { format!("answer {asked}") };
        let wait = attempt.make_wait(&key, WaitKind::Answer, Some(json!(question)));
        let Some(value) = attempt.answered(&wait.id).await? else {
            match attempt.suspend(vec![wait]).await {}
        };
        match answer.take(&value) {
            // A key keeps its first answer, so the question is repeated under another key.
            Err(_) => {}
            Ok(Value::Bool(false)) if *answer == AnswerKind::Approval => {
                let refusal = format!("told {key}");
                if attempt.kept(&refusal).await?.is_none() {
                    attempt.keep(&refusal, Value::Bool(true), StepReport::default()).await?;
                    let answer = value.as_str().unwrap_or("no").to_owned();
                    return Ok(Came::Refused(answer));
                }
            }
            Ok(value) => return Ok(Came::Value(Some(("answer", value)))),
        }
    }
    unreachable!("the number of questions is bounded")
}

/// Sleeps for `time`, counted from the first start of the step; a memo keeps the due time.
async fn slept(attempt: &Attempt, time: Duration) -> Result<(), MemoError> {
    if time.is_zero() {
        return Ok(());
    }
    let key = "until";
    let now = attempt.clock().now();
    let set = attempt.kept(key).await?.and_then(|value| serde_json::from_value::<Timestamp>(value).ok());
    let latest = now.checked_add(time).unwrap_or(Timestamp::MAX);
    let due = match set {
        Some(due) if due <= latest => due,
        // First start, or the clock was set back since.
        _ => {
            let due = latest;
            attempt.keep(key, json!(due), StepReport::default()).await?;
            due
        }
    };
    let rest = Duration::try_from(due.duration_since(now)).unwrap_or_default();
    if rest > PAUSE_IN_SESSION_MAX {
        match attempt.suspend(vec![attempt.make_wait(key, WaitKind::Until(due), None)]).await {}
    }
    tokio::time::sleep(rest).await;
    Ok(())
}

impl AnswerKind {
    /// Converts an answer to the output of the step.
    ///
    /// # Errors
    /// Text that describes a valid answer.
    pub fn take(&self, value: &Value) -> Result<Value, String> {
        let text = value.as_str().map(str::trim);
        let wrong = || Err(format!("the answer must be {}", self.describe()));
        match self {
            Self::Approval => match (value, text.map(str::to_lowercase).as_deref()) {
                (Value::Bool(_), _) => Ok(value.clone()),
                (_, Some("yes" | "y" | "true" | "approve" | "approved" | "ok")) => Ok(Value::Bool(true)),
                (_, Some("no" | "n" | "false" | "reject" | "rejected" | "deny" | "denied")) => {
                    Ok(Value::Bool(false))
                }
                _ => wrong(),
            },
            Self::Text => match value {
                Value::String(_) => Ok(value.clone()),
                Value::Number(_) | Value::Bool(_) => Ok(Value::String(value.to_string())),
                _ => wrong(),
            },
            Self::Number => match (value, text.and_then(|text| serde_json::from_str::<Value>(text).ok())) {
                (Value::Number(_), _) => Ok(value.clone()),
                (_, Some(number @ Value::Number(_))) => Ok(number),
                _ => wrong(),
            },
            Self::Choice(choices) => match choices.iter().find(|choice| Some(choice.as_str()) == text) {
                Some(choice) => Ok(Value::String(choice.clone())),
                None => wrong(),
            },
            Self::Json => Ok(value.clone()),
        }
    }
}

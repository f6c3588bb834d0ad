//! Work of a step: a command, a question to a person, a pause, or a wait for a signal.

use std::ops::Range;
use std::time::Duration;

use super::checker::Checker;
use super::child::{self, ChildWorkflow};
use super::fields::{Fields, KeySet};
use super::foreach::{Foreach, ItemSource};
use super::node::{Kind, Node};
use super::workflow::Body;
use crate::expr::Template;
use crate::suggest::listed;

/// Keys for the work of a step; each step has exactly one.
pub(super) const KINDS: [&str; 9] =
    ["run", "agent", "service", "approve", "sleep", "wait", "foreach", "steps", "workflow"];
/// Keys for steps with a process only.
const FOR_PROCESSES: [&str; 11] = [
    "dir",
    "shell",
    "timeout",
    "retry",
    "outputs",
    "capture",
    "stdin",
    "idempotent",
    "undo",
    "grace",
    "runs_on",
];

/// `NOT_FOR_ITEMS`: keys without a use for a `foreach`. `FOR_THEIR_COMMAND`: keys for the command that lists
/// items.
const NOT_FOR_ITEMS: [&str; 8] =
    ["outputs", "capture", "stdin", "idempotent", "undo", "continue_on_error", "report", "runs_on"];
const FOR_THEIR_COMMAND: [&str; 6] = ["dir", "shell", "timeout", "retry", "grace", "env"];

/// Keys without a use for a service: a service has no outputs, and does not end before the session.
const NOT_FOR_SERVICES: [&str; 10] =
    ["timeout", "outputs", "capture", "stdin", "idempotent", "undo", "report", "repeat", "prompt", "runs_on"];

pub(super) static APPROVE: KeySet =
    KeySet { what: "`approve`", keys: &["question", "answer", "choices"], later: &[], elsewhere: &[] };

/// Work of a step.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Work {
    /// Runs this command.
    Run(Template),
    /// Sends a prompt to an agent.
    Agent(Agent),
    /// Starts this command, which runs next to later steps.
    Service(Template),
    /// Asks a person, and waits for the answer.
    Approve(Approval),
    /// Waits for this duration.
    Sleep(Duration),
    /// Waits for a signal of this name.
    Wait(Template),
    /// Runs steps for each item.
    Foreach(Box<Foreach>),
    /// Runs these steps.
    Group(Box<Body>),
    /// Runs another file.
    Workflow(Box<ChildWorkflow>),
}

impl Work {
    /// Returns the command, if any; for a `foreach`, the command that lists the items.
    #[must_use]
    pub fn command(&self) -> Option<&Template> {
        match self {
            Self::Run(command) | Self::Service(command) | Self::Agent(Agent { prompt: command, .. }) => {
                Some(command)
            }
            Self::Foreach(foreach) => match &foreach.items {
                ItemSource::Command(command, _) => Some(command),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the `foreach`, if any.
    #[must_use]
    pub fn foreach(&self) -> Option<&Foreach> {
        match self {
            Self::Foreach(foreach) => Some(foreach),
            _ => None,
        }
    }

    /// Returns the included file, if any.
    #[must_use]
    pub fn child(&self) -> Option<&ChildWorkflow> {
        match self {
            Self::Workflow(child) => Some(child),
            _ => None,
        }
    }

    /// Returns the steps of the body, if any.
    #[must_use]
    pub fn body(&self) -> Option<&Body> {
        match self {
            Self::Foreach(foreach) => Some(&foreach.body),
            Self::Group(body) => Some(body),
            Self::Workflow(child) => Some(child.workflow().body()),
            _ => None,
        }
    }

    /// Returns the key of the main text.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::Run(_) => "run",
            Self::Agent(_) => "prompt",
            Self::Service(_) => "service",
            Self::Approve(_) => "approve",
            Self::Sleep(_) => "sleep",
            Self::Wait(_) => "wait",
            Self::Foreach(_) => "foreach",
            Self::Group(_) => "steps",
            Self::Workflow(_) => "workflow",
        }
    }

    /// Returns the names of the built-in outputs.
    pub(super) fn outputs(&self) -> &'static [&'static str] {
        match self {
            Self::Approve(_) => &["answer"],
            Self::Wait(_) => &["value"],
            Self::Agent(_) => &["result"],
            Self::Run(_)
            | Self::Service(_)
            | Self::Sleep(_)
            | Self::Foreach(_)
            | Self::Group(_)
            | Self::Workflow(_) => &[],
        }
    }

    /// Returns the texts that may have expressions.
    pub(super) fn templates(&self) -> Vec<&Template> {
        match self {
            Self::Run(text)
            | Self::Service(text)
            | Self::Agent(Agent { prompt: text, .. })
            | Self::Wait(text)
            | Self::Approve(Approval { question: text, .. }) => vec![text],
            Self::Sleep(_) | Self::Group(_) | Self::Workflow(_) => Vec::new(),
            Self::Foreach(foreach) => foreach.items.templates(),
        }
    }
}

/// Prompt for an agent.
#[derive(Debug, Clone)]
pub struct Agent {
    /// Name of the agent's command in the configuration.
    pub name: String,
    /// Prompt.
    pub prompt: Template,
    /// Place of the name.
    pub(super) place: Range<usize>,
}

/// Question to a person.
#[derive(Debug, Clone)]
pub struct Approval {
    /// Question.
    pub question: Template,
    /// Type of the answer.
    pub answer: AnswerKind,
}

/// Type of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerKind {
    /// Yes, or no; no fails the step.
    Approval,
    /// Text.
    Text,
    /// Number.
    Number,
    /// One of these choices.
    Choice(Vec<String>),
    /// Any JSON value.
    Json,
}

impl AnswerKind {
    /// Returns the expected answer, for display.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Approval => "`yes` or `no`".to_owned(),
            Self::Text => "a text".to_owned(),
            Self::Number => "a number".to_owned(),
            Self::Choice(choices) => format!("one of {}", listed(choices.iter().map(String::as_str))),
            Self::Json => "JSON".to_owned(),
        }
    }
}

/// Reads the work of a step, and the place of its main text.
pub(super) fn work<'n>(
    checker: &mut Checker<'_>,
    node: &'n Node,
    fields: &Fields<'n>,
) -> Option<(Work, &'n Node)> {
    let mut found = KINDS.iter().filter_map(|kind| Some((*kind, fields.get(kind)?)));
    let Some((kind, value)) = found.next() else {
        if !fields.has_any(&KINDS) {
            let help = "add `run:` with a command, or `agent`, `service`, `foreach`, `steps`, `workflow`, \
                        `approve`, `sleep` or `wait`";
            checker.wrong(node, "the step has no work", help);
        }
        return None;
    };
    if let Some((other, place)) = found.next() {
        let help = match (kind, other) {
            ("foreach", "steps") | ("steps", "foreach") => "indent `steps` below `foreach`",
            _ => "split the step in two",
        };
        let message = format!("a step has one kind of work, but this one has `{kind}` and `{other}`");
        checker.wrong(place, message, help);
        return None;
    }
    if let Some(place) = fields.get("params").filter(|_| kind != "workflow") {
        let message = format!("`params` are for an included file, but this step has `{kind}`");
        checker.wrong(place, message, "declare params of this file beside `steps`");
    }
    if ["foreach", "steps", "workflow"].contains(&kind)
        && let Some(place) = fields.get("on_exit_code")
    {
        let message = format!("`on_exit_code` needs a step with an exit code, but this one has `{kind}`");
        checker.wrong(
            place,
            message,
            "move `on_exit_code` to the steps inside, or use `on_failure` or `on_success`",
        );
    }
    if kind == "foreach" {
        // Already read with its steps.
        return refuse_for_items(checker, value, fields);
    }
    if kind == "steps" || kind == "workflow" {
        let (what, help) = match kind {
            "steps" => ("a group", "move the key to the steps of the group"),
            _ => ("a step that includes another file", "move the key to the steps of that file"),
        };
        let keys = FOR_PROCESSES.iter().chain(&["env", "continue_on_error", "report"]);
        for (key, place) in keys.filter_map(|key| Some((*key, fields.get(key)?))) {
            checker.wrong(place, format!("`{key}` has no effect for {what}"), help);
        }
        if kind == "workflow" {
            return Some((Work::Workflow(Box::new(child::child(checker, value)?)), value));
        }
        return None;
    }
    if kind == "agent" {
        return agent(checker, node, value, fields).map(|(agent, place)| (Work::Agent(agent), place));
    }
    if let Some(place) = fields.get("prompt") {
        checker.wrong(place, format!("`prompt` is for an agent, but this step has `{kind}`"), "remove it");
    }
    if kind == "service" {
        for (key, place) in NOT_FOR_SERVICES.iter().filter_map(|key| Some((*key, fields.get(key)?))) {
            let message = format!("`{key}` has no effect for a service, which outlives the step");
            checker.wrong(place, message, "remove it");
        }
        return Some((Work::Service(command(checker, value, "service")?), value));
    }
    if kind != "run" {
        for (key, place) in FOR_PROCESSES.iter().filter_map(|key| Some((*key, fields.get(key)?))) {
            let message = format!("`{key}` is for steps with a process, and `{kind}` has none");
            checker.wrong(place, message, "remove it");
        }
    }
    match kind {
        "run" => Some((Work::Run(command(checker, value, "run")?), value)),
        "sleep" => Some((Work::Sleep(checker.duration(value, "sleep")?), value)),
        "wait" => Some((Work::Wait(filled(checker, value, "wait", "the name of a signal")?), value)),
        _ => approval(checker, value).map(|(approval, place)| (Work::Approve(approval), place)),
    }
}

/// Reports keys without a use for a `foreach`.
fn refuse_for_items<'n>(
    checker: &mut Checker<'_>,
    value: &Node,
    fields: &Fields<'n>,
) -> Option<(Work, &'n Node)> {
    for (key, place) in NOT_FOR_ITEMS.iter().filter_map(|key| Some((*key, fields.get(key)?))) {
        let help = "move the key to the steps below `foreach`";
        checker.wrong(place, format!("`{key}` has no effect beside `foreach`"), help);
    }
    let lists_by_command = value.has_key(&["items", "run"]);
    for (key, place) in FOR_THEIR_COMMAND.iter().filter_map(|key| Some((*key, fields.get(key)?))) {
        if !lists_by_command {
            let message = format!("`{key}` beside `foreach` is for a command in `items`, and there is none");
            checker.wrong(place, message, "move the key to the steps below `foreach`");
        }
    }
    None
}

fn agent<'n>(
    checker: &mut Checker<'_>,
    node: &Node,
    value: &'n Node,
    fields: &Fields<'n>,
) -> Option<(Agent, &'n Node)> {
    let name = checker.filled_text(value, "agent");
    if let Some(place) = fields.get("stdin") {
        checker.wrong(place, "an agent reads its prompt from stdin", "move the text to `prompt`");
    }
    let Some(place) = fields.get("prompt") else {
        if !fields.has_any(&["prompt"]) {
            checker.wrong(node, "an agent needs a `prompt`", "add `prompt:`");
        }
        return None;
    };
    let prompt = filled(checker, place, "prompt", "the task of the agent")?;
    Some((Agent { name: name?, prompt, place: value.span.clone() }, place))
}

fn command(checker: &mut Checker<'_>, node: &Node, key: &str) -> Option<Template> {
    if let Kind::List(_) = node.kind {
        checker.mismatch(node, key, "text", &format!("write several commands as lines under `{key}: |`"));
        return None;
    }
    let template = filled(checker, node, key, "a command (`true` does nothing)")?;
    if template.as_str().contains('\0') {
        checker.wrong(node, format!("`{key}` contains a NUL, which commands cannot hold"), "remove it");
        return None;
    }
    Some(template)
}

fn filled(checker: &mut Checker<'_>, node: &Node, key: &str, what: &str) -> Option<Template> {
    if matches!(node.kind, Kind::Map(_) | Kind::List(_)) {
        checker.mismatch(node, key, "text", &format!("write {what} after the key: `{key}: TEXT`"));
        return None;
    }
    let template = checker.template(node, key)?;
    if template.as_str().trim().is_empty() {
        checker.wrong(node, format!("`{key}` is empty"), &format!("write {what}"));
        return None;
    }
    Some(template)
}

fn approval<'n>(checker: &mut Checker<'_>, node: &'n Node) -> Option<(Approval, &'n Node)> {
    if !matches!(node.kind, Kind::Map(_)) {
        let question = filled(checker, node, "approve", "the question to ask")?;
        return Some((Approval { question, answer: AnswerKind::Approval }, node));
    }
    let fields = Fields::of(checker, node, &APPROVE)?;
    let choices = fields.get("choices").map(|place| (choices(checker, place), place));
    let kind = fields.get("answer").map(|place| {
        checker.word(place, "answer", &["approval", "text", "number", "json"]).map(|word| (word, place))
    });
    let answer = match (kind, choices) {
        (None, None) => AnswerKind::Approval,
        (None, Some((choices, place))) => {
            if choices.len() < 2 {
                checker.wrong(
                    place,
                    "`choices` needs at least two values",
                    "write `choices: [staging, production]`",
                );
                return None;
            }
            AnswerKind::Choice(choices)
        }
        (Some(kind), None) => match kind?.0 {
            "text" => AnswerKind::Text,
            "number" => AnswerKind::Number,
            "json" => AnswerKind::Json,
            _ => AnswerKind::Approval,
        },
        (Some(kind), Some(_)) => {
            checker.wrong(kind?.1, "`choices` excludes `answer`", "remove `answer`");
            return None;
        }
    };
    let Some(place) = fields.get("question") else {
        if !fields.has_any(&["question"]) {
            checker.wrong(node, "`approve` has no question", "add `question:`");
        }
        return None;
    };
    let question = filled(checker, place, "question", "the question to ask")?;
    Some((Approval { question, answer }, place))
}

/// Reads the choices and reports duplicates.
fn choices(checker: &mut Checker<'_>, node: &Node) -> Vec<String> {
    let mut choices: Vec<String> = Vec::new();
    for (text, place) in checker.texts(node, "choices") {
        if choices.contains(&text) {
            checker.wrong(place, format!("duplicate `{text}` in `choices`"), "remove one");
        } else {
            choices.push(text);
        }
    }
    choices
}

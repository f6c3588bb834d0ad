//! Reads one step of the file.

use std::time::Duration;

use super::body::BodyDraft;
use super::checker::Checker;
use super::child::{self, GivenDraft};
use super::evidence::{self, EvidenceDraft};
use super::fields::{Fields, KeySet};
use super::foreach::{self, EachDraft};
use super::hooks::{self, HookOn};
use super::node::{Kind, Node};
use super::repeat::{self, ITERATION, Repeat};
use super::settings::{self, Variable};
use super::work::{self, Work};
use super::workflow::{OutputSource, Retry, Shell, Tolerance};
use crate::expr::{Condition, Template};
use crate::output::{Capture, JsonPath, OUTPUT_NAME_BYTES_MAX, is_output_name};

/// Longest id; ids are part of file names and of command lines.
pub const STEP_ID_BYTES_MAX: usize = 64;
/// Default of `grace`: time from stop request to kill. `docker stop` and systemd units use 10 to 90 s, and an
/// interactive Ctrl-C should respond quickly.
const GRACE: Duration = Duration::from_secs(10);
/// Output name of the captured standard output.
pub(super) const CAPTURED: &str = "result";

pub(super) static STEP: KeySet = KeySet {
    what: "a step",
    keys: &[
        "id",
        "name",
        "renamed_from",
        "run",
        "agent",
        "prompt",
        "service",
        "approve",
        "sleep",
        "wait",
        "foreach",
        "steps",
        "workflow",
        "params",
        "repeat",
        "on_failure",
        "on_success",
        "on_exit_code",
        "needs",
        "if",
        "env",
        "dir",
        "shell",
        "timeout",
        "retry",
        "outputs",
        "capture",
        "stdin",
        "continue_on_error",
        "idempotent",
        "runs_on",
        "grace",
        "max_cuts",
        "undo",
        "report",
        "evidence",
    ],
    later: &["budget", "interrupt_before", "interrupt_after"],
    elsewhere: &[
        ("on_waiting", "the workflow, beside `steps`"),
        ("on_finish", "the workflow, beside `steps`"),
        ("secrets", "the workflow, beside `steps`"),
        ("checkpoints", "the workflow, beside `steps`"),
        ("defaults", "the workflow, beside `steps`"),
        ("max_parallel", "the workflow, beside `steps`"),
        ("allow_paths", "the workflow, beside `steps`"),
    ],
};

pub(super) static OUTPUT: KeySet =
    KeySet { what: "an output", keys: &["from", "json"], later: &[], elsewhere: &[] };

/// Defaults for every step.
#[derive(Debug, Clone)]
pub(super) struct Defaults<'n> {
    pub(super) shell: Shell,
    pub(super) timeout: Option<Duration>,
    pub(super) retry: Retry,
    pub(super) dir: Option<Template>,
    /// The steps to run beside each step that waits.
    pub(super) on_waiting: Option<&'n Node>,
}

/// Step as written in the file, with defaults applied; not yet checked against other steps.
#[derive(Debug)]
pub(super) struct Draft<'n> {
    pub(super) node: &'n Node,
    /// Place of the id, or else of the step.
    pub(super) id_node: &'n Node,
    pub(super) id: String,
    pub(super) has_own_id: bool,
    pub(super) name: Option<String>,
    /// The id of the step in an earlier version of the file.
    pub(super) renamed_from: Option<(String, &'n Node)>,
    /// Work of the step; `None` for a `foreach` or group, or after an error.
    pub(super) work: Option<(Work, &'n Node)>,
    /// `foreach` of the step, until the work is assembled.
    pub(super) each: Option<Box<EachDraft<'n>>>,
    /// Steps of the group, until the work is assembled.
    pub(super) group: Option<BodyDraft<'n>>,
    /// Hooks of the step.
    pub(super) hooks: Vec<(HookOn, BodyDraft<'n>)>,
    /// Loop of the step.
    pub(super) repeat: Option<(Repeat, &'n Node)>,
    pub(super) needs: Option<Vec<(String, &'n Node)>>,
    pub(super) condition: Option<(Condition, &'n Node)>,
    pub(super) env: Vec<Variable<'n>>,
    pub(super) dir: Option<(Template, Option<&'n Node>)>,
    pub(super) shell: Shell,
    pub(super) timeout: Option<Duration>,
    pub(super) retry: Retry,
    pub(super) outputs: Vec<(String, OutputSource, &'n Node)>,
    pub(super) capture: Option<Capture>,
    pub(super) stdin: Option<(Template, &'n Node)>,
    pub(super) tolerance: Tolerance,
    pub(super) idempotent: bool,
    /// Tags of the workers that may execute the step.
    pub(super) runs_on: Vec<String>,
    pub(super) cuts_max: Option<u32>,
    pub(super) grace: Duration,
    pub(super) undo: Option<(Template, &'n Node)>,
    pub(super) report: Option<(Template, &'n Node)>,
    pub(super) evidence: Option<EvidenceDraft<'n>>,
    /// Params for the included file.
    pub(super) params: Vec<GivenDraft<'n>>,
    /// The waiting step, for a step with the hooks of its wait.
    pub(super) announces: Option<String>,
}

impl<'n> Draft<'n> {
    /// Makes a step that does nothing itself.
    pub(super) fn empty(node: &'n Node, id: String, defaults: &Defaults<'n>) -> Self {
        Self {
            node,
            id_node: node,
            has_own_id: true,
            id,
            name: None,
            renamed_from: None,
            work: Some((Work::Sleep(Duration::ZERO), node)),
            each: None,
            group: None,
            hooks: Vec::new(),
            repeat: None,
            needs: None,
            condition: None,
            env: Vec::new(),
            dir: None,
            shell: defaults.shell.clone(),
            timeout: None,
            retry: Retry::NONE,
            outputs: Vec::new(),
            capture: None,
            stdin: None,
            tolerance: Tolerance::Nothing,
            idempotent: true,
            runs_on: Vec::new(),
            cuts_max: None,
            grace: GRACE,
            undo: None,
            report: None,
            evidence: None,
            params: Vec::new(),
            announces: None,
        }
    }

    /// Returns the steps of the body.
    pub(super) fn within(&self) -> Option<&BodyDraft<'n>> {
        self.each.as_ref().map(|each| &each.body).or(self.group.as_ref())
    }

    /// Returns the lists of steps below the step, hooks included.
    pub(super) fn bodies(&self) -> impl Iterator<Item = &BodyDraft<'n>> {
        self.within().into_iter().chain(self.hooks.iter().map(|(_, body)| body))
    }

    /// Returns the names of the outputs, if no other output is possible.
    pub(super) fn declared_outputs(&self) -> Option<Vec<&str>> {
        if self.each.is_some() || self.group.is_some() {
            return Some(Vec::new());
        }
        let (work, _) = self.work.as_ref()?;
        let run = match work {
            Work::Agent(_) => return None,
            Work::Service(_) => return Some(Vec::new()),
            Work::Workflow(child) => {
                return Some(child.workflow.steps().iter().map(|step| step.id.as_str()).collect());
            }
            work => match work.command() {
                Some(run) => run,
                None => return Some(work.outputs().to_vec()),
            },
        };
        let mut names: Vec<&str> = self.outputs.iter().map(|(name, ..)| name.as_str()).collect();
        names.extend(self.capture.map(|_| CAPTURED));
        (!names.is_empty() && !run.as_str().contains("WAYPOST_OUTPUT")).then_some(names)
    }
}

/// Reads the step at `position`, from 1, of a list; a step without an id is named after `stem`.
pub(super) fn step<'n>(
    checker: &mut Checker<'_>,
    node: &'n Node,
    (stem, position): (&str, usize),
    defaults: &Defaults<'n>,
) -> Option<Draft<'n>> {
    if let Kind::Text(text) = &node.kind {
        let help = format!("write `- run: {}`", crate::expr::shown(text));
        checker.wrong(node, "a step is a map, not text", &help);
        return None;
    }
    let fields = Fields::of(checker, node, &STEP)?;
    let repeats = fields.get("repeat").is_some();
    if repeats {
        checker.locals.push(ITERATION.to_owned());
    }
    let template = |checker: &mut Checker<'_>, key: &str| {
        let value = fields.get(key)?;
        checker.template(value, key).map(|template| (template, value))
    };
    let id = fields.get("id").and_then(|node| id(checker, node).map(|id| (id, node)));
    let own_dir = template(checker, "dir").map(|(dir, node)| (dir, Some(node)));
    let id_node = id.as_ref().map_or(node, |(_, node)| *node);
    let renamed_from =
        fields.get("renamed_from").and_then(|node| self::id(checker, node).map(|id| (id, node)));
    let id = id.map_or_else(|| format!("{stem}-{position}"), |(id, _)| id);
    let each = fields.get("foreach").and_then(|node| foreach::foreach(checker, node, &id, defaults));
    let group = fields.get("steps").and_then(|node| repeat::group(checker, node, &id, defaults));
    let hooks = hooks::hooks(checker, &fields, &id, defaults);
    let repeat = fields.get("repeat").and_then(|node| repeat::repeat(checker, node));
    let params = match fields.get("params") {
        Some(node) => child::params(checker, node),
        None => Some(Vec::new()),
    };
    let draft = Draft {
        node,
        id_node,
        has_own_id: fields.get("id").is_some(),
        id,
        each: each.map(Box::new),
        group,
        hooks,
        repeat,
        name: fields.get("name").and_then(|node| checker.filled_text(node, "name")),
        renamed_from,
        work: work::work(checker, node, &fields),
        needs: fields.get("needs").map(|node| checker.texts(node, "needs")),
        condition: fields
            .get("if")
            .and_then(|node| checker.condition(node, "if").map(|condition| (condition, node))),
        env: fields.get("env").map(|node| settings::env(checker, node)).unwrap_or_default(),
        dir: own_dir.or_else(|| defaults.dir.clone().map(|dir| (dir, None))),
        shell: fields
            .get("shell")
            .and_then(|node| settings::shell(checker, node))
            .unwrap_or_else(|| defaults.shell.clone()),
        timeout: fields
            .get("timeout")
            .and_then(|node| checker.duration(node, "timeout"))
            .or(defaults.timeout),
        retry: fields
            .get("retry")
            .and_then(|node| settings::retry(checker, node, &defaults.retry))
            .unwrap_or_else(|| defaults.retry.clone()),
        outputs: fields.get("outputs").map(|node| outputs(checker, node)).unwrap_or_default(),
        capture: fields.get("capture").and_then(|node| capture(checker, node)),
        stdin: template(checker, "stdin"),
        tolerance: fields
            .get("continue_on_error")
            .and_then(|node| settings::tolerance(checker, node))
            .unwrap_or(Tolerance::Nothing),
        idempotent: fields
            .get("idempotent")
            .and_then(|node| checker.truth(node, "idempotent"))
            .unwrap_or(true),
        runs_on: fields.get("runs_on").map(|node| settings::tags(checker, node)).unwrap_or_default(),
        cuts_max: fields.get("max_cuts").and_then(|node| settings::cuts_max(checker, node)),
        grace: fields.get("grace").and_then(|node| checker.duration(node, "grace")).unwrap_or(GRACE),
        undo: template(checker, "undo"),
        report: template(checker, "report"),
        evidence: fields.get("evidence").and_then(|node| evidence::evidence(checker, node)),
        params: params.clone().unwrap_or_default(),
        announces: None,
    };
    if let (Some((Work::Workflow(child), place)), Some(params)) = (&draft.work, params) {
        child::fit(checker, place, child, &params);
    }
    if repeats {
        checker.locals.pop();
    }
    if draft.capture.is_some()
        && let Some((_, _, node)) = draft.outputs.iter().find(|(name, ..)| name == CAPTURED)
    {
        let message = format!("`{CAPTURED}` is reserved for the output of `capture`");
        checker.wrong(node, message, "choose another name");
    }
    Some(draft)
}

/// Reads and checks an id.
fn id(checker: &mut Checker<'_>, node: &Node) -> Option<String> {
    let id = match &node.kind {
        Kind::Text(id) => id.as_str(),
        _ => {
            checker.mismatch(node, "id", "text", "begin with a letter or `_`");
            return None;
        }
    };
    if is_step_id(id) {
        return Some(id.to_owned());
    }
    let message = format!("`{}` is not a valid step id", crate::expr::shown(id));
    let help = format!(
        "an id has a letter or `_`, followed by letters, digits, `_` or `-`, at most {STEP_ID_BYTES_MAX} \
         characters"
    );
    checker.wrong(node, message, &help);
    None
}

/// Returns whether `id` is a valid step id.
#[must_use]
pub fn is_step_id(id: &str) -> bool {
    let mut letters = id.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-')
        && id.len() <= STEP_ID_BYTES_MAX
}

fn capture(checker: &mut Checker<'_>, node: &Node) -> Option<Capture> {
    let word = checker.word(node, "capture", &Capture::ALL.map(Capture::as_str))?;
    Capture::ALL.into_iter().find(|capture| capture.as_str() == word)
}

fn outputs<'n>(checker: &mut Checker<'_>, node: &'n Node) -> Vec<(String, OutputSource, &'n Node)> {
    let help = "write `outputs: { rows: { from: data.json, json: $.count } }`";
    let Kind::Map(entries) = &node.kind else {
        checker.mismatch(node, "outputs", "a map", help);
        return Vec::new();
    };
    let mut outputs: Vec<(String, OutputSource, &'n Node)> = Vec::new();
    for (key, value) in entries.iter().filter(|(key, _)| !matches!(key.kind, Kind::List(_) | Kind::Map(_))) {
        let name = key.key_text();
        if !is_output_name(name) {
            let message = format!("`{}` is not a valid output name", crate::expr::shown(name));
            let help = format!(
                "a name has a letter or `_`, followed by letters, digits, `_` or `-`, at most \
                 {OUTPUT_NAME_BYTES_MAX} characters"
            );
            checker.wrong(key, message, &help);
        }
        let Some(fields) = Fields::of(checker, value, &OUTPUT) else { continue };
        let from = match fields.get("from") {
            Some(from) => checker.template(from, "from"),
            None if fields.has_any(&["from"]) => None,
            None => {
                checker.wrong(value, format!("output `{name}` has no source"), "add `from:` with a file");
                None
            }
        };
        let json = fields.get("json").and_then(|node| json_path(checker, node));
        if let Some(from) = from
            && !outputs.iter().any(|(known, ..)| known == name)
        {
            let from_node = fields.get("from").expect("a template was read from it");
            outputs.push((name.to_owned(), OutputSource { from, json }, from_node));
        }
    }
    outputs
}

pub(super) fn json_path(checker: &mut Checker<'_>, node: &Node) -> Option<JsonPath> {
    let text = checker.text(node, "json")?;
    match JsonPath::parse(&text) {
        Ok(path) => Some(path),
        Err(error) => {
            let span = checker.inside(node, &text, &error.range);
            let help = "a path has the form `$.meta.count`, `$.items[0].name`, `$['a b']` or `$.items[*]`";
            checker.problems.push(checker.source.problem(&span, error.message).help(help));
            None
        }
    }
}

//! Reads the whole file: the top level, and the steps.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::path::{Component, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::body::{self, BodyDraft};
use super::budget::{self, Budget};
use super::checker::Checker;
use super::fields::{Fields, KeySet};
use super::graph;
use super::hooks;
use super::names::{self, Names};
use super::node::{Kind, Node};
use super::parallel::PARALLEL_MAX;
use super::params::{Param, ParamKind, Pattern};
use super::secrets::{self, Secrets};
use super::settings::{self, Checkpoints, Variable};
use super::step::{self, Defaults};
use super::store;
use super::workflow::{Mode, Retry, Shell, Workflow};
use crate::expr::Template;

/// Version of the language.
const VERSION: u64 = 1;

pub(super) static WORKFLOW: KeySet = KeySet {
    what: "the workflow",
    keys: &[
        "version",
        "name",
        "description",
        "params",
        "env",
        "secrets",
        "defaults",
        "max_parallel",
        "timeout",
        "budget",
        "labels",
        "checkpoints",
        "allow_paths",
        "store",
        "on_failure",
        "on_success",
        "on_waiting",
        "on_finish",
        "fail_fast",
        "distribute",
        "max_cuts",
        "steps",
    ],
    later: &[],
    elsewhere: &[
        ("run", "a step"),
        ("needs", "a step"),
        ("if", "a step"),
        ("on_exit_code", "a step"),
        ("outputs", "a step"),
        ("capture", "a step"),
        ("stdin", "a step"),
        ("continue_on_error", "a step"),
        ("idempotent", "a step"),
        ("runs_on", "a step"),
        ("grace", "a step"),
        ("undo", "a step"),
        ("report", "a step"),
        ("retry", "a step or in `defaults`"),
        ("shell", "a step or in `defaults`"),
        ("dir", "a step or in `defaults`"),
        ("retention", "`checkpoints`"),
        ("durability", "`checkpoints`"),
        ("interval", "`checkpoints`"),
    ],
};

pub(super) static DEFAULTS: KeySet = KeySet {
    what: "`defaults`",
    keys: &["shell", "timeout", "retry", "env", "dir"],
    later: &[],
    elsewhere: &[
        ("run", "a step"),
        ("outputs", "a step"),
        ("grace", "a step"),
        ("idempotent", "a step"),
        ("continue_on_error", "a step"),
        ("params", "the workflow, beside `steps`"),
        ("secrets", "the workflow, beside `steps`"),
        ("max_parallel", "the workflow, beside `steps`"),
    ],
};

pub(super) static PARAM: KeySet = KeySet {
    what: "a param",
    keys: &["type", "default", "required", "pattern", "description"],
    later: &[],
    elsewhere: &[],
};

/// Settings above the steps.
struct Top<'n> {
    name: Option<String>,
    description: Option<String>,
    params: Vec<Param>,
    env: Vec<Variable<'n>>,
    secrets: Secrets,
    defaults: Defaults<'n>,
    defaults_env: Vec<Variable<'n>>,
    defaults_dir: Option<(Template, &'n Node)>,
    max_parallel: Option<(NonZeroUsize, &'n Node)>,
    timeout: Option<Duration>,
    budget: Option<Budget>,
    fail_fast: bool,
    distribute: bool,
    cuts_max: Option<u32>,
    labels: BTreeMap<String, String>,
    checkpoints: Checkpoints,
    store: Option<String>,
    fields: Option<Fields<'n>>,
}

/// Checks the file with tree `root`; problems are collected in `checker`.
pub(super) fn workflow(checker: &mut Checker<'_>, root: &Node) -> Option<Workflow> {
    let top = top(checker, root);
    let steps = steps_node(checker, root, top.fields.as_ref())?;
    let mut drafts = body::drafts(checker, steps, "step", &top.defaults);
    if let Some(fields) = &top.fields {
        hooks::add_at_end(checker, &mut drafts, fields, &top.defaults);
    }
    let body = body::ordered(checker, drafts);
    body.refuse_doubles(checker);
    graph::refuse_foreign_needs(checker, &body);
    body.refuse_inner_services(checker);
    let names = Names {
        params: &top.params,
        secrets: &top.secrets.names,
        env: &top.env,
        defaults_env: &top.defaults_env,
        body: &body,
        above: None,
        is_after: false,
    };
    let kept = names::check(checker, &names, top.defaults_dir.as_ref());
    let order = body.order.as_ref()?;
    if let (Mode::Sequence, Some((_, node))) = (order.mode, &top.max_parallel) {
        let message = "`max_parallel` has no effect: no step has `needs`, so the steps run in sequence";
        checker.warnings.push(checker.source.problem(&node.span, message).help("add `needs` to the steps"));
    }
    checker.problems.is_empty().then(|| assemble(checker, top, body, &kept))
}

fn top<'n>(checker: &mut Checker<'_>, root: &'n Node) -> Top<'n> {
    let fields = match root.kind {
        Kind::Map(_) => Fields::of(checker, root, &WORKFLOW),
        _ => None,
    };
    let get = |key: &str| fields.as_ref().and_then(|fields| fields.get(key));
    if let Some(node) = get("version") {
        version(checker, node);
    }
    if let Some(node) = get("allow_paths") {
        checker.allow_paths = allow_paths(checker, node);
    }
    let (defaults, defaults_env, defaults_dir) = defaults(checker, get("defaults"));
    let defaults = Defaults { on_waiting: get("on_waiting"), ..defaults };
    let env = get("env").map(|node| settings::env(checker, node)).unwrap_or_default();
    Top {
        name: get("name").and_then(|node| checker.filled_text(node, "name")),
        description: get("description").and_then(|node| checker.text(node, "description")),
        params: get("params").map(|node| params(checker, node)).unwrap_or_default(),
        secrets: get("secrets")
            .map(|node| secrets::secrets(checker, node, &[&env, &defaults_env]))
            .unwrap_or_default(),
        env,
        defaults,
        defaults_env,
        defaults_dir,
        max_parallel: get("max_parallel").and_then(|node| {
            let count = checker.integer(node, "max_parallel", 1..=PARALLEL_MAX)?;
            let count = usize::try_from(count).ok().and_then(NonZeroUsize::new);
            Some((count.expect("1 to PARALLEL_MAX"), node))
        }),
        timeout: get("timeout").and_then(|node| checker.duration(node, "timeout")),
        budget: get("budget").and_then(|node| budget::budget(checker, node)),
        distribute: get("distribute").and_then(|node| checker.truth(node, "distribute")).unwrap_or(false),
        fail_fast: get("fail_fast").and_then(|node| checker.truth(node, "fail_fast")).unwrap_or(false),
        cuts_max: get("max_cuts").and_then(|node| settings::cuts_max(checker, node)),
        labels: get("labels").map(|node| settings::labels(checker, node)).unwrap_or_default(),
        checkpoints: settings::checkpoints(checker, get("checkpoints")),
        store: get("store").and_then(|node| store::store(checker, node)).map(|found| found.value),
        fields,
    }
}

fn version(checker: &mut Checker<'_>, node: &Node) {
    match &node.kind {
        Kind::Number(number) if number.as_u64() == Some(VERSION) => {}
        Kind::Number(number) if number.as_u64().is_some_and(|version| version > VERSION) => {
            let message = format!(
                "version {number} of the language is newer than this program, which knows version {VERSION}"
            );
            checker.wrong(node, message, "use a newer version of waypost");
        }
        _ => checker.mismatch(node, "version", &format!("{VERSION}"), &format!("write `version: {VERSION}`")),
    }
}

fn steps_node<'n>(
    checker: &mut Checker<'_>,
    root: &'n Node,
    fields: Option<&Fields<'n>>,
) -> Option<&'n [Node]> {
    let help = "write `steps:`, followed by `- run: a command`";
    let steps = match (&root.kind, fields) {
        (Kind::List(_), _) => root,
        (Kind::Null, _) => {
            checker.wrong(root, "the file is empty", help);
            return None;
        }
        (Kind::Map(_), Some(fields)) => match fields.get("steps") {
            Some(steps) => steps,
            None if fields.has_any(&["steps"]) => return None,
            None => {
                checker.wrong(root, "the workflow has no `steps`", help);
                return None;
            }
        },
        _ => {
            let message =
                format!("a workflow is a map with `steps`, or a list of steps, not {}", root.described());
            checker.wrong(root, message, help);
            return None;
        }
    };
    body::nodes(checker, steps, ("the workflow", "steps"), help)
}

fn defaults<'n>(
    checker: &mut Checker<'_>,
    node: Option<&'n Node>,
) -> (Defaults<'n>, Vec<Variable<'n>>, Option<(Template, &'n Node)>) {
    let mut defaults =
        Defaults { shell: Shell::Default, timeout: None, retry: Retry::NONE, dir: None, on_waiting: None };
    let Some(fields) = node.and_then(|node| Fields::of(checker, node, &DEFAULTS)) else {
        return (defaults, Vec::new(), None);
    };
    if let Some(shell) = fields.get("shell").and_then(|node| settings::shell(checker, node)) {
        defaults.shell = shell;
    }
    defaults.timeout = fields.get("timeout").and_then(|node| checker.duration(node, "timeout"));
    if let Some(retry) = fields.get("retry").and_then(|node| settings::retry(checker, node, &Retry::NONE)) {
        defaults.retry = retry;
    }
    let dir = fields.get("dir").and_then(|node| checker.template(node, "dir").map(|dir| (dir, node)));
    defaults.dir = dir.as_ref().map(|(dir, _)| dir.clone());
    let env = fields.get("env").map(|node| settings::env(checker, node)).unwrap_or_default();
    (defaults, env, dir)
}

/// Reads the folders for evidence outside the folder of the file.
fn allow_paths(checker: &mut Checker<'_>, node: &Node) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for (text, node) in checker.texts(node, "allow_paths") {
        let folder = PathBuf::from(&text);
        if !folder.is_absolute() || folder.components().any(|part| part == Component::ParentDir) {
            let message = format!(
                "`{}` in `allow_paths` is not an absolute path of a folder",
                crate::expr::shown(&text)
            );
            let help =
                "write a path from `/`, without `..`; paths beneath the workflow folder are always allowed";
            checker.wrong(node, message, help);
        } else {
            folders.push(folder);
        }
    }
    folders
}

fn params(checker: &mut Checker<'_>, node: &Node) -> Vec<Param> {
    let Kind::Map(entries) = &node.kind else {
        checker.mismatch(node, "params", "a map", "write `params: { date: { type: string } }`");
        return Vec::new();
    };
    let mut params: Vec<Param> = Vec::new();
    for (key, value) in entries.iter().filter(|(key, _)| !matches!(key.kind, Kind::List(_) | Kind::Map(_))) {
        let name = key.key_text();
        if !step::is_step_id(name) {
            let message = format!("`{}` is not a valid param name", crate::expr::shown(name));
            checker.wrong(
                key,
                message,
                "begin with a letter or `_`, followed by letters, digits, `_` or `-`",
            );
            continue;
        }
        if let Some(param) = param(checker, name, value)
            && !params.iter().any(|known| known.name == name)
        {
            params.push(param);
        }
    }
    params
}

fn param(checker: &mut Checker<'_>, name: &str, node: &Node) -> Option<Param> {
    if !matches!(node.kind, Kind::Map(_)) {
        let help = match node.spelled() {
            Some(value) => format!("write `{name}: {{ default: {value} }}`"),
            None => format!("write `{name}: {{ type: string }}`"),
        };
        checker.wrong(node, format!("param `{name}` must be a map, not {}", node.described()), &help);
        return None;
    }
    let fields = Fields::of(checker, node, &PARAM)?;
    let kind =
        fields.get("type").map(|node| checker.word(node, "type", &ParamKind::ALL.map(ParamKind::as_str)));
    let kind = match kind {
        None => ParamKind::String,
        Some(word) => ParamKind::ALL.into_iter().find(|kind| Some(kind.as_str()) == word)?,
    };
    let pattern = fields.get("pattern").and_then(|node| pattern(checker, node, kind));
    let required = fields.get("required").and_then(|node| checker.truth(node, "required"));
    let description = fields.get("description").and_then(|node| checker.text(node, "description"));
    let mut param =
        Param { name: name.to_owned(), kind, default: None, required: false, pattern, description };
    if let Some(node) = fields.get("default") {
        let default = node.to_json();
        if body::holds_expression(&default) {
            let help = "remove the expression from the default, and use it where the param is read";
            checker.wrong(node, format!("the default of param `{name}` cannot contain an expression"), help);
        } else if let Err(message) = param.check(&default) {
            let help = match (kind, node.spelled()) {
                (ParamKind::String, Some(text)) if !default.is_string() => {
                    format!("put the value in quotes: `\"{text}\"`")
                }
                _ => "make `default` and `type` agree".to_owned(),
            };
            checker.wrong(node, format!("the default is invalid: {message}"), &help);
        }
        if required == Some(true) {
            let help = "remove `required` or `default`: a param with a default is never missing";
            checker.wrong(node, format!("param `{name}` has both `required` and a default"), help);
        }
        param.default = Some(default);
    }
    param.required = param.default.is_none() && required.unwrap_or(true);
    Some(param)
}

fn pattern(checker: &mut Checker<'_>, node: &Node, kind: ParamKind) -> Option<Pattern> {
    let text = checker.text(node, "pattern")?;
    if kind != ParamKind::String {
        checker.wrong(node, format!("`pattern` needs `type: string`, not `{}`", kind.as_str()), "remove it");
        return None;
    }
    match regex_lite::Regex::new(&text) {
        Ok(regex) => Some(Pattern(regex)),
        Err(error) => {
            checker.wrong(
                node,
                format!("`pattern` is not a regular expression: {error}"),
                "use single quotes: YAML then keeps `\\\\`",
            );
            None
        }
    }
}

/// Returns the checked workflow; called only without problems.
fn assemble(checker: &Checker<'_>, top: Top<'_>, body: BodyDraft<'_>, kept: &HashSet<String>) -> Workflow {
    let shared = [body::plain(&top.env), body::plain(&top.defaults_env)];
    let stem = || checker.source.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let body = body.assemble(checker, &shared, kept);
    let mut allow_paths = checker.allow_paths.clone();
    for folder in
        body.all().filter_map(|step| step.work.child()).flat_map(|child| child.workflow().allow_paths())
    {
        if !allow_paths.contains(folder) {
            allow_paths.push(folder.clone());
        }
    }
    let mut secrets = top.secrets;
    for child in body.all().filter_map(|step| step.work.child()) {
        secrets.extend(child.workflow().secrets(), child.workflow().secret_files());
    }
    Workflow {
        name: top.name.or_else(stem).unwrap_or_else(|| "workflow".to_owned()),
        description: top.description,
        path: checker.source.path.clone(),
        text: Arc::clone(&checker.source.text),
        max_parallel: top.max_parallel.map(|(count, _)| count),
        timeout: top.timeout,
        budget: top.budget,
        fail_fast: top.fail_fast,
        distribute: top.distribute,
        cuts_max: top.cuts_max,
        params: top.params,
        secrets: secrets.names,
        secret_files: secrets.files,
        allow_paths,
        labels: top.labels,
        checkpoints: top.checkpoints,
        store: top.store,
        body,
        warnings: Vec::new(),
    }
}

//! Hooks: steps that run after another step, depending on its result.

use super::body::{self, BodyDraft};
use super::checker::Checker;
use super::fields::Fields;
use super::node::{Kind, Node};
use super::step::{Defaults, Draft, STEP_ID_BYTES_MAX};
use super::work::Work;
use super::workflow::{Body, Mode};
use crate::expr::{Condition, FAILED_STEP, WAITING_STEP};

/// Trigger of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookOn {
    /// The step failed for good.
    Failure,
    /// The step completed.
    Success,
    /// The step ended with this exit code, after the last attempt.
    ExitCode(u8),
    /// The run ended, succeeded or waits: the step was made for the hook, and completed.
    Run,
}

/// Ids and conditions of the steps for the hooks of the end, in order.
const AT_END: [(&str, &str); 3] = [(ON_SUCCESS, SUCCEEDED), (ON_FAILURE, FAILED), ("on_finish", "always()")];
const ON_FAILURE: &str = "on_failure";
const ON_SUCCESS: &str = "on_success";
/// The condition of the hooks `on_success` of a run.
pub const SUCCEEDED: &str = "always() && success()";
/// The condition of the hooks `on_failure` of a run.
pub const FAILED: &str = "always() && failure()";
/// Suffix of the id of a step with the hooks of a wait.
const OF_WAIT: &str = "-on_waiting";

/// Steps to run after another step.
#[derive(Debug, Clone)]
pub struct Hook {
    /// Trigger.
    pub on: HookOn,
    /// Steps.
    pub body: Body,
}

impl HookOn {
    /// Returns the key of the hook's scope.
    #[must_use]
    pub fn key(self) -> String {
        match self {
            Self::Failure => ON_FAILURE.to_owned(),
            Self::Success => "on_success".to_owned(),
            Self::ExitCode(code) => format!("on_exit_code.{code}"),
            Self::Run => "run".to_owned(),
        }
    }
}

/// Reads the hooks of step `id`.
pub(super) fn hooks<'n>(
    checker: &mut Checker<'_>,
    fields: &Fields<'n>,
    id: &str,
    defaults: &Defaults<'n>,
) -> Vec<(HookOn, BodyDraft<'n>)> {
    let mut hooks = Vec::new();
    for (key, on) in [(ON_FAILURE, HookOn::Failure), ("on_success", HookOn::Success)] {
        let read = fields.get(key).and_then(|node| list(checker, node, (on, key), id, defaults));
        hooks.extend(read);
    }
    let Some(node) = fields.get("on_exit_code") else { return hooks };
    let help = "write `on_exit_code: { 3: [{ run: ./repair.sh }] }`";
    let Kind::Map(entries) = &node.kind else {
        checker.mismatch(node, "on_exit_code", "a map of exit codes", help);
        return hooks;
    };
    for (code, node) in entries {
        let Ok(number) = code.key_text().parse::<u8>() else {
            checker.wrong(
                code,
                format!("`{}` is not an exit code", crate::expr::shown(code.key_text())),
                help,
            );
            continue;
        };
        let on = HookOn::ExitCode(number);
        hooks.extend(list(checker, node, (on, "on_exit_code"), id, defaults));
    }
    hooks
}

/// Adds the steps with the hooks of the run's end. Each needs all steps before.
pub(super) fn add_at_end<'n>(
    checker: &mut Checker<'_>,
    drafts: &mut Vec<Draft<'n>>,
    fields: &Fields<'n>,
    defaults: &Defaults<'n>,
) {
    for (key, condition) in AT_END {
        let Some(node) = fields.get(key) else { continue };
        let outer = checker.locals.len();
        checker.locals.extend((key == ON_FAILURE).then(|| FAILED_STEP.to_owned()));
        let hook = list(checker, node, (HookOn::Run, key), "", defaults);
        checker.locals.truncate(outer);
        let Some(hook) = hook else { continue };
        if key != ON_SUCCESS {
            refuse_waits(checker, &hook.1, key);
        }
        let is_graph = drafts.iter().any(|draft| draft.needs.is_some());
        let needs = drafts.iter().map(|draft| (draft.id.clone(), node)).collect();
        let condition = Condition::parse(condition).expect("the condition is a valid expression");
        let draft = Draft::empty(node, key.to_owned(), defaults);
        let needs = is_graph.then_some(needs);
        drafts.push(Draft { needs, condition: Some((condition, node)), hooks: vec![hook], ..draft });
    }
}

/// Refuses waits after the failure of the run: a resume retries the failed step before the wait could end.
fn refuse_waits(checker: &mut Checker<'_>, body: &BodyDraft<'_>, key: &str) {
    for (_, draft) in body.all() {
        let Some((Work::Approve(_) | Work::Sleep(_) | Work::Wait(_), node)) = &draft.work else { continue };
        let message = format!(
            "step `{}` waits in `{key}` of the workflow, and a resume retries the failed step first",
            draft.id
        );
        checker.wrong(node, message, "write the step in the `on_failure` of the step that may fail");
    }
}

/// Returns a step with the hooks of a wait, which starts with the waiting step.
pub(super) fn of_wait<'n>(
    checker: &mut Checker<'_>,
    waiting: &Draft<'n>,
    defaults: &Defaults<'n>,
) -> Option<Draft<'n>> {
    let node = defaults.on_waiting?;
    if !matches!(waiting.work, Some((Work::Approve(_) | Work::Wait(_), _))) {
        return None;
    }
    let stem = &waiting.id[..waiting.id.len().min(STEP_ID_BYTES_MAX - OF_WAIT.len())];
    let id = format!("{stem}{OF_WAIT}");
    checker.locals.push(WAITING_STEP.to_owned());
    let hook = list(checker, node, (HookOn::Run, "on_waiting"), &id, defaults);
    checker.locals.pop();
    let hook = hook?;
    if let Some(id) = hook.1.drafts.iter().find_map(|draft| draft.node.get("id")) {
        let help = "remove the id: the steps of `on_waiting` run for each waiting step";
        checker.wrong(id, "a step of `on_waiting` cannot have an id", help);
        return None;
    }
    let draft = Draft::empty(node, id, defaults);
    let (needs, condition) = (waiting.needs.clone(), waiting.condition.clone());
    Some(Draft { needs, condition, hooks: vec![hook], announces: Some(waiting.id.clone()), ..draft })
}

/// Reads the steps of a hook, run in sequence.
pub(super) fn list<'n>(
    checker: &mut Checker<'_>,
    node: &'n Node,
    (on, key): (HookOn, &str),
    id: &str,
    defaults: &Defaults<'n>,
) -> Option<(HookOn, BodyDraft<'n>)> {
    let help = format!("write `{key}:`, followed by `- run: a command`");
    let nodes = body::nodes(checker, node, (&format!("`{key}`"), key), &help)?;
    let outer = checker.locals.len();
    if on == HookOn::Failure {
        checker.locals.push(FAILED_STEP.to_owned());
    }
    let stem = match on {
        HookOn::Run if !id.is_empty() => id.to_owned(),
        _ if id.is_empty() => key.to_owned(),
        _ => format!("{id}-{}", on.key().replace('.', "-")),
    };
    let defaults = Defaults { on_waiting: None, ..defaults.clone() };
    let body = body::body(checker, nodes, &stem, &defaults);
    checker.locals.truncate(outer);
    if body.order.as_ref().is_some_and(|order| order.mode == Mode::Graph) {
        checker.wrong(node, format!("the steps of `{key}` run in sequence"), "remove `needs`");
    }
    for (_, draft) in body.all() {
        let Some(node) = draft.evidence.as_ref().and_then(|_| draft.node.get("evidence")) else { continue };
        let message =
            format!("evidence of hook step `{}` is checked only at commit, not on resume", draft.id);
        let help = "hooks are not rechecked: move the claims to the evidence of the step itself";
        if !checker.warnings.is_full() {
            checker.warnings.push(checker.source.problem(&node.span, message).help(help));
        }
    }
    Some((on, body))
}

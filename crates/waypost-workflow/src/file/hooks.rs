//! Hooks: steps that run after another step, depending on its result.

use super::body::{self, BodyDraft};
use super::checker::Checker;
use super::fields::Fields;
use super::node::{Kind, Node};
use super::step::Defaults;
use super::workflow::{Body, Mode};
use crate::expr::FAILED_STEP;

/// Trigger of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookOn {
    /// The step failed for good.
    Failure,
    /// The step completed.
    Success,
    /// The step ended with this exit code, after the last attempt.
    ExitCode(u8),
}

/// Steps to run after another step.
#[derive(Debug, Clone)]
pub struct Hook {
    /// Trigger.
    pub on: HookOn,
    /// Steps.
    pub body: Body,
}

impl HookOn {
    /// Returns the key of the hook's branch.
    #[must_use]
    pub fn key(self) -> String {
        match self {
            Self::Failure => "on_failure".to_owned(),
            Self::Success => "on_success".to_owned(),
            Self::ExitCode(code) => format!("on_exit_code.{code}"),
        }
    }
}

/// Reads the hooks of step `id`.
pub(super) fn hooks<'n>(
    checker: &mut Checker<'_>,
    fields: &Fields<'n>,
    id: &str,
    defaults: &Defaults,
) -> Vec<(HookOn, BodyDraft<'n>)> {
    let mut hooks = Vec::new();
    for (key, on) in [("on_failure", HookOn::Failure), ("on_success", HookOn::Success)] {
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

/// Reads the steps of a hook, run in sequence.
pub(super) fn list<'n>(
    checker: &mut Checker<'_>,
    node: &'n Node,
    (on, key): (HookOn, &str),
    id: &str,
    defaults: &Defaults,
) -> Option<(HookOn, BodyDraft<'n>)> {
    let help = format!("write `{key}:`, followed by `- run: a command`");
    let nodes = body::nodes(checker, node, (&format!("`{key}`"), key), &help)?;
    let outer = checker.locals.len();
    if on == HookOn::Failure {
        checker.locals.push(FAILED_STEP.to_owned());
    }
    let stem = if id.is_empty() { on.key() } else { format!("{id}-{}", on.key().replace('.', "-")) };
    let body = body::body(checker, nodes, &stem, defaults);
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

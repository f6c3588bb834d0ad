//! List of steps: of the workflow, or of a step's body.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::checker::Checker;
use super::fingerprint::{admission, fingerprint, frame, inherited, list};
use super::graph::{self, EdgeOrder};
use super::hooks::{self, Hook};
use super::node::{Kind, Node};
use super::settings::Variable;
use super::step::{self, Defaults, Draft};
use super::work::Work;
use super::workflow::{Body, Mode, Step};
use crate::expr::Template;

/// Most steps of one list. More steps belong in a `foreach`, or come from a generator that should make
/// several files.
pub const STEPS_MAX: usize = 10_000;

/// Steps as written in the file.
#[derive(Debug)]
pub(super) struct BodyDraft<'n> {
    pub(super) drafts: Vec<Draft<'n>>,
    pub(super) index: HashMap<String, usize>,
    /// `None` after a cycle, which was reported.
    pub(super) order: Option<EdgeOrder>,
}

/// Returns the nodes of a list of steps, or reports an empty, oversized or wrong value.
pub(super) fn nodes<'n>(
    checker: &mut Checker<'_>,
    steps: &'n Node,
    (what, key): (&str, &str),
    help: &str,
) -> Option<&'n [Node]> {
    match &steps.kind {
        Kind::List(items) if items.is_empty() => checker.wrong(steps, format!("{what} has no steps"), help),
        Kind::List(items) if items.len() > STEPS_MAX => {
            let message = format!("{what} has {} steps, the maximum is {STEPS_MAX}", items.len());
            checker.wrong(steps, message, "split it");
        }
        Kind::List(items) => return Some(items),
        _ => checker.mismatch(steps, key, "a list", "begin every step with `- `"),
    }
    None
}

/// Reads steps; a step without an id is named after `stem` and its position.
pub(super) fn body<'n>(
    checker: &mut Checker<'_>,
    nodes: &'n [Node],
    stem: &str,
    defaults: &Defaults<'n>,
) -> BodyDraft<'n> {
    let drafts = drafts(checker, nodes, stem, defaults);
    ordered(checker, drafts)
}

/// Reads steps, each waiting step followed by the hooks of its wait.
pub(super) fn drafts<'n>(
    checker: &mut Checker<'_>,
    nodes: &'n [Node],
    stem: &str,
    defaults: &Defaults<'n>,
) -> Vec<Draft<'n>> {
    let mut drafts = Vec::with_capacity(nodes.len());
    for (position, node) in nodes.iter().enumerate() {
        let Some(draft) = step::step(checker, node, (stem, position + 1), defaults) else { continue };
        let of_wait = hooks::of_wait(checker, &draft, defaults);
        drafts.extend(std::iter::once(draft).chain(of_wait));
    }
    drafts
}

/// Makes a list of steps, in the order of the list or by their needs.
pub(super) fn ordered<'n>(checker: &mut Checker<'_>, drafts: Vec<Draft<'n>>) -> BodyDraft<'n> {
    let index = graph::index(checker, &drafts);
    let order = graph::order(checker, &drafts, &index);
    if let Some(order) = &order {
        warn_of_shared_folders(checker, &drafts, order);
    }
    BodyDraft { drafts, index, order }
}

/// Warns of agents without an order in one folder: each changes the files of the other.
fn warn_of_shared_folders(checker: &mut Checker<'_>, drafts: &[Draft<'_>], order: &EdgeOrder) {
    let is_agent = |draft: &Draft<'_>| matches!(draft.work, Some((Work::Agent(_), _)));
    let folder = |draft: &'_ Draft<'_>| draft.dir.as_ref().map(|(dir, _)| dir.as_str().to_owned());
    let mut first: HashMap<Option<String>, usize> = HashMap::new();
    for (place, draft) in drafts.iter().enumerate().filter(|(_, draft)| is_agent(draft)) {
        let Some(other) = first.insert(folder(draft), place) else { continue };
        if !order.is_before(other, place) && !order.is_before(place, other) {
            let message = format!(
                "the agents of `{}` and `{}` may work in one folder at once",
                drafts[other].id, draft.id
            );
            let help = "give each a `dir` of its own, or let one step need the other";
            checker.warn(draft.id_node, message, help);
        }
    }
}

impl<'n> BodyDraft<'n> {
    /// Returns all steps, also nested steps, each with its list.
    pub(super) fn all<'a>(&'a self) -> Vec<(&'a Self, &'a Draft<'n>)> {
        let mut found = Vec::new();
        for draft in &self.drafts {
            found.push((self, draft));
            found.extend(draft.bodies().flat_map(Self::all));
        }
        found
    }

    /// Reports steps of different lists with the same id.
    pub(super) fn refuse_doubles(&self, checker: &mut Checker<'_>) {
        let mut known: HashMap<&str, (&Self, &Draft<'_>)> = HashMap::new();
        for (list, draft) in self.all() {
            let Some((home, first)) = known.get(draft.id.as_str()) else {
                known.insert(&draft.id, (list, draft));
                continue;
            };
            // Duplicates within a list were reported when the list was read.
            if !std::ptr::eq(*home, list) {
                let message = format!("two steps have the id `{}`", draft.id);
                let problem = checker.source.problem(&draft.id_node.span, message);
                let problem = problem.related(checker.source, &first.id_node.span, "first here");
                checker.problems.push(problem.help("rename one: ids are unique in the file"));
            }
        }
        let steps = self.all().into_iter();
        for (draft, (old, node)) in steps.filter_map(|(_, draft)| Some((draft, draft.renamed_from.as_ref()?)))
        {
            if !draft.has_own_id {
                checker.wrong(node, "a renamed step needs an id", "add `id:` with the new name");
            } else if *old != draft.id && known.contains_key(old.as_str()) {
                let message =
                    format!("`renamed_from` of step `{}` names step `{old}` of this file", draft.id);
                checker.wrong(node, message, "name an id that the file no longer uses");
            }
        }
    }

    /// Reports services without later steps: in nested lists.
    pub(super) fn refuse_inner_services(&self, checker: &mut Checker<'_>) {
        let inner = self.all().into_iter().filter(|(list, _)| !std::ptr::eq(*list, self));
        for (_, draft) in inner {
            if let Some((Work::Service(_), node)) = &draft.work {
                let help = "start the service by a step of the top-level list: it outlives the steps inside";
                checker.wrong(node, "cannot start a service here", help);
            }
        }
    }

    /// Returns the checked steps; called only without problems.
    ///
    /// `shared` is the `env` of the workflow and of `defaults`; `kept` names the steps whose standard output
    /// is read.
    pub(super) fn assemble(
        self,
        checker: &Checker<'_>,
        shared: &[Vec<(String, Template)>; 2],
        kept: &std::collections::HashSet<String>,
    ) -> Body {
        let mode = self.order.map_or(Mode::Sequence, |order| order.mode);
        let steps = self.drafts.into_iter().enumerate();
        let steps = steps.map(|(index, draft)| assemble_one(checker, draft, index, shared, kept)).collect();
        Body { mode, steps, index: self.index }
    }
}

fn assemble_one(
    checker: &Checker<'_>,
    mut draft: Draft<'_>,
    index: usize,
    shared: &[Vec<(String, Template)>; 2],
    kept: &std::collections::HashSet<String>,
) -> Step {
    let [env, defaults_env] = shared;
    if let Some(each) = draft.each.take() {
        let mut foreach = each.foreach;
        foreach.body = each.body.assemble(checker, shared, kept);
        draft.work = Some((Work::Foreach(Box::new(foreach)), each.items_node));
    }
    if let Some(group) = draft.group.take() {
        draft.work = Some((Work::Group(Box::new(group.assemble(checker, shared, kept))), draft.node));
    }
    if let Some((Work::Workflow(child), _)) = &mut draft.work {
        child.params =
            std::mem::take(&mut draft.params).into_iter().map(|(name, given, _)| (name, given)).collect();
    }
    let hooks = std::mem::take(&mut draft.hooks).into_iter();
    let hooks = hooks.map(|(on, body)| Hook { on, body: body.assemble(checker, shared, kept) }).collect();
    let layers = [env.clone(), defaults_env.clone(), plain(&draft.env)];
    Step {
        fingerprint: fingerprint(&draft, &[env, defaults_env]),
        admission: admission(&draft, &[env, defaults_env]),
        frame: frame(&draft, &[env, defaults_env]),
        inherited: inherited(&draft, &[env, defaults_env]),
        list: list(&draft),
        index,
        line: checker.source.position(draft.node.span.start).0,
        keeps_stdout: kept.contains(&draft.id),
        work: draft.work.expect("a step without work was reported before").0,
        needs: draft.needs.into_iter().flatten().map(|(id, _)| id).collect(),
        hooks,
        repeat: draft.repeat.map(|(repeat, _)| repeat),
        condition: draft.condition.map(|(condition, _)| condition),
        dir: draft.dir.map(|(dir, _)| dir),
        outputs: draft.outputs.into_iter().map(|(name, source, _)| (name, source)).collect(),
        stdin: draft.stdin.map(|(stdin, _)| stdin),
        undo: draft.undo.map(|(undo, _)| undo),
        report: draft.report.map(|(report, _)| report),
        evidence: draft.evidence.map(|draft| Arc::new(draft.evidence)),
        id: draft.id,
        name: draft.name,
        renamed_from: draft.renamed_from.map(|(id, _)| id),
        shell: draft.shell,
        timeout: draft.timeout,
        retry: draft.retry,
        capture: draft.capture,
        continue_on_error: draft.tolerance,
        idempotent: draft.idempotent,
        runs_on: draft.runs_on,
        cuts_max: draft.cuts_max,
        grace: draft.grace,
        announces: draft.announces,
        env: Arc::new(layers),
    }
}

pub(super) fn plain(variables: &[Variable<'_>]) -> Vec<(String, Template)> {
    variables.iter().map(|(name, template, _)| (name.clone(), template.clone())).collect()
}

/// Returns whether a text in the value contains `${{`.
pub(super) fn holds_expression(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("${{"),
        Value::Array(items) => items.iter().any(holds_expression),
        Value::Object(map) => map.iter().any(|(key, item)| key.contains("${{") || holds_expression(item)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

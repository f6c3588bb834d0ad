//! Digest of a step's definition: shows whether a changed file changes the step.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::child::{ChildWorkflow, Given};
use super::foreach::{Distinct, Foreach, ItemSource};
use super::hooks::HookOn;
use super::repeat::Repeat;
use super::step::Draft;
use super::work::{Approval, Work};
use super::workflow::{Body, Mode, Shell, Tolerance};
use crate::expr::{Condition, Formula, Template};
use crate::output::JsonPath;

/// Version of the hashed data, so that a change of the recipe is not mistaken for a change of the file.
const RECIPE: u32 = 1;

/// Returns the SHA-256, in hex, of the work of `draft` and the sources of its values.
///
/// Not included: comments, order of keys, names, descriptions, timeouts, retries, `max_cuts`, `grace`,
/// `report`, `undo`, `idempotent`, quoting and folding. `shared` is the `env` of the workflow and of
/// `defaults`.
pub(super) fn fingerprint(draft: &Draft<'_>, shared: &[&[(String, Template)]]) -> String {
    print(draft, shared, FingerprintPart::Whole)
}

/// Returns the digest without the inner steps and the list of items, for a step with inner steps.
pub(super) fn frame(draft: &Draft<'_>, shared: &[&[(String, Template)]]) -> Option<String> {
    let (work, _) = draft.work.as_ref()?;
    (work.body().is_some() || work.child().is_some()).then(|| print(draft, shared, FingerprintPart::Frame))
}

/// Returns the digest of the part of a step with inner steps that counts for the children: without `if`, `until`, `outputs`
/// and `continue_on_error` of the step, its inner steps and its list of items.
pub(super) fn inherited(draft: &Draft<'_>, shared: &[&[(String, Template)]]) -> Option<String> {
    let (work, _) = draft.work.as_ref()?;
    let opens = work.body().is_some() || work.child().is_some();
    opens.then(|| print(draft, shared, FingerprintPart::Inherited))
}

/// Returns the SHA-256, in hex, of the list of items of a step.
pub(super) fn list(draft: &Draft<'_>) -> Option<String> {
    let (work, _) = draft.work.as_ref()?;
    work.foreach().map(|foreach| hex(&list_of(foreach)))
}

/// Returns the SHA-256, in hex, of all that decides whether a step is skipped: its condition and needs, and `env`.
pub(super) fn admission(draft: &Draft<'_>, shared: &[&[(String, Template)]]) -> String {
    let condition = draft.condition.as_ref().map(|(condition, _)| condition.as_str());
    hex(&json!([RECIPE, condition, env_of(draft, shared), needs_of(draft)]))
}

/// Hashed part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FingerprintPart {
    Whole,
    /// Without the inner steps, and without the list of items.
    Frame,
    /// The part of the frame that counts for the children.
    Inherited,
}

fn print(draft: &Draft<'_>, shared: &[&[(String, Template)]], part: FingerprintPart) -> String {
    let whole = part == FingerprintPart::Whole;
    let own = part != FingerprintPart::Inherited;
    let text = |template: &Template| template.as_str().to_owned();
    let env = env_of(draft, shared);
    let outputs: BTreeMap<_, _> = draft
        .outputs
        .iter()
        .map(|(name, source, _)| {
            (name.as_str(), (text(&source.from), source.json.as_ref().map(ToString::to_string)))
        })
        .collect();
    let needs = needs_of(draft);
    let shell = match &draft.shell {
        Shell::Default => None,
        Shell::Command(words) => Some(words),
    };
    let tolerance = match &draft.tolerance {
        Tolerance::Nothing => json!(false),
        Tolerance::Everything => json!(true),
        Tolerance::ExitCodes(codes) => json!(codes),
    };
    let work = draft.work.as_ref().map(|(work, _)| match work {
        Work::Run(command) => json!(text(command)),
        Work::Service(command) => json!({ "service": text(command) }),
        Work::Agent(agent) => json!({ "agent": agent.name, "prompt": text(&agent.prompt) }),
        Work::Approve(Approval { question, answer }) => {
            json!({ "approve": text(question), "answer": answer.describe() })
        }
        Work::Sleep(time) => json!({ "sleep": time.as_nanos().to_string() }),
        Work::Wait(name) => json!({ "wait": text(name) }),
        Work::Foreach(foreach) => meaning_of(foreach, whole),
        Work::Group(body) => json!({ "steps": whole.then(|| prints_of(body)) }),
        Work::Workflow(child) => meaning_of_file(child, whole),
    });
    // Absent members are not hashed, so older definitions keep their digest.
    let until = |repeat: &Repeat| own.then(|| repeat.until.as_str().to_owned());
    let repeat = draft.repeat.as_ref().map(|(repeat, _)| json!({ "until": until(repeat) }));
    let mut meaning = json!([
        RECIPE,
        work,
        env,
        draft.dir.as_ref().map(|(dir, _)| text(dir)),
        shell,
        draft.condition.as_ref().filter(|_| own).map(|(condition, _)| condition.as_str()),
        own.then_some(outputs),
        draft.capture.map(|capture| capture.as_str()),
        draft.stdin.as_ref().map(|(stdin, _)| text(stdin)),
        needs,
        own.then_some(tolerance),
    ]);
    if let (Some(repeat), Some(members)) = (repeat, meaning.as_array_mut()) {
        members.push(repeat);
    }
    hex(&meaning)
}

/// Returns the variables of a step. Later layers replace earlier layers, and the order of names is irrelevant.
fn env_of<'a>(draft: &'a Draft<'_>, shared: &[&'a [(String, Template)]]) -> BTreeMap<&'a str, &'a str> {
    let shared = shared.iter().copied().flatten().map(|(name, template)| (name, template));
    let own = draft.env.iter().map(|(name, template, _)| (name, template));
    shared.chain(own).map(|(name, template)| (name.as_str(), template.as_str())).collect()
}

/// Returns the needs of a step. Hooks are no part of a definition, and a step made for hooks needs all others.
fn needs_of<'a>(draft: &'a Draft<'_>) -> BTreeSet<&'a str> {
    let has_own_needs = !matches!(draft.hooks.as_slice(), [(HookOn::Run, _)]);
    draft.needs.iter().flatten().filter(|_| has_own_needs).map(|(id, _)| id.as_str()).collect()
}

fn hex(meaning: &Value) -> String {
    let digest = Sha256::digest(meaning.to_string().as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the definition of a `foreach`, without parallel limit and failure limits.
fn meaning_of(foreach: &Foreach, whole: bool) -> Value {
    let mut meaning = if whole { list_of(foreach) } else { json!({}) };
    let own = json!({
        "as": foreach.name,
        "key": foreach.key.as_ref().map(Template::as_str),
        "steps": whole.then(|| prints_of(&foreach.body)),
    });
    if let (Some(meaning), Value::Object(own)) = (meaning.as_object_mut(), own) {
        meaning.extend(own);
    }
    meaning
}

/// Returns the list of items, in order.
fn list_of(foreach: &Foreach) -> Value {
    let path = |path: &Option<JsonPath>| path.as_ref().map(ToString::to_string);
    let items = match &foreach.items {
        ItemSource::Listed(items) => json!({ "list": items }),
        ItemSource::Expression(text) => json!({ "expression": text.as_str() }),
        ItemSource::Command(text, json) => json!({ "run": text.as_str(), "json": path(json) }),
        ItemSource::File(text, json) => json!({ "file": text.as_str(), "json": path(json) }),
        ItemSource::Matrix(matrix) => matrix.meaning(),
    };
    let distinct = foreach.distinct.as_ref().map(|distinct| match distinct {
        Distinct::Whole => json!(true),
        Distinct::By(formula) => json!(formula.as_str()),
    });
    json!({
        "items": items,
        "filter": foreach.filter.as_ref().map(Condition::as_str),
        "sort_by": foreach.sort_by.as_ref().map(Formula::as_str),
        "distinct": distinct,
        "offset": foreach.offset,
        "max_items": foreach.items_max,
    })
}

/// Returns the definition of an included file and its params. Without its path, so that the file may be
/// moved.
fn meaning_of_file(child: &ChildWorkflow, whole: bool) -> Value {
    let given = |given: &Given| match given {
        Given::Plain(value) => json!({ "value": value }),
        Given::Filled(template) => json!({ "text": template.as_str() }),
    };
    let params: BTreeMap<_, _> =
        child.params.iter().map(|(name, value)| (name.as_str(), given(value))).collect();
    let defaults: BTreeMap<_, _> =
        child.workflow.params().iter().map(|param| (param.name.as_str(), &param.default)).collect();
    let steps = whole.then(|| prints_of(child.workflow.body()));
    json!({ "workflow": steps, "params": params, "defaults": defaults })
}

fn prints_of(body: &Body) -> Vec<[&str; 2]> {
    let mut steps: Vec<[&str; 2]> =
        body.steps.iter().map(|step| [step.id.as_str(), step.fingerprint.as_str()]).collect();
    if body.mode == Mode::Graph {
        steps.sort_unstable();
    }
    steps
}

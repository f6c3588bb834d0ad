//! `foreach`: items of a step, and the steps for each item.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use waypost::Digest;
use waypost::shape::FailureLimits;

use super::body::{self, BodyDraft};
use super::checker::Checker;
use super::evidence::{ClaimTemplate, Expected};
use super::fields::{Fields, KeySet};
use super::matrix::{self, Matrix};
use super::node::{Kind, Node};
use super::parallel::PARALLEL_MAX;
use super::step::{self, Defaults};
use super::work::Work;
use super::workflow::{Body, Step};
use crate::expr::{Condition, Formula, Scope, Template};
use crate::output::JsonPath;

/// Default name of the item.
const ITEM: &str = "item";
/// Name of the index among the selected items, from 0.
pub(crate) const ITEM_INDEX: &str = "item_index";
/// Most items of one `foreach`: their keys are in memory at once while scopes are opened.
pub const ITEMS_MAX: u64 = 10_000_000;

/// Most literal items with keys compared when the file is read: each key may be an expression. For larger
/// lists, the step compares keys when it runs.
const COMPARED_MAX: usize = 100_000;
/// Longest text of an item as a key; file paths fit.
const KEY_TEXT_BYTES_MAX: usize = 256;
/// Hexadecimal digits of a digest as a key. A collision, like an equal item, gets a number.
const KEY_DIGEST_CHARS: usize = 16;

pub(super) static FOREACH: KeySet = KeySet {
    what: "`foreach`",
    keys: &[
        "items",
        "as",
        "key",
        "filter",
        "sort_by",
        "distinct",
        "offset",
        "max_items",
        "max_parallel",
        "on_item_failure",
        "max_failures",
        "failure_rate",
        "circuit_breaker",
        "steps",
    ],
    later: &[],
    elsewhere: &[
        ("needs", "the step, beside `foreach`"),
        ("if", "the step, beside `foreach`; to exclude items, use `filter`"),
        ("id", "the step, beside `foreach`"),
        ("run", "a step below `steps`"),
        ("retry", "a step below `steps`"),
        ("timeout", "a step below `steps`"),
        ("env", "a step below `steps`"),
        ("outputs", "a step below `steps`"),
        ("continue_on_error", "a step below `steps`"),
    ],
};

pub(super) static ITEMS: KeySet = KeySet {
    what: "`items`",
    keys: &["run", "file", "json", "matrix", "exclude", "include"],
    later: &[],
    elsewhere: &[],
};

/// Definition of a `foreach`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Foreach {
    /// SourceText of the items.
    pub items: ItemSource,
    /// Name of the item in expressions.
    pub name: String,
    /// Key of each item.
    pub key: Option<Template>,
    /// Condition for an item to be selected.
    pub filter: Option<Condition>,
    /// Sort key, ascending.
    pub sort_by: Option<Formula>,
    /// Value for finding duplicates; only the first of equal items is selected.
    pub distinct: Option<Distinct>,
    /// Number of items to skip at the start.
    pub offset: u64,
    /// Most items to select.
    pub items_max: Option<u64>,
    /// Most concurrent items.
    pub max_parallel: Option<usize>,
    /// Effect of a failed item.
    pub on_failure: OnItemFailure,
    /// Most failed items.
    pub max_failures: Option<u64>,
    /// Largest fraction of failed items.
    pub failure_rate: Option<f64>,
    /// Most consecutive failures with the same error.
    pub circuit_breaker: Option<u32>,
    /// Steps for each item.
    pub body: Body,
}

impl Foreach {
    /// Returns the default key of an item: the text of a short item, else a digest of the text. The text of a
    /// combination of a matrix is its values.
    #[must_use]
    pub fn default_key(&self, item: &Value) -> String {
        let of_matrix = match &self.items {
            ItemSource::Matrix(matrix) => matrix.key(item),
            _ => None,
        };
        let text = of_matrix.unwrap_or_else(|| match item {
            Value::String(text) => text.clone(),
            item => item.to_string(),
        });
        match text.len() <= KEY_TEXT_BYTES_MAX {
            true => text,
            false => Digest::of(text.as_bytes()).to_string()[..KEY_DIGEST_CHARS].to_owned(),
        }
    }

    /// Returns the limits for failed items.
    pub fn limits(&self) -> FailureLimits {
        FailureLimits { count: self.max_failures, rate: self.failure_rate, alike: self.circuit_breaker }
    }
}

/// SourceText of items.
#[derive(Debug, Clone)]
pub enum ItemSource {
    /// Literal list.
    Listed(Arc<Vec<Value>>),
    /// Text that evaluates to a list.
    Expression(Template),
    /// Output of a command: one item per line, or a path in JSON.
    Command(Template, Option<JsonPath>),
    /// Content of a file: one item per line, or a path in JSON.
    File(Template, Option<JsonPath>),
    /// Combinations of values.
    Matrix(Box<Matrix>),
}

/// Equality of items.
#[derive(Debug, Clone)]
pub enum Distinct {
    /// Equal as a whole.
    Whole,
    /// Equal in this value.
    By(Formula),
}

/// Effect of a failed item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnItemFailure {
    /// Other items continue; the failed item can be inspected and retried later.
    DeadLetter,
    /// The run fails; a resume retries the item.
    Stop,
    /// Other items continue; the failed item is final.
    Skip,
}

/// `foreach` as written in the file; its steps are not yet checked against the others.
#[derive(Debug)]
pub(super) struct EachDraft<'n> {
    pub(super) foreach: Foreach,
    pub(super) items_node: &'n Node,
    pub(super) key_node: Option<&'n Node>,
    pub(super) filter_node: Option<&'n Node>,
    pub(super) sort_node: Option<&'n Node>,
    pub(super) distinct_node: Option<&'n Node>,
    pub(super) body: BodyDraft<'n>,
}

/// Reads the `foreach` of step `id`.
pub(super) fn foreach<'n>(
    checker: &mut Checker<'_>,
    node: &'n Node,
    id: &str,
    defaults: &Defaults<'n>,
) -> Option<EachDraft<'n>> {
    let fields = Fields::of(checker, node, &FOREACH)?;
    let items = match fields.get("items") {
        Some(node) => items(checker, node).map(|source| (source, node)),
        None => {
            if !fields.has_any(&["items"]) {
                checker.wrong(
                    node,
                    "`foreach` has no `items`",
                    "write `items: [a, b]`, `items: ${{ … }}` or `items: { run: \"ls *.txt\" }`",
                );
            }
            None
        }
    };
    let name = fields.get("as").map_or(Some(ITEM.to_owned()), |node| name(checker, node));
    let locals = [name.clone().unwrap_or_else(|| ITEM.to_owned()), ITEM_INDEX.to_owned()];
    checker.locals.extend(locals);
    let key = fields.get("key").and_then(|node| checker.template(node, "key").map(|key| (key, node)));
    if let Some((key, node)) = &key
        && !key.as_str().contains("${{")
    {
        let help = "write a unique key: `key: ${{ item }}`";
        checker.wrong(node, "every item has the same `key`", help);
    }
    let filter = fields.get("filter").and_then(|node| Some((checker.condition(node, "filter")?, node)));
    let sort_by = fields.get("sort_by").and_then(|node| Some((checker.formula(node, "sort_by")?, node)));
    let distinct = fields.get("distinct").and_then(|node| match node.kind {
        Kind::Bool(truth) => truth.then_some((Distinct::Whole, node)),
        _ => Some((Distinct::By(checker.formula(node, "distinct")?), node)),
    });
    let body = steps(checker, node, &fields, id, defaults);
    let outer = checker.locals.len() - 2;
    checker.locals.truncate(outer);
    let count = |checker: &mut Checker<'_>, key: &str, range| {
        fields.get(key).and_then(|node| checker.integer(node, key, range))
    };
    let on_failure = match fields.get("on_item_failure") {
        None => OnItemFailure::DeadLetter,
        Some(node) => match checker.word(node, "on_item_failure", &["dead_letter", "stop", "skip"]) {
            Some("stop") => OnItemFailure::Stop,
            Some("skip") => OnItemFailure::Skip,
            _ => OnItemFailure::DeadLetter,
        },
    };
    if on_failure == OnItemFailure::Stop {
        for key in ["max_failures", "failure_rate", "circuit_breaker"] {
            if let Some(node) = fields.get(key) {
                let message = format!("`{key}` has no effect with `on_item_failure: stop`");
                checker.wrong(node, message, "remove the key, or `on_item_failure: stop`");
            }
        }
    }
    let (items, items_node) = items?;
    let foreach = Foreach {
        items,
        name: name?,
        offset: count(checker, "offset", 0..=ITEMS_MAX).unwrap_or(0),
        items_max: count(checker, "max_items", 1..=ITEMS_MAX),
        max_parallel: count(checker, "max_parallel", 1..=PARALLEL_MAX)
            .and_then(|count| usize::try_from(count).ok()),
        on_failure,
        max_failures: count(checker, "max_failures", 0..=ITEMS_MAX),
        failure_rate: fields.get("failure_rate").and_then(|node| rate(checker, node)),
        circuit_breaker: count(checker, "circuit_breaker", 1..=1_000_000)
            .and_then(|count| u32::try_from(count).ok()),
        key: key.as_ref().map(|(key, _)| key.clone()),
        filter: filter.as_ref().map(|(filter, _)| filter.clone()),
        sort_by: sort_by.as_ref().map(|(sort_by, _)| sort_by.clone()),
        distinct: distinct.as_ref().map(|(distinct, _)| distinct.clone()),
        body: Body::default(),
    };
    refuse_keys(checker, &foreach, items_node);
    body.iter().for_each(|body| warn_of_shared_files(checker, (id, &foreach), body));
    Some(EachDraft {
        foreach,
        items_node,
        key_node: key.map(|(_, node)| node),
        filter_node: filter.map(|(_, node)| node),
        sort_node: sort_by.map(|(_, node)| node),
        distinct_node: distinct.map(|(_, node)| node),
        body: body?,
    })
}

/// Warns of claims that are equal for all items: items have no order, and overwrite the file of each other.
fn warn_of_shared_files(checker: &mut Checker<'_>, (id, foreach): (&str, &Foreach), body: &BodyDraft<'_>) {
    let is_single = foreach.items.listed().is_some_and(|items| items.len() < 2);
    let of_any_item = |text: &Template| {
        let mut roots = text.references().map(|reference| reference.path.first().map(String::as_str));
        roots.all(|root| matches!(root, Some("params" | "run")))
    };
    let overwrites = |claim: &&ClaimTemplate| {
        let texts = claim.expect.iter().flat_map(Expected::templates);
        let is_pin = claim.kind.key == "sha256" && claim.expect.is_none();
        let is_parallel_file = claim.kind.key == "file" && foreach.max_parallel != Some(1);
        let is_absent = |entries: &[(String, Expected)]| entries.iter().any(|(name, _)| name == "absent");
        let is_negated =
            claim.terms.not || matches!(&claim.expect, Some(Expected::Map(entries)) if is_absent(entries));
        !is_negated && (is_pin || is_parallel_file && texts.into_iter().all(of_any_item))
    };
    let works_together = |draft: &&step::Draft<'_>| {
        let is_agent = matches!(draft.work, Some((Work::Agent(_), _)));
        let is_shared = draft.dir.as_ref().is_none_or(|(dir, _)| of_any_item(dir));
        // Evidence about a file of the item says where its agent writes.
        let claims = draft.evidence.iter().flat_map(|draft| &draft.evidence.claims);
        let has_own_file = claims.filter_map(|claim| claim.subject.as_ref()).any(|file| !of_any_item(file));
        is_agent && is_shared && !has_own_file && foreach.max_parallel != Some(1)
    };
    if let Some(draft) = body.drafts.iter().filter(|_| !is_single).find(works_together) {
        let message = format!("the agents of several items of `{id}` may work in one folder at once");
        let help = "give each item a folder, as in `dir: work/${{ item_index }}`, or set `max_parallel: 1`";
        checker.warn(draft.id_node, message, help);
    }
    for draft in body.drafts.iter().filter(|_| !is_single) {
        let claims = draft.evidence.iter().flat_map(|draft| &draft.evidence.claims).filter(overwrites);
        let shared = claims.filter_map(|claim| claim.subject.as_ref()).find(|subject| of_any_item(subject));
        if let Some((file, node)) = shared.zip(draft.node.get("evidence"))
            && !checker.warnings.is_full()
        {
            let message = format!("all items of step `{id}` claim one file: `{}`", file.as_str());
            let help = format!(
                "items have no order: write the item into the path, as in `out/${{{{ {} }}}}.txt`",
                foreach.name
            );
            checker.warnings.push(checker.source.problem(&node.span, message).help(help));
        }
        if draft.each.is_none() {
            draft.within().into_iter().for_each(|body| warn_of_shared_files(checker, (id, foreach), body));
        }
    }
}

impl Step {
    /// Returns the step's `foreach` if its items come from an expression over params. Selection and keys may
    /// read only params, the file's own variables and the items.
    pub(crate) fn items_of_params(&self) -> Option<&Foreach> {
        let foreach = self.work.foreach()?;
        let items = match &foreach.items {
            ItemSource::Expression(_) | ItemSource::Matrix(_) => foreach.items.templates(),
            _ => return None,
        };
        let distinct = match &foreach.distinct {
            Some(Distinct::By(by)) => Some(by),
            _ => None,
        };
        let read = items
            .into_iter()
            .flat_map(Template::references)
            .chain(foreach.filter.iter().flat_map(Condition::references))
            .chain(foreach.sort_by.iter().chain(distinct).flat_map(Formula::references))
            .chain(foreach.key.iter().flat_map(Template::references))
            .chain(self.env[..2].iter().flatten().flat_map(|(_, value)| value.references()));
        let known = ["params", "env", "run", foreach.name.as_str(), ITEM_INDEX];
        let is_known = |root: Option<&String>| root.is_some_and(|root| known.contains(&root.as_str()));
        read.map(|reference| reference.path.first()).all(is_known).then_some(foreach)
    }
}

/// Reports items of a literal list with equal keys.
fn refuse_keys(checker: &mut Checker<'_>, foreach: &Foreach, node: &Node) {
    let Foreach { items, key: Some(key), filter: None, distinct: None, .. } = foreach else { return };
    let Some(items) = items.listed() else { return };
    let nodes: Vec<&Node> = match &node.kind {
        Kind::List(nodes) => nodes.iter().collect(),
        _ => vec![node; items.len()],
    };
    // Sorting decides later about the selected items and their index.
    if foreach.sort_by.is_some() {
        return;
    }
    let offset = usize::try_from(foreach.offset).unwrap_or(usize::MAX);
    let max = foreach.items_max.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
    let chosen = items.iter().zip(nodes).skip(offset).take(max.min(COMPARED_MAX));
    let mut first: HashMap<String, (usize, &Node)> = HashMap::new();
    for (place, (item, node)) in chosen.enumerate() {
        let Some(found) = key_of(key, foreach, item, place) else { continue };
        let Some((other, other_node)) = first.get(&found) else {
            first.insert(found, (place, node));
            continue;
        };
        if checker.problems.is_full() {
            return;
        }
        let shown = crate::expr::shown(&found);
        let message =
            format!("items {} and {} have the same key `{shown}`", offset + other + 1, offset + place + 1);
        let help = "write a unique `key`, or remove duplicates with `distinct`";
        let problem = checker.source.problem(&node.span, message);
        let problem = problem.related(checker.source, &other_node.span, "first here");
        checker.problems.push(problem.help(help));
    }
}

/// Returns the key of an item, if the key reads the item only.
fn key_of(key: &Template, foreach: &Foreach, item: &Value, place: usize) -> Option<String> {
    let is_local = |name: &String| *name == foreach.name || name == ITEM_INDEX;
    let reads_more = key.references().any(|reference| !reference.path.first().is_some_and(is_local));
    if reads_more || key.calls().next().is_some() {
        return None;
    }
    let scope = Scope::new("", &serde_json::Map::new());
    let scope = scope.with_local(&foreach.name, item).with_local(ITEM_INDEX, &Value::from(place));
    key.render(&scope).ok()
}

fn steps<'n>(
    checker: &mut Checker<'_>,
    node: &'n Node,
    fields: &Fields<'n>,
    id: &str,
    defaults: &Defaults<'n>,
) -> Option<BodyDraft<'n>> {
    let help = "write `steps:`, followed by `- run: a command`";
    let Some(steps) = fields.get("steps") else {
        if !fields.has_any(&["steps"]) {
            checker.wrong(node, "`foreach` has no `steps`", help);
        }
        return None;
    };
    let nodes = body::nodes(checker, steps, ("`foreach`", "steps"), help)?;
    Some(body::body(checker, nodes, id, defaults))
}

/// Reads the name of the item.
fn name(checker: &mut Checker<'_>, node: &Node) -> Option<String> {
    let name = checker.text(node, "as")?;
    if !step::is_step_id(&name) || name.contains('-') {
        let message = format!("`{}` is not a valid item name", crate::expr::shown(&name));
        checker.wrong(node, message, "begin with a letter or `_`, followed by letters, digits or `_`");
        return None;
    }
    if crate::expr::is_taken(&name) || name == ITEM_INDEX || checker.locals.contains(&name) {
        let message = format!("`{name}` is already used in this scope");
        checker.wrong(node, message, "choose another name");
        return None;
    }
    Some(name)
}

fn rate(checker: &mut Checker<'_>, node: &Node) -> Option<f64> {
    let rate = match &node.kind {
        Kind::Number(number) => number.as_f64().filter(|rate| (0.0..=1.0).contains(rate)),
        _ => None,
    };
    if rate.is_none() {
        checker.mismatch(
            node,
            "failure_rate",
            "a number from 0 to 1",
            "write `failure_rate: 0.2` for a fifth",
        );
    }
    rate
}

fn items(checker: &mut Checker<'_>, node: &Node) -> Option<ItemSource> {
    match &node.kind {
        Kind::List(_) => {
            let Value::Array(items) = node.to_json() else { return None };
            if items.iter().any(body::holds_expression) {
                let help = "use a single expression for the whole list";
                checker.wrong(node, "a literal list of items cannot contain expressions", help);
                return None;
            }
            Some(ItemSource::Listed(Arc::new(items)))
        }
        Kind::Text(_) => {
            let template = checker.template(node, "items")?;
            if template.is_plain() {
                let help =
                    "write `items: [a, b]`, `items: ${{ params.names }}` or `items: { run: \"ls *.txt\" }`";
                checker.mismatch(node, "items", "a list, or an expression that returns one", help);
                return None;
            }
            Some(ItemSource::Expression(template))
        }
        Kind::Map(_) => {
            let fields = Fields::of(checker, node, &ITEMS)?;
            if let Some(node) = fields.get("matrix") {
                return matrix::matrix(checker, node, &fields)
                    .map(|matrix| ItemSource::Matrix(Box::new(matrix)));
            }
            let json = fields.get("json").and_then(|node| step::json_path(checker, node));
            match (fields.get("run"), fields.get("file")) {
                (Some(run), None) => Some(ItemSource::Command(checker.template(run, "run")?, json)),
                (None, Some(file)) => Some(ItemSource::File(checker.template(file, "file")?, json)),
                (None, None) if fields.has_any(&["run", "file"]) => None,
                _ => {
                    checker.wrong(
                        node,
                        "`items` come from a command, a file or a matrix",
                        "write `{ run: \"ls *.txt\" }`, `{ file: items.json, json: $.items[*] }` or `{ matrix: { os: \
                         [linux, mac] } }`",
                    );
                    None
                }
            }
        }
        _ => {
            checker.mismatch(node, "items", "a list", "write `items: [a, b]`");
            None
        }
    }
}

impl ItemSource {
    /// Returns the texts that may have expressions.
    pub(super) fn templates(&self) -> Vec<&Template> {
        match self {
            Self::Listed(_) => Vec::new(),
            Self::Expression(text) | Self::Command(text, _) | Self::File(text, _) => vec![text],
            Self::Matrix(matrix) => matrix.templates().collect(),
        }
    }

    /// Returns the items, if the file has them.
    #[must_use]
    pub fn listed(&self) -> Option<&Arc<Vec<Value>>> {
        match self {
            Self::Listed(items) => Some(items),
            Self::Matrix(matrix) => matrix.known(),
            Self::Expression(_) | Self::Command(..) | Self::File(..) => None,
        }
    }
}

//! The values that expressions read.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::Value as Raw;
use minijinja::value::{Enumerator, Object, ValueKind};
use serde_json::{Map, Value};

use super::convert;
use crate::file::FAILED_STEP;
use crate::suggest::{listed, nearest};

/// Names that a message lists before it says "and N more".
const LISTED_MAX: usize = 12;

/// What expressions see of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepView {
    /// The step's status, one word: `completed`, `failed`, `skipped`, ...
    pub status: String,
    /// The exit code of its last attempt; expressions read null where it has none.
    pub exit_code: Option<i64>,
    /// Its standard output, if that was kept.
    pub stdout: Option<String>,
    /// Its outputs; `None` for a skipped step, whose outputs are all null.
    pub outputs: Option<Map<String, Value>>,
    /// What became of its items, if it worked on some.
    pub items: Option<ItemsView>,
}

/// What expressions see of the items of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemsView {
    /// How many there were.
    pub total: u64,
    /// How many came to their end.
    pub succeeded: u64,
    /// How many failed.
    pub failed: u64,
    /// What became of each, if they are few.
    pub items: Option<Vec<Value>>,
    /// The file with a line of JSON for each, if they are many.
    pub file: Option<String>,
}

/// Everything that expressions may read at one moment of a run.
///
/// Cloning is cheap: the values are shared.
#[derive(Debug, Clone)]
pub struct Scope {
    step: Option<String>,
    run_id: String,
    params: Arc<Shelf>,
    env: Arc<Shelf>,
    steps: Arc<Shelf>,
    /// What is known only here, by name.
    locals: Arc<Shelf>,
    /// A step upstream failed.
    has_failure: bool,
}

impl Scope {
    /// The scope of a run before any step.
    #[must_use]
    pub fn new(run_id: impl Into<String>, params: &Map<String, Value>) -> Self {
        let params = params.iter().map(|(name, value)| (name.clone(), convert::from_json(value)));
        Self {
            step: None,
            run_id: run_id.into(),
            params: Arc::new(Shelf(params.collect())),
            env: Arc::default(),
            steps: Arc::default(),
            locals: Arc::default(),
            has_failure: false,
        }
    }

    /// The same values, and a local one under its name.
    #[must_use]
    pub fn with_local(&self, name: impl Into<String>, value: &Value) -> Self {
        let mut scope = self.clone();
        Arc::make_mut(&mut scope.locals).0.insert(name.into(), convert::from_json(value));
        scope
    }

    /// The same values for a condition, where `has_failure` says whether a step upstream failed.
    #[must_use]
    pub(crate) fn with_failure(&self, has_failure: bool) -> Self {
        Self { has_failure, ..self.clone() }
    }

    /// Records how a step ended; a step that is redone replaces its former end.
    pub fn insert_step(&mut self, id: impl Into<String>, view: &StepView) {
        Arc::make_mut(&mut self.steps).0.insert(id.into(), step_value(view));
    }

    /// The scope of one step: the same values, `env` as given, and errors that name the step.
    #[must_use]
    pub fn for_step(&self, id: impl Into<String>, env: &BTreeMap<String, String>) -> Self {
        let env = env.iter().map(|(name, value)| (name.clone(), Raw::from(value.as_str())));
        Self { step: Some(id.into()), env: Arc::new(Shelf(env.collect())), ..self.clone() }
    }

    /// The step that this scope was made for.
    #[must_use]
    pub fn step(&self) -> Option<&str> {
        self.step.as_deref()
    }

    pub(crate) fn context(&self) -> Raw {
        Raw::from_object(Context(self.clone()))
    }

    /// The first part of `path` that does not exist: what is missing, and the nearest name that exists.
    pub(crate) fn missing(&self, path: &[String]) -> Option<(String, Option<String>)> {
        let mut value = self.context();
        for (index, part) in path.iter().enumerate() {
            let next = value.get_attr(part).ok().filter(|next| !next.is_undefined());
            let Some(next) = next else {
                return Some(missing_message(&path[..index], part, &value));
            };
            value = next;
        }
        None
    }
}

fn missing_message(parent: &[String], part: &str, value: &Raw) -> (String, Option<String>) {
    let parent_path = parent.join(".");
    if value.kind() != ValueKind::Map {
        let what = convert::described_or_kind(value);
        return (format!("`{parent_path}` has no `{part}`: it is {what}"), None);
    }
    let names: Vec<String> = value.try_iter().into_iter().flatten().map(|name| name.to_string()).collect();
    let is_foreach = names.iter().any(|name| name == "total");
    let has = match (names.len(), parent) {
        (_, [root, id]) if root == "steps" && part == "stdout" => {
            return (format!("the output of step `{id}` was not kept"), None);
        }
        (_, [root, id]) if is_foreach && root == "steps" && part == "items" => {
            return (
                format!(
                    "step `{id}` had so many items that they are in a file: read `steps.{id}.items_file`"
                ),
                None,
            );
        }
        (_, [root, id]) if is_foreach && root == "steps" && part == "items_file" => {
            return (
                format!(
                    "step `{id}` had so few items that there is no file of them: read `steps.{id}.items`"
                ),
                None,
            );
        }
        (_, [root]) if root == "steps" => format!("step `{part}` has not ended yet"),
        (0, _) => format!("`{parent_path}` has no `{part}`; it has no names at all"),
        (count, _) if count > LISTED_MAX => {
            let more = count - LISTED_MAX;
            let first = names.iter().take(LISTED_MAX).map(|name| format!("`{name}`"));
            let first: Vec<String> = first.collect();
            format!("`{parent_path}` has no `{part}`; it has {} and {more} more", first.join(", "))
        }
        _ => format!("`{parent_path}` has no `{part}`; it has {}", listed(names.iter().map(String::as_str))),
    };
    (has, nearest(part, names.iter().map(String::as_str)).map(|name| format!("did you mean `{name}`?")))
}

/// What only a step over items has.
const OF_ITEMS: [&str; 5] = ["items", "items_file", "total", "succeeded", "failed"];

fn step_value(view: &StepView) -> Raw {
    let mut shelf = BTreeMap::new();
    shelf.insert("status".to_owned(), Raw::from(view.status.as_str()));
    let outputs = match &view.outputs {
        Some(outputs) => {
            let outputs = outputs.iter().map(|(name, value)| (name.clone(), convert::from_json(value)));
            Raw::from_object(Shelf(outputs.collect()))
        }
        None => Raw::from_object(Nothing),
    };
    shelf.insert("outputs".to_owned(), outputs);
    let skipped = view.outputs.is_none();
    // Null for one that timed out or was ended by a signal, as for one that was skipped: it can be asked for.
    shelf.insert("exit_code".to_owned(), Raw::from(view.exit_code));
    if view.stdout.is_some() || skipped {
        shelf.insert("stdout".to_owned(), Raw::from(view.stdout.as_deref()));
    }
    if skipped {
        // Of a `foreach`; of what is none, they are refused when the file is checked.
        shelf.extend(OF_ITEMS.map(|name| (name.to_owned(), Raw::from(()))));
    }
    if let Some(ItemsView { total, succeeded, failed, items, file }) = &view.items {
        let counts = [("total", total), ("succeeded", succeeded), ("failed", failed)];
        shelf.extend(counts.into_iter().map(|(name, count)| (name.to_owned(), Raw::from(*count))));
        let items = items.as_ref().map(|items| items.iter().map(convert::from_json).collect::<Raw>());
        shelf.extend(items.map(|items| ("items".to_owned(), items)));
        shelf.extend(file.as_deref().map(|file| ("items_file".to_owned(), Raw::from(file))));
    }
    Raw::from_object(Shelf(shelf))
}

/// Named values.
#[derive(Debug, Clone, Default)]
struct Shelf(BTreeMap<String, Raw>);

impl Object for Shelf {
    fn get_value(self: &Arc<Self>, key: &Raw) -> Option<Raw> {
        self.0.get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.keys().map(|name| Raw::from(name.as_str())).collect())
    }
}

/// The outputs of a skipped step: null by every name.
#[derive(Debug)]
struct Nothing;

impl Object for Nothing {
    fn get_value(self: &Arc<Self>, _key: &Raw) -> Option<Raw> {
        Some(Raw::from(()))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Empty
    }
}

/// The root that an expression is evaluated against.
#[derive(Debug)]
struct Context(Scope);

impl Object for Context {
    fn get_value(self: &Arc<Self>, key: &Raw) -> Option<Raw> {
        let scope = &self.0;
        match key.as_str()? {
            "params" => Some(Raw::from_dyn_object(Arc::clone(&scope.params))),
            "env" => Some(Raw::from_dyn_object(Arc::clone(&scope.env))),
            "steps" => Some(Raw::from_dyn_object(Arc::clone(&scope.steps))),
            "run" => Some(run_value(scope)),
            "always" => Some(Raw::from_function(|| true)),
            "failure" => {
                let has_failure = scope.has_failure;
                Some(Raw::from_function(move || has_failure))
            }
            "success" => {
                let has_failure = scope.has_failure;
                Some(Raw::from_function(move || !has_failure))
            }
            "skipped" => {
                let steps = Arc::clone(&scope.steps);
                Some(Raw::from_function(move |id: &str| -> bool {
                    let step = steps.0.get(id);
                    let status = step.and_then(|step| step.get_attr("status").ok());
                    status.is_some_and(|status| status.as_str() == Some("skipped"))
                }))
            }
            name => scope.locals.0.get(name).cloned(),
        }
    }
}

fn run_value(scope: &Scope) -> Raw {
    let mut shelf = BTreeMap::from([("id".to_owned(), Raw::from(scope.run_id.as_str()))]);
    let failed = scope.locals.0.get(FAILED_STEP).cloned();
    shelf.extend(failed.map(|failed| ("failed_step".to_owned(), failed)));
    Raw::from_object(Shelf(shelf))
}

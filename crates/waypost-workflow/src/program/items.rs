//! `foreach`: selection of the items of a step, and the outcomes of the items.
//!
//! ```text
//!   source: list, command, file --> filter --> sort_by --> distinct --> offset, max_items --> keys --> scopes
//! ```

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use waypost::engine::{Attempt, ChildEnd, Item, Joined, Performed, StepReport};
use waypost::record::{End, Ending, Failure, FailureKind};
use waypost::{ScopePath, StepId};

use crate::expr::{ExprError, Scope};
use crate::file::{Distinct, Foreach, ITEM_INDEX, ITEMS_MAX, ItemSource, MatrixError, OnItemFailure, Step};
use crate::mask::Mask;
use crate::output::{JsonPath, PathError, value_in};

use super::attempt::{interrupted, lacking};
use super::command::Command;
use super::outputs::read_items_file;
use super::state::{StepItems, StepOutput, WorkflowState};
use super::{Surroundings, WorkflowProgram, expression, failure};

/// Largest source of items, printed or in a file; all of it is in memory at once.
pub(super) const ITEMS_BYTES_MAX: usize = 256 << 20;
/// Longest excerpt of an item in an error, in characters.
const SHOWN_CHARS_MAX: usize = 60;
/// Most outcomes in the state, as a count and as bytes of JSON; more outcomes are written to a file.
const INLINE_MAX: (u64, usize) = (1_000, 1 << 20);

/// Source and selection of the items of a step.
#[derive(Debug)]
pub(super) struct Listing {
    source: Source,
    select: Select,
}

#[derive(Debug)]
enum Source {
    Values(Arc<Vec<Value>>),
    Command(Box<Command>, Option<JsonPath>),
    File(PathBuf, Option<JsonPath>),
}

/// Selection of the items.
#[derive(Debug, Clone)]
struct Select {
    step: String,
    foreach: Arc<Foreach>,
    scope: Scope,
}

impl Listing {
    pub(super) fn render(
        step: &Step,
        foreach: &Arc<Foreach>,
        scope: &Scope,
        around: (&Surroundings, &Path),
    ) -> Result<Self, Failure> {
        let env = step.resolve_shared_env(scope).map_err(expression)?;
        let shared = scope.for_step(&step.id, &env);
        let select = Select { step: step.id.clone(), foreach: Arc::clone(foreach), scope: shared };
        let source = match &foreach.items {
            ItemSource::Listed(items) => Source::Values(Arc::clone(items)),
            ItemSource::Expression(text) => match text.evaluate(&select.scope).map_err(expression)? {
                Value::Array(items) => Source::Values(Arc::new(items)),
                other => {
                    let found = crate::expr::described(&other);
                    return Err(wrong(format!("`items` must be a list, and `{}` is {found}", text.as_str())));
                }
            },
            ItemSource::Matrix(matrix) => match matrix.combinations(&select.scope) {
                Ok(combinations) => Source::Values(combinations),
                Err(MatrixError::Expression(error)) => return Err(expression(error)),
                Err(MatrixError::Unfit(why)) => return Err(wrong(why)),
            },
            ItemSource::Command(command, json) => {
                let command = Command::render(step, command, scope, around).map_err(expression)?;
                Source::Command(Box::new(command.for_items(ITEMS_BYTES_MAX)), json.clone())
            }
            ItemSource::File(file, json) => {
                let file = file.render(&select.scope).map_err(expression)?;
                Source::File(around.1.join(file), json.clone())
            }
        };
        Ok(Self { source, select })
    }

    /// Returns the items, if no command is needed and the items are valid.
    pub(super) fn known(self, mask: &Mask) -> Option<Vec<Item>> {
        let found = match self.source {
            Source::Values(values) => Found::Values(values),
            Source::File(file, json) => Found::File(file, json),
            Source::Command(..) => return None,
        };
        self.select.items(found.values(mask).ok()?, mask).ok()
    }
}

impl WorkflowProgram {
    /// Returns the items of a step.
    pub(super) async fn list(&self, listing: Listing, attempt: Attempt) -> Performed<StepOutput> {
        let Listing { source, select } = listing;
        let (found, report) = match source {
            Source::Values(values) => (Found::Values(values), StepReport::default()),
            Source::File(file, json) => (Found::File(file, json), StepReport::default()),
            Source::Command(command, json) => match self.run(*command, attempt).await {
                Performed::Completed { output, report, .. } => {
                    (Found::Text(output.stdout.unwrap_or_default(), json), report)
                }
                Performed::Failed { mut failure, report } => {
                    // The standard output was meant for items; no expression reads it.
                    failure.ending.stdout = None;
                    return Performed::Failed { failure, report };
                }
                other => return other,
            },
        };
        let mask = self.mask().clone();
        // Blocking thread: there may be a million items, with several expressions each.
        let items = tokio::task::spawn_blocking(move || {
            let values = found.values(&mask)?;
            select.items(values, &mask)
        });
        match items.await.unwrap_or_else(|error| Err(failure(FailureKind::Error, error))) {
            Ok(items) => Performed::Opened { items, report },
            Err(mut failure) => {
                for text in &mut failure.error {
                    *text = self.mask().mask_str(text).into_owned();
                }
                Performed::Failed { failure, report }
            }
        }
    }
}

/// Source of items after the command has ended.
enum Found {
    Values(Arc<Vec<Value>>),
    Text(String, Option<JsonPath>),
    File(PathBuf, Option<JsonPath>),
}

impl Found {
    fn values(self, mask: &Mask) -> Result<Vec<Value>, Failure> {
        match self {
            Self::Values(values) => Ok(Arc::unwrap_or_clone(values)),
            Self::Text(text, json) => values_of(text.as_bytes(), json.as_ref(), "the command output"),
            Self::File(file, json) => {
                let place = file.display().to_string();
                let bytes = read_items_file(&file, ITEMS_BYTES_MAX as u64).map_err(|error| {
                    Failure::new(
                        FailureKind::Error,
                        vec![format!("cannot read items from {place}"), error.to_string()],
                    )
                })?;
                if mask.contains(&bytes) {
                    return Err(wrong(format!("{place} contains a secret, and items are recorded")));
                }
                values_of(&bytes, json.as_ref(), &place)
            }
        }
    }
}

/// Makes values of a text: one per non-empty line, or the list at path `json`.
fn values_of(bytes: &[u8], json: Option<&JsonPath>, what: &str) -> Result<Vec<Value>, Failure> {
    let Some(path) = json else {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            wrong(format!("{what} is not valid UTF-8 after byte {}", error.valid_up_to()))
        })?;
        return Ok(text.lines().filter(|line| !line.trim().is_empty()).map(Value::from).collect());
    };
    let unfit = |error: PathError| {
        let mut failure = failure(FailureKind::Error, error);
        failure.error.insert(0, format!("cannot take items from {what}"));
        failure
    };
    match value_in(path, bytes).map_err(unfit)? {
        Value::Array(values) => Ok(values),
        other => {
            let found = crate::expr::described(&other);
            Err(wrong(format!(
                "`{path}` in {what} is {found}, not a list; for the members of a list write `{path}[*]`"
            )))
        }
    }
}

impl Select {
    /// Filters, sorts and limits the values, and gives each item its key.
    fn items(&self, values: Vec<Value>, mask: &Mask) -> Result<Vec<Item>, Failure> {
        let Foreach { filter, sort_by, distinct, offset, items_max, .. } = &*self.foreach;
        let mut kept = Vec::with_capacity(values.len());
        for (index, value) in values.into_iter().enumerate() {
            let keeps = filter.as_ref().map_or(Ok(true), |filter| filter.holds(&self.of(&value, index)));
            if keeps.map_err(|error| self.at(error, &value, index))? {
                kept.push((index, value));
            }
        }
        if let Some(by) = sort_by {
            let key = |(index, value): &(usize, Value)| {
                by.evaluate(&self.of(value, *index)).map_err(|error| self.at(error, value, *index))
            };
            let mut keyed = Vec::with_capacity(kept.len());
            for item in kept {
                keyed.push((key(&item)?, item));
            }
            let mut unlike = None;
            keyed.sort_by(|(one, _), (other, _)| {
                compared(one, other).unwrap_or_else(|| {
                    unlike.get_or_insert_with(|| (one.clone(), other.clone()));
                    Ordering::Equal
                })
            });
            if let Some((one, other)) = unlike {
                let (one, other) = (crate::expr::described(&one), crate::expr::described(&other));
                return Err(wrong(format!(
                    "cannot sort items by `{}`: one value is {one}, another is {other}",
                    by.as_str()
                )));
            }
            kept = keyed.into_iter().map(|(_, item)| item).collect();
        }
        if let Some(distinct) = distinct {
            let mut seen = HashSet::new();
            let mut first = Vec::with_capacity(kept.len());
            for (index, value) in kept {
                let by = match distinct {
                    Distinct::Whole => value.to_string(),
                    Distinct::By(by) => {
                        let found = by.evaluate(&self.of(&value, index));
                        found.map_err(|error| self.at(error, &value, index))?.to_string()
                    }
                };
                if seen.insert(by) {
                    first.push((index, value));
                }
            }
            kept = first;
        }
        let offset = usize::try_from(*offset).unwrap_or(usize::MAX);
        let max = items_max.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
        let chosen = kept.into_iter().skip(offset).take(max);
        let mut keys = HashMap::new();
        let items: Vec<Item> = chosen
            .enumerate()
            .map(|(place, (_, value))| self.item(place, value, (mask, &mut keys)))
            .collect::<Result<_, _>>()?;
        if items.len() as u64 > ITEMS_MAX {
            let text = format!("there are {} items, the maximum is {ITEMS_MAX}", items.len());
            return Err(Failure::new(FailureKind::Limit, vec![text]));
        }
        Ok(items)
    }

    /// Makes an item with its key.
    fn item(
        &self,
        place: usize,
        value: Value,
        (mask, default_keys): (&Mask, &mut HashMap<String, usize>),
    ) -> Result<Item, Failure> {
        let key = match &self.foreach.key {
            Some(key) => {
                key.render(&self.of(&value, place)).map_err(|error| self.at(error, &value, place))?
            }
            None => unique(self.foreach.default_key(&value), default_keys),
        };
        let counted = place + 1;
        let name = StepId::new(&self.step).map_err(|error| failure(FailureKind::Error, error))?;
        if let Err(error) = ScopePath::main().child(&name, &key) {
            let help = "write a shorter `key`";
            let text =
                format!("the key {} of item {counted} is invalid: {error}; {help}", crate::expr::shown(&key));
            return Err(wrong(text));
        }
        if mask.contains(key.as_bytes()) || mask.is_within(&value) {
            return Err(wrong(format!("item {counted} contains a secret, which must not be recorded")));
        }
        Ok(Item { key, value, index: place as u64, start: None })
    }

    /// Returns the scope of expressions about one item.
    fn of(&self, value: &Value, index: usize) -> Scope {
        self.scope.with_local(&self.foreach.name, value).with_local(ITEM_INDEX, &json!(index))
    }

    /// Adds the number and an excerpt of the item to an expression error.
    fn at(&self, error: ExprError, value: &Value, index: usize) -> Failure {
        let mut failure = expression(error);
        let mut text = value.to_string();
        if let Some((end, _)) = text.char_indices().nth(SHOWN_CHARS_MAX) {
            text.truncate(end);
            text.push_str("...");
        }
        failure.error[0] = format!("item {}, {text}: {}", index + 1, failure.error[0]);
        failure
    }
}

/// Returns a key unlike the keys before: of equal keys, the second has the suffix `#2`, the third `#3`.
///
/// `before`: the keys before, each with the number of the last suffix tried.
fn unique(key: String, before: &mut HashMap<String, usize>) -> String {
    let Some(mut number) = before.get(&key).copied() else {
        before.insert(key.clone(), 1);
        return key;
    };
    let free = loop {
        number += 1;
        let numbered = format!("{key}#{number}");
        if !before.contains_key(&numbered) {
            break numbered;
        }
    };
    before.extend([(key, number), (free.clone(), 1)]);
    free
}

/// Compares two numbers, texts, booleans, nulls or lists; `None` for different types.
fn compared(one: &Value, other: &Value) -> Option<Ordering> {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => match (one.as_i64(), other.as_i64()) {
            (Some(one), Some(other)) => Some(one.cmp(&other)),
            _ => one.as_f64()?.partial_cmp(&other.as_f64()?),
        },
        (Value::String(one), Value::String(other)) => Some(one.cmp(other)),
        (Value::Bool(one), Value::Bool(other)) => Some(one.cmp(other)),
        (Value::Null, Value::Null) => Some(Ordering::Equal),
        (Value::Array(one), Value::Array(other)) => {
            for (one, other) in one.iter().zip(other) {
                match compared(one, other)? {
                    Ordering::Equal => {}
                    unequal => return Some(unequal),
                }
            }
            Some(one.len().cmp(&other.len()))
        }
        _ => None,
    }
}

/// Outcomes of the items of a step, to be counted.
#[derive(Debug)]
pub(super) struct Joining {
    joined: Joined,
    foreach: Arc<Foreach>,
    /// File for the outcomes if there are many.
    file: Option<PathBuf>,
}

impl Joining {
    pub(super) fn new(joined: Joined, foreach: &Arc<Foreach>, file: Option<PathBuf>) -> Self {
        Self { joined, foreach: Arc::clone(foreach), file }
    }

    /// Reads the outcome of each item, in order of the items.
    pub(super) async fn run(self, attempt: &Attempt) -> Performed<StepOutput> {
        match self.count().await {
            Ok(items) => {
                let output = StepOutput { items: Some(items), ..StepOutput::default() };
                Performed::Completed { output, ending: Ending::default(), report: StepReport::default() }
            }
            Err(JoinError::Failed(failure)) => Performed::Failed { failure, report: StepReport::default() },
            Err(JoinError::NotWritten(path, error)) => match lacking(&error) {
                Some(lack) => interrupted(&lack, attempt),
                None => {
                    let failure = not_written(&path, &error);
                    Performed::Failed { failure, report: StepReport::default() }
                }
            },
        }
    }

    async fn count(&self) -> Result<StepItems, JoinError> {
        let unread = |error: waypost::store::StoreError| failure(FailureKind::Error, error);
        let not_written = |error| JoinError::NotWritten(self.file.clone().unwrap_or_default(), error);
        let mut items = StepItems { total: self.joined.total(), ..StepItems::default() };
        // Failed items, without those given up by a person.
        let mut open = 0;
        let mut inline = Some((Vec::new(), 0));
        let mut file: Option<Lines> = None;
        let mut outcomes = self.joined.outcomes().await.map_err(unread)?;
        while let Some(end) = outcomes.next().await.map_err(unread)? {
            match end.end {
                End::Completed => items.succeeded += 1,
                End::Failed => {
                    items.failed += 1;
                    open += 1;
                }
                End::Skipped if is_left(&end) => items.failed += 1,
                End::Skipped | End::Cancelled => {}
            }
            let outcome = outcome(&self.foreach, &end)?;
            if let Some((kept, bytes)) = &mut inline {
                *bytes += super::state::json_bytes(&outcome) + 1;
                kept.push(outcome.clone());
                let (count_max, bytes_max) = INLINE_MAX;
                if kept.len() as u64 > count_max || *bytes > bytes_max {
                    // Without a folder of the run, only expressions that read the results fail.
                    if let Some(path) = &self.file {
                        let mut lines = Lines::create(path).map_err(not_written)?;
                        for outcome in kept.drain(..) {
                            lines.push(&outcome).map_err(not_written)?;
                        }
                        file = Some(lines);
                    }
                    inline = None;
                }
            } else if let Some(lines) = &mut file {
                lines.push(&outcome).map_err(not_written)?;
            }
        }
        items.items = inline.map(|(kept, _)| kept);
        if let Some(lines) = file {
            let path = lines.path.clone();
            lines.finish().map_err(not_written)?;
            items.file = path.file_name().map(|name| name.to_string_lossy().into_owned());
        }
        match self.check_limits(open, items.total) {
            Ok(()) => Ok(items),
            Err(mut failure) => {
                failure.ending.stdout = serde_json::to_string(&items).ok();
                Err(failure.into())
            }
        }
    }
}

impl Joining {
    /// Checks the failed items of all sessions against the step's limits. Without a limit a failed item fails
    /// the step, unless `on_failure` skips failed items.
    fn check_limits(&self, failed: u64, total: u64) -> Result<(), Failure> {
        let Foreach { max_failures, failure_rate, on_failure, .. } = &*self.foreach;
        let has_limit = max_failures.is_some() || failure_rate.is_some();
        if failed > 0 && !has_limit && *on_failure == OnItemFailure::DeadLetter {
            let text = format!("{failed} of {total} items failed");
            return Err(Failure::new(FailureKind::Limit, vec![text]));
        }
        match self.foreach.limits().passed_by(failed, total) {
            Some(why) => Err(Failure::new(FailureKind::Limit, vec![why])),
            None => Ok(()),
        }
    }
}

/// Returns whether a person gave up on a failed item.
fn is_left(end: &ChildEnd) -> bool {
    end.record.header().failures > 0
}

/// Returns the outcome of one item as later steps read it.
fn outcome(foreach: &Foreach, end: &ChildEnd) -> Result<Value, Failure> {
    let status = match end.end {
        End::Completed => "completed",
        End::Failed => "failed",
        End::Skipped if is_left(end) => "failed",
        End::Skipped => "skipped",
        End::Cancelled => "cancelled",
    };
    let state = end.record.state_bytes().map(serde_json::from_slice::<WorkflowState>).transpose();
    let state = state.map_err(|error| failure(FailureKind::Error, error))?;
    let steps = match &state {
        Some(state) => {
            let steps = foreach.body.steps().iter().map(|step| step.id.as_str());
            let code = end.failure().and_then(|failure| failure.ending.exit_code);
            let step = end.record.header().step.as_ref().filter(|_| status == "failed");
            state.outcomes(steps, step.map(|step| (step.as_str(), code)))
        }
        None => Value::Object(serde_json::Map::new()),
    };
    // A person may have replaced the item after its scope was opened.
    let item = state.as_ref().and_then(WorkflowState::item).unwrap_or(&end.item.value);
    let outcome = json!({
        "key": end.item.key,
        "index": end.item.index,
        "item": item,
        "status": status,
        "steps": steps,
        "error": end.failure().map(|failure| failure.error.join(": ")),
    });
    Ok(outcome)
}

/// File with one line of JSON per outcome. The file appears complete or not at all.
struct Lines {
    path: PathBuf,
    new: PathBuf,
    out: std::io::BufWriter<std::fs::File>,
}

impl Lines {
    fn create(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
        if let Some(folder) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let new = path.with_extension("new");
        let file =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        Ok(Self { path: path.to_owned(), new, out: std::io::BufWriter::new(file) })
    }

    fn push(&mut self, outcome: &Value) -> std::io::Result<()> {
        serde_json::to_writer(&mut self.out, outcome)?;
        self.out.write_all(b"\n")
    }

    fn finish(self) -> std::io::Result<()> {
        let file = self.out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        file.sync_all()?;
        std::fs::rename(&self.new, &self.path)?;
        match self.path.parent() {
            Some(folder) => std::fs::File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

/// Why a join has no result.
enum JoinError {
    Failed(Failure),
    /// The results file cannot be written.
    NotWritten(PathBuf, std::io::Error),
}

impl From<Failure> for JoinError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

fn not_written(path: &Path, error: &std::io::Error) -> Failure {
    let text = format!("cannot write the results of items to {}", path.display());
    Failure::new(FailureKind::Error, vec![text, error.to_string()])
}

fn wrong(text: String) -> Failure {
    Failure::new(FailureKind::Error, vec![text])
}

//! References: `RUN`, `RUN@SEQ`, `RUN@LABEL`, `RUN/SCOPE@SEQ` and `@`.

use std::collections::BTreeSet;
use std::path::Path;

use waypost::engine::{Snapshot, labelled};
use waypost::record::{Record, RunStatus};
use waypost::store::{Damage, PAGE_ITEMS_MAX, RunQuery, RunSummary, Scan, Store, StoreError, StoreExt as _};
use waypost::{RunId, ScopePath, StepId};

use crate::error::Error;
use crate::error::log_with_record;
use crate::format::text::quoted;
use crate::output::shown;
use crate::run::definition::{first_id, names};
use crate::run::needs::is_for_workers;
use crate::store_location;
use crate::view::step_names::before_hooks;
use waypost::id::{CheckpointRef, readable};

/// Most runs listed for an ambiguous prefix.
const CANDIDATES_MAX: usize = 10;

/// A run or a checkpoint, as named by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Name or prefix of the run; `None` for the newest.
    pub(crate) run: Option<String>,
    /// The checkpoint, if named.
    checkpoint: Option<Checkpoint>,
}

/// A checkpoint, as named by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Checkpoint {
    Number(ScopePath, u64),
    /// In a scope with an unencoded key, or without the number of its only pass.
    Plain(String, u64),
    /// By the label from `waypost checkpoint --label`.
    Label(String),
}

impl Checkpoint {
    /// Returns the path of the scope, as the user named it.
    fn path(&self) -> String {
        match self {
            Self::Number(scope, _) => scope.to_string(),
            Self::Plain(text, _) | Self::Label(text) => text.clone(),
        }
    }
}

impl Reference {
    /// Parses `RUN`, `RUN@SEQ`, `RUN@LABEL`, `RUN/SCOPE@SEQ`; `@` is the newest run.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let run = |text: &str| (text != "@").then(|| text.to_owned());
        if text == "@" || !text.contains(['@', '/']) {
            return Ok(Self { run: run(text), checkpoint: None });
        }
        let wrong = || {
            Error::usage(
                format!("`{text}` is not a run or checkpoint"),
                "write RUN, RUN@SEQ, RUN@LABEL or RUN/SCOPE@SEQ; `@` is the newest run, `@@3` its checkpoint 3",
            )
        };
        let (left, seq) = text.rsplit_once('@').ok_or_else(wrong)?;
        if left.is_empty() || seq.is_empty() {
            return Err(wrong());
        }
        if !seq.bytes().all(|byte| byte.is_ascii_digit()) {
            let label = Some(Checkpoint::Label(seq.to_owned())).filter(|_| !left.contains('/'));
            return Ok(Self { run: run(left), checkpoint: Some(label.ok_or_else(wrong)?) });
        }
        let seq: u64 = seq.parse().ok().filter(|seq| *seq > 0).ok_or_else(wrong)?;
        let (name, scope) = left.split_once('/').map_or((left, "main"), |(name, scope)| (name, scope));
        if name.is_empty() {
            return Err(wrong());
        }
        let checkpoint = match ScopePath::new(scope) {
            Ok(scope) => Checkpoint::Number(scope, seq),
            Err(_) => Checkpoint::Plain(scope.to_owned(), seq),
        };
        Ok(Self { run: run(name), checkpoint: Some(checkpoint) })
    }

    /// Finds the referenced run, and the place of the checkpoint, if named.
    ///
    /// # Errors
    /// Those of [`find`]; [`Error::NotFound`]: the label does not exist.
    pub(crate) async fn locate(
        &self,
        store: &dyn Store,
        default: Default,
    ) -> Result<(RunId, Option<(ScopePath, u64)>), Error> {
        let run = find(store, self.run.as_deref(), default).await?;
        let at = match &self.checkpoint {
            None => None,
            Some(checkpoint @ (Checkpoint::Number(_, seq) | Checkpoint::Plain(_, seq))) => {
                Some((scope(store, &run, &checkpoint.path()).await?, *seq))
            }
            Some(Checkpoint::Label(label)) => {
                let found = labelled(store, &run, label).await?.ok_or_else(|| {
                    Error::not_found(
                        format!("checkpoint with label `{label}` in run {run}"),
                        format!("`waypost checkpoints {run}` lists the labels"),
                    )
                })?;
                Some((found.scope, found.seq))
            }
        };
        Ok((run, at))
    }
}

/// Finds the scope with this path, as screens and records name it.
///
/// # Errors
/// The run has no such scope, or several.
pub(crate) async fn scope(store: &dyn Store, run: &RunId, path: &str) -> Result<ScopePath, Error> {
    if path == ScopePath::main().as_str() {
        return Ok(ScopePath::main());
    }
    let scopes = store.scopes(run).await?;
    let known = |text: &str| ScopePath::new(text).ok().filter(|scope| scopes.contains(scope));
    if let Some(scope) = known(path) {
        return Ok(scope);
    }
    match matches(&scopes, path, |rest| rest.is_empty()).as_slice() {
        [(scope, _)] => Ok((*scope).clone()),
        [] => known(&encoded(store, run, path).await?).ok_or_else(|| no_scope(run, path)),
        _ => Err(no_single_scope(run, path)),
    }
}

/// Returns `STEP`, `SCOPE` or `SCOPE/STEP` in the words of the run: with encoded keys, with the scope of a step of a
/// single scope, and with the first id of each step with another id in the workflow file, by `renamed_from`.
///
/// # Errors
/// The text is ambiguous; the message lists the candidates.
pub(crate) async fn encoded(store: &dyn Store, run: &RunId, text: &str) -> Result<String, Error> {
    let text = with_encoded_key(store, run, text).await?;
    let Ok(snapshot) = Snapshot::read(store, run).await else { return Ok(text) };
    let text = match only_scope_of(store, &snapshot, &text).await? {
        Some(scope) => step_on(&scope, &text),
        None => text,
    };
    let with_first_id = |part: &str| {
        let (id, key) = part.split_at(part.find([':', '~']).unwrap_or(part.len()));
        format!("{}{key}", first_id(store, &snapshot, id).as_deref().unwrap_or(id))
    };
    let first = text.split('/').map(with_first_id).collect::<Vec<_>>().join("/");
    if first == text { Ok(text) } else { with_encoded_key(store, run, &first).await }
}

/// Returns the only child scope with records of a step that is named by its bare id; `None` for a step of the main scope,
/// and for a step of several scopes.
async fn only_scope_of(
    store: &dyn Store,
    snapshot: &Snapshot,
    step: &str,
) -> Result<Option<ScopePath>, Error> {
    let is_main = snapshot.definition.steps.iter().any(|own| own.id.as_str() == step);
    if is_main || StepId::new(step).is_err() {
        return Ok(None);
    }
    let scan = Scan { step: Some(step.to_owned()), ..Scan::of(&snapshot.entry.summary.run) };
    let page = store.scan(&scan).await?;
    let scopes: BTreeSet<&ScopePath> = page.records.iter().map(|record| &record.header().scope).collect();
    let only = scopes.first().filter(|_| scopes.len() == 1 && page.next.is_none());
    Ok(only.map(|scope| (*scope).clone()))
}

/// Encodes `SCOPE` or `SCOPE/STEP` with an unencoded key, or with slashes, as a scope path: `f:src/a.rs/s`
/// and `f/src/a.rs/s` become `f:src%2Fa.rs/s`, if the run has this scope. A step of a group or an included file
/// needs no key: `group/s` becomes `group~1/s`, if the run has a single such scope. Other text is returned unchanged.
///
/// # Errors
/// The text is ambiguous; the message lists the candidates.
async fn with_encoded_key(store: &dyn Store, run: &RunId, text: &str) -> Result<String, Error> {
    let has = |scopes: &BTreeSet<ScopePath>, text: &str| {
        StepRef::parse(text).scope.is_some_and(|scope| scopes.contains(&scope))
    };
    let scopes = if text.contains([':', '/']) { store.scopes(run).await? } else { BTreeSet::new() };
    if scopes.is_empty() || has(&scopes, text) {
        return Ok(text.to_owned());
    }
    let is_step = |rest: &str| rest.strip_prefix('/').is_some_and(|step| StepId::new(step).is_ok());
    let meant = matches(&scopes, text, |rest| rest.is_empty() || is_step(rest));
    let spelled = |(scope, rest): &(&ScopePath, &str)| match rest.strip_prefix('/') {
        Some(step) => step_on(scope, step),
        None => scope.to_string(),
    };
    let found: BTreeSet<String> = meant.iter().map(spelled).collect();
    match found.len() {
        0 => Ok(text.to_owned()),
        1 => Ok(found.into_iter().collect()),
        _ => {
            let names = names(store, run).await;
            let found: Vec<String> = found.iter().map(|one| names.plain(one)).collect();
            Err(Error::usage(
                format!("`{}` matches several scopes: {}", shown(text), few(&found)),
                "name one of them in full",
            ))
        }
    }
}

/// Returns the scopes whose path begins `text`, with the rest of it, if the rest is accepted. Paths with the
/// fewest omitted keys and passes are preferred.
fn matches<'b, 't>(
    scopes: &'b BTreeSet<ScopePath>,
    text: &'t str,
    accepts: impl Fn(&str) -> bool,
) -> Vec<(&'b ScopePath, &'t str)> {
    let each = scopes.iter().filter(|scope| !scope.is_main());
    let all: Vec<_> = each
        .flat_map(|scope| {
            after_path(scope, text).into_iter().map(move |(omitted, rest)| (omitted, scope, rest))
        })
        .filter(|(_, _, rest)| accepts(rest))
        .collect();
    let least = all.iter().map(|(omitted, ..)| *omitted).min();
    let mut best: Vec<_> = all
        .into_iter()
        .filter(|(omitted, ..)| Some(*omitted) == least)
        .map(|(_, scope, rest)| (scope, rest))
        .collect();
    best.dedup();
    best
}

/// Returns what follows the path of a scope in `text`, with the number of omitted keys and passes. In each part of
/// the path, the key may be encoded, unencoded, after a slash, or omitted.
fn after_path<'t>(scope: &ScopePath, text: &'t str) -> Vec<(usize, &'t str)> {
    let Some(above) = scope.parent() else { return vec![(0, text)] };
    let with_key = with_key(scope);
    let without_key = scope.opened_by().map(|(step, _)| step.to_string());
    let spellings = with_key.iter().map(|whole| (0, whole)).chain(without_key.iter().map(|part| (1, part)));
    let mut found = Vec::new();
    for (omitted, rest) in below_path(&above, text) {
        let stripped = spellings.clone().filter_map(|(fewer, spelling)| {
            let rest = rest.strip_prefix(spelling.as_str())?;
            (rest.is_empty() || rest.starts_with('/')).then_some((omitted + fewer, rest))
        });
        found.extend(stripped);
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns what follows the path of a scope in `text`, without the slash between.
fn below_path<'t>(scope: &ScopePath, text: &'t str) -> impl Iterator<Item = (usize, &'t str)> {
    let slash = if scope.is_main() { "" } else { "/" };
    after_path(scope, text)
        .into_iter()
        .filter_map(move |(omitted, rest)| Some((omitted, rest.strip_prefix(slash)?)))
}

/// Returns the spellings of the last part of a scope path, with its key.
fn with_key(scope: &ScopePath) -> Vec<String> {
    let Some((step, key)) = scope.opened_by() else { return Vec::new() };
    let last = scope.as_str().rsplit('/').next().unwrap_or_default();
    let of_hooks = before_hooks(step.as_str());
    let stems = [step.as_str()].into_iter().chain(of_hooks);
    let spelled = stems.flat_map(|stem| [format!("{stem}:{key}"), format!("{stem}/{key}")]);
    [last.to_owned(), readable(last).into_owned()].into_iter().chain(spelled).collect()
}

/// Returns whether `text` is a path of this scope that names its last key.
pub(crate) fn is_scope(scope: &ScopePath, text: &str) -> bool {
    let with_key = with_key(scope);
    let above = scope.parent();
    above.is_some_and(|above| {
        below_path(&above, text).any(|(_, rest)| with_key.iter().any(|last| last == rest))
    })
}

/// Returns whether `text` is a path of this step.
pub(crate) fn is_step(scope: &ScopePath, step: &str, text: &str) -> bool {
    below_path(scope, text).any(|(_, rest)| rest == step)
}

/// Applies [`encoded`] to given values.
pub(crate) async fn encode(
    store: &dyn Store,
    run: &RunId,
    given: impl IntoIterator<Item = &mut String>,
) -> Result<(), Error> {
    for text in given {
        *text = encoded(store, run, text).await?;
    }
    Ok(())
}

/// Returns a step in a scope in the syntax of [`StepRef::parse`].
pub(crate) fn step_on(scope: &ScopePath, step: &str) -> String {
    if scope.is_main() { step.to_owned() } else { format!("{}/{step}", scope.readable()) }
}

/// A step as named by the user: `STEP` in any scope, `SCOPE/STEP` in one scope, or `SCOPE` with all its
/// steps and nested scopes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepRef {
    pub(crate) scope: Option<ScopePath>,
    pub(crate) step: Option<String>,
}

impl StepRef {
    /// Parses a reference; text that is not a scope counts as a step.
    pub(crate) fn parse(text: &str) -> Self {
        let scope =
            |text: &str| ScopePath::new(text).ok().filter(|_| text.contains([':', '~']) || text == "main");
        if let Some((left, step)) = text.rsplit_once('/').filter(|(_, step)| !step.contains([':', '~']))
            && let Some(scope) = scope(left)
        {
            return Self { scope: Some(scope), step: Some(step.to_owned()) };
        }
        match scope(text).filter(|scope| !scope.is_main()) {
            Some(scope) => Self { scope: Some(scope), step: None },
            None => Self { scope: None, step: Some(text.to_owned()) },
        }
    }

    /// Returns whether the reference matches a step in a scope.
    pub(crate) fn is(&self, scope: &ScopePath, step: &str) -> bool {
        let mut around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
        let on = match (&self.scope, &self.step) {
            (None, _) => true,
            (Some(wanted), Some(_)) => scope == wanted,
            (Some(wanted), None) => around.any(|above| above == *wanted),
        };
        on && self.step.as_ref().is_none_or(|wanted| wanted == step)
    }
}

/// Creates the error for a missing step; if other scopes have the step, lists them. The hint names the command
/// that lists the steps of the named scope.
///
/// # Errors
/// The store cannot be read.
pub(crate) async fn no_step(store: &dyn Store, run: &RunId, named: &StepRef) -> Result<Error, StoreError> {
    if let (None, Some(step)) = (&named.scope, &named.step) {
        let scan = Scan { step: Some(step.clone()), ..Scan::of(run) };
        let page = store.scan(&scan).await?;
        let about = page.records.iter().map(Record::header).filter(|header| !header.scope.is_main());
        let names = names(store, run).await;
        let on: BTreeSet<String> = about.map(|header| names.called(&header.scope, step)).collect();
        if !on.is_empty() {
            let on: Vec<String> = on.into_iter().collect();
            let hint = format!("the step is in other scopes: name one of {}", few(&on));
            return Ok(Error::not_found(format!("step `{step}` in the main scope of run {run}"), hint));
        }
        let scopes = store.scopes(run).await?.into_iter();
        let is_item = |path: &ScopePath| path.opened_by().is_some_and(|(_, key)| key == *step);
        let items: Vec<String> = scopes.filter(is_item).map(|path| quoted(&names.path(&path))).collect();
        if !items.is_empty() {
            let hint = format!("the key of an item needs its step: name {}", few(&items));
            return Ok(Error::not_found(format!("step `{step}` in run {run}"), hint));
        }
    }
    let step = named.step.as_deref().unwrap_or_default();
    let Some(path) = named.scope.as_ref().filter(|path| !path.is_main()) else {
        let hint = format!("`waypost show {run}` lists the steps");
        return Ok(Error::not_found(format!("step `{step}` in run {run}"), hint));
    };
    let scope = names(store, run).await.path(path);
    Ok(match store.scopes(run).await?.contains(path) {
        true => Error::not_found(
            format!("step `{step}` in scope `{scope}` of run {run}"),
            format!("`waypost show {run} --step {}` lists the steps", quoted(&scope)),
        ),
        false => no_scope(run, path.as_str()),
    })
}

/// Lists the first of these names.
fn few(names: &[String]) -> String {
    let more = (names.len() > CANDIDATES_MAX).then_some("...");
    names.iter().map(String::as_str).take(CANDIDATES_MAX).chain(more).collect::<Vec<_>>().join(", ")
}

/// Creates the error for a path that means no scope, or several.
fn no_single_scope(run: &RunId, path: &str) -> Error {
    let hint = format!("`waypost checkpoints {run}` lists the scopes");
    Error::usage(format!("`{}` does not name a single scope of run {run}", shown(path)), hint)
}

/// Creates the error for a missing scope.
pub(crate) fn no_scope(run: &RunId, scope: &str) -> Error {
    let hint = format!("`waypost checkpoints {run}` lists the scopes");
    Error::not_found(format!("scope `{}` in run {run}", shown(scope)), hint)
}

/// The run to use if none is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Default {
    /// The newest.
    Newest,
    /// The newest resumable run.
    NewestResumable,
    /// The newest run under way.
    NewestLive,
    /// The only run.
    Only,
}

/// Returns the resumable statuses.
pub(crate) fn resumable_statuses() -> BTreeSet<RunStatus> {
    use RunStatus::{Failed, InDoubt, Interrupted, Queued, Waiting};
    let statuses = BTreeSet::from([Failed, InDoubt, Interrupted, Queued, Waiting]);
    debug_assert!(statuses.iter().all(|status| status.is_resumable()));
    statuses
}

/// Returns the statuses of runs that have not ended.
pub(crate) fn unfinished_statuses() -> BTreeSet<RunStatus> {
    resumable_statuses().into_iter().chain([RunStatus::Running]).collect()
}

/// Finds a run by its name, by a prefix of the name, or the newest.
///
/// # Errors
/// [`Error::NotFound`]. [`Error::Ambiguous`] lists the candidates. [`Error::Usage`]: the name is empty.
pub(crate) async fn find(store: &dyn Store, given: Option<&str>, default: Default) -> Result<RunId, Error> {
    find_among(store, given, default, &BTreeSet::new()).await
}

/// Finds a run as [`find`] does. For a workflow, a file or a step in place of a run, the error lists the runs with
/// these statuses, or all.
async fn find_among(
    store: &dyn Store,
    given: Option<&str>,
    default: Default,
    qualifying: &BTreeSet<RunStatus>,
) -> Result<RunId, Error> {
    let Some(text) = given.filter(|text| *text != "@") else { return newest(store, default).await };
    if text.is_empty() {
        // An empty prefix matches every run.
        return Err(Error::usage(
            "the name of the run is empty",
            "name a run by name or prefix; `@` is the newest run",
        ));
    }
    if let Ok(id) = RunId::new(text) {
        // The run exists; the command reports its other errors.
        if is_there(store, &id).await.unwrap_or(true) {
            return Ok(id);
        }
        if let Some(lost) = lost(store, text).await {
            return Err(lost);
        }
    }
    let query = RunQuery { prefix: Some(text.to_owned()), limit: CANDIDATES_MAX + 1, ..RunQuery::default() };
    let page = store.runs(&query).await?;
    let damaged = page.damaged.into_iter().map(|run| run.run);
    let mut found: Vec<RunId> = page.runs.into_iter().map(|run| run.run).chain(damaged).collect();
    match found.len() {
        0 => Err(match lost(store, text).await {
            Some(lost) => lost,
            None => runs_of(store, text, qualifying).await?.unwrap_or_else(|| no_run(text)),
        }),
        1 => match lost(store, found[0].as_str()).await {
            Some(lost) => Err(lost),
            None => Ok(found.remove(0)),
        },
        count => {
            let candidates = found.iter().take(CANDIDATES_MAX).map(ToString::to_string).collect();
            Err(Error::Ambiguous { given: text.to_owned(), candidates, more: count > CANDIDATES_MAX })
        }
    }
}

/// Finds a run as [`find`] does, but does not complete a trailing number: for commands that end a run without
/// a question.
///
/// A second `delete nightly-1` must not delete `nightly-10`.
///
/// # Errors
/// Those of [`find`]. [`Error::NotFound`], too, if the only match continues a trailing digit with further
/// digits.
pub(crate) async fn find_unasked(
    store: &dyn Store,
    given: Option<&str>,
    qualifying: BTreeSet<RunStatus>,
) -> Result<RunId, Error> {
    let found = find_to_decide(store, given, qualifying, "unfinished run").await;
    let text = given.unwrap_or_default();
    match &found {
        Ok(run) | Err(Error::Lost { run, .. }) if cuts_number(run.as_str(), text) => {
            let hint = format!("this command accepts no prefix that ends in a digit: did you mean `{run}`?");
            Err(Error::not_found(format!("run `{text}`"), hint))
        }
        _ => found,
    }
}

/// Returns whether `name` is `text` plus further digits of its trailing number.
fn cuts_number(name: &str, text: &str) -> bool {
    let rest = name.strip_prefix(text).unwrap_or_default();
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    !rest.is_empty()
        && rest.bytes().all(|byte| is_digit(&byte))
        && text.as_bytes().last().is_some_and(is_digit)
}

/// Finds the run for a command that decides or removes: `@`, or no name, must be unambiguous. `what` names the runs
/// that qualify.
///
/// # Errors
/// Those of [`find`]. [`Error::Usage`]: several runs qualify. [`Error::NotFound`]: no run qualifies.
pub(crate) async fn find_to_decide(
    store: &dyn Store,
    given: Option<&str>,
    qualifying: BTreeSet<RunStatus>,
    what: &str,
) -> Result<RunId, Error> {
    match given {
        None | Some("@") => {
            only(here_first(store, qualifying).await?.into_iter().map(|run| run.run).collect(), what)
        }
        Some(_) => find_among(store, given, Default::Newest, &qualifying).await,
    }
}

/// Returns the only candidate for `@`, or for an omitted run.
///
/// # Errors
/// As for [`find_to_decide`].
pub(crate) fn only(mut candidates: Vec<RunId>, what: &str) -> Result<RunId, Error> {
    match candidates.len() {
        0 => Err(Error::not_found(what, "`waypost list` lists the runs")),
        1 => Ok(candidates.remove(0)),
        count => {
            let names = listed(&candidates);
            Err(Error::usage(format!("cannot choose a run: {count} runs qualify: {names}"), "name the run"))
        }
    }
}

/// Lists the names of the first runs.
fn listed(runs: &[RunId]) -> String {
    let mut names: Vec<_> = runs.iter().take(CANDIDATES_MAX).map(RunId::as_str).collect();
    names.extend((runs.len() > CANDIDATES_MAX).then_some("..."));
    names.join(", ")
}

/// Creates the error of a command that needs the name of a run; lists the candidates.
pub(crate) fn unnamed(action: &str, candidates: &[RunId]) -> Error {
    let message = format!("cannot {action}: no run is named");
    match candidates {
        [] => Error::usage(message, "`waypost list` lists the runs"),
        _ => Error::usage(message, format!("name one of: {}", listed(candidates))),
    }
}

/// Lists the newest runs with these statuses, or all: of workflow files in the current folder or below, else
/// of the whole store.
pub(crate) async fn here_first(
    store: &dyn Store,
    statuses: BTreeSet<RunStatus>,
) -> Result<Vec<RunSummary>, Error> {
    let query = RunQuery { statuses, limit: PAGE_ITEMS_MAX, ..RunQuery::default() };
    let runs = store.runs(&query).await?.runs;
    let here = std::env::current_dir().and_then(|folder| folder.canonicalize()).ok();
    let is_here = |run: &&RunSummary| {
        let file = run.path.as_deref().map(|path| store_location::from_home(store.home(), path));
        file.zip(here.as_deref()).is_some_and(|(file, here)| file.starts_with(here))
    };
    let below: Vec<RunSummary> = runs.iter().filter(is_here).cloned().collect();
    Ok(if below.is_empty() { runs } else { below })
}

async fn newest(store: &dyn Store, default: Default) -> Result<RunId, Error> {
    let statuses = match default {
        Default::Newest | Default::Only => BTreeSet::new(),
        Default::NewestResumable => resumable_statuses(),
        Default::NewestLive => BTreeSet::from([RunStatus::Running]),
    };
    let found = here_first(store, statuses).await?;
    let what = match default {
        Default::Only => return only(found.into_iter().map(|run| run.run).collect(), "run"),
        Default::Newest => "run in the store",
        Default::NewestResumable => "resumable run",
        Default::NewestLive => "run under way",
    };
    for found in found {
        // A resume would take the run from the workers.
        if default != Default::NewestResumable || !is_for_workers(store, &found.run).await? {
            return Ok(found.run);
        }
    }
    Err(Error::not_found(what, "start one: `waypost run FILE`"))
}

/// Returns whether the store knows a run, sound or damaged; a lost run is not known.
pub(crate) async fn is_there(store: &dyn Store, run: &RunId) -> Result<bool, StoreError> {
    match store.run(run).await {
        Err(StoreError::NotFound { .. }) => Ok(false),
        Err(StoreError::Damaged { damage, older: None }) if log_with_record(&damage).is_some() => Ok(false),
        Ok(_) | Err(StoreError::Damaged { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns the error for a lost run, if its log remains and the store does not know the run.
///
/// The store is queried after the log: a run being created gets its log last.
pub(crate) async fn lost(store: &dyn Store, name: &str) -> Option<Error> {
    let run = RunId::new(name).ok()?;
    let folder = store.folder(&run)?;
    let is_lost = store_location::has_log(&folder) && !is_there(store, &run).await.unwrap_or(true);
    is_lost.then_some(Error::Lost { run, folder })
}

/// The hint about the name of a missing run, if nothing else has this name.
pub(crate) const LISTS_RUNS: &str = "`waypost list` lists the runs";

/// Creates the error for an unknown run.
pub(crate) fn no_run(name: &str) -> Error {
    let hint = match name {
        "latest" | "last" | "newest" => "`@` is the newest run; `waypost list` lists the runs",
        _ => LISTS_RUNS,
    };
    Error::not_found(format!("run `{name}`"), hint)
}

/// Creates the error for the name of a workflow, of a file or of a step in place of a run, with the newest runs that
/// have these statuses, or of all.
async fn runs_of(
    store: &dyn Store,
    text: &str,
    statuses: &BTreeSet<RunStatus>,
) -> Result<Option<Error>, StoreError> {
    let newest = RunQuery { limit: CANDIDATES_MAX, statuses: statuses.clone(), ..RunQuery::default() };
    let of = |workflow: &str| RunQuery { workflow: Some(workflow.to_owned()), ..newest.clone() };
    let file = store_location::relative(store, Path::new(text));
    let mut queries = vec![("workflow", of(text))];
    queries.extend(file.map(|path| ("file", RunQuery { path: Some(path), ..newest.clone() })));
    // The steps of the newest run stand for all: other records are not read.
    let last = store.runs(&RunQuery { limit: 1, ..newest.clone() }).await?.runs.pop();
    if let Some(last) = last
        && let Ok(entry) = store.run(&last.run).await
        && entry.record.record().definition.steps.iter().any(|step| step.id.as_str() == text)
    {
        queries.push(("step", of(&last.workflow)));
    }
    for (what, query) in queries {
        let page = store.runs(&query).await?;
        let more = if page.next.is_some() { ", ..." } else { "" };
        let runs: Vec<String> = page.runs.iter().map(|run| run.run.to_string()).collect();
        if !runs.is_empty() {
            let hint = format!("`{}` is a {what} of these runs: {}{more}", shown(text), runs.join(", "));
            return Ok(Some(Error::not_found(format!("run `{}`", shown(text)), hint)));
        }
    }
    Ok(None)
}

/// Returns the reference of a damaged record.
pub(crate) fn damaged_reference(run: &RunId, damage: &Damage) -> CheckpointRef {
    CheckpointRef { run: run.clone(), scope: damage.scope.clone(), seq: damage.seq }
}

#[cfg(test)]
mod tests {
    use waypost::ScopePath;

    use super::{Checkpoint, Reference, cuts_number};

    fn parsed(text: &str) -> String {
        match Reference::parse(text) {
            Ok(Reference { run, checkpoint }) => {
                let at = checkpoint.map(|checkpoint| match checkpoint {
                    Checkpoint::Number(scope, seq) => format!(" {scope} {seq}"),
                    Checkpoint::Plain(scope, seq) => format!(" plain {scope} {seq}"),
                    Checkpoint::Label(label) => format!(" labelled {label}"),
                });
                let at = at.unwrap_or_default();
                format!("{}{at}", run.as_deref().unwrap_or("newest"))
            }
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn a_number_is_no_beginning_of_another() {
        for (name, text) in [("nightly-10", "nightly-1"), ("r-20261120", "r-2026")] {
            assert!(cuts_number(name, text), "{text}");
        }
        let beginnings =
            [("nightly-1", "nightly-1"), ("nightly-1m2s", "nightly-1"), ("nightly-10", "nightly-")];
        for (name, text) in beginnings.into_iter().chain([("r-1", "@"), ("r-1-2", "r-1")]) {
            assert!(!cuts_number(name, text), "{text}");
        }
    }

    #[test]
    fn references_name_runs_and_checkpoints() {
        assert_eq!(parsed("r-1"), "r-1");
        assert_eq!(parsed("@"), "newest");
        assert_eq!(parsed("@@3"), "newest main 3");
        assert_eq!(parsed("r-1@3"), "r-1 main 3");
        assert_eq!(parsed("r-1/each:eu%40x@3"), "r-1 each:eu%40x 3");
        assert_eq!(parsed("r-1/a:b/c:d@3"), "r-1 a:b/c:d 3");
        assert_eq!(parsed("r-1/f:src/a.rs@3"), "r-1 plain f:src/a.rs 3");
        assert_eq!(parsed("r-1/group@3"), "r-1 plain group 3");
        assert_eq!(parsed("r-1@before-load"), "r-1 labelled before-load");
        assert_eq!(parsed("@@v1.2"), "newest labelled v1.2");
        assert!(ScopePath::new("each:eu%40x").is_ok());
        for wrong in ["r-1@", "r-1@0", "r-1/main@x", "@3", "@x", "r-1/main", "/main@3"] {
            assert!(parsed(wrong).starts_with("error: "), "{wrong}: {}", parsed(wrong));
        }
    }
}
